//! `signalbox machines list|show|plan|apply|versions|diff|rollback|delete|tasks`: machines in a running system.

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;
use signalbox_client::{
    Client,
    machines::{
        Applied, Apply as Application, Machine, Machines, Plan as Planned, Task, Tasks, Version,
        VersionSource, Versions,
    },
    segment, with_query,
};

use super::{flow, path, secrets};
use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    labels::{Key, operate},
    listing::{Cell, Listing, cells},
    remote::Remote,
    terminal::{self, Progress, out},
};

/// The time limit for planning and applying, which read and move thousands of labels.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the machines of a running system
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a machine: its states, and its labels by state and status
    #[command(visible_alias = "get")]
    Show {
        /// Machine
        machine: String,
    },
    /// Show what a definition would change, without changing anything
    Plan {
        /// Machine
        machine: String,
        /// File with its definition
        file: PathBuf,
    },
    /// Apply a definition: a planned one, or one from a file
    Apply(Box<Apply>),
    /// List the versions of a machine's definition
    Versions {
        /// Machine
        machine: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show how a version differs from a file or from another version
    Diff {
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
    },
    /// Apply the definition of an earlier version again
    Rollback {
        /// Machine
        machine: String,
        /// Version whose definition is applied again [default: the one before the active one]
        #[arg(long, value_name = "VERSION")]
        to: Option<u64>,
        /// Move labels of the removed state OLD to NEW; can be repeated
        #[arg(long, value_name = "OLD=NEW", value_parser = pair)]
        map: Vec<(String, String)>,
    },
    /// Show how labels flow through a machine: transitions, time in states, and conversion
    Flow(flow::Flow),
    /// Delete a machine with all of its labels
    #[command(visible_alias = "rm", alias = "remove")]
    Delete(Delete),
    /// List the secrets of a machine (values for headers and signatures of its webhooks), or set or delete one
    Secrets(secrets::Secrets),
    /// List the tasks of a machine (operations on many labels), or cancel one
    Tasks {
        /// Machine
        machine: String,
        /// Cancel this task
        #[arg(long, value_name = "TASK")]
        cancel: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
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
    key: Key,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (old, new) = text.split_once('=').ok_or("expected OLD=NEW")?;
    Ok((old.to_owned(), new.to_owned()))
}

pub(super) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::List(listing) => list(&listing, remote).await,
        Command::Show { machine } => remote.document(&path(&machine, "")).await,
        Command::Plan { machine, file } => {
            let definition = input::text(&file)?;
            let progress = Progress::new();
            progress.say("checking labels");
            let plan = plan(&remote.patient(PATIENCE)?, &machine, definition).await?;
            drop(progress);
            remote.show(&plan, print)
        }
        Command::Apply(args) => apply(*args, remote).await,
        Command::Versions { machine, listing } => {
            let heads = ["VERSION", "AT", "BY", "HASH", "STATE"];
            let row = |one: &Version| {
                let state = one.current.then_some("active");
                cells![one.version, one.at, one.by, one.hash, state]
            };
            listing.list(remote, async |client| versions(&client, &machine).await, heads, row).await
        }
        Command::Diff { machine, file, from, to } => {
            let client = remote.client()?;
            let from = match from {
                Some(from) => from,
                None => active(&client, &machine).await?,
            };
            let old = source(&client, &machine, from).await?;
            let new = match (&file, to) {
                (Some(file), _) => input::text(file)?,
                (None, Some(to)) => source(&client, &machine, to).await?,
                (None, None) => return Err(Failure::configuration("name a file, or set --to")),
            };
            let lines = difference(&old, &new);
            remote.show(&lines, |lines| lines.iter().for_each(|line| terminal::line(line)))
        }
        Command::Rollback { machine, to, map } => {
            let client = remote.patient(PATIENCE)?;
            let to = match to {
                Some(to) => to,
                None => {
                    let now = active(&client, &machine).await?;
                    let before = versions(&client, &machine).await?;
                    let before = before.into_iter().map(|one| one.version).filter(|one| *one < now).max();
                    before.ok_or_else(|| Failure::configuration("the machine has no earlier version"))?
                }
            };
            let plan = plan(&client, &machine, source(&client, &machine, to).await?).await?.plan;
            let body = Application { plan, map: map.into_iter().collect() };
            let applied: Applied = client.send("POST", &path(&machine, "/apply"), &body).await?;
            remote.show(&applied, |applied| {
                out!("the definition of version {to} was applied");
                report(&machine, applied);
            })
        }
        Command::Flow(args) => flow::run(args, remote).await,
        Command::Delete(args) => delete(args, remote).await,
        Command::Secrets(args) => secrets::run(args, remote).await,
        Command::Tasks { machine, cancel: Some(id), .. } => {
            let path = path(&machine, &format!("/tasks/{}", segment(&id)));
            let task: Task = remote.client()?.call("DELETE", &path, None).await?;
            remote.show(&task, |task| {
                out!("task {} ends; labels that it has changed stay changed", task.id);
            })
        }
        Command::Tasks { machine, cancel: None, listing } => {
            let path = path(&machine, "/tasks");
            let read = async |client: Client| Ok(client.get::<Tasks>(&path).await?.tasks);
            listing.list(remote, read, TASKS, task_row).await
        }
    }
}

