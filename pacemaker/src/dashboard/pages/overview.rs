//! The overview: traffic, problems, the busiest hosts, and routers.

use std::time::Duration;

use askama::Template;

use super::{
    Content, Kind, Visit,
    charts::{self, Charting, Subject},
    link,
    routers::{self, RouterRow},
    thousands, with_charts,
};
use crate::{
    api::routing::HostSummary,
    dashboard::{
        checkup::{Checkup, Head, by},
        facts::{self, Group, SkippedTogether},
        format,
        store::{Latencies, Range, Sums, Times},
    },
    http::Problem,
};
use signalbox_access::Caller;
use signalbox_diagnosis::{
    Severity,
    hosts::{Condition, State},
};
use signalbox_store::keys::stats::TOTAL;

/// Maximum version types in the charts of a confined caller: those with the most requests. Others see all requests.
const MAX_CHARTED: usize = 50;
/// The part of the page's time that is left for its charts.
const CHARTS_PATIENCE: Duration = Duration::from_millis(300);
/// Minutes of the latencies in the table of hosts.
const MINUTES: i64 = 15;
/// Kinds of problems, and of each how many are named.
const MAX_GROUPS: usize = 8;
const MAX_NAMED: usize = 3;
/// Hosts in the table.
const MAX_HOSTS: usize = 10;

#[derive(Debug, Template)]
#[template(path = "dashboard/overview.html")]
struct Page<'a> {
    head: &'a Head,
    problems: usize,
    critical: bool,
    groups: Vec<Group<'a>>,
    more_groups: usize,
    /// Checks that were not performed.
    skipped: Vec<SkippedTogether>,
    skipped_checks: usize,
    /// The traffic of the last minute, or why it cannot be read.
    total: Result<Numbers, &'a String>,
    /// Requests without a version type in the last minute; `None` for a confined caller.
    no_route: Option<String>,
    /// The busiest hosts, or why they cannot be read.
    hosts: Result<Vec<BusyHost<'a>>, &'a String>,
    all_hosts: String,
    charting: Charting,
    /// `None` for a caller that may not see them.
    routers: Option<Result<Vec<RouterRow>, &'a String>>,
}

/// A host, its state, and its traffic of the last minute.
type BusyHost<'a> = (&'a HostSummary, State, Option<Numbers>);

/// The color of a condition.
pub(super) fn color(condition: Condition) -> &'static str {
    match condition.severity() {
        Some(Severity::Critical) => "bad",
        Some(Severity::Warning) => "warn",
        None if condition.is_planned() || condition == Condition::Unknown => "idle",
        None => "good",
    }
}

/// The traffic of the last minute, formatted.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) rate: String,
    pub(super) errors: String,
    pub(super) erring: bool,
    pub(super) times: String,
}

/// Percentiles as `p50 / p95 / p99 ms`.
pub(super) fn percentiles(times: Option<Times>) -> String {
    times.map_or_else(
        || "–".to_owned(),
        |Times { p50, p95, p99 }| format!("{p50:.0} / {p95:.0} / {p99:.0} ms"),
    )
}

impl Numbers {
    pub(super) fn new(minute: &Sums, times: Option<Times>) -> Self {
        Self {
            rate: format::per_second(minute.requests),
            errors: format::percent(minute.server_errors, minute.requests),
            erring: minute.server_errors > 0,
            times: percentiles(times),
        }
    }
}

