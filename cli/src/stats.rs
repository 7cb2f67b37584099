//! `signalbox stats`: shows request statistics.

mod instances;

use std::{collections::BTreeMap, time::Duration};

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use signalbox_client::{
    Client,
    routes::Filter,
    segment,
    stats::{self, Point, Totals},
    with_query,
};
use tokio::time::{self, MissedTickBehavior};

use crate::{
    exit::Failure,
    listing::{Cell, Table, cells},
    outline,
    remote::{Remote, duration, past, seconds},
    terminal::{self, out},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the totals
    Show {
        /// version_type/ID, version/ID, application/ID, workspace/ID, node/ID, uncaught or pacemaker
        #[arg(value_parser = subject)]
        subject: String,
    },
    /// Show the history of a metric
    History(History),
    /// Show the p50, p90, p95 and p99 of response times
    Latency {
        /// Subject, as for `show`, or instance/ID
        #[arg(value_parser = latency_subject)]
        subject: String,
        /// Start: a time, or a duration before now [default: 5m]
        #[arg(long, value_name = "TIME", value_parser = past)]
        start: Option<Timestamp>,
        /// End: a time, or a duration before now [default: now]
        #[arg(long, value_name = "TIME", value_parser = past)]
        end: Option<Timestamp>,
    },
    /// Watch a metric: a line per second, until Ctrl-C
    Watch(Watch),
    /// Watch requests, errors and response times of all version types, busiest first, or of the instances of one
    Top {
        /// Version type whose instances are shown, with their response times of the last minute
        version_type: Option<String>,
        /// Interval that each table covers
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2s")]
        interval: Duration,
        /// Print one table and exit
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        table: Table,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct History {
    /// Subject, as for `show`
    #[arg(value_parser = subject)]
    subject: String,
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
}

#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// Subject, as for `show`
    #[arg(value_parser = subject)]
    subject: String,
    /// Metric, such as requests, bytes, 5xx
    #[arg(long, default_value = "requests")]
    metric: String,
    /// Exit after this many lines
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
}

/// The path of a subject.
fn subject(text: &str) -> Result<String, String> {
    const KINDS: [&str; 5] = ["version_type", "version", "application", "workspace", "node"];
    match text.split_once('/') {
        None if ["uncaught", "pacemaker"].contains(&text) => Ok(format!("/stats/{text}")),
        Some((kind, id)) if KINDS.contains(&kind) && !id.is_empty() => {
            Ok(format!("/stats/{kind}/{}", segment(id)))
        }
        _ => Err("it is one of version_type/ID, version/ID, application/ID, workspace/ID, node/ID, uncaught, pacemaker"
            .to_owned()),
    }
}

/// The path of a subject whose response times are known.
fn latency_subject(text: &str) -> Result<String, String> {
    match text.strip_prefix("instance/") {
        Some(id) if !id.is_empty() => Ok(format!("/stats/instance/{}", segment(id))),
        _ => Ok(format!("{}/latency", subject(text)?)),
    }
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::Show { subject } => show(&subject, remote).await,
        Command::History(args) => history(args, remote).await,
        Command::Latency { subject, start, end } => {
            let second = |at: Timestamp| at.as_second();
            let query = [("start", start.map(second)), ("end", end.map(second))];
            let latency = remote.call("GET", &with_query(&subject, &query), None).await?;
            remote.show(&latency, |latency| {
                let mut short = latency.clone();
                short.as_object_mut().map(|members| members.remove("buckets"));
                outline::print(&short);
            })
        }
        Command::Watch(args) => watch(args, remote).await,
        Command::Top { version_type: Some(id), interval, once, table } => {
            instances::run(&id, interval, once, &table, remote).await
        }
        Command::Top { version_type: None, interval, once, table } => {
            top(interval, once, &table, remote).await
        }
    }
}

async fn show(subject: &str, remote: &Remote) -> Result<(), Failure> {
    let totals: Totals = remote.client()?.get(subject).await?;
    remote.show(&totals, |totals| {
        let mean = |sum: u64, count: u64| terminal::or_dash(sum.checked_div(count));
        out!("{} {}", totals.kind, totals.id);
        if totals.requests == 0 {
            terminal::line(
                "  no request was counted; `signalbox routes list` shows the version types of instances",
            );
            return;
        }
        out!("  requests        {}", totals.requests);
        out!("  bytes           {}", totals.bytes);
        out!("  mean ms         {}", mean(totals.nginxtime, totals.requests));
        out!("  mean ms upstream {}", mean(totals.time, totals.timecount));
        for (code, count) in &totals.codes {
            out!("  {code}             {count}");
        }
    })
}

async fn watch(args: Watch, remote: &Remote) -> Result<(), Failure> {
    let path = with_query(&format!("{}/stream", args.subject), &[("metric", &args.metric)]);
    let mut stream = remote.client()?.stream(&path).await?;
    let mut seen = 0;
    while args.count.is_none_or(|count| seen < count) {
        let Some(message) = stream.next().await? else {
            return Err(Failure::unavailable("the stream ended; repeat the command"));
        };
        let Ok((second, value)) = serde_json::from_str::<Point>(&message.data) else { continue };
        let line = if remote.is_json() { message.data } else { format!("{} {value}", time(second)) };
        if !terminal::line_is_read(&line) {
            break;
        }
        seen += 1;
    }
    Ok(())
}

fn time(second: u64) -> Timestamp {
    let at = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
    at.unwrap_or_default()
}

