//! The overview: traffic, hosts, routers, and findings.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use signalbox_diagnosis::{
    Checked, Facts, Skipped, diagnose,
    messages::{self, Bus, Parked},
    redis::{Role, Server},
    thresholds::{ROUTER_FORGOTTEN_MS, ROUTER_SILENT_MS},
    traffic,
};

use super::{
    Chart, Content, Kind, Line,
    findings::{self, Finding},
    link, render,
};
use crate::{
    dashboard::{
        MAX_ROWS, Site, format,
        store::{Latencies, Past, Sums, Times},
    },
    http::Problem,
};
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, InstanceId, TableHost};
use signalbox_routing::{RouterReport, has_acknowledged};

/// Maximum version types whose traffic is read.
const MAX_VERSION_TYPES: usize = 50;
/// Seconds of traffic read by the first refresh, and by all others.
const FIRST_WINDOW: i64 = 300;
const WINDOW: i64 = 60;
/// Minutes of latencies read.
const MINUTES: i64 = 15;
/// Why a check is skipped whose data cannot be divided between tenants.
const CONFINED: &str = "the token is confined";
/// Maximum parked objects that a finding names.
const MAX_PARKED: usize = 10;

#[derive(Debug, Template)]
#[template(path = "dashboard/overview.html")]
struct Page {
    serial: u64,
    epoch: String,
    findings: Vec<Finding>,
    /// Checks that were not performed.
    skipped: Vec<Skipped>,
    /// `None` if the stats Redis does not respond.
    total: Option<Numbers>,
    /// `None` if the route table cannot be read.
    hosts: Option<Vec<HostRow>>,
    more_hosts: bool,
    /// Whether the caller may see the data of every tenant.
    whole: bool,
    routers: Option<Vec<RouterRow>>,
}

/// The traffic of the last minute, formatted.
#[derive(Debug, Default)]
struct Numbers {
    rate: String,
    errors: String,
    erring: bool,
    times: String,
}

/// Percentiles as `p50 / p95 / p99 ms`.
pub(super) fn percentiles(times: Option<Times>) -> String {
    times.map_or_else(
        || "–".to_owned(),
        |Times { p50, p95, p99 }| format!("{p50:.0} / {p95:.0} / {p99:.0} ms"),
    )
}

