//! A label: where it stands and since when, what clients told of it, what has become of it.

mod packed;
mod packing;

use std::sync::Arc;

use serde_json::{Map, Value};
use signalbox_machine::step;

pub(super) use packed::{HEADER, Unreadable};

/// Rows of history that are kept.
pub(super) const ROWS: usize = 20;
/// Idempotency keys that are kept.
pub(super) const KEYS: usize = 16;
/// How far apart the ids of a commit's events are.
const ID_STEP: u64 = 64;

/// How a label stands in its state.
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
    /// At a gate.
    Waiting,
    /// In an action that is to be done, or is being done.
    Acting,
    /// The action is done, and where the label goes hangs on a feed that failed.
    Choosing,
    /// The action failed for good.
    Errored,
    /// It has moved fifty times in a row and goes on a second later.
    Looping,
    /// In a state without a next.
    Ended,
    /// It was deleted.
    Deleted,
}

impl Status {
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Acting,
        Self::Choosing,
        Self::Errored,
        Self::Looping,
        Self::Ended,
        Self::Deleted,
    ];

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

    /// As the decision has it. A deleted label is decided on by nobody.
    pub(super) fn of_step(self) -> step::Status {
        match self {
            Self::Waiting => step::Status::Waiting,
            Self::Acting => step::Status::Acting,
            Self::Choosing => step::Status::Choosing,
            Self::Errored => step::Status::Errored,
            Self::Looping => step::Status::Looping,
            Self::Ended | Self::Deleted => step::Status::Ended,
        }
    }

    pub(super) fn from_step(status: step::Status) -> Self {
        match status {
            step::Status::Waiting => Self::Waiting,
            step::Status::Acting => Self::Acting,
            step::Status::Choosing => Self::Choosing,
            step::Status::Errored => Self::Errored,
            step::Status::Looping => Self::Looping,
            step::Status::Ended => Self::Ended,
        }
    }

    /// Whether labels of this status have an index of their own: those that are neither resting nor gone.
    pub fn has_index(self) -> bool {
        matches!(self, Self::Acting | Self::Choosing | Self::Errored | Self::Looping)
    }
}

/// Why a label came where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = MoveCause)]
pub enum Cause {
    /// It was created.
    Created,
    /// Facts came.
    Metadata,
    /// A time of day.
    Time,
    /// An interval.
    Interval,
    /// It had just come to the gate.
    Entry,
    /// An event of a topic.
    Topic,
    /// A feed that had failed answered.
    Feed,
    /// The action is done.
    Action,
    /// Its state is not part of the definition any more.
    Migrated,
    /// It was deleted.
    Deleted,
}

impl Cause {
    pub(crate) const ALL: [Self; 10] = [
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
    ];

    pub(super) fn from_step(cause: step::Cause) -> Self {
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
        }
    }
}

/// A row of history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The visit that began with it (or, without `to`, that it happened in).
    pub visit: u64,
    /// When, unix milliseconds.
    pub at_ms: u64,
    /// Nothing for the first. Names are shared among rows: a record is copied for each change that is tried.
    pub from: Option<Arc<str>>,
    /// Nothing where the label ended.
    pub to: Option<Arc<str>>,
    pub cause: Cause,
    /// What exactly: a trigger, a status.
    pub trigger: Option<Arc<str>>,
    /// The version of the definition that it moved under.
    pub version: u64,
    /// The id of its event.
    pub event: u64,
}

/// A change that came under an idempotency key, and what it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Digest of the key.
    pub(crate) key: u64,
    /// Digest of what was sent.
    pub(crate) body: u32,
    pub(crate) revision: u64,
    pub(crate) visit: u64,
    pub(crate) since_ms: u64,
    pub(crate) state: Arc<str>,
    pub(crate) status: Status,
}

/// What is under way in the present visit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Attempts of the action that were begun since its count began.
    pub attempts: u32,
    /// Failed attempts in a row to ask a feed.
    pub(crate) feed_failures: u32,
    /// When the action is tried again, or a feed asked again, or the label goes on; unix milliseconds.
    pub again_ms: Option<u64>,
    /// The next instant of an interval.
    pub(crate) interval_ms: Option<u64>,
    /// Facts came while an action was under way.
    pub(crate) facts: bool,
    /// What went wrong last.
    pub error: Option<Box<str>>,
    /// The trigger that a feed kept from being judged.
    pub(crate) held: Option<Box<str>>,
}

/// A label.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// How often the name was created.
    pub incarnation: u32,
    /// +1 with every entry into a state.
    pub visit: u64,
    /// +1 with every change.
    pub revision: u64,
    pub state: Arc<str>,
    pub status: Status,
    /// Unix milliseconds.
    pub entered_ms: u64,
    /// An object.
    pub metadata: Value,
    /// Oldest first.
    pub history: Vec<Row>,
    /// Oldest first.
    pub(crate) seen: Vec<Seen>,
    /// The zones whose waves it waits for because it names them itself.
    pub(crate) zones: Vec<Box<str>>,
    /// Of each shard of the bus the last event that was taken as facts, with the number of the input that took it.
    pub(crate) taken: Vec<(u64, u32)>,
    pub work: Work,
}

impl Record {
    /// A label that has just come to be, not in any state yet.
    pub(super) fn new(incarnation: u32) -> Self {
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
            work: Work::default(),
        }
    }

    /// When something is due for the label itself, unix milliseconds.
    pub(super) fn due_ms(&self) -> Option<u64> {
        [self.work.again_ms, self.work.interval_ms].into_iter().flatten().min()
    }

    /// Where it was before.
    pub fn previous_state(&self) -> Option<&str> {
        self.history.iter().rev().find(|row| row.to.is_some()).and_then(|row| row.from.as_deref())
    }

    /// Whether an event was taken by an input. Those of one shard are taken in the order of their ids, and an event by one
    /// input after the other.
    pub(super) fn has_taken(&self, (id, input): (u64, u32)) -> bool {
        self.taken.iter().any(|known| shard_of(known.0) == shard_of(id) && *known >= (id, input))
    }

    /// Notes that an event was taken by an input.
    pub(super) fn take(&mut self, (id, input): (u64, u32)) {
        self.taken.retain(|(known, _)| shard_of(*known) != shard_of(id));
        self.taken.push((id, input));
    }

    /// Forgets the oldest rows and keys beyond what is kept.
    pub(super) fn trim(&mut self) {
        let surplus = self.history.len().saturating_sub(ROWS);
        self.history.drain(..surplus);
        let surplus = self.seen.len().saturating_sub(KEYS);
        self.seen.drain(..surplus);
    }

    /// Gives the newest `count` rows the ids of a commit's events. Of a commit with more rows than are kept, the first
    /// are gone already.
    pub(super) fn numbered(&mut self, count: usize, first: u64) {
        let rows = self.history.len();
        let kept = count.min(rows);
        for (place, row) in self.history[rows - kept..].iter_mut().enumerate() {
            row.event = first + (count - kept + place) as u64 * ID_STEP;
        }
    }
}

/// Which shard numbered an event: the low six bits of its id.
fn shard_of(id: u64) -> u64 {
    id % ID_STEP
}
