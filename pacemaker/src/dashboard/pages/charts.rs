//! What pages with charts share: the time range, the lines, and the changes that are marked in them.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout_at;

use super::{Chart, Kind, Line, Mark, View, Visit};
use crate::{
    api,
    dashboard::{
        format,
        queue_history::Sample,
        store::{Latencies, Range, Series, Sums, Times},
    },
};
use signalbox_access::Scope;
use signalbox_api::audit::Record;

/// Maximum changes that are marked in a chart.
const MAX_CHANGES: usize = 30;
/// How long a reading of the audit log is reused.
const CHANGES_TTL: Duration = Duration::from_secs(3);
/// Changes of routes that are kept for charts.
const MAX_READ: usize = 300;
/// A logarithmic axis has no zero.
const LEAST_MS: f64 = 0.1;

/// The time range of a page's charts, for the template.
#[derive(Debug)]
pub(super) struct Charting {
    /// The name of each range, its address, and whether it is shown.
    pub(super) ranges: Vec<(&'static str, String, bool)>,
    pub(super) resolution: String,
    /// Changes in this range, newest first; `None` if the caller may not see them.
    pub(super) changes: Option<Vec<ChangeRow>>,
    /// Set if the charts do not contain all traffic.
    pub(super) note: String,
}

#[derive(Debug)]
pub(super) struct ChangeRow {
    pub(super) key: String,
    at_s: i64,
    pub(super) when: String,
    pub(super) exact: String,
    pub(super) what: String,
    pub(super) who: String,
    /// The address of the audit log for the same path.
    pub(super) link: String,
}

impl Charting {
    pub(super) fn new(view: &View, range: Range, changes: Option<Vec<ChangeRow>>, note: String) -> Self {
        let link = |one: Range| {
            let view = View { range: one.name.to_owned(), ..view.clone() };
            if view.kind == Kind::Overview { format!("/?range={}", one.name) } else { view.address() }
        };
        Self {
            ranges: Range::ALL.into_iter().map(|one| (one.name, link(one), one == range)).collect(),
            resolution: range.resolution(),
            changes,
            note,
        }
    }