impl Numbers {
    fn new(minute: &Sums, times: Option<Times>) -> Self {
        Self {
            rate: format::per_second(minute.requests),
            errors: format::percent(minute.server_errors, minute.requests),
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
    healthy: usize,
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
    healthy: bool,
    /// How long changes took to reach the router.
    propagation: String,
}

/// A host, before its traffic is read.
struct Host {
    name: String,
    instances: usize,
    healthy: usize,
    versions: BTreeSet<String>,
}

pub(super) async fn content(app: &Site, caller: &Caller, round: u64) -> Result<Content, Problem> {
    let store = app.registry.store();
    let mut facts = Facts::skipped("only `signalbox doctor` runs this check");
    let whole = caller.confinement().is_empty();
    let slow = app.dashboard.slow_facts.get(app).await;
    if whole {
        facts.redis = Checked::Known(servers(&store.ping().await, &slow.servers));
    }
    facts.certificates = match &slow.certificates {
        Checked::Known(all) => {
            let own = all.iter().filter(|(host, _)| caller.may_touch(host));
            Checked::Known(own.map(|(_, certificate)| certificate.clone()).collect())
        }
        Checked::Skipped(reason) => Checked::Skipped(reason.clone()),
    };
    let (lineage, serial, _) = store.table_head().await.unwrap_or_default();
    let epoch = lineage.split(' ').next().unwrap_or("").to_owned();

    let reports = store.routers(ROUTER_FORGOTTEN_MS).await;
    facts.routers = match &reports {
        _ if !whole => Checked::Skipped(CONFINED.to_owned()),
        Ok(reports) => {
            Checked::Known(reports.iter().map(|one| findings::router(one, &epoch, serial)).collect())
        }
        Err(error) => Checked::Skipped(error.to_string()),
    };
    let in_sync = |router: &RouterReport| has_acknowledged(router, &epoch, serial);
    let rows = |routers: Vec<RouterReport>| {
        routers.into_iter().map(|router| router_row(app, &router, in_sync(&router))).collect()
    };
    let routers = reports.ok().filter(|_| whole).map(rows);

    let read = hosts(app, caller, &mut facts).await;
    if let Err(error) = &read {
        facts.hosts = Checked::Skipped(error.to_string());
        facts.instances = Checked::Skipped(error.to_string());
    }
    let read = read.ok();
    let more_hosts = read.as_ref().is_some_and(|(_, more)| *more);
    let hosts = read.map(|(hosts, _)| hosts);
    let ids: BTreeSet<String> =
        hosts.iter().flatten().flat_map(|host| host.versions.iter().cloned()).collect();
    let ids: Vec<String> = ids.into_iter().take(MAX_VERSION_TYPES).collect();
    let window = if round == 0 { FIRST_WINDOW } else { WINDOW };
    let past = app.dashboard.traffic.past(&ids, window).await.ok();
    let latencies = app.dashboard.traffic.latencies(&ids, MINUTES).await.ok();
    facts.traffic = match (&hosts, &past) {
        (Some(hosts), Some(past)) => {
            let versions = hosts.iter().flat_map(|host| host.versions.iter().map(move |id| (id, &host.name)));
            Checked::Known(
                versions.map(|(id, host)| findings::version_type(id, host, &past.minute(id))).collect(),
            )
        }
        _ => Checked::Skipped("hosts or statistics cannot be read".to_owned()),
    };
    events(app, caller, &mut facts).await;
    if whole {
        machines(app, &mut facts).await;
    } else {
        facts.machines = Checked::Skipped(CONFINED.to_owned());
    }
    let diagnosis = diagnose(&facts, app.dashboard.now_ms());
    let findings = diagnosis.findings.into_iter().map(Finding::from).collect();
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
        healthy: host.healthy,
    };
    let hosts = hosts.map(|hosts| hosts.into_iter().map(row).collect());
    let skipped = diagnosis.skipped;
    let page = Page { serial, epoch, findings, skipped, total, hosts, more_hosts, whole, routers };
    Ok(Content { html: render(&page)?, charts })
}

/// Each Redis server that the pacemaker uses. `states` has the servers whose configuration was read.
fn servers(
    up: &[(&'static str, bool)],
    states: &BTreeMap<Role, signalbox_diagnosis::redis::State>,
) -> Vec<Server> {
    let server = |(role, up): &(&str, bool)| {
        let role = Role::named(role)?;
        let state = states.get(&role).cloned().unwrap_or_default();
        let state = if *up { Ok(state) } else { Err("PING failed".to_owned()) };
        Some(Server { role, address: None, state })
    };
    up.iter().filter_map(server).collect()
}

/// The caller's hosts with their version types, from the route table and the registrations, and whether there are more.
async fn hosts(
    app: &Site,
    caller: &Caller,
    facts: &mut Facts,
) -> Result<(Vec<Host>, bool), signalbox_routing::Error> {
    let store = app.registry.store();
    let mut names = store.hosts_after(None, MAX_ROWS + 1).await?;
    let more = names.len() > MAX_ROWS;
    names.truncate(MAX_ROWS);
    names.retain(|name| Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name)));
    let records = store.table_hosts(&names).await?;
    let wanted: BTreeSet<String> =
        records.iter().flat_map(|record| record.instance_ids.iter().cloned()).take(5 * MAX_ROWS).collect();
    let wanted: Vec<InstanceId> = wanted.iter().filter_map(|id| InstanceId::parse(id).ok()).collect();
    let stored = store.stored_many(&wanted).await?;
    let ids: Vec<InstanceId> = stored.iter().map(|one| one.id.clone()).collect();
    let live = store.live(&ids).await?;
    let known: BTreeMap<String, _> =
        stored.into_iter().zip(live).map(|(one, live)| (one.id.to_string(), (one, live))).collect();
    let mut hosts = Vec::with_capacity(names.len());
    let (mut checked_hosts, mut checked_instances) = (Vec::new(), Vec::new());
    for (name, record) in names.into_iter().zip(records) {
        let TableHost { addresses, instance_ids, log_key, .. } = record;
        let own: Vec<_> = instance_ids.iter().filter_map(|id| known.get(id)).collect();
        checked_instances.extend(own.iter().map(|(one, live)| traffic::Instance {
            id: one.id.to_string(),
            host: name.clone(),
            unhealthy: live.unhealthy.clone(),
        }));
        let unhealthy = own.iter().filter(|(_, live)| live.unhealthy.is_some()).count();
        checked_hosts.push(traffic::Host { name: name.clone(), addresses: addresses.len(), unhealthy });
        let healthy = addresses.len().saturating_sub(unhealthy);
        let mut versions: BTreeSet<String> =
            own.iter().map(|(one, _)| one.record.desired.spec.version_type_id.as_str().to_owned()).collect();
        versions.extend(log_key);
        hosts.push(Host { name, instances: addresses.len(), healthy, versions });
    }
    facts.hosts = Checked::Known(checked_hosts);
    facts.instances = Checked::Known(checked_instances);
    Ok((hosts, more))
}

/// Facts about events, queues and objects.
async fn events(app: &Site, caller: &Caller, facts: &mut Facts) {
    let bus = app.bus.handle();
    let accepts_events = bus.is_ready();
    facts.bus = Checked::Known(Bus { accepts_events });
    if accepts_events && caller.confinement().is_empty() {
        let signalbox_bus::Credentials { clear, locked, .. } = bus.credentials();
        facts.credentials = Checked::Known(messages::Credentials { clear, locked });
    }
    let reason = if !accepts_events {
        "the bus is not initialized"
    } else if !caller.confinement().is_empty() {
        // Tenants must not see each other's subscribers and queues.
        CONFINED
    } else {
        ""
    };
    if !reason.is_empty() {
        facts.subscribers = Checked::Skipped(reason.to_owned());
        facts.queues = Checked::Skipped(reason.to_owned());
        facts.backends = Checked::Skipped(reason.to_owned());
        facts.parked_objects = Checked::Skipped(reason.to_owned());
        return;
    }
    let registry = bus.registry();
    let subscriber = |status: &signalbox_bus::SubscriptionStatus| {
        findings::subscriber(app.bus.name_of(&status.subscription.token), status)
    };
    facts.subscribers = checked(bus.subscriptions().await.map(|all| all.iter().map(subscriber).collect()));
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).take(MAX_ROWS).collect();
    facts.queues = checked(app.queues.numbers(&names).await.map(|all| {
        let queues = names.iter().zip(all);
        queues.map(|(name, one)| messages::Queue { name: (*name).to_owned(), dead: one.dead }).collect()
    }));
    let sequencer = &app.sequencer.handle;
    match sequencer.numbers().await {
        Ok(numbers) => {
            // The count is useful even if the names cannot be read.
            let parked = sequencer.parked(MAX_PARKED).await.unwrap_or_default();
            let names = parked.into_iter().map(|(object, _)| object).collect();
            facts.parked_objects = Checked::Known(Parked { count: numbers.parked, names });
            facts.backends = Checked::Known(numbers.backends.into_iter().map(findings::backend).collect());
        }
        Err(error) => {
            facts.parked_objects = Checked::Skipped(error.to_string());
            facts.backends = Checked::Skipped(error.to_string());
        }
    }
}

