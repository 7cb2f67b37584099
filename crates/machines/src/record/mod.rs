//! The record of a label: its state, its metadata, its history, and what is under way.

mod packed;
mod packing;

use std::sync::Arc;

use serde_json::{Map, Value};
use signalbox_machine::step;

pub(crate) use packed::{HEADER, Unreadable};

/// Maximum number of rows of history.
pub(super) const MAX_ROWS: usize = 20;
/// Maximum number of idempotency keys.
pub(super) const MAX_KEYS: usize = 16;
/// The difference between the IDs of two events of one commit.
const ID_STEP: u64 = 64;
/// How [`Work::held`] begins while the label waits for the limit of an address.
const LIMIT: &str = "limit ";

/// A label's status in its state.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[schema(as = LabelStatus)]
pub enum Status {
    /// It waits at a gate.
    Waiting,
    /// Its action is under way, or waits for the next attempt.
    Acting,
    /// Its action is done, and the next state depends on a feed that failed.
    Choosing,
    /// Its action failed finally, until a client retries it.
    Errored,
    /// It has moved fifty times in a row, and continues a second later.
    Looping,
    /// It is in a state without a next one.
    Ended,
    /// It was deleted.
    Deleted,
}

impl Status {
    /// All statuses, in the order of their stored numbers.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Acting,
        Self::Choosing,
        Self::Errored,
        Self::Looping,
        Self::Ended,
        Self::Deleted,
    ];

    /// The word of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Acting => "acting",
            Self::Choosing => "choosing",
            Self::Errored => "errored",
            Self::Looping => "looping",
            Self::Ended => "ended",
            Self::Deleted => "deleted",
        }
    }

    /// As an input of the decision. A deleted label is never evaluated.
    pub(crate) fn of_step(self) -> step::Status {
        match self {
            Self::Waiting => step::Status::Waiting,
            Self::Acting => step::Status::Acting,
            Self::Choosing => step::Status::Choosing,
            Self::Errored => step::Status::Errored,
            Self::Looping => step::Status::Looping,
            Self::Ended | Self::Deleted => step::Status::Ended,
        }
    }

    /// From a decision.
    pub(crate) fn from_step(status: step::Status) -> Self {
        match status {
            step::Status::Waiting => Self::Waiting,
            step::Status::Acting => Self::Acting,
            step::Status::Choosing => Self::Choosing,
            step::Status::Errored => Self::Errored,
            step::Status::Looping => Self::Looping,
            step::Status::Ended => Self::Ended,
        }
    }

    /// Whether labels with this status have an index: those that neither rest nor are deleted.
    pub fn has_index(self) -> bool {
        matches!(self, Self::Acting | Self::Choosing | Self::Errored | Self::Looping)
    }
}

/// Why a label moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = MoveCause)]
pub enum Cause {
    /// It was created.
    Created,
    /// A metadata update.
    Metadata,
    /// A time of day.
    Time,
    /// An interval.
    Interval,
    /// It had just entered the gate.
    Entry,
    /// An event of a topic.
    Topic,
    /// A feed that had failed answered.
    Feed,
    /// The action is done.
    Action,
    /// Its state was removed from the definition.
    Migrated,
    /// It was deleted.
    Deleted,
    /// A client had its gate evaluated, or the definition was changed.
    Evaluated,
    /// Its action failed for good.
    Failed,
    /// It was in the state for too long.
    Deadline,
    /// A client moved it, or skipped its action.
    Moved,
}

impl Cause {
    /// All causes, in the order of their stored numbers.
    pub(crate) const ALL: [Self; 14] = [
        Self::Created,
        Self::Metadata,
        Self::Time,
        Self::Interval,
        Self::Entry,
        Self::Topic,
        Self::Feed,
        Self::Action,
        Self::Migrated,
        Self::Deleted,
        Self::Evaluated,
        Self::Failed,
        Self::Deadline,
        Self::Moved,
    ];

