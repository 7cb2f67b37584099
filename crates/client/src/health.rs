//! Whether it works: readiness, invariants, and the edge.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use signalbox_api::health::*;

/// The status of one nginx, which only the admin listener serves, at `/edge/status`.
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
    pub more: Map<String, Value>,
}
