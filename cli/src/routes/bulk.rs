//! `signalbox routes import|drain-node|dump`: many instances in one call.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};
use signalbox_client::{segment, with_query};

use super::Until;
use crate::{
    bulk::{self, Import},
    exit::Failure,
    remote::{Remote, duration},
    terminal::{self, out},
};

/// The time limit for a part, and for a whole table.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, clap::Args)]
pub(crate) struct DrainNode {
    /// Node
    node: String,
    /// Remove the instances after this time [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    deadline: Option<Duration>,
    /// End draining: send requests to the instances again
    #[arg(long, conflicts_with = "deadline")]
    resume: bool,
    #[command(flatten)]
    until: Until,
}

pub(super) async fn import(file: &Path, until: &Until, remote: &Remote) -> Result<(), Failure> {
    let import = Import {
        noun: "instances",
        name: "id",
        part: 500,
        patience: PATIENCE,
        method: "PUT",
        path: until.path("/instances"),
        body: |part| json!(part),
    };
    bulk::import(remote, file, import).await
}

pub(super) async fn drain_node(args: DrainNode, remote: &Remote) -> Result<(), Failure> {
    let path = format!("/nodes/{}/drain", segment(&args.node));
    let answer: Value = if args.resume {
        args.until.send(remote, "DELETE", &path, None).await?
    } else {
        let body =
            args.deadline.map_or_else(|| json!({}), |time| json!({"deadline_seconds": time.as_secs()}));
        args.until.send(remote, "POST", &path, Some(&body)).await?
    };
    remote.show(&answer, |answer| {
        let ids: Vec<&str> =
            answer["instances"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let now = if args.resume { "receive requests again" } else { "are draining" };
        out!("{} instances of {} {now}: {}", ids.len(), args.node, terminal::list(&ids));
    })
}

pub(super) async fn dump(remote: &Remote) -> Result<(), Failure> {
    let client = remote.patient(PATIENCE)?;
    let format = if remote.is_json() { "json" } else { "text" };
    let text = client.text(&with_query("/routes/dump", &[("format", Some(format))])).await?;
    // A reader that stops after the first lines is not a failure.
    let _unread = terminal::text(&text);
    Ok(())
}
