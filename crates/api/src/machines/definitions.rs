//! Definitions: machines, their versions and states, and the plan of a change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Time;

/// All machines.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Machines {
    /// The machines.
    #[serde(rename = "state-machines")]
    pub state_machines: Vec<MachineEntry>,
}

/// A machine in a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineName))]
pub struct MachineEntry {
    /// Its name.
    pub name: String,
    /// The path of its labels.
    pub labels: String,
}

/// A machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineView))]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// The active version of its definition.
    pub version: u64,
    /// The token that applied this version, or `file`. The machine may do what this token could do then, even after the token was
    /// revoked.
    #[serde(default)]
    pub by: String,
    /// Its states in order.
    pub states: Vec<MachineState>,
    /// Labels by state.
    pub labels: BTreeMap<String, u64>,
    /// Labels that do not rest, by status.
    pub busy: BTreeMap<String, u64>,
    /// Labels that stay on an earlier version (`on_apply: keep`).
    #[serde(default)]
    pub kept: Vec<KeptVersion>,
    /// Labels at gates that are evaluated on entry only, by gate: these are not evaluated again.
    pub stuck: BTreeMap<String, u64>,
    /// Limits of its states that are passed.
    #[serde(default)]
    pub alerts: Vec<PassedLimit>,
    /// The limits of addresses (`limits`), and how much they are used.
    #[serde(default)]
    pub limits: Vec<LimitUse>,
}

/// The use of the limit of an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LimitUse {
    /// The address: scheme, host and port.
    pub target: String,
    /// Labels that wait until the limit allows their attempt.
    pub waiting: u64,
    /// Attempts in progress.
    pub in_progress: u64,
}

/// Labels that stay on an earlier version of the definition until they leave their state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeptVersion {
    /// The version.
    pub version: u64,
    /// The number of labels.
    pub labels: u64,
}

/// A limit of a state that is passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PassedLimit {
    /// The state.
    pub state: String,
    /// `labels`: how many are in it. `age`: for how long the oldest is, in seconds.
    pub limit: String,
    /// The current number.
    pub value: u64,
    /// The most that the definition allows.
    pub most: u64,
}

/// A state of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MachineState {
    /// `gate`, `action` or `end`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The states that can follow it.
    pub next: Vec<String>,
    /// When its gate is evaluated.
    pub triggers: Vec<String>,
}

/// The changes that a definition would make.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachinePlan))]
pub struct Plan {
    /// Its id, with which it can be applied for an hour.
    pub plan: String,
    /// The version that it is computed from; 0 for a new machine.
    pub version: u64,
    /// States by what happens to them.
    pub states: StateChanges,
    /// Other settings that differ: `timezone`, `hosts`, `feeds.NAME`, `inputs.TOPIC`, `webhooks`.
    pub changed: Vec<String>,
    /// Labels in removed states.
    pub labels: BTreeMap<String, u64>,
    /// Labels that continue as soon as it is applied, because the kind of their state changes: a gate becomes an action, an
    /// end gets a next state.
    pub starts: u64,
    /// Labels that would move if their gate were evaluated now.
    pub would_move: u64,
    /// Labels that depend on a feed.
    pub needs_feed: u64,
    /// Labels that were checked.
    pub checked: u64,
    /// Warnings about the definition.
    pub warnings: Vec<String>,
}

/// States that a plan changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StateChanges {
    /// States that are new.
    pub added: Vec<String>,
    /// States that differ.
    pub changed: Vec<String>,
    /// States that are removed.
    pub removed: Vec<String>,
}

/// Which plan to apply.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineApply))]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The id of the plan.
    pub plan: String,
    /// The new states of labels in removed states.
    #[serde(default)]
    pub map: BTreeMap<String, String>,
}

/// The version that was applied.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineApplied))]
pub struct Applied {
    /// Its number.
    pub version: u64,
    /// Whether it is a new version: a definition with the same content makes none.
    pub changed: bool,
    /// Labels that stay on an earlier version (`on_apply: keep`).
    #[serde(default)]
    pub kept: Vec<KeptVersion>,
}

/// The versions of a machine, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineVersions))]
pub struct Versions {
    /// The versions.
    pub versions: Vec<Version>,
}

/// A version of a machine's definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineVersion))]
pub struct Version {
    /// When it was applied.
    pub at: Time,
    /// The token that it was applied with.
    pub by: String,
    /// Whether it is active.
    pub current: bool,
    /// The hash of the definition.
    pub hash: String,
    /// Its number.
    pub version: u64,
}

/// A version of a machine's definition with its text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineVersionSource))]
pub struct VersionSource {
    /// When it was applied.
    pub at: Time,
    /// The token that it was applied with.
    pub by: String,
    /// The hash of the definition.
    pub hash: String,
    /// The definition, as YAML.
    pub source: String,
    /// Its number.
    pub version: u64,
}
