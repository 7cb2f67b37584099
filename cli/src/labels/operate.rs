//! `signalbox labels evaluate|skip|cancel|suspend|resume|move|delete`: operations on one label, or on all that match.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use signalbox_client::{
    Client,
    machines::{Changed, LabelFilter, LabelOperation, NewTask, Task},
    segment,
};

use super::{Once, path};
use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    machines::path as of_machine,
    remote::Remote,
    terminal::{self, Progress, out},
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
    Ok((path.to_owned(), input::value(value)))
}

impl Which {
    /// The parameters of a list of labels.
    pub(super) fn query(&self) -> [(&'static str, Option<String>); 7] {
        let LabelFilter { state, status, suspended, error, older_than, younger_than, metadata } =
            self.clone().filter();
        [
            ("state", state),
            ("status", status),
            ("suspended", suspended.map(|suspended| suspended.to_string())),
            ("error", error),
            ("older_than", older_than),
            ("younger_than", younger_than),
            ("metadata", (!metadata.is_empty()).then(|| json!(metadata).to_string())),
        ]
    }

    fn filter(self) -> LabelFilter {
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
    once: Once,
}

impl Target {
    /// Labels are either named or described.
    fn check(&self) -> Result<(), Failure> {
        self.once.check(self.label.as_deref())?;
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

pub(super) async fn delete(sure: &Sure, target: Target, remote: &Remote) -> Result<(), Failure> {
    target.check()?;
    let machine = &target.machine;
    match &target.label {
        Some(label) => sure.confirm(&format!("delete the label {label} of {machine}"))?,
        None if target.all => sure.confirm_name(&format!("delete all labels of {machine}"), machine)?,
        None => {
            sure.confirm_name(&format!("delete all labels of {machine} that match the flags"), machine)?
        }
    }
    match &target.label {
        Some(label) => {
            let client = target.once.key.client(remote.client()?)?;
            let _empty: Value =
                client.call("DELETE", &target.once.path(&path(machine, label, "")), None).await?;
            remote.done(&json!({"deleted": label}), &format!("{label} deleted"))
        }
        None => run("delete", None, target, remote).await,
    }
}

pub(super) async fn run(
    operation: &str,
    to: Option<String>,
    target: Target,
    remote: &Remote,
) -> Result<(), Failure> {
    target.check()?;
    let client = target.once.key.client(remote.client()?)?;
    let operation = operation.to_owned();
    if let Some(label) = target.label {
        let operation = LabelOperation { operation, to, metadata: None };
        let path = target.once.path(&path(&target.machine, &label, "/operations"));
        let changed: Changed = client.send("POST", &path, &operation).await?;
        return show_changed(remote, &label, &changed);
    }
    let filter = target.which.filter();
    let new = NewTask { operation, to, metadata: None, filter, rate: target.rate };
    let mut task = client.send("POST", &of_machine(&target.machine, "/tasks"), &new).await?;
    if !target.no_wait {
        task = wait(&client, &target.machine, task).await?;
    }
    remote.show(&task, |task| terminal::line(&summary(task)))
}

/// Prints the state of a label after a change.
pub(super) fn show_changed(remote: &Remote, label: &str, changed: &Changed) -> Result<(), Failure> {
    remote.show(changed, |changed| {
        out!("{label}: {} ({}) since {}", changed.state, changed.status, changed.since);
    })
}

/// Waits until a task ends, and shows its progress.
pub(crate) async fn wait(client: &Client, machine: &str, mut task: Task) -> Result<Task, Failure> {
    let progress = Progress::new();
    while task.state == "running" {
        progress.say(&summary(&task));
        tokio::time::sleep(POLL).await;
        task = client.get(&of_machine(machine, &format!("/tasks/{}", segment(&task.id)))).await?;
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
