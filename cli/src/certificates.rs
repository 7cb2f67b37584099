//! `signalbox certificates`: lists and uploads certificates, and renews those that are obtained automatically.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;
use signalbox_client::certificates::{AutomaticCertificate, AutomaticState, NewCertificate};

use crate::{exit::Failure, remote::Remote, routes::Until, terminal, tokens::time};

/// Flags of `signalbox certificates`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List certificates, with the state of automatic ones and why they could not be obtained
    List(All),
    /// Upload a certificate and its private key
    Upload(Upload),
    /// Attempt a renewal of an automatic certificate now
    Renew(One),
}

#[derive(Debug, clap::Args)]
struct All {
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Upload {
    /// Server name that clients request: a host name, `*.example.org`, or `*` for clients that match no other certificate
    name: String,
    /// PEM file of the certificate, followed by the certificates of its authorities
    #[arg(long, value_name = "FILE")]
    chain: PathBuf,
    /// PEM file of the private key, not encrypted
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct One {
    /// Server name of the certificate
    name: String,
    #[command(flatten)]
    remote: Remote,
}

/// A server name that has a certificate, or should have one.
#[derive(Debug, Serialize)]
struct Row {
    server_name: String,
    /// Unix seconds.
    not_after: Option<u64>,
    /// Absent for an uploaded certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    automatic: Option<AutomaticCertificate>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List(All { remote }) => {
            let client = remote.client()?;
            let stored = client.certificates().list().await?.into_iter();
            let mut rows: BTreeMap<String, Row> = stored
                .map(|one| {
                    let not_after = u64::try_from(one.not_after).ok();
                    let row = Row { server_name: one.server_name.clone(), not_after, automatic: None };
                    (one.server_name, row)
                })
                .collect();
            for one in client.certificates().automatic().await? {
                let server_name = one.server_name.clone();
                let empty = Row { server_name: server_name.clone(), not_after: None, automatic: None };
                rows.entry(server_name).or_insert(empty).automatic = Some(one);
            }
            let rows: Vec<Row> = rows.into_values().collect();
            remote.show(&rows, |rows| print(rows))
        }
        Command::Upload(args) => upload(args).await,
        Command::Renew(One { name, remote }) => {
            remote.client()?.certificates().renew(&name).await?;
            remote.show(&json!({"requested": true}), |_| {
                terminal::line(&format!("renewal of {name} requested"))
            })
        }
    }
}

async fn upload(args: Upload) -> Result<(), Failure> {
    let new = NewCertificate { chain: read(&args.chain)?, key: read(&args.key)? };
    let client = args.remote.client()?;
    let progress = args.until.progress();
    let changed = client.certificates().upload(&args.name, &new, args.until.wait).await?;
    drop(progress);
    args.remote.show(&changed, |changed| {
        let done = if changed.changed { "uploaded" } else { "unchanged" };
        let days = changed.certificate.days_left;
        terminal::line(&format!("certificate of {} {done}, valid for {days} days", args.name));
    })
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| Failure::configuration(format!("{}: {error}", file.display())))
}

fn print(rows: &[Row]) {
    let at = |seconds: Option<u64>| terminal::or_dash(seconds.map(|seconds| time(seconds * 1000)));
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            let automatic = row.automatic.as_ref();
            [
                row.server_name.clone(),
                automatic.map_or("uploaded", |one| word(one.state)).to_owned(),
                at(row.not_after),
                at(automatic.and_then(|one| one.renews_at)),
                at(automatic.and_then(|one| one.next_attempt_at)),
                terminal::or_dash(automatic.and_then(|one| one.last_error.as_ref())),
            ]
        })
        .collect();
    terminal::table(["NAME", "STATE", "EXPIRES", "RENEWED AT", "NEXT ATTEMPT", "LAST ERROR"], &cells);
}

fn word(state: AutomaticState) -> &'static str {
    match state {
        AutomaticState::Ordering => "ordering",
        AutomaticState::Issued => "issued",
        AutomaticState::Failing => "failing",
        AutomaticState::Off => "off",
    }
}
