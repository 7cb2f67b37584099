//! One label: its metadata, its history, why it is in its state, and simulation.

use askama::Template;

use super::why::{Why, read};
use crate::{
    dashboard::{
        Site, format,
        pages::{Kind, View, event_link, link, render, segment},
    },
    http::Problem,
};
use signalbox_access::{Caller, Scope};
use signalbox_machines::{Cause, Entry, Line, Row, Status, Version};

#[derive(Debug, Template)]
#[template(path = "dashboard/label.html")]
struct Page {
    label: String,
    machine: String,
    machine_link: String,
    /// The label's path in the API.
    path: String,
    state: String,
    status: &'static str,
    /// How long it has been in its state, or how long ago it was deleted.
    since: String,
    /// Time until the next attempt.
    again: Option<String>,
    /// The version on which it stays until it leaves its state, although another one is active.
    kept: Option<u64>,
    active: u64,
    /// The last error.
    error: Option<String>,
    attempts: u32,
    visit: u64,
    revision: u64,
    incarnation: u32,
    metadata: String,
    history: Vec<MoveRow>,
    activity: Vec<ActivityRow>,
    why: Option<Why>,
    /// The feeds and actions whose results a simulation can assume.
    feeds: Vec<String>,
    webhooks: Vec<String>,
    may_retry: bool,
    deleted: bool,
}

#[derive(Debug)]
struct MoveRow {
    key: String,
    when: String,
    at: String,
    from: Option<String>,
    to: Option<String>,
    cause: &'static str,
    trigger: String,
    version: u64,
    event: u64,
    event_link: String,
}

/// An attempt, an operation or a change of metadata.
#[derive(Debug)]
struct ActivityRow {
    key: String,
    when: String,
    at: String,
    kind: &'static str,
    details: String,
}

/// Lines of the log that the page shows; the API has all.
const MAX_ACTIVITY: usize = 100;

pub(super) async fn page(app: &Site, caller: &Caller, view: &View) -> Result<String, Problem> {
    let (machine, label) = (&view.name, &view.label);
    let version = app.machines.definitions.current(machine).await?;
    let record = app.machines.label_store.label_or_tombstone(machine, label).await?;
    let now_ms = app.machines.inspector.overview.now_ms().await?;
    let activity = app.machines.label_store.activity(machine, label, None, MAX_ACTIVITY).await?;
    let lines = activity.map(|activity| activity.lines).unwrap_or_default();
    let deleted = record.status == Status::Deleted;
    let why = if deleted {
        None
    } else {
        Some(read(&app.machines.inspector.explainer.why(machine, label).await?, now_ms))
    };
    render(&Page {
        path: format!("/state-machines/{}/labels/{}", segment(machine), segment(label)),
        machine_link: link(Kind::Machines, machine),
        status: record.status.as_str(),
        since: if deleted {
            format::ago(now_ms, record.entered_ms)
        } else {
            format::span(now_ms.saturating_sub(record.entered_ms))
        },
        again: record.work.again_ms.map(|at| format::span(at.saturating_sub(now_ms))),
        kept: record.kept.filter(|kept| *kept != version.number),
        active: version.number,
        error: record.work.error.as_deref().map(str::to_owned),
        attempts: record.work.attempts,
        visit: record.visit,
        revision: record.revision,
        incarnation: record.incarnation,
        metadata: serde_json::to_string_pretty(&record.metadata).unwrap_or_default(),
        history: record.history.iter().rev().map(|row| move_row(now_ms, row)).collect(),
        activity: lines.iter().enumerate().filter_map(|one| activity_row(now_ms, one)).collect(),
        feeds: version.machine.feeds().iter().map(|feed| feed.name.to_string()).collect(),
        webhooks: actions(&version),
        may_retry: record.status == Status::Errored && caller.has_any(&[Scope::Machines]),
        state: record.state.to_string(),
        label: label.clone(),
        machine: machine.clone(),
        why,
        deleted,
    })
}

fn actions(version: &Version) -> Vec<String> {
    let actions = version.machine.states().iter().filter(|state| state.action().is_some());
    actions.map(|state| state.name().to_owned()).collect()
}

/// A row of the log; moves have their own table.
fn activity_row(now_ms: u64, (place, line): (usize, &Line)) -> Option<ActivityRow> {
    let details = match &line.entry {
        Entry::Move { .. } => return None,
        Entry::Attempt { state, number, outcome, status, took_ms, answer, error } => {
            let status = status.map(|status| format!(", status {status}")).unwrap_or_default();
            let took = took_ms.map(|ms| format!(", {ms} ms")).unwrap_or_default();
            let error = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            let answer = answer.as_ref().map(|answer| format!(" — {answer}")).unwrap_or_default();
            format!("{state}, attempt {number}: {outcome}{status}{took}{error}{answer}")
        }
        Entry::Operation { operation, by } => format!("{operation} by {by}"),
        Entry::Metadata { by, change: Some(change), .. } => format!("{change} by {by}"),
        Entry::Metadata { by, bytes, .. } => format!("{} bytes by {by}", bytes.unwrap_or_default()),
    };
    Some(ActivityRow {
        key: format!("{}-{}-{place}", line.at_ms, line.visit),
        when: format::ago(now_ms, line.at_ms),
        at: format::time(line.at_ms),
        kind: line.entry.kind(),
        details,
    })
}

fn move_row(now_ms: u64, row: &Row) -> MoveRow {
    MoveRow {
        key: format!("{}-{}", row.visit, row.event),
        when: format::ago(now_ms, row.at_ms),
        at: format::time(row.at_ms),
        from: row.from.as_deref().map(str::to_owned),
        to: row.to.as_deref().map(str::to_owned),
        cause: cause(row.cause),
        trigger: row.trigger.as_deref().unwrap_or_default().to_owned(),
        version: row.version,
        event: row.event,
        event_link: event_link(row.event),
    }
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Created => "created",
        Cause::Metadata => "metadata update",
        Cause::Time => "time of day",
        Cause::Interval => "interval",
        Cause::Entry => "entry into the state",
        Cause::Topic => "event",
        Cause::Feed => "feed recovered",
        Cause::Action => "action completed",
        Cause::Migrated => "state removed",
        Cause::Deleted => "deleted",
        Cause::Evaluated => "evaluated on request, or for a new definition",
        Cause::Failed => "its action failed",
        Cause::Deadline => "its time in the state was over",
        Cause::Moved => "an operator",
    }
}