    /// The word of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Metadata => "metadata",
            Self::Time => "time",
            Self::Interval => "interval",
            Self::Entry => "entry",
            Self::Topic => "topic",
            Self::Feed => "feed",
            Self::Action => "action",
            Self::Migrated => "migrated",
            Self::Deleted => "deleted",
            Self::Evaluated => "evaluated",
            Self::Failed => "failed",
            Self::Deadline => "deadline",
            Self::Moved => "moved",
        }
    }

    /// From a decision.
    pub(crate) fn from_step(cause: step::Cause) -> Self {
        match cause {
            step::Cause::Created => Self::Created,
            step::Cause::Metadata => Self::Metadata,
            step::Cause::Time => Self::Time,
            step::Cause::Interval => Self::Interval,
            step::Cause::Entry => Self::Entry,
            step::Cause::Topic => Self::Topic,
            step::Cause::Feed => Self::Feed,
            step::Cause::Action => Self::Action,
            step::Cause::Migrated => Self::Migrated,
            step::Cause::Evaluated => Self::Evaluated,
            step::Cause::Failed => Self::Failed,
            step::Cause::Deadline => Self::Deadline,
        }
    }
}

/// A row of history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The number of the visit that began with it, or, without `to`, in which it happened.
    pub visit: u64,
    /// When, Unix milliseconds.
    pub at_ms: u64,
    /// The state before; `None` in the first row. Rows share names, because a record is copied for each attempted change.
    pub from: Option<Arc<str>>,
    /// The state after; `None` if the label was deleted.
    pub to: Option<Arc<str>>,
    /// Why.
    pub cause: Cause,
    /// Details of the cause: a trigger or a status.
    pub trigger: Option<Arc<str>>,
    /// The version of the definition that it moved under.
    pub version: u64,
    /// The ID of its event; 0 before it is stored.
    pub event: u64,
}

/// A change with an idempotency key, and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Digest of the key.
    pub(crate) key: u64,
    /// Digest of the request.
    pub(crate) body: u32,
    pub(crate) revision: u64,
    pub(crate) visit: u64,
    pub(crate) since_ms: u64,
    pub(crate) state: Arc<str>,
    pub(crate) status: Status,
}

/// The work of the current visit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Attempts of the action that were begun since the visit or the last retry by a client.
    pub attempts: u32,
    /// Failed attempts in a row to ask a feed.
    pub(crate) feed_failures: u32,
    /// When the action is attempted again, a feed is asked again, or a loop continues; Unix milliseconds.
    pub again_ms: Option<u64>,
    /// The next instant of an interval.
    pub(crate) interval_ms: Option<u64>,
    /// When the time in the state is over, Unix milliseconds.
    pub(crate) deadline_ms: Option<u64>,
    /// Metadata was updated while an action was under way.
    pub(crate) facts: bool,
    /// The last failure.
    pub error: Option<Box<str>>,
    /// The cause and trigger whose evaluation a feed or a loop delays.
    pub(crate) held: Option<Box<str>>,
}

/// The record of a label.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// How often a label of this name was created.
    pub incarnation: u32,
    /// +1 with every entry into a state.
    pub visit: u64,
    /// +1 with every change.
    pub revision: u64,
    /// The name of the state.
    pub state: Arc<str>,
    /// Its status there.
    pub status: Status,
    /// When it entered the state, Unix milliseconds.
    pub entered_ms: u64,
    /// A JSON object.
    pub metadata: Value,
    /// Its moves, the oldest first.
    pub history: Vec<Row>,
    /// The last changes with idempotency keys, the oldest first.
    pub(crate) seen: Vec<Seen>,
    /// The zones that its own metadata names, and whose sweeps it waits for.
    pub(crate) zones: Vec<Box<str>>,
    /// For each shard of the bus, the last event that an input took, and the number of the input.
    pub(crate) taken: Vec<(u64, u32)>,
    /// Whether a client has stopped it: no gate is evaluated, and no attempt begins.
    pub suspended: bool,
    /// The indexed values of its metadata, each with its path as a digest.
    pub(crate) indexed: Vec<u64>,
    /// The version of the definition that it stays on until it leaves its state (`on_apply: keep`).
    pub kept: Option<u64>,
    /// Whether its state has an alert by age, so that the time of its entry is indexed.
    pub(crate) timed: bool,
    /// Its work in progress.
    pub work: Work,
}

