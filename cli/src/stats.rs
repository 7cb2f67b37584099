//! `signalbox stats`: shows request statistics.

use std::{collections::BTreeMap, time::Duration};

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use signalbox_client::{
    Client,
    routes::Filter,
    stats::{self, Subject, Totals},
};
use tokio::time::{self, MissedTickBehavior};

use crate::{
    exit::Failure,
    remote::{Remote, duration, past, seconds},
    terminal,
};

/// Flags of `signalbox stats`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the totals
    Show(Show),
    /// Show the history of a metric
    History(History),
    /// Watch requests, errors and response times of all version types, busiest first
    Top(Top),
}

#[derive(Debug, clap::Args)]
struct Show {
    /// version_type/ID, version/ID, application/ID, workspace/ID, node/ID, uncaught or pacemaker
    subject: Subject,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct History {
    /// Subject, as for `show`
    subject: Subject,
    /// Metric, such as requests, bytes, 5xx
    #[arg(long, default_value = "requests")]
    metric: String,
    /// Start: a time, or a duration before now [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = past)]
    start: Option<Timestamp>,
    /// End: a time, or a duration before now [default: now]
    #[arg(long, value_name = "TIME", value_parser = past)]
    end: Option<Timestamp>,
    /// Duration of a point
    #[arg(long, value_name = "DURATION", value_parser = seconds::<u64>)]
    step: Option<u64>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Top {
    /// Interval that each table covers
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2s")]
    interval: Duration,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    /// Maximum number of rows [default: those that fit the terminal, otherwise 40]
    #[arg(long, value_name = "ROWS")]
    rows: Option<usize>,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Show(args) => show(args).await,
        Command::History(args) => history(args).await,
        Command::Top(args) => top(args).await,
    }
}

async fn show(args: Show) -> Result<(), Failure> {
    let totals = args.remote.client()?.stats().totals(&args.subject).await?;
    if totals.requests == 0 {
        terminal::error(&format!("no request was counted for {}", args.subject));
    }
    args.remote.show(&totals, |totals| {
        let mean = |sum: u64, count: u64| terminal::or_dash(sum.checked_div(count));
        terminal::line(&format!("{} {}", totals.kind, totals.id));
        terminal::line(&format!("  requests        {}", totals.requests));
        terminal::line(&format!("  bytes           {}", totals.bytes));
        terminal::line(&format!("  mean ms         {}", mean(totals.nginxtime, totals.requests)));
        terminal::line(&format!("  mean ms upstream {}", mean(totals.time, totals.timecount)));
        for (code, count) in &totals.codes {
            terminal::line(&format!("  {code}             {count}"));
        }
    })
}

async fn history(args: History) -> Result<(), Failure> {
    let second = |at: Timestamp| u64::try_from(at.as_second()).unwrap_or_default();
    let range = stats::History {
        metric: Some(args.metric),
        start: args.start.map(second),
        end: args.end.map(second),
        step: args.step,
    };
    let points = args.remote.client()?.stats().history(&args.subject, &range).await?;
    args.remote.show(&points, |points| {
        for (second, value) in points {
            let at = i64::try_from(*second).ok().and_then(|second| Timestamp::from_second(second).ok());
            terminal::line(&format!("{} {value}", at.unwrap_or_default()));
        }
    })
}

/// A version type, compared between two samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    version_type: String,
    hosts: Vec<String>,
    requests_per_second: f64,
    error_percent: Option<f64>,
    mean_ms: Option<f64>,
    bytes_per_second: f64,
    requests: u64,
}

impl Row {
    fn new(hosts: &[String], before: &Totals, now: &Totals, seconds: f64) -> Self {
        let grown = |now: u64, before: u64| {
            #[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
            let grown = now.saturating_sub(before) as f64;
            grown
        };
        let requests = grown(now.requests, before.requests);
        let share = |part: f64| (requests > 0.0).then(|| part / requests);
        Self {
            version_type: now.id.clone(),
            hosts: hosts.to_vec(),
            requests_per_second: requests / seconds,
            error_percent: share(100.0 * grown(now.server_errors, before.server_errors)),
            mean_ms: share(grown(now.nginxtime, before.nginxtime)),
            bytes_per_second: grown(now.bytes, before.bytes) / seconds,
            requests: now.requests,
        }
    }

    fn cells(&self) -> [String; 7] {
        let one =
            |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.1}"));
        [
            self.version_type.clone(),
            hosts(&self.hosts),
            one(Some(self.requests_per_second)),
            one(self.error_percent),
            one(self.mean_ms),
            format!("{:.1}", self.bytes_per_second / 1024.0),
            self.requests.to_string(),
        ]
    }
}

/// The first host and the number of others: a version type with many hosts must not push the numbers off the screen.
fn hosts(hosts: &[String]) -> String {
    let short = |name: &str| match name.chars().count() {
        0..=MAX_HOST => name.to_owned(),
        _ => name.chars().take(MAX_HOST - 1).chain(['…']).collect(),
    };
    match hosts {
        [] => "-".to_owned(),
        [one] => short(one),
        [first, others @ ..] => format!("{} +{}", short(first), others.len()),
    }
}

