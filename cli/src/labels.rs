//! `signalbox labels`: shows labels, their history and why they wait, and changes their metadata.

mod activity;
mod facts;
pub(crate) mod operate;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::Subcommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signalbox_client::{
    Client,
    machines::{
        Activity, AssumedAnswer, Changed, History, Label, LabelPage, LabelRow, Move, Retried,
        Simulate as Assumptions,
    },
    segment, with_query,
};

use crate::{
    bulk,
    confirm::Sure,
    exit::Failure,
    listing::{Cell, Listing, cells},
    machines::path as of_machine,
    outline,
    remote::Remote,
    terminal::{self, Progress, out},
    why,
};

/// The time limit for retrying all errored labels of a machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// Maximum number of labels of a call.
const MAX_PAGE: usize = 1_000;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List labels with their state, status and last error
    #[command(visible_alias = "ls")]
    List {
        /// Machine
        machine: String,
        #[command(flatten)]
        which: operate::Which,
        /// Which labels are read first: by name, or by the time in their state
        #[arg(long, value_parser = ["name", "oldest", "newest"])]
        first: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show a label
    #[command(visible_alias = "get")]
    Show(One),
    /// Show the history of a label: its last transitions, or everything that is stored about it
    History {
        /// Machine
        machine: String,
        /// Label
        label: String,
        /// Also show attempts with their answers, operations, and changes of metadata: the last 100, or --max
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show the states that a label is expected to enter, with times where they are known
    Route(One),
    /// Create the labels in a file, or update their metadata
    Import {
        /// Machine
        machine: String,
        /// File with `name` and `metadata` of each label: a JSON array, or one per line; - is standard input
        file: PathBuf,
        /// Update the metadata of existing labels, in place of creating labels
        #[arg(long)]
        update: bool,
    },
    /// Explain why a label is in its state, and what would move it
    Why(One),
    /// Change a label's metadata
    Set(Box<facts::Set>),
    /// Simulate the future of a label, without changing anything
    Simulate(Simulate),
    /// Retry the action of an errored label, or of all errored labels
    Retry {
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
        once: Once,
    },
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
    Move {
        /// State to move to
        #[arg(long, value_name = "STATE")]
        to: String,
        #[command(flatten)]
        target: Box<operate::Target>,
    },
    /// Delete labels
    #[command(visible_alias = "rm", alias = "remove")]
    Delete {
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        target: Box<operate::Target>,
    },
}

/// When a change is made.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Once {
    #[command(flatten)]
    key: Key,
    /// Revision that the label must have, as printed by `labels show -o json`; if it has another one, nothing is changed
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
}

/// The idempotency key of a change.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Key {
    /// Text that makes a repeated call have no effect
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl Key {
    /// A client that makes changes under the key.
    pub(crate) fn client(&self, client: Client) -> Result<Client, Failure> {
        Ok(self.idempotency_key.as_deref().map(|key| client.once(key)).transpose()?.unwrap_or(client))
    }
}

impl Once {
    /// The path, for a label of the revision.
    fn path(&self, path: &str) -> String {
        with_query(path, &[("revision", self.revision)])
    }

