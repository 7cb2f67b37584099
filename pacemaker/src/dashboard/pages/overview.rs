//! What is going on, and what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;

use super::{
    Chart, Content, Kind, Line,
    findings::{self, Finding},
    link, render,
};
use crate::{
    dashboard::{
        SHOWN, Site,
        store::{Latencies, Past, Sums, Times},
        words,
    },
    http::Problem,
};
use signalbox_access::Caller;
use signalbox_machines::Counts;
use signalbox_route_table::{Hostname, InstanceId, TableHost};
use signalbox_routing::{LIVE_MS, RouterReport, has_acknowledged};

/// Version types whose traffic is read.
const COUNTED: usize = 50;
/// Seconds that the first look reads, and every other one.
const FIRST_WINDOW: i64 = 300;
const WINDOW: i64 = 60;
/// Minutes whose latencies are read.
const MINUTES: i64 = 15;
/// Parked objects that are looked for.
const PARKED: usize = 10;

#[derive(Debug, Template)]
#[template(path = "dashboard/overview.html")]
struct Page {
    serial: u64,
    epoch: String,
    findings: Vec<Finding>,
    /// Nothing while the stats Redis does not answer.
    total: Option<Numbers>,
    /// Nothing while the route table cannot be read.
    hosts: Option<Vec<HostRow>>,
    more_hosts: bool,
    routers: Option<Vec<RouterRow>>,
}

/// A minute, for the eye.
#[derive(Debug, Default)]
struct Numbers {
    rate: String,
    errors: String,
    erring: bool,
    times: String,
}

/// Percentiles, for the eye.
pub(super) fn percentiles(times: Option<Times>) -> String {
    times.map_or_else(
        || "–".to_owned(),
        |Times { p50, p95, p99 }| format!("{p50:.0} / {p95:.0} / {p99:.0} ms"),
    )
}

impl Numbers {
    fn new(minute: &Sums, times: Option<Times>) -> Self {
        Self {
            rate: words::per_second(minute.requests),
            errors: words::percent(minute.server_errors, minute.requests),
            erring: minute.server_errors > 0,
            times: percentiles(times),
        }
    }
}

#[derive(Debug)]
struct HostRow {
    name: String,
    link: String,
    instances: usize,
    well: usize,
    versions: Vec<VersionRow>,
}

#[derive(Debug)]
struct VersionRow {
    id: String,
    numbers: Option<Numbers>,
}

#[derive(Debug)]
struct RouterRow {
    node: String,
    serial: u64,
    state: String,
    well: bool,
    /// How long changes took to get there.
    propagation: String,
}

/// What is known of a host before its numbers are.
struct Host {
    name: String,
    instances: usize,
    well: usize,
    versions: BTreeSet<String>,
}

