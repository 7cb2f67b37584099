//! `signalbox certificates`: lists and uploads certificates, and renews those that are obtained automatically.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Subcommand;
use serde::Serialize;
use serde_json::{Value, json};
use signalbox_client::{
    Client, Error, Time,
    acme::{AutomaticCertificate, AutomaticCertificateList},
    certificates::{CertificateList, ChangedCertificate, NewCertificate},
    segment,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Cell, Listing, cells},
    outline,
    remote::Remote,
    routes::Until,
    terminal::{self, out},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List certificates, with the state of automatic ones and why they could not be obtained
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a certificate, without its private key
    #[command(visible_alias = "get")]
    Show {
        /// Server name of the certificate
        name: String,
    },
    /// Remove a certificate
    #[command(visible_alias = "rm", alias = "delete")]
    Remove {
        /// Server name of the certificate
        name: String,
        #[command(flatten)]
        sure: Sure,
    },
    /// Upload a certificate and its private key
    Upload {
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
    },
    /// Attempt a renewal of an automatic certificate now
    Renew {
        /// Server name of the certificate
        name: String,
    },
}

/// A server name that has a certificate, or should have one.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) server_name: String,
    /// Unix seconds.
    pub(crate) not_after: Option<Time>,
    /// Absent for an uploaded certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) automatic: Option<AutomaticCertificate>,
}

fn path(name: &str) -> String {
    format!("/certificates/{}", segment(name))
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            listing.list(remote, async |client| Ok(rows(&client).await?), HEADS, cells).await
        }
        Command::Remove { name, sure } => {
            sure.confirm(&format!("remove the certificate of {name}, and its private key"))?;
            remote.change("DELETE", &path(&name), None, |_| format!("certificate of {name} removed")).await
        }
        Command::Show { name } => show(&name, remote).await,
        Command::Upload { name, chain, key, until } => {
            let new = NewCertificate { chain: input::text(&chain)?, key: input::text(&key)? };
            let client = remote.client()?;
            let progress = until.progress();
            let changed: ChangedCertificate = client.send("PUT", &until.path(&path(&name)), &new).await?;
            drop(progress);
            remote.show(&changed, |changed| {
                let done = if changed.changed { "uploaded" } else { "unchanged" };
                let days = changed.certificate.days_left;
                out!("certificate of {name} {done}, valid for {days} days");
            })
        }
        Command::Renew { name } => {
            remote.call("POST", &format!("/acme/names/{}/renew", segment(&name)), None).await?;
            remote.done(&json!({"requested": true}), &format!("renewal of {name} requested"))
        }
    }
}

/// A certificate, and the state of its renewal if it is automatic.
async fn show(name: &str, remote: &Remote) -> Result<(), Failure> {
    let client = remote.client()?;
    let absent = |code: &str, answer: Result<Value, Error>| match answer {
        Err(error) if error.code() == Some(code) => Ok(Value::Null),
        answer => answer,
    };
    let stored = client.call("GET", &path(name), None).await;
    let automatic = client.call("GET", &format!("/acme/names/{}", segment(name)), None).await;
    let automatic = absent("no_automatic_https", automatic)?;
    // Until the first certificate was obtained, only its state is known.
    let mut shown = if automatic.is_null() { stored? } else { absent("unknown_certificate", stored)? };
    if shown.is_null() {
        shown = json!({"server_name": name});
    }
    if !automatic.is_null() {
        shown["automatic"] = automatic;
    }
    remote.show(&shown, |shown| {
        let mut short = shown.clone();
        short.as_object_mut().map(|members| members.remove("chain"));
        outline::print(&short);
    })
}

/// All names, with their certificates.
pub(crate) async fn rows(client: &Client) -> Result<Vec<Row>, Error> {
    let split = |page: CertificateList| (page.certificates, page.next);
    let stored = client.list("/certificates", usize::MAX, split).await?;
    let split = |page: AutomaticCertificateList| (page.names, page.next);
    let automatic = client.list("/acme/names", usize::MAX, split).await?;
    let mut rows: BTreeMap<String, Row> = stored
        .into_iter()
        .map(|one| {
            let not_after = Some(one.not_after);
            let row = Row { server_name: one.server_name.clone(), not_after, automatic: None };
            (one.server_name, row)
        })
        .collect();
    for one in automatic {
        let server_name = one.server_name.clone();
        let empty = Row { server_name: server_name.clone(), not_after: None, automatic: None };
        rows.entry(server_name).or_insert(empty).automatic = Some(one);
    }
    Ok(rows.into_values().collect())
}

const HEADS: [&str; 6] = ["NAME", "STATE", "EXPIRES", "RENEWED AT", "NEXT ATTEMPT", "LAST ERROR"];

fn cells(row: &Row) -> [Cell; 6] {
    let automatic = row.automatic.as_ref();
    cells![
        row.server_name,
        automatic.map_or_else(|| "uploaded".to_owned(), |one| terminal::word(one.state)),
        row.not_after,
        automatic.and_then(|one| one.renews_at),
        automatic.and_then(|one| one.next_attempt_at),
        automatic.and_then(|one| one.last_error.as_ref()),
    ]
}
