//! Whether it works: readiness, invariants, the edge, metrics.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use signalbox_api::health::PacemakerList;

pub use signalbox_api::health::{Check, Finding, Pacemaker, Ready};

use crate::{Client, Error, More, with_query};

/// The calls about health.
#[derive(Debug, Clone, Copy)]
pub struct Health<'a>(pub(crate) &'a Client);

/// The status of one nginx.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Edge {
    /// Whether it is connected to its replica.
    pub connected: bool,
    /// Whether what it serves may be old.
    pub stale: bool,
    /// Why it does not accept the table.
    pub alarm: Option<String>,
    /// The table's serial.
    pub serial: u64,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

impl Health<'_> {
    /// The pacemakers that serve.
    ///
    /// # Errors
    /// As every call; an older version has no such list (404).
    pub async fn pacemakers(&self) -> Result<Vec<Pacemaker>, Error> {
        let list: PacemakerList = self.0.get("/pacemakers").await?;
        Ok(list.pacemakers)
    }

    /// Checks the consistency of the stored data. It checks every object, which may take minutes, and a few thousand
    /// labels; with its `next` as `cursor` it checks the next labels.
    ///
    /// # Errors
    /// As every call; `invalid_cursor`.
    pub async fn check(&self, cursor: Option<&str>) -> Result<Check, Error> {
        self.0.get(&with_query("/check", &[("cursor", cursor)])).await
    }

    /// Which servers the pacemaker reaches, whether it is ready or not.
    pub async fn ready(&self) -> Result<Ready, Error> {
        let answer = self.0.transport.call_any("/health/ready").await?;
        serde_json::from_slice(&answer.body)
            .map_err(|source| Error::Unreadable { url: self.0.transport.address("/health/ready"), source })
    }

    /// The status of nginx; only the admin listener serves it.
    pub async fn edge(&self) -> Result<Edge, Error> {
        self.0.get("/edge/status").await
    }

    /// The metrics of all parts, as Prometheus reads them.
    pub async fn metrics(&self) -> Result<String, Error> {
        self.0.text("/metrics").await
    }

    /// The version of the pacemaker, from its API's description.
    pub async fn version(&self) -> Result<String, Error> {
        let document: Value = self.0.get("/openapi.json").await?;
        Ok(document["info"]["version"].as_str().unwrap_or_default().to_owned())
    }
}
