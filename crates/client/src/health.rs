//! Whether it works: readiness, invariants, the edge, metrics.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Client, Error, More, with_query};

/// The calls of this room.
#[derive(Debug, Clone, Copy)]
pub struct Health<'a>(pub(crate) &'a Client);

/// Whether what must hold of events, queues and objects does hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Check {
    /// Whether nothing was found.
    pub consistent: bool,
    /// The subsystems that were checked.
    pub subsystems: Vec<String>,
    /// What is broken.
    pub findings: Vec<Finding>,
    /// Labels that were checked.
    #[serde(default)]
    pub checked: u64,
    /// The cursor of the labels that remain, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// Something that is not as it must be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Finding {
    /// The subsystem that owns the data.
    pub subsystem: String,
    /// Which rule.
    pub predicate: String,
    /// In which shard of the fabric.
    pub shard: u64,
    /// What it is about.
    pub name: String,
    /// What is wrong.
    pub what: String,
}

/// What one nginx says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Edge {
    /// Whether it is connected to its replica.
    pub connected: bool,
    /// Whether what it serves may be old.
    pub stale: bool,
    /// Why it does not believe the table.
    pub alarm: Option<String>,
    /// The table's serial.
    pub serial: u64,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A pacemaker that serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pacemaker {
    /// Its node's name.
    pub node: String,
    /// What it is.
    pub version: String,
    /// Milliseconds since it said that it serves.
    pub age_ms: u64,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

#[derive(Deserialize)]
struct PacemakerList {
    pacemakers: Vec<Pacemaker>,
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

    /// Whether what must hold does hold. It looks at every object and may take minutes; of labels it looks at a few thousand,
    /// and with its `next` as `cursor` at the next ones.
    ///
    /// # Errors
    /// As every call; `invalid_cursor`.
    pub async fn check(&self, cursor: Option<&str>) -> Result<Check, Error> {
        self.0.get(&with_query("/check", &[("cursor", cursor)])).await
    }

    /// Which servers the pacemaker reaches: an object of names and `true` or `false`, whether it is ready or not.
    ///
    /// # Errors
    /// As every call.
    pub async fn ready(&self) -> Result<Value, Error> {
        let answer = self.0.transport.call_any("/health/ready").await?;
        serde_json::from_slice(&answer.body)
            .map_err(|source| Error::Unreadable { url: self.0.transport.address("/health/ready"), source })
    }

    /// What nginx says of itself; only the admin listener answers it.
    ///
    /// # Errors
    /// As every call.
    pub async fn edge(&self) -> Result<Edge, Error> {
        self.0.get("/edge/status").await
    }

    /// The metrics of all parts, as Prometheus reads them.
    ///
    /// # Errors
    /// As every call.
    pub async fn metrics(&self) -> Result<String, Error> {
        let answer = self.0.transport.call("GET", "/metrics", None).await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// The version of the pacemaker, from its API's description.
    ///
    /// # Errors
    /// As every call.
    pub async fn version(&self) -> Result<String, Error> {
        let document: Value = self.0.get("/openapi.json").await?;
        Ok(document["info"]["version"].as_str().unwrap_or_default().to_owned())
    }
}
