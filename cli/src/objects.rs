//! `signalbox objects`: shows objects with a backend and what blocks them.

use clap::Subcommand;
use serde_json::json;
use signalbox_client::objects::{Backend, ObjectState};

use crate::{
    exit::Failure,
    listing::{Cell, Listing},
    remote::Remote,
    terminal,
};

/// Flags of `signalbox objects`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show an object's queue
    Show(One),
    /// Retry a parked object
    Unpark(One),
    /// Drop the next event of an object
    Skip(Skip),
    /// List backends with their waiting events
    Backends(Listing),
    /// List a backend's dead letters, as JSON
    Dead(Dead),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Object
    object: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Skip {
    /// Object
    object: String,
    /// ID of the event, as printed by `show`; the command fails if another event is next
    #[arg(long)]
    id: u64,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Dead {
    /// Backend
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
            remote.show(&json!({"unparked": true}), |_| terminal::line(&format!("{object} will be retried")))
        }
        Command::Skip(Skip { object, id, remote }) => {
            remote.client()?.objects().skip(&object, id).await?;
            remote.show(&json!({"skipped": id}), |_| {
                terminal::line(&format!("event {id} dropped; {object} continues"));
            })
        }
        Command::Backends(listing) => {
            listing
                .run(async || {
                    let backends = listing.client()?.objects().backends().await?;
                    let heads = ["BACKEND", "PREFIX", "OBJECTS", "EVENTS", "DEAD", "CALLBACK", "DISABLED"];
                    listing.show(&backends, heads, row)
                })
                .await
        }
        Command::Dead(Dead { backend, remote }) => {
            let dead = remote.client()?.objects().dead(&backend).await?;
            remote.show(&dead, |dead| terminal::line(&format!("{:#}", json!(dead))))
        }
    }
}

fn print(object: &ObjectState) {
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
        row("parked", "yes: `objects unpark` retries, `objects skip` drops the next event".to_owned());
    }
}

fn row(backend: &Backend) -> [Cell; 7] {
    [
        backend.name.clone().into(),
        backend.prefix.clone().into(),
        backend.objects.to_string().into(),
        backend.events.to_string().into(),
        backend.dead.to_string().into(),
        backend.callback.clone().into(),
        terminal::or_dash(backend.disabled.as_ref()).into(),
    ]
}