    /// The same range and changes for each chart.
    pub(super) fn complete(&self, range: Range, now_ms: u64, charts: &mut [Chart]) {
        let to = i64::try_from(now_ms / 1000).unwrap_or(0);
        let to = to - to.rem_euclid(range.step) + range.step;
        for chart in charts {
            (chart.from, chart.to) = (to - range.seconds - range.step, to);
            chart.marks = self
                .changes
                .iter()
                .flatten()
                .map(|change| Mark { x: change.at_s, text: format!("{} ({})", change.what, change.who) })
                .collect();
        }
    }
}

/// What the changes on a page are about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    Everything,
    Host(&'a str),
    Instance(&'a str),
}

/// Changes of routes in the range. Only for callers that may read the audit log.
pub(super) async fn changes(
    Visit { app, caller, deadline, now_ms, .. }: Visit<'_>,
    subject: Subject<'_>,
    range: Range,
) -> Option<Vec<ChangeRow>> {
    if !caller.has_any(&[Scope::Audit]) || !caller.confinement().is_empty() {
        return None;
    }
    let read = timeout_at(deadline, api::audit::route_changes(app, MAX_READ));
    let records =
        app.dashboard.changes.get((), CHANGES_TTL, async { read.await.map_err(drop)?.map_err(drop) });
    let records = records.await.ok()?;
    let from_ms = now_ms.saturating_sub(u64::try_from(range.seconds * 1000).unwrap_or(0));
    let wanted = records.iter().filter(|record| record.at.ms() >= from_ms);
    let wanted = wanted.filter(|record| is_about(record, subject));
    Some(wanted.take(MAX_CHANGES).map(|record| row(record, now_ms)).collect())
}

/// Whether a change is about a host or an instance: by its path, or by the host names of its instance.
fn is_about(record: &Record, subject: Subject<'_>) -> bool {
    let named = |routes: &str, wanted: &str| {
        let name = record.target.split('/').nth(2);
        record.route.starts_with(routes) && name.is_some_and(|name| decoded(name) == wanted)
    };
    let mut instances =
        record.before.iter().chain(&record.after).flat_map(|value| match value.get("instances") {
            Some(Value::Array(several)) => several.iter().collect::<Vec<_>>(),
            _ => vec![value.get("instance").unwrap_or(value)],
        });
    let host = match subject {
        Subject::Everything => return true,
        Subject::Instance(id) => return named("/instances/", id) || instances.any(|one| one["id"] == id),
        Subject::Host(host) => host,
    };
    let serves = |instance: &Value| {
        instance["hostnames"].as_array().is_some_and(|names| names.iter().any(|name| name == host))
    };
    named("/hosts/", host) || instances.any(serves)
}

fn row(record: &Record, now_ms: u64) -> ChangeRow {
    ChangeRow {
        key: format!(
            "{} {} {}",
            record.at.ms(),
            record.request_id.as_deref().unwrap_or_default(),
            part(record)
        ),
        at_s: i64::try_from(record.at.ms() / 1000).unwrap_or(0),
        when: format::ago(now_ms, record.at.ms()),
        exact: format::time(record.at.ms()),
        what: words(record),
        who: record.person.clone().or_else(|| record.who.clone()).unwrap_or_default(),
        link: View { search: record.target.clone(), ..View::of(Kind::Audit, "") }.address(),
    }
}

fn part(record: &Record) -> u32 {
    record.part.unwrap_or_default()
}

/// The text of a path segment. Host names and ids contain none of the characters that are special in a form.
fn decoded(segment: &str) -> String {
    url::form_urlencoded::parse(segment.as_bytes())
        .next()
        .map(|(text, _)| text.into_owned())
        .unwrap_or_default()
}

/// A change of routes in words.
fn words(record: &Record) -> String {
    let name = record.target.split('/').nth(2).unwrap_or_default();
    let name = decoded(name);
    let after = record.after.as_ref();
    let version = after
        .map(|after| after.get("instance").unwrap_or(after))
        .and_then(|one| one["version_type_id"].as_str());
    match (record.method.as_str(), record.route.as_str()) {
        ("PUT", "/instances/{id}") if record.status == 201 => match version {
            Some(version) => format!("{name} registered, version {version}"),
            None => format!("{name} registered"),
        },
        ("PUT", "/instances/{id}") => format!("{name} changed"),
        ("DELETE", "/instances/{id}") => format!("{name} removed"),
        ("POST", "/instances/{id}/drain") => format!("{name} drained"),
        ("DELETE", "/instances/{id}/drain") => format!("{name} resumed"),
        ("PUT", "/instances") => "instances registered together".to_owned(),
        ("PUT", "/hosts/{hostname}") => format!("policy of {name} set"),
        ("DELETE", "/hosts/{hostname}/policy") => format!("policy of {name} removed"),
        ("DELETE", "/hosts/{hostname}") => format!("{name} removed"),
        ("POST", "/hosts/{hostname}/promote") => match version {
            Some(version) => format!("version {version} of {name} promoted"),
            None => format!("version of {name} promoted"),
        },
        ("POST", "/hosts/{hostname}/promote/undo") => format!("promotion of {name} undone"),
        ("PUT", "/hosts/{hostname}/pause") => format!("{name} paused"),
        ("DELETE", "/hosts/{hostname}/pause") => format!("{name} resumed"),
        (_, "/hosts/{hostname}/paths") => format!("paths of {name} changed"),
        (method, _) => format!("{method} {}", record.target),
    }
}

fn chart(id: &'static str, unit: &'static str, log: bool, lines: Vec<Line>, x: Vec<i64>) -> Chart {
    Chart { id, unit, log, lines, x, from: 0, to: 0, marks: Vec::new() }
}

/// Latency percentiles by step, on a logarithmic axis: p50 and p99 often differ by a factor of a hundred.
pub(super) fn latency(latencies: &Latencies, range: Range) -> Chart {
    let steps = latencies.by_step(range.minutes_per_point());
    let line = |label: &str, color, value: fn(&Times) -> f64| Line {
        label: label.to_owned(),
        color,
        y: steps.iter().map(|(_, times)| times.as_ref().map(|times| value(times).max(LEAST_MS))).collect(),
    };
    let lines = vec![
        line("p50", "plain", |times| times.p50),
        line("p95", "other", |times| times.p95),
        line("p99", "warn", |times| times.p99),
    ];
    chart("latency", "ms", true, lines, steps.iter().map(|(start, _)| *start).collect())
}

/// Requests per second of an instance. Only its response times are counted, by minute.
pub(super) fn responses(latencies: &Latencies, range: Range) -> Chart {
    let (x, y) = latencies.rates(range.minutes_per_point()).into_iter().unzip();
    let lines = vec![Line { label: "requests".to_owned(), color: "plain", y }];
    chart("responses", "/s", false, lines, x)
}

/// The depth of a queue, its rates, and the age of its oldest message.
#[allow(clippy::cast_precision_loss, reason = "display precision")]
pub(super) fn queue(samples: &[(i64, Sample)]) -> Vec<Chart> {
    type Value = fn(&Sample) -> Option<f64>;
    let x: Vec<i64> = samples.iter().map(|(at, _)| *at).collect();
    let drawn = |id, unit, lines: &[(&str, &'static str, Value)]| {
        let line = |(label, color, value): &(&str, &'static str, Value)| Line {
            label: (*label).to_owned(),
            color,
            y: samples.iter().map(|(_, sample)| value(sample)).collect(),
        };
        chart(id, unit, false, lines.iter().map(line).collect(), x.clone())
    };
    vec![
        drawn(
            "depth",
            "",
            &[
                ("waiting", "plain", |one| Some(one.waiting as f64)),
                ("in flight", "other", |one| Some(one.in_flight as f64)),
                ("delayed", "warn", |one| Some(one.delayed as f64)),
            ],
        ),
        drawn(
            "rates",
            "/s",
            &[
                ("received", "plain", |one| Some(one.received)),
                ("acknowledged", "good", |one| Some(one.acknowledged)),
            ],
        ),
        drawn("age", "s", &[("oldest", "warn", |one| Some(one.age_ms.unwrap_or(0) as f64 / 1000.0))]),
    ]
}

/// Requests and errors per second, and the average latency.
pub(super) fn traffic(series: &Series) -> Vec<Chart> {
    let totals = series.totals();
    let line = |label: &str, color, count: fn(&Sums) -> u64| Line {
        label: label.to_owned(),
        color,
        y: series.rates(&totals, count),
    };
    let requests = vec![
        line("requests", "plain", |step| step.requests),
        line("4xx", "warn", |step| step.client_errors),
        line("5xx", "bad", |step| step.server_errors),
    ];
    let mean = |step: &Sums| step.mean_ms().map(|ms| ms.max(LEAST_MS));
    let average = Line { label: "average".to_owned(), color: "plain", y: totals.iter().map(mean).collect() };
    vec![
        chart("traffic", "/s", false, requests, series.starts.clone()),
        chart("times", "ms", true, vec![average], series.starts.clone()),
    ]
}

/// The bytes sent, and the requests of each version if there are several.
pub(super) fn of_host(series: &Series, versions: &[String]) -> Vec<Chart> {
    const COLORS: [&str; 4] = ["plain", "good", "warn", "other"];
    let bytes = series.rates(&series.totals(), |step| step.bytes);
    let bytes = vec![Line { label: "bytes".to_owned(), color: "plain", y: bytes }];
    let mut charts = vec![chart("bytes", "B/s", false, bytes, series.starts.clone())];
    if versions.len() > 1 {
        let line = |(version, color): (&String, &&'static str)| Line {
            label: version.clone(),
            color,
            y: series.rates(series.of(version), |step| step.requests),
        };
        let lines = versions.iter().zip(COLORS.iter().cycle()).map(line).collect();
        charts.push(chart("versions", "/s", false, lines, series.starts.clone()));
    }
    charts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(method: &str, route: &str, target: &str, after: serde_json::Value) -> Record {
        let record = json!({"at_ms": 1000, "kind": "change", "who": "root", "address": "::1", "method": method,
            "route": route, "target": target, "status": 201, "after": after});
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_change_belongs_to_the_hosts_that_it_names() {
        let instance = json!({"instance": {"hostnames": ["a.test"], "version_type_id": "7"}});
        let put = record("PUT", "/instances/{id}", "/instances/i-1", instance);
        let about = |record: &Record, host| is_about(record, Subject::Host(host));
        assert_eq!((about(&put, "a.test"), about(&put, "b.test")), (true, false));
        assert!(is_about(&put, Subject::Instance("i-1")) && !is_about(&put, Subject::Instance("i-2")));
        assert_eq!(words(&put), "i-1 registered, version 7");
        let policy = record("PUT", "/hosts/{hostname}", "/hosts/%2A.a.test", json!({"rules": null}));
        assert_eq!((about(&policy, "*.a.test"), about(&policy, "a.test")), (true, false));
        assert_eq!(words(&policy), "policy of *.a.test set");
        let instances = json!({"instances": [{"id": "i-7", "hostnames": ["a.test"]}, {"id": "i-8", "hostnames": ["b.test"]}]});
        let many = record("PUT", "/instances", "/instances", instances);
        assert!(about(&many, "a.test") && about(&many, "b.test") && !about(&many, "c.test"));
        assert!(is_about(&many, Subject::Instance("i-8")) && !is_about(&many, Subject::Instance("i-9")));
    }
}