async fn history(args: History, remote: &Remote) -> Result<(), Failure> {
    let second = |at: Timestamp| u64::try_from(at.as_second()).unwrap_or_default();
    let range = stats::History {
        metric: Some(args.metric),
        start: args.start.map(second),
        end: args.end.map(second),
        step: args.step,
    };
    let path = with_query(&format!("{}/history", args.subject), &range);
    let points: Vec<Point> = remote.client()?.get(&path).await?;
    remote.show(&points, |points| {
        for (second, value) in points {
            out!("{} {value}", time(*second));
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

    fn cells(&self) -> [Cell; 7] {
        let one = |number: Option<f64>| number.map(|number| format!("{number:.1}"));
        cells![
            self.version_type,
            names(&self.hosts),
            one(Some(self.requests_per_second)),
            one(self.error_percent),
            one(self.mean_ms),
            one(Some(self.bytes_per_second / 1024.0)),
            self.requests,
        ]
    }
}

/// The first host names, and how many others there are.
fn names(hosts: &[String]) -> String {
    match hosts {
        [] => "-".to_owned(),
        [only] => only.clone(),
        [first, others @ ..] => format!("{first} +{}", others.len()),
    }
}

const HEADS: [&str; 7] = ["VERSION TYPE", "HOSTS", "REQ/S", "5XX %", "MEAN MS", "KIB/S", "REQUESTS"];

async fn top(interval: Duration, once: bool, table: &Table, remote: &Remote) -> Result<(), Failure> {
    let client = remote.client()?;
    let mut ticks = time::interval(interval.max(Duration::from_millis(200)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut before = look(&client).await?;
    let mut at = time::Instant::now();
    loop {
        ticks.tick().await;
        let (now, then) = (look(&client).await?, at);
        at = time::Instant::now();
        let rows = rows(&before, &now, (at - then).as_secs_f64());
        before = now;
        draw(table, remote, once, &rows, HEADS, Row::cells)?;
        if once || terminal::reader_is_gone() {
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
        let totals = client.get(&format!("/stats/version_type/{}", segment(&id))).await?;
        look.insert(id, (hosts, totals));
    }
    let mut unrouted: Totals = client.get("/stats/uncaught").await?;
    unrouted.id = "(no route)".to_owned();
    look.insert(unrouted.id.clone(), (Vec::new(), unrouted));
    Ok(look)
}

/// Sorts by request rate. A version type that is missing in the first sample has no rates.
fn rows(before: &Look, now: &Look, seconds: f64) -> Vec<Row> {
    let mut rows: Vec<Row> = now
        .iter()
        .map(|(id, (hosts, totals))| {
            let past = before.get(id).map_or(totals, |(_, totals)| totals);
            Row::new(hosts, past, totals, seconds)
        })
        .collect();
    rows.sort_by(|a, b| b.requests_per_second.total_cmp(&a.requests_per_second));
    rows
}

/// Prints the first rows, as many as the terminal shows. Of a command without an end, a program gets one JSON document per line.
fn draw<T: Serialize, const N: usize>(
    table: &Table,
    remote: &Remote,
    once: bool,
    rows: &[T],
    heads: [&str; N],
    cells: impl Fn(&T) -> [Cell; N],
) -> Result<(), Failure> {
    // Without the head, and the line of the next prompt.
    let fit = terminal::height().map_or(40, |height| height.saturating_sub(2));
    let mut rows = table.select(rows, &heads, cells)?;
    rows.truncate(table.max_or(fit));
    if remote.is_json() && !once {
        let items: Vec<&T> = rows.iter().map(|(item, _)| *item).collect();
        let line = serde_json::to_string(&items)
            .map_err(|error| Failure::internal(format!("cannot write the table as JSON: {error}")))?;
        terminal::line(&line);
        return Ok(());
    }
    if !once {
        terminal::clear();
    }
    table.print(remote, &rows, heads)
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
        let rows = rows(&before, &now, 2.0);
        let ids: Vec<&str> = rows.iter().map(|row| &*row.version_type).collect();
        assert_eq!(ids, ["2", "1", "3"]);
        assert_eq!(rows[0].cells(), cells!["2", "h", "5.0", "50.0", "4.0", "10.0", "20"]);
        // A new version type has no rates.
        assert_eq!(rows[2].cells(), cells!["3", "h", "0.0", "-", "-", "0.0", "7"]);
    }

    #[test]
    fn many_hosts_are_counted() {
        let hosts = |names_of: &[&str]| names_of.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&hosts(&[])), "-");
        assert_eq!(names(&hosts(&["a.test"])), "a.test");
        assert_eq!(names(&hosts(&["a.test", "b.test", "c.test"])), "a.test +2");
    }

    #[test]
    fn a_subject_is_a_kind_and_an_id() {
        assert_eq!(subject("application/a b").unwrap(), "/stats/application/a%20b");
        assert_eq!(subject("uncaught").unwrap(), "/stats/uncaught");
        for text in ["", "7", "host/a", "version_type/", "uncaught/1"] {
            subject(text).unwrap_err();
        }
    }

    #[test]
    fn response_times_are_known_of_instances_too() {
        assert_eq!(latency_subject("instance/a b").unwrap(), "/stats/instance/a%20b");
        assert_eq!(latency_subject("version_type/7").unwrap(), "/stats/version_type/7/latency");
        latency_subject("instance/").unwrap_err();
    }

    #[test]
    fn restarted_counters_give_no_rate() {
        let rows = rows(&look(&[totals("1", 100, 0, 0)]), &look(&[totals("1", 1, 0, 0)]), 1.0);
        assert_eq!(rows[0].cells()[2], Cell::Text("0.0".to_owned()));
    }
}
