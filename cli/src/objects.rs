//! `signalbox objects`: shows objects with a backend and what blocks them.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Map, Value, json};
use signalbox_client::{objects::ObjectState, segment};

use crate::{
    exit::Failure,
    input,
    listing::{Cell, Listing},
    remote::Remote,
    terminal,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the parked objects: those that wait for `unpark` or `skip`
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show an object's queue
    #[command(visible_alias = "get")]
    Show(One),
    /// Publish events of an object, all of them or none, with its new state
    Publish(Publish),
    /// Retry a parked object
    Unpark(One),
    /// Skip the next event of an object; it becomes a dead letter of its backend
    Skip(Skip),
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Object
    object: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Skip {
    /// Object
    object: String,
    /// ID of the event, as printed by `show`; the command fails if another event is next
    #[arg(long)]
    id: u64,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Publish {
    /// Object
    object: String,
    /// Topic of the event
    #[arg(required_unless_present = "file")]
    topic: Option<String>,
    /// Type of the event
    #[arg(value_name = "TYPE", value_parser = ["create", "update", "delete", "noop"], required_unless_present = "file")]
    kind: Option<String>,
    /// Events as in the API, up to 100: a JSON array, or one per line; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["topic", "kind"])]
    file: Option<PathBuf>,
    /// New state of the object, as JSON
    #[arg(long, value_name = "JSON", value_parser = input::flag_json)]
    state: Option<Value>,
    /// Text that makes a repeated call have no effect
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Show(One { object, remote }) => {
            let object = remote.client()?.objects().show(&object).await?;
            remote.show(&object, print)
        }
        Command::Unpark(One { object, remote }) => {
            remote.client()?.objects().unpark(&object).await?;
            remote.done(&json!({"unparked": true}), &format!("{object} will be retried"))
        }
        Command::Skip(Skip { object, id, remote }) => {
            remote.client()?.objects().skip(&object, id).await?;
            remote.done(&json!({"skipped": id}), &format!("event {id} is a dead letter; {object} continues"))
        }
        Command::Publish(args) => publish(args).await,
        Command::List(listing) => {
            listing
                .run(async || {
                    let objects = listing.client()?.objects().parked(listing.limit()).await?;
                    listing.show_first(
                        &objects,
                        ["OBJECT", "BACKEND", "PARKED", "WAITING", "ATTEMPTS", "ERROR"],
                        row,
                    )
                })
                .await
        }
    }
}

async fn publish(args: Publish) -> Result<(), Failure> {
    let events = match (&args.file, args.topic, args.kind) {
        (Some(file), ..) => input::items(file)?,
        (None, topic, kind) => vec![json!({"topic": topic, "type": kind})],
    };
    let mut body = Map::new();
    body.insert("events".to_owned(), events.into());
    if let Some(state) = args.state {
        body.insert("data".to_owned(), state);
    }
    if let Some(key) = args.idempotency_key {
        body.insert("idempotency_key".to_owned(), key.into());
    }
    let path = format!("/objects/{}/events", segment(&args.object));
    let done = |answer: &Value| {
        let ids: Vec<String> = answer["ids"].as_array().into_iter().flatten().map(Value::to_string).collect();
        format!("published {}", ids.join(", "))
    };
    args.remote.change("POST", &path, Some(&body.into()), done).await
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
        row(
            "parked",
            "yes: `objects unpark` retries, `objects skip` makes the next event a dead letter".to_owned(),
        );
    }
}

fn row(object: &ObjectState) -> [Cell; 6] {
    [
        object.object.clone().into(),
        terminal::or_dash(object.backend.as_ref()).into(),
        Cell::time(object.parked_since_ms),
        object.queued.to_string().into(),
        object.attempts.to_string().into(),
        terminal::or_dash(object.last_error.as_ref()).into(),
    ]
}
