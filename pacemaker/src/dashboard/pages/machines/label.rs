//! One label: its metadata, its history, why it is in its state, and simulation.

use askama::Template;

use super::why::{Why, read};
use crate::{
    dashboard::{
        format,
        pages::{Content, Kind, Visit, event_link, link, plain, segment},
    },
    http::Problem,
};
use signalbox_access::Scope;
use signalbox_machines::{Cause, Entry, Line, Record, Status, Version};

#[derive(Debug, Template)]
#[template(path = "dashboard/label.html")]
struct Page<'a> {
    label: &'a str,
    machine: &'a str,
    record: Record,
    /// The version on which it stays until it leaves its state, although another one is active.
    kept: Option<u64>,
    active: u64,
    activity: Vec<ActivityRow>,
    why: Option<Why>,
    /// The feeds and actions whose results a simulation can assume.
    feeds: Vec<String>,
    webhooks: Vec<String>,
    may_retry: bool,
    deleted: bool,
    now_ms: u64,
}

/// An attempt, an operation or a change of metadata.
#[derive(Debug)]
struct ActivityRow {
    /// Its place among all lines.
    place: usize,
    line: Line,
    details: String,
}

/// Lines of the log that the page shows; the API has all.
const MAX_ACTIVITY: usize = 100;

pub(super) async fn page(Visit { app, caller, view, .. }: Visit<'_>) -> Result<Content, Problem> {
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
    plain(&Page {
        label,
        machine,
        kept: record.kept.filter(|kept| *kept != version.number),
        active: version.number,
        activity: lines.into_iter().enumerate().filter_map(activity_row).collect(),
        why,
        feeds: version.machine.feeds().iter().map(|feed| feed.name.to_string()).collect(),
        webhooks: actions(&version),
        may_retry: record.status == Status::Errored && caller.has_any(&[Scope::Machines]),
        record,
        deleted,
        now_ms,
    })
}

fn actions(version: &Version) -> Vec<String> {
    let actions = version.machine.states().iter().filter(|state| state.action().is_some());
    actions.map(|state| state.name().to_owned()).collect()
}

/// A row of the log; moves have their own table.
fn activity_row((place, line): (usize, Line)) -> Option<ActivityRow> {
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
    Some(ActivityRow { place, line, details })
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
