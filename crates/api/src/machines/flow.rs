//! The flow of labels through a machine: counts, times and conversions.

use serde::{Deserialize, Serialize};

use crate::Time;

/// How labels flowed through a machine in a period.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineFlow))]
pub struct Flow {
    /// The beginning, a whole hour.
    pub since: Time,
    /// The end.
    pub until: Time,
    /// Transitions in the period.
    pub transitions: u64,
    /// Transitions per second, on average.
    pub per_second: f64,
    /// By state, in the order of the definition.
    pub states: Vec<StateFlow>,
    /// By the states before and after, the most frequent first.
    pub edges: Vec<EdgeFlow>,
    /// How many labels reached a state from another, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub funnel: Option<Funnel>,
}

/// The flow through a state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StateFlow {
    /// Its name.
    pub state: String,
    /// Entries in the period.
    pub entered: u64,
    /// Labels that left it in the period.
    pub left: u64,
    /// Median of the time that these were in it, seconds.
    pub p50_seconds: Option<f64>,
    /// 95th percentile of that time, seconds.
    pub p95_seconds: Option<f64>,
}

/// Transitions from a state to another.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EdgeFlow {
    /// The state before.
    pub from: String,
    /// The state after.
    pub to: String,
    /// How many in the period.
    pub transitions: u64,
}

/// Of the entries into a state in the period, how many reached another state until now.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Funnel {
    /// The state that was entered.
    pub from: String,
    /// The state that is to be reached.
    pub to: String,
    /// Entries.
    pub entered: u64,
    /// Entries after which it was reached.
    pub reached: u64,
    /// By the version of the definition under which `from` was entered.
    pub versions: Vec<VersionFunnel>,
}

/// A funnel under one version of the definition.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct VersionFunnel {
    /// The version.
    pub version: u64,
    /// Entries.
    pub entered: u64,
    /// Entries after which it was reached.
    pub reached: u64,
}
