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
    stats::{self, Loud, Loudest, Point, Recent, Top, Totals},
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
        /// version_type/ID, version/ID, application/ID, workspace/ID, node/ID, total, uncaught or pacemaker
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
    /// Watch requests, errors and response times of the busiest version types, or of the instances of one
    Top {
        /// Version type whose instances are shown, with their response times of the last minute
        version_type: Option<String>,
        /// Interval that each table covers, up to a minute
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
        None if ["total", "uncaught", "pacemaker"].contains(&text) => Ok(format!("/stats/{text}")),
        Some((kind, id)) if KINDS.contains(&kind) && !id.is_empty() => {
            Ok(format!("/stats/{kind}/{}", segment(id)))
        }
        _ => Err("it is one of version_type/ID, version/ID, application/ID, workspace/ID, node/ID, total, uncaught, pacemaker"
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

/// The requests of a version type in the last seconds.
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
    fn new(version_type: String, hosts: Vec<String>, recent: &Recent, seconds: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
        let [requests, errors, ms, bytes, seconds] =
            [recent.requests, recent.server_errors, recent.nginxtime, recent.bytes, seconds.max(1)]
                .map(|count| count as f64);
        let share = |part: f64| (requests > 0.0).then(|| part / requests);
        Self {
            version_type,
            hosts,
            requests_per_second: requests / seconds,
            error_percent: share(100.0 * errors),
            mean_ms: share(ms),
            bytes_per_second: bytes / seconds,
            requests: recent.requests,
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

/// Version types that are read: more than a terminal shows, so that they can be filtered and sorted.
const MAX_READ: usize = 1000;

async fn top(interval: Duration, once: bool, table: &Table, remote: &Remote) -> Result<(), Failure> {
    let client = remote.client()?;
    let interval = interval.max(Duration::from_millis(200));
    let asked = Loudest { seconds: Some(interval.as_secs().clamp(1, 60)), limit: Some(MAX_READ), by: None };
    let path = with_query("/stats/top", &asked);
    let mut ticks = time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut hosts = Hosts::new();
    loop {
        ticks.tick().await;
        let top: Top = client.get(&path).await?;
        if top.version_types.iter().any(|one| !hosts.contains_key(&one.id)) {
            hosts = hosts_by_version_type(&client).await?;
            // A version type without an instance is not searched again.
            for one in &top.version_types {
                hosts.entry(one.id.clone()).or_default();
            }
        }
        draw(table, remote, once, &rows(top, &hosts), HEADS, Row::cells)?;
        if once || terminal::reader_is_gone() {
            return Ok(());
        }
    }
}

/// The hosts of each version type that has an instance.
type Hosts = BTreeMap<String, Vec<String>>;

async fn hosts_by_version_type(client: &Client) -> Result<Hosts, Failure> {
    let mut hosts = Hosts::new();
    for instance in client.routes().instances(&Filter::default()).await? {
        let known = hosts.entry(instance.version_type_id).or_default();
        known.extend(instance.hostnames);
        known.sort_unstable();
        known.dedup();
    }
    Ok(hosts)
}

/// Version types and requests without a route, sorted by request rate.
fn rows(top: Top, hosts: &Hosts) -> Vec<Row> {
    let of = |one: Loud| {
        let hosts = hosts.get(&one.id).cloned().unwrap_or_default();
        Row::new(one.id, hosts, &one.recent, top.seconds)
    };
    let mut rows: Vec<Row> = top.version_types.into_iter().map(of).collect();
    rows.push(Row::new("(no route)".to_owned(), Vec::new(), &top.uncaught, top.seconds));
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

    fn loud(id: &str, requests: u64, server_errors: u64, nginxtime: u64) -> Loud {
        let bytes = requests * 2048;
        let recent = Recent { requests, bytes, nginxtime, server_errors, ..Recent::default() };
        Loud { id: id.to_owned(), recent }
    }

    #[test]
    fn rows_are_what_happened_in_the_last_seconds_busiest_first() {
        let hosts =
            Hosts::from([("1", "h"), ("2", "h")].map(|(id, host)| (id.to_owned(), vec![host.to_owned()])));
        let version_types = vec![loud("1", 2, 0, 0), loud("2", 10, 5, 40), loud("3", 0, 0, 0)];
        let uncaught = Recent { requests: 4, ..Recent::default() };
        let rows = rows(Top { seconds: 2, uncaught, version_types, ..Top::default() }, &hosts);
        let ids: Vec<&str> = rows.iter().map(|row| &*row.version_type).collect();
        assert_eq!(ids, ["2", "(no route)", "1", "3"]);
        assert_eq!(rows[0].cells(), cells!["2", "h", "5.0", "50.0", "4.0", "10.0", "10"]);
        assert_eq!(rows[3].cells(), cells!["3", "-", "0.0", "-", "-", "0.0", "0"]);
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
        assert_eq!(subject("total").unwrap(), "/stats/total");
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
}
