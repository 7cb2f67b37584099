//! From a label as it was and as it shall be to one step in its shard.

use std::collections::BTreeMap;

use serde_json::{json, value::to_raw_value};

use super::{
    fate::Fate,
    record::{HEADER, Record, Row, Status},
    store::{Due, object},
};
use signalbox_bus::{self as bus, Change, EventId, Index, Kind, NewEvent, Refusal};

/// The topic of moves, behind `signalbox.`.
pub(super) const TOPIC: &str = "labels";
/// How long the name and history of a deleted label are kept.
pub(super) const TOMBSTONE_MS: u64 = 30 * 24 * 3600 * 1000;

/// Where a label stands in the indexes: key behind `machine:` and member → score.
pub(super) fn places(machine: &str, label: &str, record: &Record) -> BTreeMap<(String, String), u64> {
    let mut places = BTreeMap::new();
    let mut stand = |key: String, member: String, score| places.insert((key, member), score);
    if record.status == Status::Deleted {
        stand(format!("{machine}:gone"), label.to_owned(), record.entered_ms);
        return places;
    }
    stand(format!("{machine}:in:{}", record.state), label.to_owned(), 0);
    if record.status.has_index() {
        stand(format!("{machine}:is:{}", record.status.as_str()), label.to_owned(), 0);
    }
    for zone in &record.zones {
        stand(format!("{machine}:zone:{}:{zone}", record.state), label.to_owned(), 0);
    }
    if let Some(due_ms) = record.due_ms() {
        let due = Due::Label { machine: machine.to_owned(), label: label.to_owned() };
        stand("due".to_owned(), due.member(), due_ms);
    }
    places
}

/// What changes in the indexes between the two.
fn indexes(machine: &str, label: &str, before: Option<&Record>, after: &Record) -> Vec<Index> {
    let mut old = before.map(|before| places(machine, label, before)).unwrap_or_default();
    let new = places(machine, label, after);
    let mut changes = Vec::new();
    for ((key, member), score) in new {
        let place = (key, member);
        if old.remove(&place) != Some(score) {
            changes.push(Index { key: place.0, member: place.1, score: Some(score) });
        }
    }
    changes.extend(old.into_keys().map(|(key, member)| Index { key, member, score: None }));
    changes
}

/// The event that tells of a row. Never any metadata.
fn event(machine: &str, label: &str, incarnation: u32, row: &Row) -> NewEvent {
    let kind = match (&row.from, &row.to) {
        (None, _) => Kind::Create,
        (_, None) => Kind::Delete,
        _ => Kind::Update,
    };
    let data = json!({
        "machine": machine, "label": label, "from": row.from, "to": row.to, "cause": row.cause,
        "visit": row.visit, "incarnation": incarnation,
    });
    NewEvent {
        kind,
        url: format!("urn:signalbox:machine:{machine}:{}", escaped(label)),
        timestamp_ms: Some(row.at_ms),
        data: to_raw_value(&data).ok(),
        environment: None,
        object: Some(object(machine, label)),
        idempotency_key: None,
    }
}

/// Percent-encoded, as in a URN or one segment of a path.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// Writes a label. `before` is what `after` was computed from, nothing when there was no record; `rows` of the newest
/// rows of `after` are new, and each is told as an event. On success `after` is as it is stored.
pub(super) async fn commit(
    (bus, fate): (&bus::Handle, &Fate),
    (machine, label): (&str, &str),
    version: Option<u64>,
    before: Option<&Record>,
    after: &mut Record,
    rows: usize,
) -> Result<(), Refusal> {
    after.revision = before.map_or(0, |before| before.revision) + 1;
    let fresh = after.history[after.history.len().saturating_sub(rows)..].iter();
    let events: Vec<NewEvent> = fresh.map(|row| event(machine, label, after.incarnation, row)).collect();
    after.trim();
    let head = after.header();
    debug_assert_eq!(head.len(), HEADER);
    let change = Change {
        machine: machine.to_owned(),
        expected: before.map(Record::header).unwrap_or_default(),
        version,
        head,
        tail: after.tail(rows),
        ttl_ms: (after.status == Status::Deleted).then_some(TOMBSTONE_MS),
        indexes: indexes(machine, label, before, after),
    };
    if fate.refuses() {
        return Err(Refusal::Unavailable);
    }
    let EventId(first) = bus.change(object(machine, label), TOPIC, events, change).await?;
    if fate.refuses() {
        return Err(Refusal::Unavailable);
    }
    after.numbered(rows, first);
    Ok(())
}
