//! Probes whether a part works, not only runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use signalbox_store::{FabricRole, Options, Redis, Role, RoutesPrimaryRole, RoutesReplicaRole, StatsRole};

use crate::http::local_client;

/// The readiness probe of a part.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// The routes primary answers PING.
    RoutesPrimary(String),
    /// The routes replica is connected to the primary and synchronized.
    RoutesReplica(String),
    /// The statistics Redis answers PING.
    Stats(String),
    /// The fabric Redis answers PING.
    Fabric(String),
    /// A GET of the URL returns 2xx.
    Http(String),
    /// Running is enough.
    Running,
}

/// The time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Probe {
    /// Probes once.
    ///
    /// # Errors
    /// The problem, for operators.
    pub async fn check(&self) -> Result<(), String> {
        match self {
            Self::RoutesPrimary(url) => ping::<RoutesPrimaryRole>(url).await,
            Self::RoutesReplica(url) => linked(url).await,
            Self::Stats(url) => ping::<StatsRole>(url).await,
            Self::Fabric(url) => ping::<FabricRole>(url).await,
            Self::Http(url) => get(url).await.map(drop),
            Self::Running => Ok(()),
        }
    }
}

fn open<R: Role>(url: &str) -> Result<Redis<R>, String> {
    Redis::open(url, Options { response_timeout: TIMEOUT, connect_timeout: TIMEOUT }).map_err(chain)
}

async fn ping<R: Role>(url: &str) -> Result<(), String> {
    let pong: String = open::<R>(url)?.command("PING").query().await.map_err(chain)?;
    if pong == "PONG" { Ok(()) } else { Err(format!("PING answered {pong}")) }
}

async fn linked(url: &str) -> Result<(), String> {
    let redis = open::<RoutesReplicaRole>(url)?;
    let info: String = redis.command("INFO").arg("replication").query().await.map_err(chain)?;
    match info.lines().find_map(|line| line.strip_prefix("master_link_status:")) {
        Some("up") => Ok(()),
        Some(status) => Err(format!("the link to the routes primary is {status}")),
        None => Err("it is not a replica".to_owned()),
    }
}

/// A GET to a server of this machine.
pub(crate) async fn get(url: &str) -> Result<String, String> {
    let client = local_client(TIMEOUT).map_err(chain)?;
    let answer = client.get(url).send().await.map_err(chain)?;
    let status = answer.status();
    let text = answer.text().await.map_err(chain)?;
    if status.is_success() { Ok(text) } else { Err(format!("GET {url} answered {status}: {}", text.trim())) }
}

/// An error with all its causes, in one line.
fn chain(error: impl std::error::Error) -> String {
    let first: &dyn std::error::Error = &error;
    let all = std::iter::successors(Some(first), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
