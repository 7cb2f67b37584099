//! `signalbox labels import`: creates many labels, or updates their metadata.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};

use crate::{bulk, exit::Failure, input, machines::path as of_machine, remote::Remote};

/// Labels of one call.
const PART: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(300);

/// Flags of `signalbox labels import`.
#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    /// Machine
    machine: String,
    /// File with `name` and `metadata` of each label: a JSON array, or one per line; - is standard input
    file: PathBuf,
    /// Update the metadata of existing labels, in place of creating labels
    #[arg(long)]
    update: bool,
}

pub(super) async fn run(args: Import, remote: &Remote) -> Result<(), Failure> {
    let items = input::items(&args.file)?;
    let client = remote.patient(PATIENCE)?;
    let path = of_machine(&args.machine, "/labels");
    let method = if args.update { "PATCH" } else { "POST" };
    bulk::send(remote, "labels", (&items, "name"), PART, async |part| {
        let answer: Value = client.call(method, &path, Some(&json!({"labels": part}))).await?;
        Ok(answer["results"].as_array().cloned().unwrap_or_default())
    })
    .await
}
