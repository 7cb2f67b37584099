//! `signalbox machines list|plan|apply|versions`: definitions of machines in a running system.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;
use signalbox_client::machines::{Plan as Planned, Version};

use crate::{
    exit::Failure,
    remote::Remote,
    terminal::{self, Progress},
};

/// The time limit for planning and applying, which read and move thousands of labels.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, clap::Args)]
pub(super) struct All {
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(super) struct One {
    /// Machine
    machine: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(super) struct Plan {
    /// Machine
    machine: String,
    /// File with its definition
    file: PathBuf,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(super) struct Apply {
    /// Machine
    machine: String,
    /// ID of a plan, as printed by `plan`
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    plan: Option<String>,
    /// File with its definition, which is planned and applied in one step
    #[arg(long)]
    file: Option<PathBuf>,
    /// Move labels of the removed state OLD to NEW; can be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = pair)]
    map: Vec<(String, String)>,
    #[command(flatten)]
    remote: Remote,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (old, new) = text.split_once('=').ok_or("expected OLD=NEW")?;
    Ok((old.to_owned(), new.to_owned()))
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| Failure::configuration(format!("{}: {error}", file.display())))
}

pub(super) async fn plan(args: Plan) -> Result<(), Failure> {
    let definition = read(&args.file)?;
    let progress = Progress::new();
    progress.say("checking labels");
    let plan = args.remote.patient(PATIENCE)?.machines().plan(&args.machine, &definition).await?;
    drop(progress);
    args.remote.show(&plan, print)
}

pub(super) async fn versions(args: One) -> Result<(), Failure> {
    let versions = args.remote.client()?.machines().versions(&args.machine).await?;
    args.remote.show(&versions, |versions| table(versions))
}

fn table(versions: &[Version]) {
    let rows: Vec<_> = versions
        .iter()
        .map(|one| {
            let current = if one.current { "active" } else { "" };
            [one.version.to_string(), one.at.clone(), one.by.clone(), one.hash.clone(), current.to_owned()]
        })
        .collect();
    terminal::table(["VERSION", "AT", "BY", "HASH", ""], &rows);
}

pub(super) async fn list(args: All) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let mut machines = Vec::new();
    for name in client.machines().list().await? {
        machines.push(client.machines().show(&name).await?);
    }
    args.remote.show(&machines, |machines| {
        let counts = |counts: &BTreeMap<String, u64>| {
            terminal::list(&counts.iter().map(|(name, count)| format!("{name}={count}")).collect::<Vec<_>>())
        };
        let rows: Vec<_> = machines
            .iter()
            .map(|machine| {
                let labels: u64 = machine.labels.values().sum();
                [machine.name.clone(), machine.version.to_string(), labels.to_string(), counts(&machine.busy)]
            })
            .collect();
        terminal::table(["MACHINE", "VERSION", "LABELS", "BUSY"], &rows);
    })
}

fn print(plan: &Planned) {
    let against =
        if plan.version == 0 { "no active version".to_owned() } else { format!("version {}", plan.version) };
    terminal::line(&format!("plan {} (against {against})", plan.plan));
    let states = &plan.states;
    for (what, states) in
        [("added", &states.added), ("removed", &states.removed), ("changed", &states.changed)]
    {
        for state in states {
            let labels = plan.labels.get(state).map(|count| format!(" ({count} labels)"));
            terminal::line(&format!("  {what:<8} {state}{}", labels.unwrap_or_default()));
        }
    }
    for what in &plan.changed {
        terminal::line(&format!("  changed  {what}"));
    }
    let Planned { starts, would_move, needs_feed, checked, .. } = plan;
    if *starts > 0 {
        terminal::line(&format!(
            "  {starts} labels would continue immediately, because the kind of their state changes"
        ));
    }
    terminal::line(&format!(
        "  {checked} labels checked: {would_move} would move if their gate were evaluated now, {needs_feed} depend on a feed"
    ));
    plan.warnings.iter().for_each(|warning| terminal::error(&format!("warning: {warning}")));
}

pub(super) async fn apply(args: Apply) -> Result<(), Failure> {
    let client = args.remote.patient(PATIENCE)?;
    let plan = match (args.plan, &args.file) {
        (Some(plan), _) => plan,
        (None, Some(file)) => client.machines().plan(&args.machine, &read(file)?).await?.plan,
        // clap requires one of them.
        (None, None) => return Err(Failure::configuration("set --plan or --file")),
    };
    let progress = Progress::new();
    progress.say("applying, shard by shard");
    let version = client.machines().apply(&args.machine, &plan, &args.map.into_iter().collect()).await?;
    drop(progress);
    args.remote.show(&json!({"version": version}), |_| {
        terminal::line(&format!("version {version} of {} is active", args.machine));
    })
}
