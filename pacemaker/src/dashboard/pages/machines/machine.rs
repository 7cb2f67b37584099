//! One machine: its state graph, labels, failed actions, next evaluations, feeds, and versions.

use std::{collections::BTreeMap, sync::Arc};

use askama::Template;
use signalbox_machine::{
    State,
    definition::{FeedSource, OnError, Part, Text},
};

use super::{
    Busy,
    diagram::{self, Diagram},
};
use crate::{
    dashboard::{
        Site, format,
        pages::{Kind, View, render, segment},
    },
    http::Problem,
};
use signalbox_access::{Caller, Scope};
use signalbox_machines::{
    Counts, Health, Job, Operation, Record, Status, StoredVersion, Task, TaskState, Version, Wake, Waking,
};

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
struct Page {
    name: String,
    path: String,
    version: u64,
    all: u64,
    busy: Busy,
    /// Labels for which no evaluation is scheduled.
    stuck: u64,
    diagram: Option<Arc<Diagram>>,
    /// In the order of the definition and of the diagram's boxes.
    states: Vec<StateRow>,
    filter: Filter,
    labels: Vec<LabelRow>,
    /// The address of the next page of labels.
    next: Option<String>,
    /// The address of the first page, unless this is it.
    first: Option<String>,
    errored: Vec<ErroredRow>,
    feeds: Vec<FeedRow>,
    wakes: Vec<WakeRow>,
    more_wakes: bool,
    versions: Vec<VersionRow>,
    tasks: Vec<TaskRow>,
    may_manage: bool,
    plan: String,
}

#[derive(Debug)]
struct StateRow {
    name: String,
    /// The address of the list of its labels.
    link: String,
    kind: &'static str,
    labels: u64,
    /// How many of the errored labels on the page are in this state.
    errored: usize,
    /// Next states, with their conditions.
    transitions: Vec<(String, String)>,
    condition: Option<String>,
    triggers: String,
}

