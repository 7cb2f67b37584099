//! `signalbox backends`: manages the backends of objects and their dead letters.

use clap::{Subcommand, builder::PossibleValuesParser};
use serde_json::{Map, Value, json};
use signalbox_client::{
    objects::{Backend, OnFailure, Queued},
    segment, with_query,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    listing::{Cell, Listing},
    remote::Remote,
    terminal,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List backends with their waiting events
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a backend
    #[command(visible_alias = "get")]
    Show(One),
    /// Define a backend: where the events of objects go whose names begin with a prefix
    Define(Box<Define>),
    /// Remove a backend
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(Remove),
    /// List the dead letters of a backend
    Dead(Dead),
    /// Send the dead letters of a backend again
    Redrive(One),
    /// Drop the dead letters of a backend
    DropDead(DropDead),
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Backend
    backend: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Define {
    /// Backend
    backend: String,
    /// Beginning of the names of its objects, such as work:
    #[arg(long)]
    prefix: String,
    /// URL that events are sent to
    #[arg(long, value_name = "URL")]
    callback: String,
    /// User name of deliveries [default: as before, or generated]
    #[arg(long, value_name = "NAME")]
    uuid: Option<String>,
    /// What happens to an event whose attempts all failed
    #[arg(long, value_parser = PossibleValuesParser::new(OnFailure::words()))]
    on_failure: Option<String>,
    /// Attempts before that
    #[arg(long, value_name = "COUNT")]
    max_attempts: Option<u32>,
    /// Objects that one pacemaker serves at a time
    #[arg(long, value_name = "COUNT")]
    workers: Option<u32>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// Backend
    backend: String,
    /// What happens to events that are queued for it; required if there are any
    #[arg(long, value_parser = PossibleValuesParser::new(Queued::words()))]
    queued: Option<String>,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Dead {
    /// Backend
    backend: String,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DropDead {
    /// Backend
    backend: String,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    remote: Remote,
}

fn path(backend: &str, below: &str) -> String {
    format!("/backends/{}{below}", segment(backend))
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            listing.list(async |client| client.objects().backends().await, HEADS, row).await
        }
        Command::Show(One { backend, remote }) => remote.document(&path(&backend, "")).await,
        Command::Define(args) => define(*args).await,
        Command::Remove(Remove { backend, queued, sure, remote }) => {
            let queue =
                queued.as_deref().map(|queued| format!(" (queued events: {queued})")).unwrap_or_default();
            sure.confirm_name(&format!("remove the backend {backend}{queue}"), &backend)?;
            let path = with_query(&path(&backend, ""), &[("queued", queued.as_deref())]);
            remote
                .change("DELETE", &path, None, |_| {
                    format!("{backend} is removed when nothing is queued for it")
                })
                .await
        }
        Command::Dead(Dead { backend, listing }) => {
            listing
                .list(
                    async |client| client.objects().dead(&backend).await,
                    ["EVENT", "DIED", "ATTEMPTS", "REASON"],
                    |letter| {
                        let event: Value = serde_json::from_str(letter.event.get()).unwrap_or_default();
                        [
                            event["id"].to_string().into(),
                            Cell::Time(letter.died_ms),
                            letter.attempts.to_string().into(),
                            letter.why.clone().into(),
                        ]
                    },
                )
                .await
        }
        Command::Redrive(One { backend, remote }) => {
            let path = path(&backend, "/dead/redrive");
            let done = |answer: &Value| {
                let left = answer["left"].as_u64().filter(|left| *left > 0);
                let left = left.map_or_else(String::new, |left| {
                    format!("; {left} stay, because the queue of their object is full")
                });
                format!("{} events are sent again{left}", answer["redriven"])
            };
            remote.change("POST", &path, None, done).await
        }
        Command::DropDead(DropDead { backend, sure, remote }) => {
            sure.confirm(&format!("delete all dead letters of {backend}"))?;
            let done = |answer: &Value| format!("{} dead letters dropped", answer["dropped"]);
            remote.change("DELETE", &path(&backend, "/dead"), None, done).await
        }
    }
}

async fn define(args: Define) -> Result<(), Failure> {
    let mut body = Map::new();
    let mut put = |member: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(member.to_owned(), value);
        }
    };
    put("prefix", Some(json!(args.prefix)));
    put("callback", Some(json!(args.callback)));
    put("uuid", args.uuid.map(Value::from));
    put("on_failure", args.on_failure.map(Value::from));
    put("max_attempts", args.max_attempts.map(Value::from));
    put("workers", args.workers.map(Value::from));
    let done = |answer: &Value| {
        let text = |member: &str| answer[member].as_str().unwrap_or("-").to_owned();
        format!("events of {}* go to {}", text("prefix"), text("callback"))
    };
    args.remote.change("PUT", &path(&args.backend, ""), Some(&body.into()), done).await
}

const HEADS: [&str; 8] =
    ["BACKEND", "PREFIX", "OBJECTS", "EVENTS", "DEAD", "CALLBACK", "DISABLED", "+ON FAILURE"];

fn row(backend: &Backend) -> [Cell; 8] {
    [
        backend.name.clone().into(),
        backend.prefix.clone().into(),
        backend.objects.to_string().into(),
        backend.events.to_string().into(),
        backend.dead.to_string().into(),
        backend.callback.clone().into(),
        terminal::or_dash(backend.disabled.as_ref()).into(),
        format!("{:?}", backend.on_failure).to_lowercase().into(),
    ]
}
