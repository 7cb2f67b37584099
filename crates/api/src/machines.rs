//! State machines, their definitions, and their labels.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// Its states in order.
    pub states: Vec<MachineState>,
    /// Labels by state.
    pub labels: BTreeMap<String, u64>,
    /// Labels that do not rest, by status.
    pub busy: BTreeMap<String, u64>,
    /// Labels at gates that are evaluated on entry only, by gate: these are not evaluated again.
    pub stuck: BTreeMap<String, u64>,
    /// Limits of its states that are passed.
    #[serde(default)]
    pub alerts: Vec<PassedLimit>,
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

/// How labels flowed through a machine in a period.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineFlow))]
pub struct Flow {
    /// The beginning, a whole hour, RFC 3339.
    pub since: String,
    /// The end, RFC 3339.
    pub until: String,
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
#[derive(Debug, Clone, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct VersionFunnel {
    /// The version.
    pub version: u64,
    /// Entries.
    pub entered: u64,
    /// Entries after which it was reached.
    pub reached: u64,
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
#[derive(Debug, Clone, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// When it was applied, RFC 3339.
    pub at: String,
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
    /// When it was applied, RFC 3339.
    pub at: String,
    /// The token that it was applied with.
    pub by: String,
    /// The hash of the definition.
    pub hash: String,
    /// The definition, as YAML.
    pub source: String,
    /// Its number.
    pub version: u64,
}

/// A label.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelView))]
pub struct Label {
    /// Its name.
    pub name: String,
    /// Its metadata.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: Value,
    /// Its state.
    pub state: String,
    /// Its status in this state.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::label_status))]
    pub status: String,
    /// When it entered the state, RFC 3339.
    pub since: String,
    /// The state before.
    pub previous_state: Option<String>,
    /// Entries into states so far.
    pub visit: u64,
    /// Changes so far.
    pub revision: u64,
    /// How often the name was created.
    pub incarnation: u32,
    /// Whether an operator has suspended it.
    pub suspended: bool,
    /// Attempts of its action that were begun.
    pub attempts: u32,
    /// The last failure.
    pub error: Option<String>,
    /// When its action is retried, RFC 3339.
    pub next_retry: Option<String>,
}

/// A label after a change.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelChanged))]
pub struct Changed {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: String,
    /// Its status in this state.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::label_status))]
    pub status: String,
    /// When it entered the state, RFC 3339.
    pub since: String,
    /// Entries into states so far.
    pub visit: u64,
    /// Changes so far.
    pub revision: u64,
    /// Its metadata after the change; absent in the answer to a repeated request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Value>,
}

/// The moves of a label, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct History {
    /// The moves.
    pub history: Vec<Move>,
}

/// A move of a label.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = HistoryRow))]
pub struct Move {
    /// Entries into states so far.
    pub visit: u64,
    /// When, RFC 3339.
    pub at: String,
    /// Null for the first.
    pub from: Option<String>,
    /// Null if the label was deleted.
    pub to: Option<String>,
    /// Why it moved.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::move_cause))]
    pub cause: String,
    /// The trigger by which the gate was evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// The version of the definition.
    pub version: u64,
    /// The id of its event.
    pub event: u64,
}

/// A page of what happened to a label, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelActivity))]
pub struct Activity {
    /// Transitions, attempts, operations and changes of metadata.
    pub activity: Vec<ActivityLine>,
    /// The cursor of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Something that happened to a label. Members that do not apply to its kind are absent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ActivityLine {
    /// When, RFC 3339.
    pub at: String,
    /// The visit in which it happened, or that began with it.
    pub visit: u64,
    /// `move`, `attempt`, `operation` or `metadata`.
    pub kind: String,
    /// Of a move: the state before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Of a move: the state after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Of a move: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Of a move: details of the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// Of a move: the version of the definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Of a move: the id of its event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<u64>,
    /// Of an attempt: the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Of an attempt: its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Of an attempt: `done`, `failed`, `refused`, or `unknown` if the process that made it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Of an attempt: the status of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Of an attempt: how long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Of an attempt: the beginning of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Of an attempt: why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of an operation: its word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Of an operation or a change of metadata: the token, topic or state that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Of a change of metadata: the change, as JSON Merge Patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub change: Option<Value>,
    /// Of a change of metadata that is too large to be stored: its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
}

/// Metadata of a label.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelFacts))]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// An object. At most 64 KiB and 32 levels, after it is merged.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: Value,
}