fn checked<T, E: std::fmt::Display>(answer: Result<T, E>) -> Checked<T> {
    answer.map_or_else(|error| Checked::Skipped(error.to_string()), Checked::Known)
}

/// Facts about state machines.
async fn machines(app: &Site, facts: &mut Facts) {
    let names = match app.machines.definitions.names().await {
        Ok(names) => names,
        Err(error) => {
            facts.machines = Checked::Skipped(error.to_string());
            return;
        }
    };
    let mut found = Vec::new();
    for name in names.into_iter().take(MAX_ROWS) {
        // A machine may have been deleted since its name was read.
        if let Ok(counts) = app.machines.inspector.overview.counts(&name).await {
            found.push(findings::machine(name, &counts));
        }
    }
    facts.machines = Checked::Known(found);
}

fn router_row(app: &Site, router: &RouterReport, in_sync: bool) -> RouterRow {
    let silent = router.age_ms >= ROUTER_SILENT_MS;
    let state = match &router.alarm {
        Some(alarm) => alarm.clone(),
        None if silent => "silent".to_owned(),
        None if in_sync => "in sync".to_owned(),
        None => "behind".to_owned(),
    };
    let took = app.routers.percentiles(&router.node);
    RouterRow {
        healthy: in_sync && !silent && router.alarm.is_none(),
        node: router.node.clone(),
        serial: router.serial,
        state,
        propagation: took.map_or_else(
            || "–".to_owned(),
            |took| format!("{} / {} ms", took.p50.as_millis(), took.p99.as_millis()),
        ),
    }
}

/// Latency percentiles by minute.
pub(super) fn latency_chart(latencies: &Latencies) -> Chart {
    let minutes = latencies.by_minute();
    let line = |label: &str, color, value: fn(&Times) -> f64| Line {
        label: label.to_owned(),
        color,
        y: minutes.iter().map(|times| times.as_ref().map(value)).collect(),
    };
    let lines = vec![
        line("p50", "good", |times| times.p50),
        line("p95", "warn", |times| times.p95),
        line("p99", "bad", |times| times.p99),
    ];
    Chart { id: "latency", unit: "ms", lines, x: latencies.minutes.clone() }
}

/// Requests and errors per second, and the average latency.
pub(super) fn charts(past: &Past) -> Vec<Chart> {
    let seconds = past.totals();
    #[allow(clippy::cast_precision_loss, reason = "display precision")]
    let line = |label: &str, color, value: fn(&Sums) -> u64| Line {
        label: label.to_owned(),
        color,
        y: seconds.iter().map(|second| Some(value(second) as f64)).collect(),
    };
    let requests = vec![
        line("requests", "plain", |second| second.requests),
        line("4xx", "warn", |second| second.client_errors),
        line("5xx", "bad", |second| second.server_errors),
    ];
    let average =
        Line { label: "average".to_owned(), color: "plain", y: seconds.iter().map(Sums::mean_ms).collect() };
    let chart = |id, unit, lines| Chart { id, unit, lines, x: past.seconds.clone() };
    vec![chart("traffic", "/s", requests), chart("times", "ms", vec![average])]
}