async fn list(listing: &Listing, remote: &Remote) -> Result<(), Failure> {
    let read = async |client: Client| {
        let mut machines = Vec::new();
        for one in client.get::<Machines>("/state-machines").await?.state_machines {
            machines.push(client.get(&path(&one.name, "")).await?);
        }
        Ok(machines)
    };
    let row = |machine: &Machine| {
        let labels: u64 = machine.labels.values().sum();
        let busy = machine.busy.iter().filter(|(_, count)| **count > 0);
        let busy: Vec<String> = busy.map(|(name, count)| format!("{name}={count}")).collect();
        cells![machine.name, machine.version, machine.by, labels, busy]
    };
    listing.list(remote, read, ["MACHINE", "VERSION", "BY", "LABELS", "BUSY"], row).await
}

/// The changes that a definition would make.
async fn plan(client: &Client, machine: &str, definition: String) -> Result<Planned, Failure> {
    let path = path(machine, "/plan");
    Ok(client.send_bytes("POST", &path, "application/yaml", definition.into_bytes()).await?)
}

async fn versions(client: &Client, machine: &str) -> Result<Vec<Version>, Failure> {
    Ok(client.get::<Versions>(&path(machine, "/versions")).await?.versions)
}

/// The definition of a version.
async fn source(client: &Client, machine: &str, version: u64) -> Result<String, Failure> {
    let path = path(machine, &format!("/versions/{version}"));
    Ok(client.get::<VersionSource>(&path).await?.source)
}

/// The active version of a machine.
async fn active(client: &Client, machine: &str) -> Result<u64, Failure> {
    Ok(client.get::<Machine>(&path(machine, "")).await?.version)
}

fn print(plan: &Planned) {
    let against =
        if plan.version == 0 { "no active version".to_owned() } else { format!("version {}", plan.version) };
    out!("plan {} (against {against})", plan.plan);
    let states = &plan.states;
    for (what, states) in
        [("added", &states.added), ("removed", &states.removed), ("changed", &states.changed)]
    {
        for state in states {
            let labels = plan.labels.get(state).map(|count| format!(" ({count} labels)"));
            out!("  {what:<8} {state}{}", labels.unwrap_or_default());
        }
    }
    for what in &plan.changed {
        out!("  changed  {what}");
    }
    let Planned { starts, would_move, needs_feed, checked, .. } = plan;
    if *starts > 0 {
        out!("  {starts} labels would continue immediately, because the kind of their state changes");
    }
    out!(
        "  {checked} labels checked: {would_move} would move if their gate were evaluated now, {needs_feed} depend on a feed"
    );
    plan.warnings.iter().for_each(|warning| terminal::error(&format!("warning: {warning}")));
}

async fn apply(args: Apply, remote: &Remote) -> Result<(), Failure> {
    let client = remote.patient(PATIENCE)?;
    let id = match (args.plan, args.definition.as_ref().or(args.file.as_ref())) {
        (Some(plan), _) => plan,
        (None, Some(file)) => plan(&client, &args.machine, input::text(file)?).await?.plan,
        // clap requires one of them.
        (None, None) => return Err(Failure::configuration("name a file, or set --plan")),
    };
    let progress = Progress::new();
    progress.say("applying, shard by shard");
    let body = Application { plan: id, map: args.map.into_iter().collect() };
    let applied: Applied = client.send("POST", &path(&args.machine, "/apply"), &body).await?;
    drop(progress);
    remote.show(&applied, |applied| report(&args.machine, applied))
}

fn report(machine: &str, applied: &Applied) {
    let Applied { version, changed, kept } = applied;
    let what = if *changed { "is active" } else { "is active already; the definition is the same" };
    out!("version {version} of {machine} {what}");
    for kept in kept {
        let labels = if kept.labels == 1 { "label stays" } else { "labels stay" };
        out!("{} {labels} on version {}", kept.labels, kept.version);
    }
}

async fn delete(args: Delete, remote: &Remote) -> Result<(), Failure> {
    let Delete { machine, sure, confirm, no_wait, key } = args;
    match confirm {
        Some(name) if name == machine => {}
        Some(name) => return Err(Failure::configuration(format!("--confirm names another machine: {name}"))),
        None => {
            sure.confirm_name(&format!("delete the machine {machine} with all of its labels"), &machine)?;
        }
    }
    let client = key.client(remote.client()?)?;
    let path = with_query(&path(&machine, ""), &[("confirm", &machine)]);
    let mut task = client.call("DELETE", &path, None).await?;
    if !no_wait {
        task = operate::wait(&client, &machine, task).await?;
    }
    remote.show(&task, |task| terminal::line(&operate::summary(task)))
}

const TASKS: [&str; 8] = ["TASK", "OPERATION", "STATE", "CHECKED", "CHANGED", "FAILED", "BY", "STARTED"];

fn task_row(task: &Task) -> [Cell; 8] {
    let checked = format!("{}/{}", task.checked, task.labels);
    cells![task.id, task.operation, task.state, checked, task.changed, task.failed, task.by, task.created]
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
