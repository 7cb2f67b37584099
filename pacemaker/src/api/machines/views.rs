//! Labels and machines as answers show them.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use signalbox_machines::{Answer, Cause, Record, Row, Status, instant};

/// A moment, as RFC 3339.
pub(super) fn moment(unix_ms: u64) -> String {
    instant(unix_ms).to_string()
}

/// A label.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct LabelView {
    name: String,
    /// Its metadata.
    #[schema(value_type = Object)]
    metadata: Value,
    /// Its state.
    state: String,
    /// Its status in the state.
    status: Status,
    /// When it entered the state.
    since: String,
    /// The previous state.
    previous_state: Option<String>,
    /// Entries into states so far.
    visit: u64,
    /// Changes so far.
    revision: u64,
    /// The number of times the name was created.
    incarnation: u32,
    /// Attempts of its action so far.
    attempts: u32,
    /// The last error.
    error: Option<String>,
    /// When it is retried.
    next_retry: Option<String>,
}

impl LabelView {
    pub(super) fn new(name: String, record: Record) -> Self {
        let previous_state = record.previous_state().map(str::to_owned);
        Self {
            name,
            state: record.state.to_string(),
            status: record.status,
            since: moment(record.entered_ms),
            previous_state,
            visit: record.visit,
            revision: record.revision,
            incarnation: record.incarnation,
            attempts: record.work.attempts,
            error: record.work.error.map(Into::into),
            next_retry: record.work.again_ms.map(moment),
            metadata: record.metadata,
        }
    }
}

/// The result of a change.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = LabelChanged)]
pub(crate) struct Changed {
    name: String,
    state: String,
    status: Status,
    since: String,
    visit: u64,
    revision: u64,
}

impl Changed {
    pub(super) fn new(name: String, answer: Answer) -> Self {
        let Answer { state, status, since_ms, visit, revision, .. } = answer;
        Self { name, state, status, since: moment(since_ms), visit, revision }
    }
}

/// A row of history.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct HistoryRow {
    visit: u64,
    at: String,
    /// Null for the first.
    #[schema(value_type = Option<String>)]
    from: Option<Arc<str>>,
    /// Null if the label was deleted.
    #[schema(value_type = Option<String>)]
    to: Option<Arc<str>>,
    cause: Cause,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    trigger: Option<Arc<str>>,
    /// The version of the definition.
    version: u64,
    /// The id of its event.
    event: u64,
}

impl From<Row> for HistoryRow {
    fn from(row: Row) -> Self {
        Self {
            visit: row.visit,
            at: moment(row.at_ms),
            from: row.from,
            to: row.to,
            cause: row.cause,
            trigger: row.trigger,
            version: row.version,
            event: row.event,
        }
    }
}
