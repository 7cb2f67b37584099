//! `signalbox labels`: shows labels, their history and why they wait, and changes their metadata.

mod activity;
mod facts;
pub(crate) mod operate;

use std::{collections::BTreeMap, time::Duration};

use clap::Subcommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signalbox_client::machines::{AssumedAnswer, Move, Simulate as Assumptions};

use crate::{
    exit::Failure,
    remote::Remote,
    terminal::{self, Progress},
    why,
};

/// The time limit for retrying all errored labels of a machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Flags of `signalbox labels`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the names of labels
    List(List),
    /// Show a label
    Show(One),
    /// Show the history of a label: its last transitions, or everything that is stored about it
    History(History),
    /// Explain why a label is in its state, and what would move it
    Why(One),
    /// Change a label's metadata
    Set(Box<facts::Set>),
    /// Simulate the future of a label, without changing anything
    Simulate(Simulate),
    /// Retry the action of an errored label, or of all errored labels
    Retry(Retry),
    /// Evaluate the gate of a label now, or of all labels that match
    Evaluate(Box<operate::Target>),
    /// Continue as if the action of a label were done
    Skip(Box<operate::Target>),
    /// End the retries of an action: the label is errored
    Cancel(Box<operate::Target>),
    /// Suspend labels: no gate is evaluated, and no attempt begins
    Suspend(Box<operate::Target>),
    /// Resume suspended labels
    Resume(Box<operate::Target>),
    /// Move labels to a state, whatever the definition says
    Move(Box<operate::MoveTo>),
    /// Delete labels
    Delete(Box<operate::Target>),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Machine
    machine: String,
    #[command(flatten)]
    which: operate::Which,
    /// Order: name, oldest or newest (by the time in their state)
    #[arg(long)]
    sort: Option<String>,
    /// Maximum number of labels
    #[arg(long, default_value_t = 1000)]
    max: usize,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct One {
    /// Machine
    machine: String,
    /// Label
    label: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct History {
    /// Machine
    machine: String,
    /// Label
    label: String,
    /// Also show attempts with their answers, operations, and changes of metadata
    #[arg(long)]
    all: bool,
    /// With --all, maximum number of lines; the newest are shown
    #[arg(long, default_value_t = 100, requires = "all")]
    max: usize,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Simulate {
    /// Machine
    machine: String,
    /// Label
    label: String,
    /// Period to simulate, such as 30d
    #[arg(long = "for", value_name = "DURATION", default_value = "30d")]
    span: String,
    /// Metadata changes at the start, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = object)]
    metadata: Option<Value>,
    /// Values of feeds, as a JSON object of names and values; null for a failing feed
    #[arg(long, value_name = "JSON", value_parser = members::<Option<Value>>)]
    feeds: Option<BTreeMap<String, Option<Value>>>,
    /// Answers to actions, as a JSON object of states and HTTP statuses, or {"status", "body"} [default: 200]
    #[arg(long, value_name = "JSON", value_parser = members::<AssumedAnswer>)]
    webhooks: Option<BTreeMap<String, AssumedAnswer>>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Retry {
    /// Machine
    machine: String,
    /// Label
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    label: Option<String>,
    /// Retry all errored labels
    #[arg(long)]
    all: bool,
    /// With --all, only labels in this state
    #[arg(long, requires = "all")]
    state: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

fn object(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value.is_object() {
        Ok(value)
    } else {
        Err("expected a JSON object, such as {\"paid\":true}".to_owned())
    }
}

fn members<T: DeserializeOwned>(text: &str) -> Result<BTreeMap<String, T>, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Show(One { machine, label, remote }) => {
            let label = remote.client()?.machines().label(&machine, &label).await?;
            remote.show(&label, |label| {
                terminal::line(&format!(
                    "{}: {} ({}) since {}",
                    label.name, label.state, label.status, label.since
                ));
                if let Some(error) = &label.error {
                    terminal::line(&format!("  last error  {}", word(error)));
                }
                terminal::line(&format!("  metadata    {}", label.metadata));
            })
        }
        Command::History(History { machine, label, all: true, max, remote }) => {
            let mut activity = remote.client()?.machines().activity(&machine, &label, max).await?;
            activity.reverse();
            remote.show(&activity, |lines| activity::table(lines))
        }
        Command::History(History { machine, label, remote, .. }) => {
            let history = remote.client()?.machines().history(&machine, &label).await?;
            remote.show(&history, |moves| past(moves))
        }
        Command::Why(One { machine, label, remote }) => {
            let why = remote.client()?.machines().why(&machine, &label).await?;
            remote.show(&why, |why| {
                why::lines(why, |more| outlined(more, 0))
                    .iter()
                    .for_each(|line| terminal::line(&printable(line)));
            })
        }
        Command::Set(args) => facts::set(*args).await,
        Command::Simulate(args) => simulate(args).await,
        Command::Retry(args) => retry(args).await,
        Command::Evaluate(target) => operate::run("evaluate", None, *target).await,
        Command::Skip(target) => operate::run("skip", None, *target).await,
        Command::Cancel(target) => operate::run("cancel", None, *target).await,
        Command::Suspend(target) => operate::run("suspend", None, *target).await,
        Command::Resume(target) => operate::run("resume", None, *target).await,
        Command::Move(args) => operate::move_to(*args).await,
        Command::Delete(target) => operate::run("delete", None, *target).await,
    }
}

async fn list(args: List) -> Result<(), Failure> {
    let List { machine, which, sort, max, remote } = args;
    let client = remote.client()?;
    let (labels, total) = client.machines().search(&machine, &which.filter(), sort.as_deref(), max).await?;
    let shown = labels.len() as u64;
    remote.show(&labels, |labels| {
        let rows: Vec<_> = labels
            .iter()
            .map(|label| {
                let suspended = if label.suspended { ", suspended" } else { "" };
                let status = format!("{}{suspended}", label.status);
                [
                    label.name.clone(),
                    label.state.clone(),
                    status,
                    label.since.clone(),
                    terminal::or_dash(label.error.as_ref()),
                ]
            })
            .collect();
        terminal::table(["LABEL", "STATE", "STATUS", "SINCE", "ERROR"], &rows);
        if total > shown {
            terminal::error(&format!("{shown} of {total} labels shown; --max shows more"));
        }
    })
}

async fn simulate(args: Simulate) -> Result<(), Failure> {
    let assumed = Assumptions {
        span: Some(args.span),
        until: None,
        metadata: args.metadata,
        feeds: args.feeds.unwrap_or_default(),
        webhooks: args.webhooks.unwrap_or_default(),
    };
    let told = args.remote.client()?.machines().simulate(&args.machine, &args.label, &assumed).await?;
    args.remote.show(&told, print)
}

async fn retry(args: Retry) -> Result<(), Failure> {
    let progress = Progress::new();
    if args.all {
        progress.say("retrying");
    }
    let client = args.remote.patient(PATIENCE)?;
    let retried = match &args.label {
        Some(label) => client.machines().retry(&args.machine, label).await.map(|()| 1)?,
        None => client.machines().retry_all(&args.machine, args.state.as_deref()).await?,
    };
    drop(progress);
    args.remote.show(&json!({"retried": retried}), |_| {
        let labels = if retried == 1 { "label" } else { "labels" };
        terminal::line(&format!("{retried} {labels} retried"));
    })
}

fn past(moves: &[Move]) {
    let rows: Vec<_> = moves
        .iter()
        .map(|one| {
            [
                one.visit.to_string(),
                one.at.clone(),
                terminal::or_dash(one.from.as_ref()),
                terminal::or_dash(one.to.as_ref()),
                one.cause.clone(),
                terminal::or_dash(one.trigger.as_ref()),
            ]
        })
        .collect();
    terminal::table(["VISIT", "AT", "FROM", "TO", "CAUSE", "TRIGGER"], &rows);
}

fn print(value: &Value) {
    outlined(value, 0).iter().for_each(|line| terminal::line(line));
}

/// Formats a text. It is quoted only if it is empty or could move the cursor.
fn word(text: &str) -> String {
    let plain = !text.is_empty() && !text.contains(char::is_control);
    // JSON permits unescaped control characters above 0x7f.
    if plain { text.to_owned() } else { format!("{text:?}") }
}

/// A line without characters that could move the cursor.
fn printable(line: &str) -> String {
    line.chars()
        .map(|one| if one.is_control() { one.escape_default().to_string() } else { one.to_string() })
        .collect()
}

fn outlined(value: &Value, depth: usize) -> Vec<String> {
    let space = "  ".repeat(depth);
    let plain = |value: &Value| match value {
        Value::String(text) => word(text),
        other => other.to_string(),
    };
    let nested = |value: &Value| match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, member)| {
                if nested(member) {
                    [vec![format!("{space}{}:", word(name))], outlined(member, depth + 1)].concat()
                } else {
                    vec![format!("{space}{}: {}", word(name), plain(member))]
                }
            })
            .collect(),
        Value::Array(items) => items
            .iter()
            .flat_map(|item| {
                let mut lines = if nested(item) { outlined(item, depth + 1) } else { vec![plain(item)] };
                if let Some(first) = lines.first_mut() {
                    *first = format!("{space}- {}", first.trim_start());
                }
                lines
            })
            .collect(),
        other => vec![format!("{space}{}", plain(other))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_leaves_nothing_out() {
        let why = json!({"state": "asked", "leaves": [{"path": "metadata.a", "value": null}, 7], "none": []});
        let lines = outlined(&why, 0);
        let text = lines.join("\n");
        for part in
            ["state: asked", "leaves:", "  - path: metadata.a", "    value: null", "  - 7", "none: []"]
        {
            assert!(lines.iter().any(|line| line == part), "{part:?} in\n{text}");
        }
        assert_eq!(outlined(&json!("a\u{1b}[2J"), 0), [r#""a\u{1b}[2J""#]);
        assert_eq!(outlined(&json!({"": {"\u{9b}": 1}}), 0), ["\"\":", "  \"\\u{9b}\": 1"]);
    }
}
