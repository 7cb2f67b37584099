//! Routers, and how far changes of the table have reached them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Which routers have the newest table.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ConvergenceView))]
pub struct Convergence {
    /// The table's serial.
    pub serial: u64,
    /// The newest token of its lineage.
    pub epoch: String,
    /// Whether every router that is waited for has acknowledged this serial. False without any router.
    pub converged: bool,
    /// Routers that stopped reporting and are not waited for.
    pub excluded: usize,
    /// The routers that reported in the last minute.
    pub routers: Vec<Router>,
}

/// A router that reported in the last minute.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RouterView))]
pub struct Router {
    /// The name of its node.
    pub node: String,
    /// The address of its admin listener.
    pub address: Option<String>,
    /// The serial that all of its workers have acknowledged.
    pub serial: u64,
    /// The epoch of the table that it follows.
    pub epoch: String,
    /// Changes that it has not seen yet; absent while it follows another table.
    pub behind_by: Option<u64>,
    /// Milliseconds since its last report. It reports every second.
    pub age_ms: u64,
    /// Whether it reports.
    pub state: Liveness,
    /// The time from a change by this pacemaker to the router's acknowledgement.
    pub propagation: Option<Propagation>,
    /// Why it rejects the table.
    pub alarm: Option<String>,
    /// The serial that each of its workers has acknowledged.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub workers: Value,
}

/// How a router is treated by the time since its last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// It reports.
    Live,
    /// It has not reported for three seconds, and is waited for.
    Silent,
    /// It has not reported for ten seconds, and is not waited for.
    Excluded,
}

/// Percentiles of a router's latest acknowledgements.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PropagationView))]
pub struct Propagation {
    /// The p50.
    pub p50_ms: f64,
    /// The p99.
    pub p99_ms: f64,
    /// The number of acknowledgements.
    pub samples: usize,
    /// All acknowledgements by duration.
    pub histogram: Vec<Bucket>,
}

/// A bucket of a histogram, with those of all buckets before it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PropagationBucket))]
pub struct Bucket {
    /// Its upper bound.
    pub le_ms: u64,
    /// The number of samples.
    pub count: usize,
}
