//! `signalbox audit`: shows the audit log.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use signalbox_client::{
    Client,
    audit::{Kind, Page, Query, Record},
};

use crate::{
    exit::Failure,
    listing::{Cell, Listing, timestamp},
    terminal,
};

/// How often the log is asked for new records.
const INTERVAL: Duration = Duration::from_secs(1);
/// Records that are shown unless the user chooses another number.
const RECORDS: usize = 100;
/// Maximum records of one answer of the API.
const MAX_PAGE: usize = 1000;

/// Flags of `signalbox audit`.
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
}

const HEADS: [&str; 9] = ["AT", "KIND", "WHO", "ADDRESS", "METHOD", "TARGET", "STATUS", "+BEFORE", "+AFTER"];

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.listing.client()?;
    let query = Query {
        kind: args.kind.as_deref(),
        who: args.who.as_deref(),
        target: args.target.as_deref(),
        ..Query::default()
    };
    let max = args.listing.max_or(RECORDS);
    if !args.follow {
        return args
            .listing
            .run(async || args.listing.show(&last(&client, &query, max).await?.records, HEADS, cells))
            .await;
    }
    let mut page = last(&client, &query, max).await?;
    let mut newest = page.newest;
    loop {
        for record in &page.records {
            let line = if args.listing.is_json() { json(record)? } else { row(record) };
            if !terminal::line_is_read(&line) {
                return Ok(());
            }
        }
        tokio::time::sleep(INTERVAL).await;
        page = client.audit().page(&Query { after: Some(&newest), ..query.clone() }).await?;
        newest.clone_from(&page.newest);
    }
}

/// The last `max` records. The newest is at the end, as in a log file.
async fn last(client: &Client, query: &Query<'_>, max: usize) -> Result<Page, Failure> {
    let read = async |before: Option<&str>, read: usize| {
        let limit = Some(max.saturating_sub(read).clamp(1, MAX_PAGE));
        client.audit().page(&Query { before, limit, ..query.clone() }).await
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

/// The person, if the caller is a proxy that signs people in.
fn who(record: &Record) -> String {
    let who = record.who.as_deref().unwrap_or("-");
    record.person.as_ref().map_or_else(|| who.to_owned(), |person| format!("{person} ({who})"))
}

fn cells(record: &Record) -> [Cell; 9] {
    let code = record.code.as_ref().map_or_else(String::new, |code| format!(" {code}"));
    [
        Cell::Time(record.at_ms),
        record.kind.as_str().into(),
        who(record).into(),
        record.address.clone().into(),
        record.method.clone().into(),
        record.target.clone().into(),
        format!("{}{code}", record.status).into(),
        terminal::or_dash(record.before.as_ref()).into(),
        terminal::or_dash(record.after.as_ref()).into(),
    ]
}

/// A record as a line: when, who, from where, what, and with what result.
fn row(record: &Record) -> String {
    let who = who(record);
    let code = record.code.as_ref().map_or_else(String::new, |code| format!(" {code}"));
    format!(
        "{}  {:<8} {who:<16} {:<15} {} {} {}{code}",
        timestamp(record.at_ms),
        record.kind.as_str(),
        record.address,
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
        let text = r#"{"at_ms":1801353600000,"kind":"refused","who":"ops","person":"alice","address":"10.0.0.7",
            "method":"DELETE","route":"/tokens/{name}","target":"/tokens/ci","status":403,"code":"scope_missing"}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(
            row(&record),
            "2027-01-31T00:00:00Z  refused  alice (ops)      10.0.0.7        DELETE /tokens/ci 403 scope_missing"
        );
    }
}
