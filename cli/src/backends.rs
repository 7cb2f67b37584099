//! `signalbox backends`: manages the backends of objects and their dead letters.

use clap::{Subcommand, builder::PossibleValuesParser};
use serde_json::{Value, json};
use signalbox_client::{
    objects::{Backend, DeadEvent, OnFailure, Queued},
    segment, with_query,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Cell, Listing, cells},
    remote::Remote,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List backends with their waiting events
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a backend
    #[command(visible_alias = "get")]
    Show {
        /// Backend
        backend: String,
    },
    /// Define a backend: where the events of objects go whose names begin with a prefix
    Define(Box<Define>),
    /// Remove a backend
    #[command(visible_alias = "rm", alias = "delete")]
    Remove {
        /// Backend
        backend: String,
        /// What happens to events that are queued for it; required if there are any
        #[arg(long, value_parser = PossibleValuesParser::new(Queued::words()))]
        queued: Option<String>,
        #[command(flatten)]
        sure: Sure,
    },
    /// List the dead letters of a backend
    Dead {
        /// Backend
        backend: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// Send the dead letters of a backend again
    Redrive {
        /// Backend
        backend: String,
    },
    /// Drop the dead letters of a backend
    DropDead {
        /// Backend
        backend: String,
        #[command(flatten)]
        sure: Sure,
    },
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
}

fn path(backend: &str, below: &str) -> String {
    format!("/backends/{}{below}", segment(backend))
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            listing.list(remote, async |client| Ok(client.get("/backends").await?), HEADS, row).await
        }
        Command::Show { backend } => remote.document(&path(&backend, "")).await,
        Command::Define(args) => define(*args, remote).await,
        Command::Remove { backend, queued, sure } => {
            let queue =
                queued.as_deref().map(|queued| format!(" (queued events: {queued})")).unwrap_or_default();
            sure.confirm_name(&format!("remove the backend {backend}{queue}"), &backend)?;
            let path = with_query(&path(&backend, ""), &[("queued", queued)]);
            let done = |_: &Value| format!("{backend} is removed when nothing is queued for it");
            remote.change("DELETE", &path, None, done).await
        }
        Command::Dead { backend, listing } => {
            let row = |letter: &DeadEvent| {
                let event: Value = serde_json::from_str(letter.event.get()).unwrap_or_default();
                cells![event["id"], letter.died_at, letter.attempts, letter.why]
            };
            let path = path(&backend, "/dead");
            let heads = ["EVENT", "DIED", "ATTEMPTS", "REASON"];
            listing.list(remote, async |client| Ok(client.get(&path).await?), heads, row).await
        }
        Command::Redrive { backend } => {
            let done = |answer: &Value| {
                let left = answer["left"].as_u64().filter(|left| *left > 0);
                let left = left.map_or_else(String::new, |left| {
                    format!("; {left} stay, because the queue of their object is full")
                });
                format!("{} events are sent again{left}", answer["redriven"])
            };
            remote.change("POST", &path(&backend, "/dead/redrive"), None, done).await
        }
        Command::DropDead { backend, sure } => {
            sure.confirm(&format!("delete all dead letters of {backend}"))?;
            let done = |answer: &Value| format!("{} dead letters dropped", answer["dropped"]);
            remote.change("DELETE", &path(&backend, "/dead"), None, done).await
        }
    }
}

async fn define(args: Define, remote: &Remote) -> Result<(), Failure> {
    let body = input::given(json!({
        "prefix": args.prefix,
        "callback": args.callback,
        "uuid": args.uuid,
        "on_failure": args.on_failure,
        "max_attempts": args.max_attempts,
        "workers": args.workers,
    }));
    let done = |answer: &Value| {
        let text = |member: &str| answer[member].as_str().unwrap_or("-").to_owned();
        format!("events of {}* go to {}", text("prefix"), text("callback"))
    };
    remote.change("PUT", &path(&args.backend, ""), Some(&body), done).await
}

const HEADS: [&str; 8] =
    ["BACKEND", "PREFIX", "OBJECTS", "EVENTS", "DEAD", "CALLBACK", "DISABLED", "+ON FAILURE"];

fn row(backend: &Backend) -> [Cell; 8] {
    cells![
        backend.name,
        backend.prefix,
        backend.objects,
        backend.events,
        backend.dead,
        backend.callback,
        backend.disabled,
        backend.on_failure.as_str(),
    ]
}