/// One label of many.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelItem))]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Its metadata.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: Value,
    /// As the header of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Many labels.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelItems))]
#[serde(deny_unknown_fields)]
pub struct Items {
    /// Up to 1,000 labels.
    pub labels: Vec<Item>,
}

/// The results, in order: a change, or a problem.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelResults))]
pub struct Results {
    /// The result of each label.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub results: Vec<Value>,
}

/// A page of labels.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LabelPage {
    /// The labels. A page may be shorter than the limit although there is a next one.
    pub labels: Vec<LabelRow>,
    /// The path under which a label is created with POST.
    pub create: String,
    /// The cursor of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// How many labels match, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Whether `total` is all; otherwise there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_is_exact: Option<bool>,
}

/// A label in a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LabelRow {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: String,
    /// What it does there.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::label_status))]
    pub status: String,
    /// When it entered the state, RFC 3339.
    pub since: String,
    /// Whether an operator has suspended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// The last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Which labels are meant: those for which everything that is given holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LabelFilter {
    /// In this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// With this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::label_status))]
    pub status: Option<String>,
    /// Suspended, or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// Whose last failure contains this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// In their state for at least this long: `2h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than: Option<String>,
    /// In their state for less than this: `2h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub younger_than: Option<String>,
    /// With these values of metadata, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: BTreeMap<String, Value>,
}

/// An operation on a label.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LabelOperation {
    /// `retry`, `evaluate`, `skip`, `cancel`, `suspend`, `resume`, `move`, `set` or `delete`.
    pub operation: String,
    /// The state to move to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The metadata to merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Value>,
}

/// An operation on many labels.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// As for one label.
    pub operation: String,
    /// The state to move to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The metadata to merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Value>,
    /// Which labels. `{}` are all.
    pub filter: LabelFilter,
    /// Labels per second at most, 1 to 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
}

/// A task: an operation on many labels, or the deletion of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineTask))]
pub struct Task {
    /// Its id.
    pub id: String,
    /// The operation, or `delete_machine`.
    pub operation: String,
    /// For which labels.
    pub filter: LabelFilter,
    /// Labels per second at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// The token that it was started with.
    pub by: String,
    /// `running`, `done`, `canceled` or `failed`.
    pub state: String,
    /// When it was started, RFC 3339.
    pub created: String,
    /// When it last progressed, RFC 3339.
    pub updated: String,
    /// Labels of the machine when it was started.
    pub labels: u64,
    /// Labels that were examined.
    pub checked: u64,
    /// Labels that were changed.
    pub changed: u64,
    /// Labels that match and needed no change.
    pub unchanged: u64,
    /// Labels that could not be changed.
    pub failed: u64,
    /// The last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The tasks of a machine, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineTasks))]
pub struct Tasks {
    /// The tasks.
    pub tasks: Vec<Task>,
}

/// The assumed answer to an action: a status, or status and body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum AssumedAnswer {
    /// This status.
    Status(u16),
    /// This status and JSON body.
    Full(AssumedResponse),
}

/// A status with a body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AssumedResponse {
    /// The status (200).
    #[serde(default = "ok")]
    pub status: u16,
    /// The body.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub body: Option<Value>,
}

fn ok() -> u16 {
    200
}

/// How many labels were retried.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelsRetried))]
pub struct Retried {
    /// How many.
    pub retried: u64,
}

/// Assumptions of a simulation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Simulate {
    /// How far to look ahead: `30d`.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub span: Option<String>,
    /// Or until when, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// A metadata update at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Value>,
    /// Values of feeds; null for one that fails.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub feeds: BTreeMap<String, Option<Value>>,
    /// Answers to actions, by state: an HTTP status, or `{"status", "body"}` (200).
    #[serde(default)]
    pub webhooks: BTreeMap<String, AssumedAnswer>,
}

/// A secret to set.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NewSecret {
    /// Its value, up to 4,096 bytes.
    pub value: String,
    /// The beginning of the addresses that it may be sent to, such as `https://warehouse.example/`.
    pub address: String,
}

/// The secrets of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineSecrets))]
pub struct Secrets {
    /// The secrets, by name.
    pub secrets: Vec<Secret>,
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineSecret))]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// The beginning of the addresses that it may be sent to.
    pub address: String,
    /// When it was set.
    pub at: String,
    /// The token that set it.
    pub by: String,
}
