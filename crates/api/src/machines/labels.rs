//! Labels: what clients report and read about them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Time;

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
    /// When it entered the state.
    pub since: Time,
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
    /// The version of the definition that it stays on until it leaves its state (`on_apply: keep`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_version: Option<u64>,
    /// Attempts of its action that were begun.
    pub attempts: u32,
    /// The last failure.
    pub error: Option<String>,
    /// When its action is retried.
    pub next_retry: Option<Time>,
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
    /// When it entered the state.
    pub since: Time,
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
    /// When.
    pub at: Time,
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
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ActivityLine {
    /// When.
    pub at: Time,
    /// The visit in which it happened, or that began with it.
    pub visit: u64,
    /// `move`, `attempt`, `operation` or `metadata`.
    pub kind: String,
    /// Of a move: the state before.
    pub from: Option<String>,
    /// Of a move: the state after.
    pub to: Option<String>,
    /// Of a move: why.
    pub cause: Option<String>,
    /// Of a move: details of the cause.
    pub trigger: Option<String>,
    /// Of a move: the version of the definition.
    pub version: Option<u64>,
    /// Of a move: the id of its event.
    pub event: Option<u64>,
    /// Of an attempt: the state.
    pub state: Option<String>,
    /// Of an attempt: its number.
    pub attempt: Option<u32>,
    /// Of an attempt: `done`, `failed`, `refused`, or `unknown` if the process that made it has ended.
    pub outcome: Option<String>,
    /// Of an attempt: the status of the answer.
    pub status: Option<u16>,
    /// Of an attempt: how long it took.
    pub duration_ms: Option<u64>,
    /// Of an attempt: the beginning of the answer.
    pub answer: Option<String>,
    /// Of an attempt: why it failed.
    pub error: Option<String>,
    /// Of an operation: its word.
    pub operation: Option<String>,
    /// Of an operation or a change of metadata: the token, topic or state that it comes from.
    pub by: Option<String>,
    /// Of a change of metadata: the change, as JSON Merge Patch.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub change: Option<Value>,
    /// Of a change of metadata that is too large to be stored: its size.
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
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LabelPage {
    /// The labels. A page may be shorter than the limit although there is a next one.
    pub labels: Vec<LabelRow>,
    /// The path under which a label is created with POST.
    pub create: String,
    /// The cursor of the next page; absent on the last one.
    pub next: Option<String>,
    /// How many labels match, if asked for.
    pub total: Option<u64>,
    /// Whether `total` is all; otherwise there may be more.
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
    /// When it entered the state.
    pub since: Time,
    /// Whether an operator has suspended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// The last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How many labels were retried.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelsRetried))]
pub struct Retried {
    /// How many.
    pub retried: u64,
}
