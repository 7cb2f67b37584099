//! `signalbox objects`: objects with a backend, where they stand and what holds them up.

use clap::Subcommand;
use serde_json::json;
use signalbox_client::objects::{Backend, Object};

use crate::{exit::Failure, remote::Remote, terminal};

/// Flags of `signalbox objects`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show where an object stands
    Show(One),
    /// Try a parked object again
    Unpark(One),
    /// Give the event at the head of an object up
    Skip(Skip),
    /// List backends with what waits for them
    Backends(All),
    /// List the events that a backend's objects gave up, as JSON
    Dead(Dead),
}

#[derive(Debug, clap::Args)]
struct All {
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct One {
    /// The object
    object: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Skip {
    /// The object
    object: String,
    /// The event, as `show` names it: another one at the head is left alone
    #[arg(long)]
    id: u64,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Dead {
    /// The backend
    backend: String,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Show(One { object, remote }) => {
            let object = remote.client()?.objects().show(&object).await?;
            remote.show(&object, print)
        }
        Command::Unpark(One { object, remote }) => {
            remote.client()?.objects().unpark(&object).await?;
            remote.show(&json!({"unparked": true}), |_| terminal::line(&format!("{object} is tried again")))
        }
        Command::Skip(Skip { object, id, remote }) => {
            remote.client()?.objects().skip(&object, id).await?;
            remote.show(&json!({"skipped": id}), |_| {
                terminal::line(&format!("{id} is given up; {object} goes on"));
            })
        }
        Command::Backends(All { remote }) => {
            let backends = remote.client()?.objects().backends().await?;
            remote.show(&backends, |backends| table(backends))
        }
        Command::Dead(Dead { backend, remote }) => {
            let dead = remote.client()?.objects().dead(&backend).await?;
            remote.show(&dead, |dead| terminal::line(&format!("{dead:#}")))
        }
    }
}

fn print(object: &Object) {
    let row = |name: &str, value: String| terminal::line(&format!("  {name:<14} {value}"));
    terminal::line(&object.object);
    row("backend", terminal::or_dash(object.backend.as_ref()));
    row("waiting", object.queued.to_string());
    row("next event", terminal::or_dash(object.next_id));
    row("last event", terminal::or_dash(object.last_id));
    if object.attempts > 0 || object.parked {
        row(
            "failed",
            format!("{} times, last: {}", object.attempts, terminal::or_dash(object.last_error.as_ref())),
        );
    }
    if object.parked {
        row("parked", "yes: `objects unpark` tries again, `objects skip` gives the next event up".to_owned());
    }
}

fn table(backends: &[Backend]) {
    let rows: Vec<_> = backends
        .iter()
        .map(|backend| {
            [
                backend.name.clone(),
                backend.prefix.clone(),
                backend.objects.to_string(),
                backend.events.to_string(),
                backend.dead.to_string(),
                backend.callback.clone(),
                terminal::or_dash(backend.disabled.as_ref()),
            ]
        })
        .collect();
    terminal::table(["BACKEND", "PREFIX", "OBJECTS", "EVENTS", "DEAD", "CALLBACK", "DISABLED"], &rows);
}
