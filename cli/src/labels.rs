//! `signalbox labels`: shows labels, their history and why they wait, and changes their metadata.

mod activity;
mod facts;
mod import;
pub(crate) mod operate;

use std::{collections::BTreeMap, time::Duration};

use clap::Subcommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signalbox_client::{
    machines::{AssumedAnswer, LabelRow, Move, Simulate as Assumptions},
    segment,
};

use crate::{
    exit::Failure,
    listing::{Cell, Listing},
    outline,
    remote::Remote,
    terminal::{self, Progress},
    why,
};

/// The time limit for retrying all errored labels of a machine.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List labels with their state, status and last error
    #[command(visible_alias = "ls")]
    List(List),
    /// Show a label
    #[command(visible_alias = "get")]
    Show(One),
    /// Show the history of a label: its last transitions, or everything that is stored about it
    History(History),
    /// Show the states that a label is expected to enter, with times where they are known
    Route(One),
    /// Create the labels in a file, or update their metadata
    Import(import::Import),
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
    #[command(visible_alias = "rm", alias = "remove")]
    Delete(Box<operate::Delete>),
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Machine
    machine: String,
    #[command(flatten)]
    which: operate::Which,
    /// Which labels are read first: by name, or by the time in their state
    #[arg(long, value_parser = ["name", "oldest", "newest"])]
    first: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Machine
    machine: String,
    /// Label
    label: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct History {
    /// Machine
    machine: String,
    /// Label
    label: String,
    /// Also show attempts with their answers, operations, and changes of metadata: the last 100, or --max
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    listing: Listing,
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
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Retry {
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

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show(One { machine, label, remote }) => {
            let label = remote.client()?.machines().label(&machine, &label).await?;
            remote.show(&label, |label| {
                terminal::line(&format!(
                    "{}: {} ({}) since {}",
                    label.name, label.state, label.status, label.since
                ));
                if let Some(error) = &label.error {
                    terminal::line(&format!("  last error  {}", outline::word(error)));
                }
                terminal::line(&format!("  metadata    {}", label.metadata));
            })
        }
        Command::History(History { machine, label, all: true, listing }) => {
            listing
                .run(async || {
                    let mut activity =
                        listing.client()?.machines().activity(&machine, &label, listing.max_or(100)).await?;
                    activity.reverse();
                    listing.show(&activity, activity::COLUMNS, activity::row)
                })
                .await
        }
        Command::History(History { machine, label, listing, .. }) => {
            listing
                .list(
                    async |client| client.machines().history(&machine, &label).await,
                    ["VISIT", "AT", "FROM", "TO", "CAUSE", "TRIGGER", "+VERSION"],
                    past,
                )
                .await
        }
        Command::Route(One { machine, label, remote }) => {
            let path = format!("/state-machines/{}/labels/{}/route", segment(&machine), segment(&label));
            remote.document(&path).await
        }
        Command::Import(args) => import::run(args).await,
        Command::Why(One { machine, label, remote }) => {
            let why = remote.client()?.machines().why(&machine, &label).await?;
            remote.show(&why, |why| {
                why::lines(why, outline::lines)
                    .iter()
                    .for_each(|line| terminal::line(&outline::printable(line)));
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
        Command::Delete(args) => operate::delete(*args).await,
    }
}

async fn list(args: List) -> Result<(), Failure> {
    let List { machine, which, first, listing } = args;
    let filter = which.filter();
    listing
        .run(async || {
            let client = listing.client()?;
            let (labels, _) =
                client.machines().search(&machine, &filter, first.as_deref(), listing.limit()).await?;
            listing.show_first(&labels, ["LABEL", "STATE", "STATUS", "SINCE", "ERROR"], |label: &LabelRow| {
                let status = if label.suspended {
                    format!("{}, suspended", label.status)
                } else {
                    label.status.clone()
                };
                [
                    label.name.clone().into(),
                    label.state.clone().into(),
                    status.into(),
                    Cell::at(&label.since),
                    terminal::or_dash(label.error.as_ref()).into(),
                ]
            })
        })
        .await
}

async fn simulate(args: Simulate) -> Result<(), Failure> {
    let assumed = Assumptions {
        span: Some(args.span),
        until: None,
        metadata: args.metadata,
        feeds: args.feeds.unwrap_or_default(),
        webhooks: args.webhooks.unwrap_or_default(),
    };
    let prediction = args.remote.client()?.machines().simulate(&args.machine, &args.label, &assumed).await?;
    args.remote.show(&prediction, outline::print)
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

fn past(one: &Move) -> [Cell; 7] {
    [
        one.visit.to_string().into(),
        Cell::at(&one.at),
        terminal::or_dash(one.from.as_ref()).into(),
        terminal::or_dash(one.to.as_ref()).into(),
        one.cause.clone().into(),
        terminal::or_dash(one.trigger.as_ref()).into(),
        one.version.to_string().into(),
    ]
}