/// Characters of a host name in a table.
const MAX_HOST: usize = 32;
/// Rows of a table without a terminal.
const DEFAULT_ROWS: usize = 40;

const HEADS: [&str; 7] = ["VERSION TYPE", "HOSTS", "REQ/S", "5XX %", "MEAN MS", "KIB/S", "REQUESTS"];

async fn top(args: Top) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let mut ticks = time::interval(args.interval.max(Duration::from_millis(200)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut before = look(&client).await?;
    let mut at = time::Instant::now();
    loop {
        ticks.tick().await;
        let (now, then) = (look(&client).await?, at);
        at = time::Instant::now();
        let most = args.rows.unwrap_or_else(|| terminal::height().map_or(DEFAULT_ROWS, |rows| rows.saturating_sub(2)));
        let rows = rows(&before, &now, (at - then).as_secs_f64(), most);
        before = now;
        if !draw(&args, &rows)? || args.once {
            return Ok(());
        }
    }
}

/// The hosts and totals of each version type that has an instance, and of requests without a route.
type Look = BTreeMap<String, (Vec<String>, Totals)>;

async fn look(client: &Client) -> Result<Look, Failure> {
    let mut hosts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for instance in client.routes().instances(&Filter::default()).await? {
        let known = hosts.entry(instance.version_type_id).or_default();
        known.extend(instance.hostnames);
        known.sort_unstable();
        known.dedup();
    }
    let mut look = Look::new();
    for (id, hosts) in hosts {
        let totals = client.stats().totals(&Subject::VersionType(id.clone())).await?;
        look.insert(id, (hosts, totals));
    }
    let mut unrouted = client.stats().totals(&Subject::Uncaught).await?;
    unrouted.id = "(no route)".to_owned();
    look.insert(unrouted.id.clone(), (Vec::new(), unrouted));
    Ok(look)
}

/// Sorts by request rate. A version type that is missing in the first sample has no rates.
fn rows(before: &Look, now: &Look, seconds: f64, most: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = now
        .iter()
        .map(|(id, (hosts, totals))| {
            let past = before.get(id).map_or(totals, |(_, totals)| totals);
            Row::new(hosts, past, totals, seconds)
        })
        .collect();
    rows.sort_by(|a, b| b.requests_per_second.total_cmp(&a.requests_per_second));
    rows.truncate(most);
    rows
}

/// Prints a table, and returns whether the reader still exists.
fn draw(args: &Top, rows: &[Row]) -> Result<bool, Failure> {
    if args.remote.is_json() {
        // One table per line, so that a program can read them one by one.
        let line = serde_json::to_string(rows)
            .map_err(|error| Failure::internal(format!("cannot write the table as JSON: {error}")))?;
        return Ok(terminal::line_is_read(&line));
    }
    if terminal::is_watched() && !args.once {
        let _unwritten = terminal::text("\x1b[H\x1b[2J");
    }
    let cells: Vec<_> = rows.iter().map(Row::cells).collect();
    Ok(terminal::line_is_read(&terminal::laid_out(HEADS, &cells).join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(id: &str, requests: u64, errors: u64, ms: u64) -> Totals {
        Totals {
            id: id.to_owned(),
            requests,
            bytes: requests * 2048,
            nginxtime: ms,
            server_errors: errors,
            ..Totals::default()
        }
    }

    fn look(all: &[Totals]) -> Look {
        all.iter().map(|one| (one.id.clone(), (vec!["h".to_owned()], one.clone()))).collect()
    }

    #[test]
    fn rows_are_what_happened_in_between_busiest_first() {
        let before = look(&[totals("1", 100, 0, 0), totals("2", 10, 0, 100)]);
        let now = look(&[totals("1", 102, 0, 0), totals("2", 20, 5, 140), totals("3", 7, 7, 7)]);
        let rows = rows(&before, &now, 2.0, 10);
        let ids: Vec<&str> = rows.iter().map(|row| &*row.version_type).collect();
        assert_eq!(ids, ["2", "1", "3"]);
        assert_eq!(rows[0].cells(), ["2", "h", "5.0", "50.0", "4.0", "10.0", "20"]);
        // A new version type has no rates.
        assert_eq!(rows[2].cells(), ["3", "h", "0.0", "-", "-", "0.0", "7"]);
    }

    #[test]
    fn many_hosts_and_long_names_take_little_space() {
        let named = |names: &[&str]| hosts(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!([named(&[]), named(&["a"]), named(&["a", "b", "c"])], ["-", "a", "a +2"]);
        assert_eq!(named(&["x".repeat(200).as_str(), "b"]).chars().count(), MAX_HOST + 3);
    }

    #[test]
    fn restarted_counters_give_no_rate() {
        let rows = rows(&look(&[totals("1", 100, 0, 0)]), &look(&[totals("1", 1, 0, 0)]), 1.0, 1);
        assert_eq!(rows[0].cells()[2], "0.0");
    }
}
