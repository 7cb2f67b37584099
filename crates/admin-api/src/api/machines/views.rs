//! Labels as answers show them.

use std::collections::BTreeMap;

use signalbox_api::{
    Time,
    machines::{ActivityLine, Changed, KeptVersion, Label, LabelRow, Move},
};
use signalbox_machines::{Answer, Entry, Line, Record, Row};

pub(super) fn label(name: String, record: Record) -> Label {
    let previous_state = record.previous_state().map(str::to_owned);
    Label {
        name,
        state: record.state.to_string(),
        status: record.status.as_str().to_owned(),
        since: Time::from_ms(record.entered_ms),
        previous_state,
        visit: record.visit,
        revision: record.revision,
        incarnation: record.incarnation,
        suspended: record.suspended,
        kept_version: record.kept,
        attempts: record.work.attempts,
        error: record.work.error.map(Into::into),
        next_retry: record.work.again_ms.map(Time::from_ms),
        metadata: record.metadata,
    }
}

/// Labels that stay on earlier versions, the oldest version first.
pub(super) fn kept(counts: BTreeMap<u64, u64>) -> Vec<KeptVersion> {
    counts.into_iter().map(|(version, labels)| KeptVersion { version, labels }).collect()
}

pub(super) fn changed(name: String, answer: Answer) -> Changed {
    let Answer { state, status, since_ms, visit, revision, metadata, .. } = answer;
    let (status, since) = (status.as_str().to_owned(), Time::from_ms(since_ms));
    Changed { name, state, status, since, visit, revision, metadata }
}

pub(super) fn row((name, record): (String, Record)) -> LabelRow {
    LabelRow {
        name,
        state: record.state.to_string(),
        status: record.status.as_str().to_owned(),
        since: Time::from_ms(record.entered_ms),
        suspended: record.suspended,
        error: record.work.error.map(Into::into),
    }
}

pub(super) fn moved(row: Row) -> Move {
    Move {
        visit: row.visit,
        at: Time::from_ms(row.at_ms),
        from: row.from.map(|state| state.to_string()),
        to: row.to.map(|state| state.to_string()),
        cause: row.cause.as_str().to_owned(),
        trigger: row.trigger.map(|trigger| trigger.to_string()),
        version: row.version,
        event: row.event,
    }
}

pub(super) fn line(line: Line) -> ActivityLine {
    let kind = line.entry.kind().to_owned();
    let shown =
        ActivityLine { at: Time::from_ms(line.at_ms), visit: line.visit, kind, ..ActivityLine::default() };
    match line.entry {
        Entry::Move { from, to, cause, trigger, version, event } => ActivityLine {
            from,
            to,
            cause: Some(cause),
            trigger,
            version: Some(version),
            event: Some(event).filter(|event| *event > 0),
            ..shown
        },
        Entry::Attempt { state, number, outcome, status, took_ms, answer, error } => ActivityLine {
            state: Some(state),
            attempt: Some(number),
            outcome: Some(outcome),
            status,
            duration_ms: took_ms,
            answer,
            error,
            ..shown
        },
        Entry::Operation { operation, by } => {
            ActivityLine { operation: Some(operation), by: Some(by), ..shown }
        }
        Entry::Metadata { by, change, bytes } => ActivityLine { by: Some(by), change, bytes, ..shown },
    }
}
