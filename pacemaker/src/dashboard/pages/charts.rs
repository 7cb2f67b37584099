//! What pages with charts share: the time range, the lines, and the changes that are marked in them.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Chart, Kind, Line, Mark, View};
use crate::{
    api,
    dashboard::{
        Site, format,
        store::{Latencies, Range, Series, Sums, Times},
    },
};
use signalbox_access::{Caller, Scope};
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

/// Recent changes of routes, with the time at which they were read.
pub(crate) type Changes = Option<(Instant, std::sync::Arc<Vec<Record>>)>;

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

/// Changes of the routes of `host`, or of all hosts, in the range. Only for callers that may read the audit log.
pub(super) async fn changes(
    app: &Site,
    caller: &Caller,
    host: Option<&str>,
    range: Range,
    deadline: Instant,
) -> Option<Vec<ChangeRow>> {
    if !caller.has_any(&[Scope::Audit]) || !caller.confinement().is_empty() {
        return None;
    }
    let recent = app.dashboard.changes.lock().clone();
    let records = match recent.filter(|(read_at, _)| read_at.elapsed() < CHANGES_TTL) {
        Some((_, records)) => records,
        None => {
            let records = timeout_at(deadline, api::audit::route_changes(app, MAX_READ)).await.ok()?.ok()?;
            let records = std::sync::Arc::new(records);
            *app.dashboard.changes.lock() = Some((Instant::now(), std::sync::Arc::clone(&records)));
            records
        }
    };
    let now_ms = app.dashboard.now_ms();
    let from_ms = now_ms.saturating_sub(u64::try_from(range.seconds * 1000).unwrap_or(0));
    let wanted = records.iter().filter(|record| record.at_ms >= from_ms);
    let wanted = wanted.filter(|record| host.is_none_or(|host| is_about(record, host)));
    Some(wanted.take(MAX_CHANGES).map(|record| row(record, now_ms)).collect())
}

/// Whether a change is about a host: by its path, or by the host names of its instance.
fn is_about(record: &Record, host: &str) -> bool {
    let named = record
        .target
        .split('/')
        .nth(2)
        .is_some_and(|name| record.route.starts_with("/hosts/") && decoded(name) == host);
    let serves = |value: &serde_json::Value| {
        let instance = value.get("instance").unwrap_or(value);
        instance["hostnames"].as_array().is_some_and(|names| names.iter().any(|name| name == host))
    };
    named || record.before.iter().chain(&record.after).any(serves)
}

fn row(record: &Record, now_ms: u64) -> ChangeRow {
    ChangeRow {
        key: format!("{} {}", record.at_ms, record.request_id.as_deref().unwrap_or_default()),
        at_s: i64::try_from(record.at_ms / 1000).unwrap_or(0),
        when: format::ago(now_ms, record.at_ms),
        exact: format::time(record.at_ms),
        what: words(record),
        who: record.person.clone().or_else(|| record.who.clone()).unwrap_or_default(),
        link: View { search: record.target.clone(), ..View::of(Kind::Audit, "") }.address(),
    }
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
        ("POST", "/hosts/{hostname}/current") => match version {
            Some(version) => format!("{name} switched to version {version}"),
            None => format!("{name} switched"),
        },
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
        line("p50", "good", |times| times.p50),
        line("p95", "warn", |times| times.p95),
        line("p99", "bad", |times| times.p99),
    ];
    chart("latency", "ms", true, lines, steps.iter().map(|(start, _)| *start).collect())
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
        assert_eq!((is_about(&put, "a.test"), is_about(&put, "b.test")), (true, false));
        assert_eq!(words(&put), "i-1 registered, version 7");
        let policy = record("PUT", "/hosts/{hostname}", "/hosts/%2A.a.test", json!({"rules": null}));
        assert_eq!((is_about(&policy, "*.a.test"), is_about(&policy, "a.test")), (true, false));
        assert_eq!(words(&policy), "policy of *.a.test set");
    }
}
