//! One machine: its state graph, labels, failed actions, next evaluations, feeds, and versions.

use std::sync::Arc;

use askama::Template;
use signalbox_machine::{
    State,
    definition::{Feed, FeedSource, OnError, Part, Text},
};

use super::{
    busy,
    diagram::{self, Diagram},
};
use crate::{
    dashboard::{
        Site, format,
        pages::{Content, Kind, View, Visit, plain, segment},
    },
    http::Problem,
};
use signalbox_access::Scope;
use signalbox_machines::{
    Counts, Filter, Health, Job, Operation, Record, Status, StoredVersion, Task, TaskState, Version, Wake,
    Waking,
};
use signalbox_store::{PAGE_BYTES, Pace};

/// Labels per page.
const PAGE_SIZE: usize = 50;
/// Names read per request: a filter may skip most of them.
const BATCH_SIZE: usize = 200;
/// Maximum names read for one page.
const MAX_READ: usize = 2000;
/// Maximum errored labels on the page.
const MAX_ERRORED: usize = 50;
/// Maximum scheduled evaluations on the page.
const MAX_WAKES: usize = 12;
/// Maximum tasks on the page, the newest first.
const MAX_TASKS: usize = 10;
/// Maximum versions on the page, the newest first.
const MAX_VERSIONS: usize = 20;

#[derive(Debug, Template)]
#[template(path = "dashboard/machine.html")]
struct Page<'a> {
    view: &'a View,
    name: &'a str,
    counts: &'a Counts,
    all: u64,
    diagram: Option<Arc<Diagram>>,
    /// In the order of the definition and of the diagram's boxes.
    states: Vec<StateRow<'a>>,
    selection: Selection,
    labels: Vec<(String, Record)>,
    /// The address of the next page of labels.
    next: Option<String>,
    /// The address of the first page, unless this is it.
    first: Option<String>,
    errored: Vec<(String, Record)>,
    feeds: Vec<(&'a Feed, Health)>,
    wakes: &'a [Wake],
    versions: Vec<VersionRow>,
    tasks: Vec<Task>,
    may_manage: bool,
    now_ms: u64,
}

#[derive(Debug)]
struct StateRow<'a> {
    state: &'a State,
    labels: u64,
    /// How many of the errored labels on the page are in this state.
    errored: usize,
    /// Next states, with their conditions.
    transitions: Vec<(&'a str, String)>,
}

/// The state and status of the labels that are listed.
#[derive(Debug)]
struct Selection {
    /// For the list of the API, and as flags of a command.
    query: String,
    flags: String,
    /// In words, for a question.
    words: String,
}

#[derive(Debug)]
struct VersionRow {
    number: u64,
    stored: StoredVersion,
    /// Labels that are evaluated under it: of an earlier version, those that stay on it (`on_apply: keep`).
    labels: u64,
}

pub(super) async fn page(Visit { app, caller, view, .. }: Visit<'_>) -> Result<Content, Problem> {
    let name = &view.name;
    let counts = app.machines.inspector.overview.counts(name).await?;
    let Counts { version, kept, .. } = &counts;
    let now_ms = app.machines.inspector.overview.now_ms().await?;
    let failed = app.machines.label_store.list(name, &[], Some(Status::Errored), None, MAX_ERRORED).await?;
    let mut failed = app.machines.label_store.records(name, failed).await?;
    failed.retain(|(_, record)| record.status == Status::Errored);
    let (labels, next) = labels(app, version, view).await?;
    let wakes = app.machines.inspector.overview.wakes(name).await?;
    let health = app.machines.inspector.overview.feed_health(name);
    let versions = app.machines.definitions.versions(name).await?;
    let mut tasks = app.machines.tasks.list(name).await?;
    tasks.truncate(MAX_TASKS);
    let all: u64 = counts.labels.values().sum();
    let labels_of = |number: u64| match kept.get(&number) {
        Some(labels) => *labels,
        None if number == version.number => all.saturating_sub(kept.values().sum()),
        None => 0,
    };
    let version_row = |(number, stored)| VersionRow { number, stored, labels: labels_of(number) };
    let feed = |feed: &'_ Feed| health.get(&*feed.name).cloned().unwrap_or_default();
    let more = versions.len().saturating_sub(MAX_VERSIONS);
    plain(&Page {
        view,
        name,
        counts: &counts,
        all,
        diagram: app.dashboard.diagrams.of(&version.machine),
        states: version.machine.states().iter().map(|state| state_row(&counts, state, &failed)).collect(),
        selection: selection(view),
        labels,
        next: next.map(|after| View { after, ..view.clone() }.address()),
        first: (!view.after.is_empty()).then(|| View { after: String::new(), ..view.clone() }.address()),
        errored: failed,
        feeds: version.machine.feeds().iter().map(|one| (one, feed(one))).collect(),
        wakes: &wakes,
        tasks,
        versions: versions.into_iter().skip(more).rev().map(version_row).collect(),
        may_manage: caller.has_any(&[Scope::Machines]),
        now_ms,
    })
}

