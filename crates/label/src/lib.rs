//! The record of a label: its state, its metadata, its history, what is under way, and the bytes in which it is stored.
//!
//! Pure: `crates/machines` reads and writes records in the fabric, and decides what becomes of a label. A record is read by
//! every later version; [`Unreadable`] is one that a later version wrote.

mod packed;
mod packing;

use std::sync::Arc;

pub use packed::{HEADER, Unreadable};
use serde_json::{Map, Value};
pub use signalbox_machine::step::{Cause, Status};

/// Maximum number of rows of history.
const MAX_ROWS: usize = 20;
/// Maximum number of idempotency keys.
const MAX_KEYS: usize = 16;
/// The difference between the IDs of two events of one commit.
const ID_STEP: u64 = 64;
/// How [`Work::held`] begins while the label waits for the limit of an address.
const LIMIT: &str = "limit ";
/// How [`Work::held`] begins while the label waits for a place among the outgoing calls.
const PLACE: &str = "place ";

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
pub struct Seen {
    /// Digest of the key.
    pub key: u64,
    /// Digest of the request.
    pub body: u32,
    /// The revision of the answer.
    pub revision: u64,
    /// Its visit.
    pub visit: u64,
    /// When the label entered the state, Unix milliseconds.
    pub since_ms: u64,
    /// The name of the state.
    pub state: Arc<str>,
    /// The status there.
    pub status: Status,
}

/// The work of the current visit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Attempts of the action that were begun since the visit or the last retry by a client.
    pub attempts: u32,
    /// Failed attempts in a row to ask a feed.
    pub feed_failures: u32,
    /// When the action is attempted again, a feed is asked again, or a loop continues; Unix milliseconds.
    pub again_ms: Option<u64>,
    /// The next instant of an interval.
    pub interval_ms: Option<u64>,
    /// When the time in the state is over, Unix milliseconds.
    pub deadline_ms: Option<u64>,
    /// Metadata was updated while an action was under way.
    pub facts: bool,
    /// The topics whose events came while an action was under way, or the label was suspended.
    pub topics: Vec<Box<str>>,
    /// The last failure.
    pub error: Option<Box<str>>,
    /// The cause and trigger whose evaluation a feed or a loop delays.
    pub held: Option<Box<str>>,
}

/// The record of a label.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// How often a label of this name was created. A name that was forgotten begins with 1 again.
    pub incarnation: u32,
    /// What distinguishes it from an earlier label of its name that was forgotten: a digest of the idempotency key, or the event,
    /// or else the time, with which it was created. If its creation is lost and repeated, a key or event is the same, so that
    /// its actions keep their tokens.
    pub origin: u64,
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
    pub seen: Vec<Seen>,
    /// The zones that its own metadata names, and whose sweeps it waits for.
    pub zones: Vec<Box<str>>,
    /// For each shard of the bus, the last event that an input took, and the number of the input.
    pub taken: Vec<(u64, u32)>,
    /// Whether a client has stopped it: no gate is evaluated, and no attempt begins.
    pub suspended: bool,
    /// The indexed values of its metadata, each with its path as a digest.
    pub indexed: Vec<u64>,
    /// The version of the definition that it stays on until it leaves its state (`on_apply: keep`).
    pub kept: Option<u64>,
    /// Whether its state has an alert by age, so that the time of its entry is indexed.
    pub timed: bool,
    /// Its work in progress.
    pub work: Work,
    /// Bytes of the stored record; 0 before it is stored.
    pub bytes: usize,
}

impl Work {
    /// For the limit of which address the label waits, and since when, Unix milliseconds.
    pub fn limit(&self) -> Option<(u64, &str)> {
        let (since_ms, target) = self.held.as_deref()?.strip_prefix(LIMIT)?.split_once(' ')?;
        Some((since_ms.parse().ok()?, target))
    }

    /// To which destination the label's call waits for a place, and since when, Unix milliseconds.
    pub fn place(&self) -> Option<(u64, &str)> {
        let (since_ms, destination) = self.held.as_deref()?.strip_prefix(PLACE)?.split_once(' ')?;
        Some((since_ms.parse().ok()?, destination))
    }

    /// The label's call waits for a place.
    pub fn wait_for_place(&mut self, since_ms: u64, destination: &str) {
        self.held = Some(format!("{PLACE}{since_ms} {destination}").into());
    }

    /// The label waits for the limit of an address.
    pub fn wait_for_limit(&mut self, since_ms: u64, target: &str) {
        self.held = Some(format!("{LIMIT}{since_ms} {target}").into());
    }
}

impl Record {
    /// A new label that is not in any state yet.
    pub fn new(incarnation: u32) -> Self {
        Self {
            incarnation,
            origin: 0,
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
            bytes: 0,
        }
    }

    /// The record of a label that never existed. It only stores the keys of requests that found none.
    pub fn absent(now_ms: u64) -> Self {
        Self { status: Status::Deleted, entered_ms: now_ms, ..Self::new(0) }
    }

    /// Whether the label never existed: see [`Self::absent`].
    pub fn is_absent(&self) -> bool {
        self.incarnation == 0
    }

    /// The record after the label is deleted: name, history, and the idempotency keys, so that a repeated request does not
    /// change a label that is created again under the name.
    pub fn deleted(&self, version: u64, now_ms: u64) -> Self {
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
        record
    }

    /// Whether both are of one label, and not of an earlier one of the same name.
    pub fn is_of_same_label(&self, other: &Self) -> bool {
        (self.incarnation, self.origin) == (other.incarnation, other.origin)
    }

    /// When the label itself is due, Unix milliseconds.
    pub fn due_ms(&self) -> Option<u64> {
        let Work { again_ms, interval_ms, deadline_ms, .. } = self.work;
        [again_ms, interval_ms, deadline_ms].into_iter().flatten().min().filter(|_| !self.suspended)
    }

    /// The state before the current one.
    pub fn previous_state(&self) -> Option<&str> {
        self.history.iter().rev().find(|row| row.to.is_some()).and_then(|row| row.from.as_deref())
    }

    /// Whether an input has taken an event. The events of a shard are taken in the order of their IDs, and each event by one
    /// input after the other.
    pub fn has_taken(&self, (id, input): (u64, u32)) -> bool {
        self.taken.iter().any(|known| shard_of(known.0) == shard_of(id) && *known >= (id, input))
    }

    /// Stores that an input has taken an event.
    pub fn take(&mut self, (id, input): (u64, u32)) {
        self.taken.retain(|(known, _)| shard_of(*known) != shard_of(id));
        self.taken.push((id, input));
    }

    /// Removes the oldest rows and keys above the limits. Returns the rows.
    pub fn trim(&mut self) -> Vec<Row> {
        let surplus = self.seen.len().saturating_sub(MAX_KEYS);
        self.seen.drain(..surplus);
        let surplus = self.history.len().saturating_sub(MAX_ROWS);
        self.history.drain(..surplus).collect()
    }

    /// Sets the event IDs of the newest `count` rows; `first` is the ID of the commit's first event. Of a commit with more
    /// rows than the limit, the first rows are already removed.
    pub fn numbered(&mut self, count: usize, first: u64) {
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
