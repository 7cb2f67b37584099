//! Operations on all labels that match a filter, in the background.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Time;

/// Which labels are meant: those for which everything that is given holds.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LabelFilter {
    /// In this state.
    pub state: Option<String>,
    /// With this status.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::label_status))]
    pub status: Option<String>,
    /// Suspended, or not.
    pub suspended: Option<bool>,
    /// Whose last failure contains this text.
    pub error: Option<String>,
    /// In their state for at least this long: `2h`.
    pub older_than: Option<String>,
    /// In their state for less than this: `2h`.
    pub younger_than: Option<String>,
    /// With these values of metadata, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: BTreeMap<String, Value>,
}

/// An operation on a label.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LabelOperation {
    /// `retry`, `evaluate`, `skip`, `cancel`, `suspend`, `resume`, `move`, `set` or `delete`.
    pub operation: String,
    /// The state to move to.
    pub to: Option<String>,
    /// The metadata to merge.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Value>,
}

/// An operation on many labels.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// As for one label.
    pub operation: String,
    /// The state to move to.
    pub to: Option<String>,
    /// The metadata to merge.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Value>,
    /// Which labels. `{}` are all.
    pub filter: LabelFilter,
    /// Labels per second at most, 1 to 10,000.
    pub rate: Option<u32>,
}

/// A task: an operation on many labels, or the deletion of a machine.
#[serde_with::skip_serializing_none]
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
    pub rate: Option<u32>,
    /// The token that it was started with.
    pub by: String,
    /// `running`, `done`, `canceled` or `failed`.
    pub state: String,
    /// When it was started.
    pub created: Time,
    /// When it last progressed.
    pub updated: Time,
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
    pub error: Option<String>,
}

/// The tasks of a machine, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineTasks))]
pub struct Tasks {
    /// The tasks.
    pub tasks: Vec<Task>,
}
