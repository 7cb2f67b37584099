//! `signalbox objects`: shows objects with a backend and what blocks them.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};
use signalbox_client::{
    Client, Error,
    objects::{ObjectList, ObjectState},
    segment,
};

use crate::{
    exit::Failure,
    input,
    listing::{Cell, Listing, cells},
    remote::Remote,
    terminal::{self, out},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the parked objects: those that wait for `unpark` or `skip`
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show an object's queue
    #[command(visible_alias = "get")]
    Show {
        /// Object
        object: String,
    },
    /// Publish events of an object, all of them or none, with its new state
    Publish(Publish),
    /// Retry a parked object
    Unpark {
        /// Object
        object: String,
    },
    /// Skip the next event of an object; it becomes a dead letter of its backend
    Skip {
        /// Object
        object: String,
        /// ID of the event, as printed by `show`; the command fails if another event is next
        #[arg(long)]
        id: u64,
    },
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
}

fn path(object: &str, below: &str) -> String {
    format!("/objects/{}{below}", segment(object))
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::Show { object } => {
            let object: ObjectState = remote.client()?.get(&path(&object, "")).await?;
            remote.show(&object, print)
        }
        Command::Unpark { object } => {
            remote.call("POST", &path(&object, "/unpark"), None).await?;
            remote.done(&json!({"unparked": true}), &format!("{object} will be retried"))
        }
        Command::Skip { object, id } => {
            remote.call("POST", &path(&object, "/skip"), Some(&json!({"id": id}))).await?;
            remote.done(&json!({"skipped": id}), &format!("event {id} is a dead letter; {object} continues"))
        }
        Command::Publish(args) => publish(args, remote).await,
        Command::List(listing) => {
            let heads = ["OBJECT", "BACKEND", "PARKED", "WAITING", "ATTEMPTS", "ERROR"];
            listing
                .list_first(remote, async |client, most| Ok(parked(&client, most).await?), heads, row)
                .await
        }
    }
}

/// The first parked objects.
pub(crate) async fn parked(client: &Client, most: usize) -> Result<Vec<ObjectState>, Error> {
    client.list("/objects", most, |page: ObjectList| (page.objects, page.next)).await
}

async fn publish(args: Publish, remote: &Remote) -> Result<(), Failure> {
    let events = match (&args.file, args.topic, args.kind) {
        (Some(file), ..) => input::items(file)?,
        (None, topic, kind) => vec![json!({"topic": topic, "type": kind})],
    };
    let mut body = input::given(json!({"events": events, "idempotency_key": args.idempotency_key}));
    if let Some(state) = args.state {
        body["data"] = state;
    }
    let done = |answer: &Value| {
        let ids: Vec<String> = answer["ids"].as_array().into_iter().flatten().map(Value::to_string).collect();
        format!("published {}", ids.join(", "))
    };
    remote.change("POST", &path(&args.object, "/events"), Some(&body), done).await
}

fn print(object: &ObjectState) {
    let row = |name: &str, value: String| out!("  {name:<14} {value}");
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
    cells![
        object.object,
        object.backend,
        object.parked_since,
        object.queued,
        object.attempts,
        object.last_error
    ]
}