impl Work {
    /// For the limit of which address the label waits, and since when, Unix milliseconds.
    pub(crate) fn limit(&self) -> Option<(u64, &str)> {
        let (since_ms, target) = self.held.as_deref()?.strip_prefix(LIMIT)?.split_once(' ')?;
        Some((since_ms.parse().ok()?, target))
    }

    /// The label waits for the limit of an address.
    pub(crate) fn wait_for_limit(&mut self, since_ms: u64, target: &str) {
        self.held = Some(format!("{LIMIT}{since_ms} {target}").into());
    }
}

impl Record {
    /// A new label that is not in any state yet.
    pub(crate) fn new(incarnation: u32) -> Self {
        Self {
            incarnation,
            visit: 0,
            revision: 0,
            state: Arc::from(""),
            status: Status::Waiting,
            entered_ms: 0,
            metadata: Value::Object(Map::new()),
            history: Vec::new(),
            seen: Vec::new(),
            zones: Vec::new(),
            taken: Vec::new(),
            suspended: false,
            indexed: Vec::new(),
            kept: None,
            timed: false,
            work: Work::default(),
        }
    }

    /// The record after the label is deleted: name and history.
    pub(crate) fn deleted(&self, version: u64, now_ms: u64) -> Self {
        let mut record = self.clone();
        record.history.push(Row {
            visit: self.visit,
            at_ms: now_ms,
            from: Some(self.state.clone()),
            to: None,
            cause: Cause::Deleted,
            trigger: None,
            version,
            event: 0,
        });
        record.status = Status::Deleted;
        record.entered_ms = now_ms;
        record.metadata = Value::Object(Map::new());
        record.zones.clear();
        record.indexed.clear();
        record.kept = None;
        record.timed = false;
        record.suspended = false;
        record.work = Work::default();
        record.seen.clear();
        record
    }

    /// When the label itself is due, Unix milliseconds.
    pub(crate) fn due_ms(&self) -> Option<u64> {
        let Work { again_ms, interval_ms, deadline_ms, .. } = self.work;
        [again_ms, interval_ms, deadline_ms].into_iter().flatten().min().filter(|_| !self.suspended)
    }

    /// The state before the current one.
    pub fn previous_state(&self) -> Option<&str> {
        self.history.iter().rev().find(|row| row.to.is_some()).and_then(|row| row.from.as_deref())
    }

    /// Whether an input has taken an event. The events of a shard are taken in the order of their IDs, and each event by one
    /// input after the other.
    pub(crate) fn has_taken(&self, (id, input): (u64, u32)) -> bool {
        self.taken.iter().any(|known| shard_of(known.0) == shard_of(id) && *known >= (id, input))
    }

    /// Stores that an input has taken an event.
    pub(crate) fn take(&mut self, (id, input): (u64, u32)) {
        self.taken.retain(|(known, _)| shard_of(*known) != shard_of(id));
        self.taken.push((id, input));
    }

    /// Removes the oldest rows and keys above the limits. Returns the rows.
    pub(crate) fn trim(&mut self) -> Vec<Row> {
        let surplus = self.seen.len().saturating_sub(MAX_KEYS);
        self.seen.drain(..surplus);
        let surplus = self.history.len().saturating_sub(MAX_ROWS);
        self.history.drain(..surplus).collect()
    }

    /// Sets the event IDs of the newest `count` rows; `first` is the ID of the commit's first event. Of a commit with more
    /// rows than the limit, the first rows are already removed.
    pub(crate) fn numbered(&mut self, count: usize, first: u64) {
        let rows = self.history.len();
        let kept = count.min(rows);
        for (place, row) in self.history[rows - kept..].iter_mut().enumerate() {
            row.event = first + (count - kept + place) as u64 * ID_STEP;
        }
    }
}

/// The shard that numbered an event: the low six bits of its ID.
fn shard_of(id: u64) -> u64 {
    id % ID_STEP
}