/// The address of a label's page.
pub(super) fn label_link(machine: &str, label: &str) -> String {
    View { label: label.to_owned(), ..View::of(Kind::Label, machine) }.address()
}

/// The address of the list of a state's labels.
fn labels_link(machine: &str, state: &str) -> String {
    View { state: state.to_owned(), ..View::of(Kind::Machines, machine) }.address()
}

/// The address of the preview of a change of a version.
fn version_link(machine: &str, number: u64) -> String {
    View { at: number.to_string(), ..View::of(Kind::Plan, machine) }.address()
}

fn state_row<'a>(counts: &'a Counts, state: &'a State, failed: &[(String, Record)]) -> StateRow<'a> {
    let machine = &counts.version.machine;
    let transition =
        |(to, conditions): (usize, Vec<String>)| (machine.states()[to].name(), conditions.join(" or "));
    StateRow {
        state,
        labels: counts.labels.get(state.name()).copied().unwrap_or(0),
        errored: failed.iter().filter(|(_, record)| *record.state == *state.name()).count(),
        transitions: diagram::transitions(machine, state).into_iter().map(transition).collect(),
    }
}

fn selection(view: &View) -> Selection {
    let given = [("state", &view.state), ("status", &view.status)];
    let given: Vec<(&str, &String)> = given.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let each = |text: &dyn Fn(&str, &str) -> String, between: &str| {
        given.iter().map(|(name, value)| text(name, value)).collect::<Vec<_>>().join(between)
    };
    Selection {
        query: each(&|name, value| format!("&{name}={}", segment(value)), ""),
        flags: match given.is_empty() {
            true => "--all".to_owned(),
            false => each(&|name, value| format!("--{name} {value}"), " "),
        },
        words: each(
            &|name, value| match name {
                "state" => format!("in {value}"),
                _ => format!("with status {value}"),
            },
            " ",
        ),
    }
}

/// The statuses of labels that exist.
fn statuses() -> impl Iterator<Item = &'static str> {
    Status::words().filter(|word| *word != Status::Deleted.as_str())
}

