//! `signalbox machines list|plan|apply|versions`: definitions of machines in a running system.

use std::{path::PathBuf, time::Duration};

use signalbox_client::{
    Client,
    machines::{Applied, Plan as Planned, Task, Version},
    segment,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    labels::operate,
    listing::{Cell, Listing},
    remote::Remote,
    terminal::{self, Progress},
};

/// The time limit for planning and applying, which read and move thousands of labels.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Machine
    machine: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rows {
    /// Machine
    machine: String,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Machine
    machine: String,
    /// File with its definition
    file: PathBuf,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    /// Machine
    machine: String,
    /// File with its definition, which is planned and applied in one step
    #[arg(value_name = "FILE", required_unless_present_any = ["plan", "file"], conflicts_with_all = ["plan", "file"])]
    definition: Option<PathBuf>,
    /// ID of a plan, as printed by `plan`
    #[arg(long, conflicts_with = "file")]
    plan: Option<String>,
    /// The same as FILE
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Move labels of the removed state OLD to NEW; can be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = pair)]
    map: Vec<(String, String)>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Diff {
    /// Machine
    machine: String,
    /// File to compare with
    file: Option<PathBuf>,
    /// Version to compare [default: the active one]
    #[arg(long, value_name = "VERSION")]
    from: Option<u64>,
    /// Version to compare with, instead of a file
    #[arg(long, value_name = "VERSION", conflicts_with = "file")]
    to: Option<u64>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rollback {
    /// Machine
    machine: String,
    /// Version whose definition is applied again [default: the one before the active one]
    #[arg(long, value_name = "VERSION")]
    to: Option<u64>,
    /// Move labels of the removed state OLD to NEW; can be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = pair)]
    map: Vec<(String, String)>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    /// Machine
    machine: String,
    #[command(flatten)]
    sure: Sure,
    /// The name of the machine, again; the same as --yes
    #[arg(long, value_name = "MACHINE", hide = true)]
    confirm: Option<String>,
    /// Do not wait until all labels are deleted
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Tasks {
    /// Machine
    machine: String,
    /// Cancel this task
    #[arg(long, value_name = "TASK")]
    cancel: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (old, new) = text.split_once('=').ok_or("expected OLD=NEW")?;
    Ok((old.to_owned(), new.to_owned()))
}

pub(super) async fn plan(args: Plan) -> Result<(), Failure> {
    let definition = input::text(&args.file)?;
    let progress = Progress::new();
    progress.say("checking labels");
    let plan = args.remote.patient(PATIENCE)?.machines().plan(&args.machine, &definition).await?;
    drop(progress);
    args.remote.show(&plan, print)
}

pub(super) async fn show(args: One) -> Result<(), Failure> {
    args.remote.document(&format!("/state-machines/{}", segment(&args.machine))).await
}

pub(super) async fn versions(args: Rows) -> Result<(), Failure> {
    let Rows { machine, listing } = args;
    listing
        .list(
            async |client| client.machines().versions(&machine).await,
            ["VERSION", "AT", "BY", "HASH", "STATE"],
            |one: &Version| {
                [
                    one.version.to_string().into(),
                    Cell::at(&one.at),
                    one.by.clone().into(),
                    one.hash.clone().into(),
                    if one.current { "active" } else { "-" }.into(),
                ]
            },
        )
        .await
}

pub(super) async fn list(listing: &Listing) -> Result<(), Failure> {
    listing
        .run(async || {
            let client = listing.client()?;
            let mut machines = Vec::new();
            for name in client.machines().list().await? {
                machines.push(client.machines().show(&name).await?);
            }
            listing.show(&machines, ["MACHINE", "VERSION", "LABELS", "BUSY"], |machine| {
                let labels: u64 = machine.labels.values().sum();
                let busy = machine.busy.iter().filter(|(_, count)| **count > 0);
                let busy: Vec<String> = busy.map(|(name, count)| format!("{name}={count}")).collect();
                [
                    machine.name.clone().into(),
                    machine.version.to_string().into(),
                    labels.to_string().into(),
                    terminal::list(&busy).into(),
                ]
            })
        })
        .await
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
    let plan = match (args.plan, args.definition.as_ref().or(args.file.as_ref())) {
        (Some(plan), _) => plan,
        (None, Some(file)) => client.machines().plan(&args.machine, &input::text(file)?).await?.plan,
        // clap requires one of them.
        (None, None) => return Err(Failure::configuration("name a file, or set --plan")),
    };
    let progress = Progress::new();
    progress.say("applying, shard by shard");
    let applied = client.machines().apply(&args.machine, &plan, &args.map.into_iter().collect()).await?;
    drop(progress);
    args.remote.show(&applied, |applied| report(&args.machine, applied))
}

fn report(machine: &str, applied: &Applied) {
    let Applied { version, changed, kept } = applied;
    let what = if *changed { "is active" } else { "is active already; the definition is the same" };
    terminal::line(&format!("version {version} of {machine} {what}"));
    for kept in kept {
        let labels = if kept.labels == 1 { "label stays" } else { "labels stay" };
        terminal::line(&format!("{} {labels} on version {}", kept.labels, kept.version));
    }
}

/// The active version of a machine.
async fn active(client: &Client, machine: &str) -> Result<u64, Failure> {
    Ok(client.machines().show(machine).await?.version)
}

pub(super) async fn diff(args: Diff) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let from = match args.from {
        Some(from) => from,
        None => active(&client, &args.machine).await?,
    };
    let old = client.machines().source(&args.machine, from).await?;
    let new = match (&args.file, args.to) {
        (Some(file), _) => input::text(file)?,
        (None, Some(to)) => client.machines().source(&args.machine, to).await?,
        (None, None) => return Err(Failure::configuration("name a file, or set --to")),
    };
    let lines = difference(&old, &new);
    args.remote.show(&lines, |lines| lines.iter().for_each(|line| terminal::line(line)))
}

pub(super) async fn rollback(args: Rollback) -> Result<(), Failure> {
    let client = args.remote.patient(PATIENCE)?;
    let to = match args.to {
        Some(to) => to,
        None => {
            let now = active(&client, &args.machine).await?;
            let before = client.machines().versions(&args.machine).await?;
            let before = before.into_iter().map(|one| one.version).filter(|one| *one < now).max();
            before.ok_or_else(|| Failure::configuration("the machine has no earlier version"))?
        }
    };
    let source = client.machines().source(&args.machine, to).await?;
    let plan = client.machines().plan(&args.machine, &source).await?.plan;
    let applied = client.machines().apply(&args.machine, &plan, &args.map.into_iter().collect()).await?;
    args.remote.show(&applied, |applied| {
        terminal::line(&format!("the definition of version {to} was applied"));
        report(&args.machine, applied);
    })
}

pub(super) async fn delete(args: Delete) -> Result<(), Failure> {
    let sure = match &args.confirm {
        Some(name) if *name == args.machine => Sure::already(),
        Some(name) => return Err(Failure::configuration(format!("--confirm names another machine: {name}"))),
        None => args.sure,
    };
    sure.confirm_name(&format!("delete the machine {} with all of its labels", args.machine), &args.machine)?;
    let client = args.remote.client()?;
    let task = client.machines().delete(&args.machine).await?;
    let task = if args.no_wait { task } else { operate::wait(&client, &args.machine, task).await? };
    args.remote.show(&task, |task| terminal::line(&operate::summary(task)))
}

const TASKS: [&str; 8] = ["TASK", "OPERATION", "STATE", "CHECKED", "CHANGED", "FAILED", "BY", "STARTED"];

pub(super) async fn tasks(args: Tasks) -> Result<(), Failure> {
    let Tasks { machine, cancel, listing } = args;
    if let Some(id) = cancel {
        let task = listing.client()?.machines().cancel_task(&machine, &id).await?;
        let text = format!("task {} ends; labels that it has changed stay changed", task.id);
        return Remote::show(&listing, &task, |_| terminal::line(&text));
    }
    listing
        .list(
            async |client| client.machines().tasks(&machine).await,
            TASKS,
            |task: &Task| {
                [
                    task.id.clone().into(),
                    task.operation.clone().into(),
                    task.state.clone().into(),
                    format!("{}/{}", task.checked, task.labels).into(),
                    task.changed.to_string().into(),
                    task.failed.to_string().into(),
                    task.by.clone().into(),
                    Cell::at(&task.created),
                ]
            },
        )
        .await
}

/// Lines above which only the differing middle of two texts is shown as removed and added.
const MAX_COMPARED: usize = 3_000;

/// The lines that differ, with `-` and `+`, and up to two equal lines around them.
fn difference(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let first = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let last = old[first..].iter().rev().zip(new[first..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (mid_old, mid_new) = (&old[first..old.len() - last], &new[first..new.len() - last]);
    let mut lines: Vec<(char, &str)> = old[..first].iter().map(|line| (' ', *line)).collect();
    if mid_old.len() > MAX_COMPARED || mid_new.len() > MAX_COMPARED {
        lines.extend(mid_old.iter().map(|line| ('-', *line)));
        lines.extend(mid_new.iter().map(|line| ('+', *line)));
    } else {
        lines.extend(compared(mid_old, mid_new));
    }
    lines.extend(old[old.len() - last..].iter().map(|line| (' ', *line)));
    let near = |at: usize| {
        let around = &lines[at.saturating_sub(2)..(at + 3).min(lines.len())];
        around.iter().any(|(sign, _)| *sign != ' ')
    };
    (0..lines.len()).filter(|at| near(*at)).map(|at| format!("{} {}", lines[at].0, lines[at].1)).collect()
}

/// The longest common subsequence of the lines, with what differs between.
fn compared<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<(char, &'t str)> {
    let width = new.len() + 1;
    let mut common = vec![0_u32; (old.len() + 1) * width];
    for a in (0..old.len()).rev() {
        for b in (0..new.len()).rev() {
            common[a * width + b] = if old[a] == new[b] {
                common[(a + 1) * width + b + 1] + 1
            } else {
                common[(a + 1) * width + b].max(common[a * width + b + 1])
            };
        }
    }
    let (mut a, mut b, mut lines) = (0, 0, Vec::new());
    while a < old.len() || b < new.len() {
        if a < old.len() && b < new.len() && old[a] == new[b] {
            lines.push((' ', old[a]));
            (a, b) = (a + 1, b + 1);
        } else if b == new.len()
            || (a < old.len() && common[(a + 1) * width + b] >= common[a * width + b + 1])
        {
            lines.push(('-', old[a]));
            a += 1;
        } else {
            lines.push(('+', new[b]));
            b += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_shows_changed_lines_with_their_surroundings() {
        let old = "a\nb\nc\nd\ne\nf\ng";
        assert!(difference(old, old).is_empty());
        assert_eq!(difference(old, "a\nb\nc\nD\ne\nf\ng"), ["  b", "  c", "- d", "+ D", "  e", "  f"]);
        assert_eq!(difference("a\nb", "x\na\nb\ny"), ["+ x", "  a", "  b", "+ y"]);
        assert_eq!(difference("", "a"), ["+ a"]);
    }
}
