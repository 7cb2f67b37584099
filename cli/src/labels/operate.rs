//! `signalbox labels evaluate|skip|cancel|suspend|resume|move|delete`: operations on one label, or on all that match.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use signalbox_client::{
    Client,
    machines::{LabelFilter, LabelOperation, NewTask, Task},
};

use crate::{
    confirm::Sure,
    exit::Failure,
    remote::Remote,
    terminal::{self, Progress},
};

/// How often the progress of a task is read.
const POLL: Duration = Duration::from_millis(300);

/// Which labels are meant.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Which {
    /// Only labels in this state
    #[arg(long)]
    state: Option<String>,
    /// Only labels with this status, such as errored
    #[arg(long)]
    status: Option<String>,
    /// Only labels that are suspended
    #[arg(long)]
    suspended: bool,
    /// Only labels whose last failure contains this text
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only labels that have been in their state for at least this long, such as 2h
    #[arg(long, value_name = "DURATION")]
    older_than: Option<String>,
    /// Only labels that have been in their state for less than this, such as 2h
    #[arg(long, value_name = "DURATION")]
    younger_than: Option<String>,
    /// Only labels with this value of metadata; can be repeated
    #[arg(long = "where", value_name = "PATH=VALUE", value_parser = condition)]
    metadata: Vec<(String, Value)>,
}

fn condition(text: &str) -> Result<(String, Value), String> {
    let (path, value) = text.split_once('=').ok_or("expected PATH=VALUE, such as plan=pro")?;
    Ok((path.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

impl Which {
    pub(super) fn filter(self) -> LabelFilter {
        LabelFilter {
            state: self.state,
            status: self.status,
            suspended: self.suspended.then_some(true),
            error: self.error,
            older_than: self.older_than,
            younger_than: self.younger_than,
            metadata: self.metadata.into_iter().collect::<BTreeMap<_, _>>(),
        }
    }
}

/// One label, or many.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// Machine
    machine: String,
    /// Label; without it, all labels that match the flags
    label: Option<String>,
    #[command(flatten)]
    which: Which,
    /// All labels of the machine
    #[arg(long)]
    all: bool,
    /// Labels per second at most
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Do not wait for the end of the task
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    remote: Remote,
}

/// Moves labels to a state.
#[derive(Debug, clap::Args)]
pub(crate) struct MoveTo {
    /// State to move to
    #[arg(long, value_name = "STATE")]
    to: String,
    #[command(flatten)]
    pub(super) target: Target,
}

/// Deletes labels.
#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    target: Target,
}

impl Target {
    /// Labels are either named or described.
    fn check(&self) -> Result<(), Failure> {
        let described = self.all || self.which.clone().filter() != LabelFilter::default();
        match self.label {
            Some(_) if described => Err(Failure::configuration(
                "name one label, or select labels with flags; the two cannot be combined",
            )),
            None if !described => Err(Failure::configuration(
                "name a label, describe labels with flags such as --state, or use --all",
            )),
            _ => Ok(()),
        }
    }
}

pub(super) async fn delete(Delete { sure, target }: Delete) -> Result<(), Failure> {
    target.check()?;
    let machine = &target.machine;
    match &target.label {
        Some(label) => sure.confirm(&format!("delete the label {label} of {machine}"))?,
        None if target.all => sure.confirm_name(&format!("delete all labels of {machine}"), machine)?,
        None => {
            sure.confirm_name(&format!("delete all labels of {machine} that match the flags"), machine)?
        }
    }
    run("delete", None, target).await
}

pub(super) async fn move_to(args: MoveTo) -> Result<(), Failure> {
    run("move", Some(args.to), args.target).await
}

pub(super) async fn run(operation: &str, to: Option<String>, target: Target) -> Result<(), Failure> {
    target.check()?;
    let filter = target.which.filter();
    let client = target.remote.client()?;
    if let Some(label) = target.label {
        return one(&client, &target.remote, (&target.machine, &label), operation, to).await;
    }
    let operation = operation.to_owned();
    let new = NewTask { operation, to, metadata: None, filter, rate: target.rate };
    let mut task = client.machines().start_task(&target.machine, &new).await?;
    if !target.no_wait {
        task = wait(&client, &target.machine, task).await?;
    }
    target.remote.show(&task, |task| terminal::line(&summary(task)))
}

async fn one(
    client: &Client,
    remote: &Remote,
    (machine, label): (&str, &str),
    operation: &str,
    to: Option<String>,
) -> Result<(), Failure> {
    if operation == "delete" {
        client.machines().delete_label(machine, label).await?;
        return remote.show(&serde_json::json!({"deleted": label}), |_| {
            terminal::line(&format!("{label} deleted"));
        });
    }
    let operation = LabelOperation { operation: operation.to_owned(), to, metadata: None };
    let changed = client.machines().operate(machine, label, &operation).await?;
    remote.show(&changed, |changed| {
        terminal::line(&format!("{label}: {} ({}) since {}", changed.state, changed.status, changed.since));
    })
}

/// Waits until a task ends, and shows its progress.
pub(crate) async fn wait(client: &Client, machine: &str, mut task: Task) -> Result<Task, Failure> {
    let progress = Progress::new();
    while task.state == "running" {
        progress.say(&summary(&task));
        tokio::time::sleep(POLL).await;
        task = client.machines().task(machine, &task.id).await?;
    }
    Ok(task)
}

/// A task in a line.
pub(crate) fn summary(task: &Task) -> String {
    let Task { operation, state, checked, changed, unchanged, failed, labels, .. } = task;
    let error = task.error.as_ref().map(|error| format!(" (last: {error})")).unwrap_or_default();
    format!(
        "{operation} {state}: {changed} changed, {unchanged} unchanged, {failed} failed{error}; {checked} of {labels} labels checked"
    )
}