/// Which labels are listed.
#[derive(Debug)]
struct Filter {
    find: String,
    state: String,
    status: String,
    /// The same for the list of the API, and as flags of a command.
    query: String,
    flags: String,
    /// In words, for a question.
    words: String,
    /// Each with whether it is selected.
    states: Vec<(String, bool)>,
    statuses: Vec<(&'static str, bool)>,
}

#[derive(Debug)]
struct LabelRow {
    name: String,
    link: String,
    state: String,
    status: &'static str,
    since: String,
}

#[derive(Debug)]
struct ErroredRow {
    name: String,
    link: String,
    path: String,
    state: String,
    since: String,
    attempts: u32,
    why: String,
}

#[derive(Debug)]
struct FeedRow {
    name: String,
    from: String,
    fallback: String,
    answered: u64,
    failed: u64,
    failing: bool,
    last: String,
    why: Option<String>,
}

#[derive(Debug)]
struct WakeRow {
    key: String,
    when: String,
    overdue: bool,
    /// The label's name and address.
    label: Option<(String, String)>,
    what: String,
}

/// An operation on many labels.
#[derive(Debug)]
struct TaskRow {
    id: String,
    path: String,
    what: String,
    filter: String,
    state: &'static str,
    class: &'static str,
    running: bool,
    can_cancel: bool,
    checked: u64,
    all: u64,
    changed: u64,
    unchanged: u64,
    failed: u64,
    error: String,
    by: String,
    when: String,
}

#[derive(Debug)]
struct VersionRow {
    number: u64,
    when: String,
    by: String,
    hash: String,
    current: bool,
    /// Labels that are evaluated under it: of an earlier version, those that stay on it (`on_apply: keep`).
    labels: u64,
    link: String,
}

pub(super) async fn page(app: &Site, caller: &Caller, view: &View) -> Result<String, Problem> {
    let name = &view.name;
    let Counts { version, labels: counts, kept, busy, stuck, .. } =
        app.machines.inspector.overview.counts(name).await?;
    let now_ms = app.machines.inspector.overview.now_ms().await?;
    let failed = app.machines.label_store.list(name, &[], Some(Status::Errored), None, MAX_ERRORED).await?;
    let failed = app.machines.label_store.records(name, failed).await?;
    let failed: Vec<(String, Record)> =
        failed.into_iter().filter(|(_, record)| record.status == Status::Errored).collect();
    let (labels, next) = labels(app, &version, view).await?;
    let wakes = app.machines.inspector.overview.wakes(name).await?;
    let health = app.machines.inspector.overview.feed_health(name);
    let versions = app.machines.definitions.versions(name).await?;
    let tasks = app.machines.tasks.list(name).await?;
    let row = |(label, record): (String, Record)| LabelRow {
        link: label_link(name, &label),
        name: label,
        state: record.state.to_string(),
        status: record.status.as_str(),
        since: format::ago(now_ms, record.entered_ms),
    };
    let all: u64 = counts.values().sum();
    let labels_of = |number: u64| match kept.get(&number) {
        Some(labels) => *labels,
        None if number == version.number => all.saturating_sub(kept.values().sum()),
        None => 0,
    };
    let version_row = |(number, stored): (u64, StoredVersion)| VersionRow {
        number,
        when: format::ago(now_ms, stored.at_ms),
        by: stored.by,
        hash: stored.hash.chars().take(12).collect(),
        current: number == version.number,
        labels: labels_of(number),
        link: View { at: number.to_string(), ..View::of(Kind::Plan, name) }.address(),
    };
    let more = versions.len().saturating_sub(MAX_VERSIONS);
    render(&Page {
        path: segment(name),
        version: version.number,
        all,
        busy: Busy::read(&busy),
        stuck: stuck.values().sum(),
        diagram: app.dashboard.diagrams.of(&version.machine),
        states: version
            .machine
            .states()
            .iter()
            .map(|state| state_row(&version, state, &counts, &failed))
            .collect(),
        filter: filter(&version, view),
        labels: labels.into_iter().map(row).collect(),
        next: next.map(|after| View { after, ..view.clone() }.address()),
        first: (!view.after.is_empty()).then(|| View { after: String::new(), ..view.clone() }.address()),
        errored: failed.into_iter().map(|one| errored_row(name, now_ms, one)).collect(),
        feeds: feeds(&version, &health),
        more_wakes: wakes.len() > MAX_WAKES,
        wakes: wakes.into_iter().take(MAX_WAKES).map(|wake| wake_row(name, now_ms, wake)).collect(),
        tasks: tasks.into_iter().take(MAX_TASKS).map(|task| task_row(now_ms, task)).collect(),
        versions: versions.into_iter().skip(more).rev().map(version_row).collect(),
        may_manage: caller.has_any(&[Scope::Machines]),
        plan: View::of(Kind::Plan, name).address(),
        name: name.clone(),
    })
}

/// The address of a label's page.
pub(super) fn label_link(machine: &str, label: &str) -> String {
    View { label: label.to_owned(), ..View::of(Kind::Label, machine) }.address()
}

fn state_row(
    version: &Version,
    state: &State,
    counts: &BTreeMap<String, u64>,
    failed: &[(String, Record)],
) -> StateRow {
    let machine = &version.machine;
    let transition = |(to, conditions): (usize, Vec<String>)| {
        (machine.states()[to].name().to_owned(), conditions.join(" or "))
    };
    let gate = state.gate();
    let triggers: Vec<String> =
        gate.map(|gate| gate.triggers.iter().map(ToString::to_string).collect()).unwrap_or_default();
    StateRow {
        name: state.name().to_owned(),
        link: View { state: state.name().to_owned(), ..View::of(Kind::Machines, machine.name()) }.address(),
        kind: diagram::kind(state).1,
        labels: counts.get(state.name()).copied().unwrap_or(0),
        errored: failed.iter().filter(|(_, record)| *record.state == *state.name()).count(),
        transitions: diagram::transitions(machine, state).into_iter().map(transition).collect(),
        condition: gate.map(|gate| gate.condition.text().trim().to_owned()),
        triggers: triggers.join(", "),
    }
}

fn filter(version: &Version, view: &View) -> Filter {
    let states = version.machine.states().iter().map(State::name);
    let live = Status::words().filter(|word| *word != Status::Deleted.as_str());
    let given = [("state", &view.state), ("status", &view.status)];
    let given: Vec<(&str, &String)> = given.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let each = |text: &dyn Fn(&str, &str) -> String, between: &str| {
        given.iter().map(|(name, value)| text(name, value)).collect::<Vec<_>>().join(between)
    };
    let words = match view.state.is_empty() {
        true => each(&|name, value| format!("with {name} {value}"), " "),
        false => each(
            &|name, value| {
                if name == "state" { format!("in {value}") } else { format!("with status {value}") }
            },
            " ",
        ),
    };
    Filter {
        find: view.find.clone(),
        state: view.state.clone(),
        status: view.status.clone(),
        query: each(&|name, value| format!("&{name}={}", segment(value)), ""),
        flags: if given.is_empty() {
            "--all".to_owned()
        } else {
            each(&|name, value| format!("--{name} {value}"), " ")
        },
        words,
        states: states.map(|state| (state.to_owned(), state == view.state)).collect(),
        statuses: live.map(|status| (status, status == view.status)).collect(),
    }
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
    let mut read = 0;
    while read < MAX_READ {
        let from = Some(after.as_str()).filter(|after| !after.is_empty());
        let names = app.machines.label_store.list(name, &states, status, from, BATCH_SIZE).await?;
        read += BATCH_SIZE;
        let full = names.len() == BATCH_SIZE;
        let Some(last) = names.last().cloned() else { return Ok((found, None)) };
        let beyond = !last.starts_with(&view.find) && last > view.find;
        found.extend(app.machines.label_store.records(name, names).await?.into_iter().filter(matches));
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

fn task_row(now_ms: u64, task: Task) -> TaskRow {
    let Task { filter, job, .. } = &task;
    let mut words: Vec<String> = Vec::new();
    words.extend(filter.state.as_ref().map(|state| format!("state {state}")));
    words.extend(filter.status.map(|status| format!("status {}", status.as_str())));
    words.extend(filter.suspended.map(|yes| if yes { "suspended" } else { "not suspended" }.to_owned()));
    words.extend(filter.error.as_ref().map(|error| format!("error contains {error}")));
    words.extend(filter.older_than_seconds.map(|age| format!("older than {}", format::span(age * 1000))));
    words.extend(filter.younger_than_seconds.map(|age| format!("younger than {}", format::span(age * 1000))));
    words.extend(filter.metadata.iter().map(|(path, value)| format!("{path} is {value}")));
    let (what, can_cancel) = match job {
        Job::Each(Operation::Move { to }) => (format!("move to {to}"), true),
        Job::Each(operation) => (operation.word().to_owned(), true),
        Job::DeleteMachine => ("delete the machine".to_owned(), false),
    };
    let running = task.state == TaskState::Running;
    TaskRow {
        path: segment(&task.id),
        what,
        filter: if words.is_empty() { "all labels".to_owned() } else { words.join(", ") },
        state: task.state.as_str(),
        class: match task.state {
            TaskState::Running => "warn",
            TaskState::Done => "good",
            TaskState::Canceled => "idle",
            TaskState::Failed => "bad",
        },
        running,
        can_cancel: running && can_cancel,
        checked: task.checked,
        all: task.labels,
        changed: task.changed,
        unchanged: task.unchanged,
        failed: task.failed,
        error: task.error.unwrap_or_default(),
        by: task.by,
        when: format::ago(now_ms, task.created_ms),
        id: task.id,
    }
}

fn errored_row(machine: &str, now_ms: u64, (label, record): (String, Record)) -> ErroredRow {
    ErroredRow {
        link: label_link(machine, &label),
        path: segment(&label),
        state: record.state.to_string(),
        since: format::ago(now_ms, record.entered_ms),
        attempts: record.work.attempts,
        why: record.work.error.map_or_else(String::new, Into::into),
        name: label,
    }
}

fn feeds(version: &Version, health: &BTreeMap<String, Health>) -> Vec<FeedRow> {
    let row = |feed: &signalbox_machine::definition::Feed| {
        let health = health.get(&*feed.name).cloned().unwrap_or_default();
        let ago = |age: Option<std::time::Duration>| {
            age.map(|age| format::ago(u64::try_from(age.as_millis()).unwrap_or(u64::MAX), 0))
        };
        let last = match (ago(health.last_answer), ago(health.last_failure)) {
            (None, None) => "no request by this pacemaker yet".to_owned(),
            (Some(answer), None) => format!("answered {answer}"),
            (None, Some(failure)) => format!("failed {failure}"),
            (Some(answer), Some(failure)) => format!("answered {answer}, failed {failure}"),
        };
        FeedRow {
            name: feed.name.to_string(),
            from: match &feed.source {
                FeedSource::Url(url) => as_written(url),
                FeedSource::Stats(stats) => {
                    format!(
                        "statistics of {} {}, {} s",
                        stats.of,
                        as_written(&stats.id),
                        stats.window.as_secs()
                    )
                }
            },
            fallback: match &feed.on_error {
                OnError::Hold => "hold labels".to_owned(),
                OnError::Default(value) => value.to_string(),
            },
            answered: health.answered,
            failed: health.failed,
            failing: health.failing > 0,
            last,
            why: health.why,
        }
    };
    version.machine.feeds().iter().map(row).collect()
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

fn wake_row(machine: &str, now_ms: u64, wake: Wake) -> WakeRow {
    let overdue = wake.at_ms < now_ms;
    let when = match overdue {
        true => format!("{} overdue", format::span(now_ms - wake.at_ms)),
        false => format!("in {}", format::span(wake.at_ms - now_ms)),
    };
    let (key, label, what) = match wake.what {
        Waking::Label(label) => {
            (format!("l {label}"), Some((label.clone(), label_link(machine, &label))), String::new())
        }
        Waking::Gate { gate, time, zone, labels } => {
            let s = if labels == 1 { "" } else { "s" };
            let key = format!("w {gate} {time} {zone}");
            (key, None, format!("{gate}: up to {labels} label{s} at {time} in {zone}"))
        }
    };
    WakeRow { key, when, overdue, label, what }
}