pub(super) async fn content(app: &Site, caller: &Caller, round: u64) -> Result<Content, Problem> {
    let store = app.registry.store();
    let up = store.ping().await;
    let mut findings = findings::of_servers(&up);
    let (lineage, serial, _) = store.table_head().await.unwrap_or_default();
    let epoch = lineage.split(' ').next().unwrap_or("").to_owned();

    let routers = store.routers(LIVE_MS).await.ok();
    let in_step = |router: &RouterReport| has_acknowledged(router, &epoch, serial);
    findings.extend(findings::of_routers(routers.as_deref(), in_step));
    let rows = |routers: Vec<RouterReport>| {
        routers.into_iter().map(|router| router_row(app, &router, in_step(&router))).collect()
    };
    let routers = routers.map(rows);

    let read = hosts(app, caller, &mut findings).await.ok();
    let more_hosts = read.as_ref().is_some_and(|(_, more)| *more);
    let hosts = read.map(|(hosts, _)| hosts);
    let ids: BTreeSet<String> =
        hosts.iter().flatten().flat_map(|host| host.versions.iter().cloned()).collect();
    let ids: Vec<String> = ids.into_iter().take(COUNTED).collect();
    let window = if round == 0 { FIRST_WINDOW } else { WINDOW };
    let past = app.dashboard.traffic.past(&ids, window).await.ok();
    let latencies = app.dashboard.traffic.latencies(&ids, MINUTES).await.ok();
    for host in hosts.iter().flatten() {
        let minutes = host.versions.iter().zip(past.iter().cycle());
        findings
            .extend(minutes.filter_map(|(id, past)| findings::of_traffic(id, &host.name, &past.minute(id))));
    }
    events(app, caller, &mut findings).await;
    machines(app, &mut findings).await;
    findings.extend(app.dashboard.later.findings(app, caller).await);

    // One line for each fault, however many hosts it touches; the grave ones first.
    let mut told = BTreeSet::new();
    findings.retain(|one| told.insert(one.what.clone()));
    findings.sort_by_key(|one| !one.grave);
    let mut charts = past.as_ref().map(charts).unwrap_or_default();
    charts.extend(latencies.as_deref().map(latency_chart));
    let total = past.as_ref().map(|past| {
        let mut minute = Sums::default();
        ids.iter().for_each(|id| minute.add(&past.minute(id)));
        Numbers::new(&minute, latencies.as_ref().and_then(|latencies| latencies.all()))
    });
    let row = |host: Host| HostRow {
        link: link(Kind::Host, &host.name),
        versions: host
            .versions
            .into_iter()
            .map(|id| {
                let counted = past.as_ref().filter(|_| ids.contains(&id));
                let times = latencies.as_ref().and_then(|latencies| latencies.of(&id));
                VersionRow { numbers: counted.map(|past| Numbers::new(&past.minute(&id), times)), id }
            })
            .collect(),
        name: host.name,
        instances: host.instances,
        well: host.well,
    };
    let hosts = hosts.map(|hosts| hosts.into_iter().map(row).collect());
    let page = Page { serial, epoch, findings, total, hosts, more_hosts, routers };
    Ok(Content { html: render(&page)?, charts })
}

/// The caller's hosts with their version types, by the table and by what is registered.
async fn hosts(
    app: &Site,
    caller: &Caller,
    findings: &mut Vec<Finding>,
) -> Result<(Vec<Host>, bool), signalbox_routing::Error> {
    let store = app.registry.store();
    let mut names = store.hosts_after(None, SHOWN + 1).await?;
    let more = names.len() > SHOWN;
    names.truncate(SHOWN);
    names.retain(|name| Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name)));
    let records = store.table_hosts(&names).await?;
    let wanted: BTreeSet<String> =
        records.iter().flat_map(|record| record.instance_ids.iter().cloned()).take(5 * SHOWN).collect();
    let wanted: Vec<InstanceId> = wanted.iter().filter_map(|id| InstanceId::parse(id).ok()).collect();
    let stored = store.stored_many(&wanted).await?;
    let ids: Vec<InstanceId> = stored.iter().map(|one| one.id.clone()).collect();
    let live = store.live(&ids).await?;
    let known: BTreeMap<String, _> =
        stored.into_iter().zip(live).map(|(one, live)| (one.id.to_string(), (one, live))).collect();
    let mut hosts = Vec::with_capacity(names.len());
    for (name, record) in names.into_iter().zip(records) {
        let TableHost { addresses, instance_ids, log_key, .. } = record;
        let own: Vec<_> = instance_ids.iter().filter_map(|id| known.get(id)).collect();
        for (one, live) in &own {
            findings.extend(findings::of_instance(one.id.as_str(), &name, live.unhealthy.as_deref()));
        }
        let ill = own.iter().filter(|(_, live)| live.unhealthy.is_some()).count();
        let well = addresses.len().saturating_sub(ill);
        findings.extend(findings::of_host(&name, addresses.len(), well));
        let mut versions: BTreeSet<String> =
            own.iter().map(|(one, _)| one.record.desired.spec.version_type_id.as_str().to_owned()).collect();
        versions.extend(log_key);
        hosts.push(Host { name, instances: addresses.len(), well, versions });
    }
    Ok((hosts, more))
}

