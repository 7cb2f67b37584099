//! Readiness, the pacemakers that serve, and the consistency check.

use serde::{Deserialize, Serialize};

/// The process answers. Clients of the event bus expect an object without members.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Live {}

/// Which servers answer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Ready {
    /// Whether changes are possible.
    pub ready: bool,
    /// The routes primary.
    pub routes: bool,
    /// The stats Redis.
    pub stats: bool,
    /// The fabric.
    pub fabric: bool,
    /// The fabric and the routes primary have agreed on a table, so changes are possible.
    pub initialized: bool,
}

/// A pacemaker that serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PacemakerView))]
pub struct Pacemaker {
    /// The name of its node; two processes of one name are two members of the list.
    pub node: String,
    /// Its version.
    #[cfg_attr(feature = "schema", schema(example = "0.1.0"))]
    pub version: String,
    /// Milliseconds since its last report; it reports every five seconds.
    pub age_ms: u64,
}

/// All pacemakers that serve.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PacemakerList {
    /// The pacemakers.
    pub pacemakers: Vec<Pacemaker>,
}

/// The result of a consistency check.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Check {
    /// Whether nothing was found.
    pub consistent: bool,
    /// The subsystems whose data was checked.
    #[cfg_attr(feature = "schema", schema(example = json!(["bus", "queues", "sequencer", "machines"])))]
    pub subsystems: Vec<String>,
    /// The violated invariants.
    pub findings: Vec<Finding>,
    /// Labels that were checked.
    pub checked: u64,
    /// The cursor of the labels that remain, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = FindingView))]
pub struct Finding {
    /// The subsystem that owns the data.
    #[cfg_attr(feature = "schema", schema(example = "sequencer"))]
    pub subsystem: String,
    /// The invariant that does not hold.
    #[cfg_attr(feature = "schema", schema(example = "O6"))]
    pub predicate: String,
    /// The shard of the fabric.
    pub shard: usize,
    /// The object, queue, subscriber or label that it concerns.
    #[cfg_attr(feature = "schema", schema(example = "work:1"))]
    pub name: String,
    /// The problem.
    pub what: String,
}
