//! `signalbox audit`: shows the audit log.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use serde::Serialize;
use signalbox_client::{
    Client, Error,
    audit::{Kind, Page, Record},
    with_query,
};

use crate::{
    exit::Failure,
    listing::{Cell, Listing, cells, timestamp},
    remote::Remote,
    terminal,
};

/// How often the log is asked for new records.
const INTERVAL: Duration = Duration::from_secs(1);
/// Records that are shown unless the user chooses another number.
const RECORDS: usize = 100;
/// Maximum records of one answer of the API.
const MAX_PAGE: usize = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only records of this kind
    #[arg(long, value_parser = PossibleValuesParser::new(Kind::words()))]
    kind: Option<String>,
    /// Only records of this token or person
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Only records whose path begins with this text, such as /instances
    #[arg(long, value_name = "PATH")]
    target: Option<String>,
    /// Continue with new records until Ctrl-C
    #[arg(long, conflicts_with = "watch")]
    follow: bool,
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    remote: Remote,
}

/// Which records are read.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Query<'a> {
    kind: Option<&'a str>,
    who: Option<&'a str>,
    target: Option<&'a str>,
    /// Only records before this position, newest first.
    before: Option<&'a str>,
    /// Only records after this position, oldest first.
    after: Option<&'a str>,
    limit: Option<usize>,
}

async fn page(client: &Client, query: Query<'_>) -> Result<Page, Error> {
    client.get(&with_query("/audit", &query)).await
}

const HEADS: [&str; 9] = ["AT", "KIND", "WHO", "ADDRESS", "METHOD", "TARGET", "STATUS", "+BEFORE", "+AFTER"];

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let query = Query {
        kind: args.kind.as_deref(),
        who: args.who.as_deref(),
        target: args.target.as_deref(),
        ..Query::default()
    };
    let max = args.listing.max_or(RECORDS);
    if !args.follow {
        let read = async |client: Client| Ok(last(&client, query, max).await?.records);
        return args.listing.list(&args.remote, read, HEADS, cells).await;
    }
    let mut page = last(&client, query, max).await?;
    let mut newest = page.newest;
    loop {
        for record in &page.records {
            let line = if args.remote.is_json() { json(record)? } else { row(record) };
            if !terminal::line_is_read(&line) {
                return Ok(());
            }
        }
        tokio::time::sleep(INTERVAL).await;
        page = self::page(&client, Query { after: Some(&newest), ..query }).await?;
        newest.clone_from(&page.newest);
    }
}

/// The last `max` records. The newest is at the end, as in a log file.
async fn last(client: &Client, query: Query<'_>, max: usize) -> Result<Page, Error> {
    let read = async |before: Option<&str>, read: usize| {
        let limit = Some(max.saturating_sub(read).clamp(1, MAX_PAGE));
        page(client, Query { before, limit, ..query }).await
    };
    let mut all = read(None, 0).await?;
    while let Some(next) = all.next.take().filter(|_| all.records.len() < max) {
        let page = read(Some(&next), all.records.len()).await?;
        all.records.extend(page.records);
        all.next = page.next;
    }
    all.records.reverse();
    Ok(all)
}

fn json(record: &Record) -> Result<String, Failure> {
    serde_json::to_string(record)
        .map_err(|error| Failure::internal(format!("cannot write the record as JSON: {error}")))
}

/// The person, if the caller is a proxy that signs people in; the label, if it is a state machine.
fn who(record: &Record) -> String {
    let who = record.who.as_deref().unwrap_or("-");
    match (&record.person, &record.label) {
        (Some(person), _) => format!("{person} ({who})"),
        (None, Some(label)) => format!("{who} ({label})"),
        (None, None) => who.to_owned(),
    }
}

fn cells(record: &Record) -> [Cell; 9] {
    let code = record.code.as_ref().map_or_else(String::new, |code| format!(" {code}"));
    cells![
        record.at,
        record.kind.as_str(),
        who(record),
        record.address.as_deref().unwrap_or_default(),
        record.method,
        record.target,
        format!("{}{code}", record.status),
        record.before,
        record.after,
    ]
}

/// A record as a line: when, who, from where, what, and with what result.
fn row(record: &Record) -> String {
    let who = who(record);
    let code = record.code.as_ref().map_or_else(String::new, |code| format!(" {code}"));
    format!(
        "{}  {:<8} {who:<16} {:<15} {} {} {}{code}",
        timestamp(record.at.ms()),
        record.kind.as_str(),
        record.address.as_deref().unwrap_or("-"),
        record.method,
        record.target,
        record.status
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line() {
        let text = r#"{"at":"2027-01-31T00:00:00.000Z","kind":"refused","who":"ops","person":"alice","address":"10.0.0.7",
            "method":"DELETE","route":"/tokens/{name}","target":"/tokens/ci","status":403,"code":"scope_missing"}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(
            row(&record),
            "2027-01-31T00:00:00Z  refused  alice (ops)      10.0.0.7        DELETE /tokens/ci 403 scope_missing"
        );
    }
}