    /// Only one label has a revision.
    fn check(&self, label: Option<&str>) -> Result<(), Failure> {
        match (self.revision, label) {
            (Some(_), None) => Err(Failure::configuration("--revision needs the name of a label")),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Machine
    machine: String,
    /// Label
    label: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Simulate {
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

/// The path of a label.
fn path(machine: &str, label: &str, below: &str) -> String {
    of_machine(machine, &format!("/labels/{}{below}", segment(label)))
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::List { machine, which, first, listing } => {
            let path = with_query(&of_machine(&machine, "/labels"), &which.query());
            let path = with_query(&path, &[("sort", first)]);
            let read = async |client: Client, most: usize| {
                let path = with_query(&path, &[("limit", most.min(MAX_PAGE))]);
                let split = |page: LabelPage| (page.labels, page.next);
                Ok(client.list(&path, most, split).await?)
            };
            listing.list_first(remote, read, ["LABEL", "STATE", "STATUS", "SINCE", "ERROR"], row).await
        }
        Command::Show(One { machine, label }) => {
            let label: Label = remote.client()?.get(&path(&machine, &label, "")).await?;
            remote.show(&label, |label| {
                out!("{}: {} ({}) since {}", label.name, label.state, label.status, label.since);
                if let Some(error) = &label.error {
                    out!("  last error  {}", outline::word(error));
                }
                out!("  metadata    {}", label.metadata);
            })
        }
        Command::History { machine, label, all: true, listing } => {
            let max = listing.max_or(100);
            let path = path(&machine, &label, &format!("/activity?limit={}", max.min(MAX_PAGE)));
            let read = async |client: Client| {
                let split = |page: Activity| (page.activity, page.next);
                let mut activity = client.list(&path, max, split).await?;
                activity.reverse();
                Ok(activity)
            };
            listing.list(remote, read, activity::COLUMNS, activity::row).await
        }
        Command::History { machine, label, listing, .. } => {
            let path = path(&machine, &label, "/history");
            let heads = ["VISIT", "AT", "FROM", "TO", "CAUSE", "TRIGGER", "+VERSION"];
            let read = async |client: Client| Ok(client.get::<History>(&path).await?.history);
            listing.list(remote, read, heads, past).await
        }
        Command::Route(One { machine, label }) => remote.document(&path(&machine, &label, "/route")).await,
        Command::Import { machine, file, update } => {
            let import = bulk::Import {
                noun: "labels",
                name: "name",
                part: MAX_PAGE,
                patience: Duration::from_secs(300),
                method: if update { "PATCH" } else { "POST" },
                path: of_machine(&machine, "/labels"),
                body: |part| json!({"labels": part}),
            };
            bulk::import(remote, &file, import).await
        }
        Command::Why(One { machine, label }) => {
            let why = remote.call("GET", &path(&machine, &label, "/why"), None).await?;
            remote.show(&why, |why| {
                why::lines(why, outline::lines)
                    .iter()
                    .for_each(|line| terminal::line(&outline::printable(line)));
            })
        }
        Command::Set(args) => facts::set(*args, remote).await,
        Command::Simulate(args) => simulate(args, remote).await,
        Command::Retry { machine, label, state, once, .. } => {
            retry(&machine, label, state, &once, remote).await
        }
        Command::Evaluate(target) => operate::run("evaluate", None, *target, remote).await,
        Command::Skip(target) => operate::run("skip", None, *target, remote).await,
        Command::Cancel(target) => operate::run("cancel", None, *target, remote).await,
        Command::Suspend(target) => operate::run("suspend", None, *target, remote).await,
        Command::Resume(target) => operate::run("resume", None, *target, remote).await,
        Command::Move { to, target } => operate::run("move", Some(to), *target, remote).await,
        Command::Delete { sure, target } => operate::delete(&sure, *target, remote).await,
    }
}

fn row(label: &LabelRow) -> [Cell; 5] {
    let status = if label.suspended { format!("{}, suspended", label.status) } else { label.status.clone() };
    cells![label.name, label.state, status, label.since, label.error]
}

async fn simulate(args: Simulate, remote: &Remote) -> Result<(), Failure> {
    let assumed = Assumptions {
        span: Some(args.span),
        until: None,
        metadata: args.metadata,
        feeds: args.feeds.unwrap_or_default(),
        webhooks: args.webhooks.unwrap_or_default(),
    };
    let path = path(&args.machine, &args.label, "/simulate");
    let prediction: Value = remote.client()?.send("POST", &path, &assumed).await?;
    remote.show(&prediction, outline::print)
}

/// Retries one label, or all errored labels.
async fn retry(
    machine: &str,
    label: Option<String>,
    state: Option<String>,
    once: &Once,
    remote: &Remote,
) -> Result<(), Failure> {
    once.check(label.as_deref())?;
    let progress = Progress::new();
    if label.is_none() {
        progress.say("retrying");
    }
    let client = once.key.client(remote.patient(PATIENCE)?)?;
    let retried = if let Some(label) = label {
        let _changed: Changed =
            client.call("POST", &once.path(&path(machine, &label, "/retry")), None).await?;
        1
    } else {
        let path = with_query(&of_machine(machine, "/retry"), &[("state", state)]);
        client.call::<Retried>("POST", &path, None).await?.retried
    };
    drop(progress);
    remote.show(&json!({"retried": retried}), |_| {
        let labels = if retried == 1 { "label" } else { "labels" };
        out!("{retried} {labels} retried");
    })
}

fn past(one: &Move) -> [Cell; 7] {
    cells![one.visit, one.at, one.from, one.to, one.cause, one.trigger, one.version]
}