pub(super) async fn content(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, round, deadline, now_ms } = visit;
    // The charts need some of the time, too.
    let checkup = app.dashboard.checkups.get(app, caller, deadline - CHARTS_PATIENCE).await;
    let range = Range::named(&view.range);
    let whole = caller.sees_all_numbers();
    let charted = match whole {
        true => vec![TOTAL.to_owned()],
        false => busiest(&checkup, MAX_CHARTED.min(range.max_version_types())),
    };
    let listed = busiest_hosts(&checkup);
    let mut ids: Vec<String> = listed.iter().flat_map(|host| host.versions.iter().cloned()).collect();
    ids.retain(|id| caller.may_count_as(id));
    ids.sort_unstable();
    ids.dedup();
    let traffic = &app.dashboard.traffic;
    let (series, latencies, overall, history, changes) = tokio::join!(
        by(deadline, "the stats Redis", traffic.series(&charted, range, round > 0)),
        by(deadline, "the stats Redis", traffic.latencies(&ids, MINUTES)),
        by(deadline, "the stats Redis", traffic.latencies(&charted, MINUTES)),
        by(deadline, "the stats Redis", traffic.latencies(&charted, range.minutes())),
        charts::changes(visit, Subject::Everything, range),
    );
    let latencies = latencies.ok();
    let mut charts = series.as_deref().map(charts::traffic).unwrap_or_default();
    charts.extend(history.as_deref().ok().map(|history| charts::latency(history, range)));
    let overall = overall.ok().and_then(|latencies| latencies.all());
    let total = checkup.minute.as_ref().map(|minute| Numbers::new(&minute.total, overall));
    let no_route = checkup.minute.as_ref().ok().filter(|_| whole);
    let no_route = no_route.map(|minute| format::per_second(minute.no_route.requests));
    let groups = facts::groups(&checkup.diagnosis.findings, MAX_NAMED);
    let (problems, critical) = checkup.problems();
    let routers = checkup.routers.as_ref().map(|reports| {
        reports
            .as_ref()
            .map(|reports| reports.iter().map(|one| routers::row(app, one, &checkup.head)).collect())
    });
    let versions = checkup.minute.as_ref().map_or(0, |minute| minute.by_id.len());
    let note = match charted.len() {
        count if !whole && count < versions => {
            format!("The charts show the {count} busiest of {} version types.", thousands(versions))
        }
        _ => String::new(),
    };
    let charting = Charting::new(view, range, changes, note);
    charting.complete(range, now_ms, &mut charts);
    let page = Page {
        charting,
        head: &checkup.head,
        problems,
        critical,
        more_groups: groups.len().saturating_sub(MAX_GROUPS),
        groups: groups.into_iter().take(MAX_GROUPS).collect(),
        skipped: facts::skipped_together(&checkup.diagnosis.skipped),
        skipped_checks: checkup.diagnosis.skipped.len(),
        hosts: checkup.hosts.as_ref().map(|_| hosts(caller, &checkup, listed, latencies.as_deref())),
        no_route,
        all_hosts: thousands(checkup.hosts.as_ref().map_or(0, Vec::len)),
        routers,
        total,
    };
    with_charts(&page, charts)
}

/// The `most` version types with the most requests in the last minute.
fn busiest(checkup: &Checkup, most: usize) -> Vec<String> {
    let Ok(minute) = &checkup.minute else { return Vec::new() };
    let mut ids: Vec<(&String, u64)> = minute.by_id.iter().map(|(id, sums)| (id, sums.requests)).collect();
    ids.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    ids.truncate(most);
    let mut ids: Vec<String> = ids.into_iter().map(|(id, _)| id.clone()).collect();
    ids.sort_unstable();
    ids
}

/// The hosts with the most requests in the last minute.
fn busiest_hosts(checkup: &Checkup) -> Vec<&HostSummary> {
    let hosts = checkup.hosts.as_deref().unwrap_or_default();
    let mut busiest: Vec<_> = hosts.iter().map(|host| (host, checkup.minute_of(host))).collect();
    busiest.sort_by_key(|(_, minute)| std::cmp::Reverse(minute.map_or(0, |minute| minute.requests)));
    busiest.into_iter().take(MAX_HOSTS).map(|(host, _)| host).collect()
}

/// Hosts with their states and numbers.
fn hosts<'a>(
    caller: &Caller,
    checkup: &Checkup,
    listed: Vec<&'a HostSummary>,
    latencies: Option<&Latencies>,
) -> Vec<(&'a HostSummary, State, Option<Numbers>)> {
    let states = checkup.states(caller, listed.iter().copied());
    let row = |(host, state): (&'a HostSummary, State)| {
        let times = latencies.and_then(|latencies| latencies.of_all(&host.versions));
        (host, state, checkup.minute_of(host).map(|minute| Numbers::new(&minute, times)))
    };
    listed.into_iter().zip(states).map(row).collect()
}
