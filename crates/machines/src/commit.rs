//! Writes a label: the record, its indexes, its times and its events change in one step of the label's shard.

use serde::Serialize;
use serde_json::value::to_raw_value;

use signalbox_machine::render::percent_encoded;

use signalbox_bus::{self as bus, Change, EventId, Index, Kind, Log, NewEvent, Refusal};

use crate::{
    faults::Faults,
    log::{Line, Retention},
    record::{Cause, HEADER, Record, Row, Status},
    store::{Due, due_index, object, queue},
};

/// The topic of moves, after `signalbox.`.
const TOPIC: &str = "labels";
/// Bytes of the ID that the script writes into a record.
const ID_BYTES: usize = 8;
/// How long the name and history of a deleted label are retained.
const TOMBSTONE_MS: u64 = 30 * 24 * 3600 * 1000;

/// The index of suspended labels, among those of statuses.
pub(crate) const SUSPENDED: &str = "suspended";

/// An entry of a label in an index: the key after `machine:`, the member, and its score.
pub(crate) type Place = (String, String, u64);

/// The entries of a label in indexes, each with another key.
pub(crate) fn places(machine: &str, label: &str, record: &Record) -> Vec<Place> {
    // Most labels are in two indexes.
    let mut places = Vec::with_capacity(2);
    let mut add = |key: String, member: String, score| {
        if !places.iter().any(|place: &Place| place.0 == key) {
            places.push((key, member, score));
        }
    };
    if record.status == Status::Deleted {
        add(format!("{machine}:gone"), label.to_owned(), record.entered_ms);
        return places;
    }
    add(format!("{machine}:in:{}", record.state), label.to_owned(), 0);
    if record.status.has_index() {
        add(format!("{machine}:is:{}", record.status.as_str()), label.to_owned(), 0);
    }
    if record.suspended {
        add(format!("{machine}:is:{SUSPENDED}"), label.to_owned(), 0);
    }
    if let Some(version) = record.kept {
        add(format!("{machine}:kept"), label.to_owned(), version);
    }
    if record.timed {
        add(format!("{machine}:since:{}", record.state), label.to_owned(), record.entered_ms);
    }
    if let Some((since_ms, target)) = record.work.limit().filter(|_| !record.suspended) {
        add(queue(machine, target), label.to_owned(), since_ms);
    }
    for digest in &record.indexed {
        add(format!("{machine}:by:{digest:016x}"), label.to_owned(), 0);
    }
    for zone in &record.zones {
        add(format!("{machine}:zone:{}:{zone}", record.state), label.to_owned(), 0);
    }
    if let Some(due_ms) = record.due_ms() {
        let due = Due::Label { machine: machine.to_owned(), label: label.to_owned() };
        add(due_index(machine), due.member(), due_ms);
    }
    places
}

/// The difference between the index entries of two records.
fn indexes(machine: &str, label: &str, before: Option<&Record>, after: &Record) -> Vec<Index> {
    let mut old = before.map(|before| places(machine, label, before)).unwrap_or_default();
    let mut changes = Vec::new();
    for (key, member, score) in places(machine, label, after) {
        let known = old.iter().position(|known| known.0 == key).map(|at| old.swap_remove(at).2);
        if known != Some(score) {
            changes.push(Index { key, member, score: Some(score) });
        }
    }
    changes.extend(old.into_iter().map(|(key, member, _)| Index { key, member, score: None }));
    changes
}

/// The data of a move's event. It never contains metadata.
#[derive(Serialize)]
struct Moved<'a> {
    cause: Cause,
    from: Option<&'a str>,
    incarnation: u32,
    label: &'a str,
    machine: &'a str,
    to: Option<&'a str>,
    visit: u64,
}

/// The event of a row of history.
fn event(machine: &str, label: &str, incarnation: u32, row: &Row) -> NewEvent {
    let kind = match (&row.from, &row.to) {
        (None, _) => Kind::Create,
        (_, None) => Kind::Delete,
        _ => Kind::Update,
    };
    let (from, to) = (row.from.as_deref(), row.to.as_deref());
    let data = Moved { cause: row.cause, from, incarnation, label, machine, to, visit: row.visit };
    NewEvent {
        kind,
        url: format!("urn:signalbox:machine:{machine}:{}", percent_encoded(label)),
        timestamp_ms: Some(row.at_ms),
        data: to_raw_value(&data).ok(),
        tenant: None,
        object: Some(object(machine, label)),
        idempotency_key: None,
    }
}

/// Writes labels through the bus.
#[derive(Debug)]
pub(crate) struct Committer {
    pub(crate) bus: bus::Handle,
    pub(crate) faults: Faults,
    /// How much of the log of a label is kept.
    pub(crate) retention: Retention,
}

impl Committer {
    /// What is appended to the log of a label: these lines, and the rows that its record has no room for.
    fn log(&self, lines: &[Line], rows: &[Row]) -> Log {
        let Retention { lines: keep, ms: ttl_ms } = self.retention;
        if ttl_ms == 0 {
            return Log::default();
        }
        let rows = rows.iter().map(|row| Line::of_row(row).packed());
        Log { lines: rows.chain(lines.iter().map(Line::packed)).collect(), keep, ttl_ms }
    }

    /// Writes a label. `after` was computed from `before`, which is `None` if there was no record. The newest `rows` rows of
    /// `after` are new, and each becomes an event; `lines` are for the log. On success `after` is equal to the stored record.
    pub(crate) async fn commit(
        &self,
        (machine, label): (&str, &str),
        version: Option<u64>,
        before: Option<&Record>,
        after: &mut Record,
        rows: usize,
        lines: &[Line],
    ) -> Result<(), Refusal> {
        after.revision = before.map_or(0, |before| before.revision) + 1;
        let fresh = after.history[after.history.len().saturating_sub(rows)..].iter();
        let events: Vec<NewEvent> = fresh.map(|row| event(machine, label, after.incarnation, row)).collect();
        let trimmed = after.trim();
        let (head, tail) = (after.header(), after.tail(rows));
        debug_assert_eq!(head.len(), HEADER);
        let bytes = head.len() + ID_BYTES + tail.len();
        let change = Change {
            machine: machine.to_owned(),
            expected: before.map(Record::header).unwrap_or_default(),
            version,
            head,
            tail,
            prev: before.and_then(|before| before.history.last()).map(|row| EventId(row.event)),
            ttl_ms: (after.status == Status::Deleted).then_some(TOMBSTONE_MS),
            // What remains of a deleted label expires.
            replaced: before
                .filter(|before| before.status != Status::Deleted)
                .map_or(0, |before| before.bytes),
            indexes: indexes(machine, label, before, after),
            log: self.log(lines, &trimmed),
        };
        if self.faults.fail_commit() {
            return Err(Refusal::Unavailable);
        }
        let EventId(first) = self.bus.change(object(machine, label), TOPIC, events, change).await?;
        if self.faults.fail_commit() {
            return Err(Refusal::Unavailable);
        }
        after.numbered(rows, first);
        after.bytes = bytes;
        Ok(())
    }
}