/// A page of labels that match the filter, and the name after which the next page begins.
async fn labels(
    app: &Site,
    version: &Version,
    view: &View,
) -> Result<(Vec<(String, Record)>, Option<String>), Problem> {
    let name = &view.name;
    let status = Status::from_word(&view.status);
    let all = || version.machine.states().iter().map(State::name).collect();
    let states: Vec<&str> = if view.state.is_empty() { all() } else { vec![&view.state] };
    let matches = |(label, record): &(String, Record)| {
        label.starts_with(&view.find)
            && (view.state.is_empty() || *record.state == *view.state)
            && status.is_none_or(|status| record.status == status)
    };
    let mut found = Vec::new();
    // Names are in order, so those with the prefix are consecutive. The first is the prefix itself, if it is a label.
    let mut after = view.after.clone();
    if after.is_empty() && !view.find.is_empty() {
        found = app.machines.label_store.records(name, vec![view.find.clone()]).await?;
        found.retain(matches);
        after.clone_from(&view.find);
    }
    let (mut read, mut bytes, mut pace) = (0, 0, Pace::new(BATCH_SIZE));
    while read < MAX_READ && bytes < PAGE_BYTES {
        let size = pace.count();
        let from = Some(after.as_str()).filter(|after| !after.is_empty());
        let names = app.machines.label_store.list(name, &states, status, from, size).await?;
        read += size;
        let full = names.len() == size;
        let Some(last) = names.last().cloned() else { return Ok((found, None)) };
        let beyond = !last.starts_with(&view.find) && last > view.find;
        let (records, part) = app.machines.label_store.records_and_bytes(name, names).await?;
        pace.read(records.len().max(1), part);
        bytes += part;
        found.extend(records.into_iter().filter(matches));
        if found.len() > PAGE_SIZE {
            found.truncate(PAGE_SIZE);
            let last = found.last().map(|(label, _)| label.clone());
            return Ok((found, last));
        }
        if !full || beyond {
            return Ok((found, None));
        }
        after = last;
    }
    Ok((found, Some(after)))
}

/// The labels of a task in words.
fn filter_words(filter: &Filter) -> String {
    let mut words: Vec<String> = Vec::new();
    words.extend(filter.state.as_ref().map(|state| format!("state {state}")));
    words.extend(filter.status.map(|status| format!("status {}", status.as_str())));
    words.extend(filter.suspended.map(|yes| if yes { "suspended" } else { "not suspended" }.to_owned()));
    words.extend(filter.error.as_ref().map(|error| format!("error contains {error}")));
    words.extend(filter.older_than_seconds.map(|age| format!("older than {}", format::span(age * 1000))));
    words.extend(filter.younger_than_seconds.map(|age| format!("younger than {}", format::span(age * 1000))));
    words.extend(filter.metadata.iter().map(|(path, value)| format!("{path} is {value}")));
    if words.is_empty() { "all labels".to_owned() } else { words.join(", ") }
}

fn job_words(job: &Job) -> String {
    match job {
        Job::Each(Operation::Move { to }) => format!("move to {to}"),
        Job::Each(operation) => operation.word().to_owned(),
        Job::DeleteMachine => "delete the machine".to_owned(),
    }
}

/// The CSS class of a task's state.
fn class(state: TaskState) -> &'static str {
    match state {
        TaskState::Running => "warn",
        TaskState::Done => "good",
        TaskState::Canceled => "idle",
        TaskState::Failed => "bad",
    }
}

/// When a feed last answered and failed.
fn last(health: &Health) -> String {
    let ago = |age: Option<std::time::Duration>| {
        age.map(|age| format::ago(u64::try_from(age.as_millis()).unwrap_or(u64::MAX), 0))
    };
    match (ago(health.last_answer), ago(health.last_failure)) {
        (None, None) => "no request by this pacemaker yet".to_owned(),
        (Some(answer), None) => format!("answered {answer}"),
        (None, Some(failure)) => format!("failed {failure}"),
        (Some(answer), Some(failure)) => format!("answered {answer}, failed {failure}"),
    }
}

fn source(source: &FeedSource) -> String {
    match source {
        FeedSource::Url(url) => as_written(url),
        FeedSource::Stats(stats) => {
            let (of, id) = (stats.of, as_written(&stats.id));
            format!("statistics of {of} {id}, {} s", stats.window.as_secs())
        }
    }
}

/// A template with its placeholders.
fn as_written(text: &Text) -> String {
    let part = |part: &Part| match part {
        Part::Literal(text) => text.to_string(),
        Part::Label => "<label>".to_owned(),
        Part::StateMachine => "<state_machine>".to_owned(),
        Part::Metadata(path) => format!("<{path}>"),
    };
    text.parts().iter().map(part).collect()
}