/// What is wrong with events. What cannot be read is silent here: the servers have told.
async fn events(app: &Site, caller: &Caller, findings: &mut Vec<Finding>) {
    let bus = app.bus.handle();
    if !bus.is_ready() {
        findings.push(Finding {
            grave: true,
            what: "Events are refused: the fabric is empty, or another one than before.".to_owned(),
            mend: "Restore it, or have it taken for the new one with POST /bus/initialise.".to_owned(),
            link: String::new(),
        });
        return;
    }
    // Tenants see nothing of each other here.
    if caller.environments().is_some() {
        return;
    }
    let now_ms = app.dashboard.now_ms();
    let registry = bus.registry();
    for status in bus.subscriptions().await.unwrap_or_default() {
        let name = app.bus.name_of(&status.subscription.token);
        findings.extend(findings::of_subscriber(&name, &status, now_ms));
    }
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).take(SHOWN).collect();
    let numbers = app.queues.numbers(&names).await.unwrap_or_default();
    findings.extend(
        names
            .iter()
            .zip(&numbers)
            .filter_map(|(name, numbers)| findings::of_queue(name, numbers, link(Kind::Queues, name))),
    );
    let sequencer = &app.sequencer.handle;
    let parked = sequencer.parked(PARKED).await.unwrap_or_default();
    let parked: Vec<String> = parked.into_iter().map(|(object, _)| object).collect();
    let backends = sequencer.numbers().await.map(|numbers| numbers.backends).unwrap_or_default();
    findings.extend(findings::of_objects(&parked, &backends));
}

/// What is wrong with labels.
async fn machines(app: &Site, findings: &mut Vec<Finding>) {
    for name in app.machines.definitions.names().await.unwrap_or_default().into_iter().take(SHOWN) {
        let Ok(Counts { busy, .. }) = app.machines.inspector.overview.counts(&name).await else { continue };
        let count = |status: &str| busy.get(status).copied().unwrap_or(0);
        findings.extend(findings::of_machine(&name, count("errored"), count("looping")));
    }
}

fn router_row(app: &Site, router: &RouterReport, in_step: bool) -> RouterRow {
    let state = match &router.alarm {
        Some(alarm) => alarm.clone(),
        None if in_step => "in step".to_owned(),
        None => "behind".to_owned(),
    };
    let took = app.routers.percentiles(&router.node);
    RouterRow {
        well: in_step && router.alarm.is_none(),
        node: router.node.clone(),
        serial: router.serial,
        state,
        propagation: took.map_or_else(
            || "–".to_owned(),
            |took| format!("{} ms, 99 % within {} ms", took.p50.as_millis(), took.p99.as_millis()),
        ),
    }
}

/// Percentiles by minute.
pub(super) fn latency_chart(latencies: &Latencies) -> Chart {
    let minutes = latencies.by_minute();
    let line = |label: &str, colour, value: fn(&Times) -> f64| Line {
        label: label.to_owned(),
        colour,
        y: minutes.iter().map(|times| times.as_ref().map(value)).collect(),
    };
    let lines = vec![
        line("50 %", "good", |times| times.p50),
        line("95 %", "warn", |times| times.p95),
        line("99 %", "bad", |times| times.p99),
    ];
    Chart { id: "latency", unit: "ms", lines, x: latencies.minutes.clone() }
}

/// Requests and errors a second, and how long they took.
pub(super) fn charts(past: &Past) -> Vec<Chart> {
    let seconds = past.together();
    #[allow(clippy::cast_precision_loss, reason = "for the eye")]
    let line = |label: &str, colour, value: fn(&Sums) -> u64| Line {
        label: label.to_owned(),
        colour,
        y: seconds.iter().map(|second| Some(value(second) as f64)).collect(),
    };
    let requests = vec![
        line("requests", "plain", |second| second.requests),
        line("4xx", "warn", |second| second.client_errors),
        line("5xx", "bad", |second| second.server_errors),
    ];
    let mean =
        Line { label: "mean".to_owned(), colour: "plain", y: seconds.iter().map(Sums::mean_ms).collect() };
    let chart = |id, unit, lines| Chart { id, unit, lines, x: past.seconds.clone() };
    vec![chart("traffic", "/s", requests), chart("times", "ms", vec![mean])]
}
