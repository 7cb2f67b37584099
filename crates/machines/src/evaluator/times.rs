//! What a record has for indexes and the due set: indexed values, zones, the next interval and the deadline.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use signalbox_machine::{
    State,
    definition::{Daily, Deadline, Gate, Path, Zone},
    step,
};

use super::{Evaluator, Turn};
use crate::{
    record::{Record, Status},
    store::Due,
};

impl Evaluator<'_> {
    /// The indexed values of the label's metadata.
    fn indexed(&self, record: &Record) -> Vec<u64> {
        if record.status == Status::Deleted {
            return Vec::new();
        }
        // A search uses the index of the active version.
        let index = self.version.active().machine.index().iter();
        let mut digests: Vec<u64> =
            index.filter_map(|path| index_digest(path, path.of(&record.metadata))).collect();
        digests.sort_unstable();
        digests
    }

    /// Sets when the gate evaluates the label without an update: the label's next interval, and the sweeps of the gate.
    pub(super) fn times(&self, record: &mut Record, turn: &mut Turn) {
        record.indexed = self.indexed(record);
        let stays = record.status != Status::Deleted && self.version.keeps(&record.state);
        record.kept = stays.then_some(self.version.number);
        let left = matches!(record.status, Status::Ended | Status::Deleted);
        let state = self.state(record).filter(|_| !left);
        let deadline =
            state.and_then(|state| state.deadline_of(instant(record.entered_ms), &record.metadata));
        // A label that loops pauses, even if its deadline has passed.
        let pause_ms = record.work.again_ms.filter(|_| record.status == Status::Looping);
        record.work.deadline_ms = deadline.map(unix_ms).map(|at_ms| at_ms.max(pause_ms.unwrap_or(0)));
        note_unreadable_time(self.state(record).filter(|_| !left), record);
        let alert = self.state(record).and_then(State::alert).and_then(|alert| alert.age);
        record.timed = alert.is_some() && record.status != Status::Deleted;
        let gate = self.state(record).and_then(State::gate).filter(|_| record.status != Status::Deleted);
        let Some((gate, label)) = gate.zip(self.label(record)) else {
            record.zones.clear();
            record.work.interval_ms = None;
            return;
        };
        let now = instant(self.now_ms);
        let zone = step::gate_zone(self.machine(), &label);
        let facts = step::facts(self.machine(), &label, self.feeds, &zone, now);
        let interval =
            gate.next_interval(&facts, label.metadata, label.entered, now).map(|(_, at)| unix_ms(at));
        let mut own = BTreeSet::new();
        for (_, daily) in gate.daily() {
            let local = daily.zone.of(&record.metadata);
            if local.own {
                own.insert(local.zone.name().to_owned());
            }
            turn.sweeps.extend(sweep_entry(
                self.machine().name(),
                &record.state,
                daily,
                &local.zone,
                local.own,
                self.now_ms,
            ));
        }
        // An update that comes before a time that has passed was worked on does not cancel it. A suspended label is evaluated
        // for it when it is resumed.
        let passed = record.work.interval_ms.filter(|at_ms| *at_ms <= self.now_ms && !record.suspended);
        record.work.interval_ms = passed.or(interval);
        record.zones = own.into_iter().map(String::into_boxed_str).collect();
    }
}

/// How the error of a label begins whose state waits for a time that cannot be read.
const UNREADABLE_TIME: &str = "not a time: ";

/// Reports a time in the metadata that the state waits for and that cannot be read: nothing else would show that it never comes.
fn note_unreadable_time(state: Option<&State>, record: &mut Record) {
    let deadline = state.and_then(State::deadline).and_then(Deadline::path).into_iter();
    let triggers = state.and_then(State::gate).into_iter().flat_map(Gate::moments).map(|(_, path)| path);
    let mut paths = deadline.chain(triggers);
    let unreadable =
        paths.find(|path| !path.of(&record.metadata).is_null() && path.moment(&record.metadata).is_none());
    let error = unreadable.map(|path| {
        let value: String = path.of(&record.metadata).to_string().chars().take(40).collect();
        format!("{UNREADABLE_TIME}{path} is {value}; write an RFC 3339 time such as 2026-11-24T12:00:00Z, or Unix seconds")
    });
    let known = record.work.error.as_deref().is_some_and(|error| error.starts_with(UNREADABLE_TIME));
    match error {
        Some(error) if known || record.work.error.is_none() => record.work.error = Some(error.into()),
        None if known => record.work.error = None,
        _ => {}
    }
}

/// The digest under which labels with this value at this path are indexed; `None` for a value that is not indexed.
pub(crate) fn index_digest(path: &Path, value: &Value) -> Option<u64> {
    let value = match value {
        // Numbers that are equal have one text.
        Value::Number(number) => match number.as_f64() {
            // Adding zero makes -0.0 equal to 0 as a text, too.
            Some(whole) if number.is_f64() && whole.fract() == 0.0 => format!("{:.0}", whole + 0.0),
            _ => number.to_string(),
        },
        Value::String(_) | Value::Bool(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    let digest = Sha256::digest(format!("{path}\0{value}").as_bytes());
    Some(digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// The entry of a gate's time of day in the due set, and its next instant in Unix milliseconds.
pub(crate) fn sweep_entry(
    machine: &str,
    gate: &str,
    daily: &Daily,
    zone: &Zone,
    own: bool,
    now_ms: u64,
) -> Option<(String, u64)> {
    let due = Due::Sweep {
        machine: machine.to_owned(),
        gate: gate.to_owned(),
        time: daily.schedule.key(),
        zone: zone.name().to_owned(),
        own,
    };
    let next = daily.schedule.next(zone.rules(), instant(now_ms))?;
    Some((due.member(), unix_ms(next)))
}

/// Unix milliseconds as a timestamp.
pub fn instant(unix_ms: u64) -> Timestamp {
    i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX)
}

/// A timestamp as Unix milliseconds, rounded up, so that an entry is never due before its time.
pub(crate) fn unix_ms(at: Timestamp) -> u64 {
    let ms =
        at.as_nanosecond().div_euclid(1_000_000) + i128::from(at.as_nanosecond().rem_euclid(1_000_000) != 0);
    u64::try_from(ms).unwrap_or(0)
}

/// A duration in milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
