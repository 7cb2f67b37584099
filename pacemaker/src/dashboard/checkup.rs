//! What is wrong now: the facts of every subsystem, and the findings of the same rules that `signalbox doctor` uses.
//!
//! All hosts, queues, subscribers and machines are checked, not only those that a page shows. A checkup for callers
//! that may see everything is shared by all pages. On a large system it is repeated less often, so that it takes at
//! most 5% of the time. Every source has the same deadline, so a server that hangs delays no page, and its checks are
//! listed as skipped.

use std::{collections::HashSet, fmt::Display, sync::Arc, time::Duration};

use parking_lot::Mutex;
use signalbox_access::Caller;
use signalbox_diagnosis::{
    Checked, Diagnosis, Facts, Severity, diagnose,
    hosts::{self, State},
    installation::Pacemaker,
    machines::Machine,
    messages::{self, Bus, Parked},
    redis::{Role, Server},
    thresholds::ROUTER_FORGOTTEN_MS,
    traffic,
};
use signalbox_queues::QueueNumbers;
use signalbox_routing::{LIVE_MS, RouterReport, ejected};
use signalbox_store::traffic::Recent;
use tokio::time::{Instant, timeout_at};

use super::{Site, facts, slow_facts::SlowFacts, store::Sums};
use crate::api::routing::{HostSummary, all_hosts};

/// A checkup that takes less is made for every page and update.
const QUICK: Duration = Duration::from_millis(100);
/// How many times as long as it took a checkup is used.
const REST: u32 = 20;
/// How old a checkup may be.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Why a check is skipped whose data cannot be divided between tenants.
const CONFINED: &str = "the token is confined";
/// Maximum parked objects that a finding names.
const MAX_PARKED: usize = 10;

/// The position of the route table.
#[derive(Debug, Clone, Default)]
pub(super) struct Head {
    pub(super) epoch: String,
    pub(super) serial: u64,
}

impl<T> From<(String, u64, T)> for Head {
    /// The first epoch of a lineage is the current one.
    fn from((lineage, serial, _): (String, u64, T)) -> Self {
        Self { epoch: lineage.split(' ').next().unwrap_or("").to_owned(), serial }
    }
}

/// The state of the system.
#[derive(Debug)]
pub(super) struct Checkup {
    pub(super) diagnosis: Diagnosis,
    /// The caller's hosts, or why they cannot be read.
    pub(super) hosts: Result<Vec<HostSummary>, String>,
    /// The last minute, or why it cannot be read.
    pub(super) minute: Minute,
    /// The latest reports of routers, for ejections; `None` if they cannot be read.
    reports: Option<Vec<RouterReport>>,
    /// The time for which it is made, in unix milliseconds.
    now_ms: u64,
    /// Routers that reported in the last minute; `None` for a caller that may not see them.
    pub(super) routers: Option<Result<Vec<RouterReport>, String>>,
    pub(super) head: Head,
}

impl Checkup {
    /// The number of findings, and whether one of them is critical.
    pub(super) fn problems(&self) -> (usize, bool) {
        let findings = &self.diagnosis.findings;
        (findings.len(), findings.iter().any(|one| one.severity == Severity::Critical))
    }

    /// Whether every server responded. If one did not, the checkup took long only for that reason, and is not used
    /// again.
    fn is_complete(&self) -> bool {
        let routers = self.routers.as_ref().is_none_or(Result::is_ok);
        self.hosts.is_ok() && self.minute.is_ok() && routers
    }

    /// The last minute of all version types of a host.
    pub(super) fn minute_of(&self, host: &HostSummary) -> Option<Sums> {
        self.minute.as_ref().ok().map(|minute| sums_of(host, minute))
    }

    /// Version types of these hosts whose counters of the last minute are estimated only.
    pub(super) fn estimated<'a>(&self, hosts: impl IntoIterator<Item = &'a HostSummary>) -> Vec<String> {
        let Ok(minute) = &self.minute else { return Vec::new() };
        let versions: HashSet<&String> = hosts.into_iter().flat_map(|host| &host.versions).collect();
        let estimated =
            versions.into_iter().filter(|id| minute.by_id.contains_key(*id) && !minute.exact.contains(*id));
        estimated.cloned().collect()
    }

    /// The states of hosts, in their order.
    pub(super) fn states<'a>(
        &self,
        caller: &Caller,
        hosts: impl IntoIterator<Item = &'a HostSummary>,
    ) -> Vec<State> {
        states(hosts, caller, &self.minute, self.reports.as_deref(), self.now_ms)
    }
}

fn sums_of(host: &HostSummary, minute: &Recent) -> Sums {
    Sums::of(host.versions.iter().filter_map(|id| minute.by_id.get(id)))
}

/// The states of hosts, in their order.
fn states<'a>(
    hosts: impl IntoIterator<Item = &'a HostSummary>,
    caller: &Caller,
    minute: &Minute,
    reports: Option<&[RouterReport]>,
    now_ms: u64,
) -> Vec<State> {
    let ejected = reports.map(ejected);
    let state = |host: &HostSummary| {
        let minute =
            minute.as_ref().ok().filter(|_| host.table.versions.iter().all(|id| caller.may_count_as(id)));
        let sums =
            minute.map(|minute| Sums::of(host.table.versions.iter().filter_map(|id| minute.by_id.get(id))));
        host.table.reading(ejected.as_ref(), sums.as_ref()).state(now_ms)
    };
    hosts.into_iter().map(state).collect()
}

/// The latest checkup of callers that may see everything. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checkups(Arc<Mutex<Option<Latest>>>);

#[derive(Debug)]
struct Latest {
    checkup: Arc<Checkup>,
    made_at: Instant,
    took: Duration,
}

impl Checkups {
    /// A checkup that ends at `deadline` at the latest.
    pub(super) async fn get(&self, app: &Site, caller: &Caller, deadline: Instant) -> Arc<Checkup> {
        if !caller.sees_all_numbers() {
            return Arc::new(Box::pin(check(app, caller, deadline)).await);
        }
        if let Some(recent) = self.recent() {
            return recent;
        }
        let started = Instant::now();
        let checkup = Arc::new(Box::pin(check(app, caller, deadline)).await);
        let (made_at, took) = (Instant::now(), started.elapsed());
        *self.0.lock() = Some(Latest { checkup: Arc::clone(&checkup), made_at, took });
        checkup
    }

    /// How many problems the latest checkup found, and whether one of them is critical. Nothing for a caller that may
    /// not see all of them.
    pub(super) fn count(&self, caller: &Caller) -> (usize, bool) {
        let latest = self.0.lock();
        let latest = latest.as_ref().filter(|_| caller.sees_all_numbers());
        latest.map_or((0, false), |latest| latest.checkup.problems())
    }

    fn recent(&self) -> Option<Arc<Checkup>> {
        let latest = self.0.lock();
        let latest = latest.as_ref().filter(|latest| latest.took >= QUICK && latest.checkup.is_complete())?;
        let used_for = (latest.took * REST).min(MAX_AGE);
        (latest.made_at.elapsed() < used_for).then(|| Arc::clone(&latest.checkup))
    }
}

/// The result of `read`, or why there is none at `deadline`.
pub(super) async fn by<T, E: Display>(
    deadline: Instant,
    what: &str,
    read: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    let is_late = deadline <= Instant::now();
    match timeout_at(deadline, read).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) if is_late => Err(format!("no time was left to read {what}")),
        Err(_) => Err(format!("{what} does not respond")),
    }
}

/// The fact that follows from a reading.
fn known<T, U>(read: &Result<T, String>, fact: impl FnOnce(&T) -> U) -> Checked<U> {
    match read {
        Ok(read) => Checked::Known(fact(read)),
        Err(reason) => skipped(reason),
    }
}

fn skipped<T>(reason: &str) -> Checked<T> {
    Checked::Skipped(reason.to_owned())
}

async fn check(app: &Site, caller: &Caller, deadline: Instant) -> Checkup {
    let mut facts = Facts::skipped("only `signalbox doctor` runs this check");
    let whole = caller.confinement().is_empty();
    let (servers, slow, head, reports, traffic, events, machines, pacemakers) = tokio::join!(
        servers(app, whole, deadline),
        by(deadline, "Redis", async { Ok::<_, String>(SlowFacts::get(app).await) }),
        by(deadline, "the routes Redis", app.registry.store().table_head()),
        by(deadline, "the stats Redis", app.registry.store().routers(ROUTER_FORGOTTEN_MS)),
        traffic(app, caller, deadline),
        events(app, caller, deadline),
        machines(app, whole, deadline),
        pacemakers(app, whole, deadline),
    );
    let head = head.map(Head::from).unwrap_or_default();
    if whole {
        facts.redis = with_states(servers, slow.as_deref().ok());
    }
    facts.certificates = match slow.as_deref().map(|slow| &slow.certificates) {
        Ok(Checked::Known(all)) => {
            let own = all.iter().filter(|(host, _)| caller.may_touch(host));
            Checked::Known(own.map(|(_, certificate)| certificate.clone()).collect())
        }
        Ok(Checked::Skipped(reason)) => Checked::Skipped(reason.clone()),
        Err(reason) => Checked::Skipped(reason.clone()),
    };
    let router = |one: &RouterReport| facts::router(one, &head.epoch, head.serial);
    facts.routers = match whole {
        true => known(&reports, |reports| reports.iter().map(router).collect()),
        false => skipped(CONFINED),
    };
    let (hosts, minute) = traffic;
    let now_ms = app.dashboard.now_ms();
    let live = |reports: &Vec<RouterReport>| {
        reports.iter().filter(|report| report.age_ms <= LIVE_MS).cloned().collect::<Vec<_>>()
    };
    let live = reports.as_ref().ok().map(live);
    let states = states(hosts.iter().flatten(), caller, &minute, live.as_deref(), now_ms);
    add_traffic(&mut facts, &hosts, &minute, &states);
    (facts.bus, facts.subscribers, facts.queues, facts.backends, facts.parked_objects) = events;
    if whole && app.bus.handle().is_ready() {
        let signalbox_bus::Credentials { clear, locked, .. } = app.bus.handle().credentials();
        facts.credentials = Checked::Known(messages::Credentials { clear, locked });
        facts.idempotency_keys = idempotency_keys(app, deadline).await;
    }
    facts.machines = machines;
    facts.pacemakers = pacemakers;
    let diagnosis = diagnose(&facts, now_ms);
    let routers = whole.then_some(reports);
    Checkup { diagnosis, hosts, minute, reports: live, now_ms, routers, head }
}

/// Which servers respond.
async fn servers(app: &Site, whole: bool, deadline: Instant) -> Vec<(&'static str, bool)> {
    if !whole {
        return Vec::new();
    }
    let left = deadline.saturating_duration_since(Instant::now());
    app.registry.store().ping(left).await.to_vec()
}

/// Each Redis server that the pacemaker uses, with its configuration if it was read.
fn with_states(up: Vec<(&'static str, bool)>, slow: Option<&SlowFacts>) -> Checked<Vec<Server>> {
    let server = |(role, up): (&str, bool)| {
        let role = Role::named(role)?;
        let state = slow.and_then(|slow| slow.servers.get(&role)).cloned().unwrap_or_default();
        let state = if up { Ok(state) } else { Err("PING failed".to_owned()) };
        Some(Server { role, address: None, state })
    };
    Checked::Known(up.into_iter().filter_map(server).collect())
}

type Minute = Result<Arc<Recent>, String>;

/// The caller's hosts, and the last minute of their version types.
async fn traffic(
    app: &Site,
    caller: &Caller,
    deadline: Instant,
) -> (Result<Vec<HostSummary>, String>, Minute) {
    let left = deadline.saturating_duration_since(Instant::now());
    let traffic = &app.dashboard.traffic;
    let hosts = async {
        let hosts = all_hosts(app, caller, left).await;
        hosts.map_err(|problem| problem.detail().to_owned())
    };
    if caller.sees_all_numbers() {
        return tokio::join!(hosts, by(deadline, "the stats Redis", traffic.last_minute(None)));
    }
    let hosts = match hosts.await {
        Ok(hosts) => hosts,
        Err(reason) => return (Err(reason.clone()), Err(reason)),
    };
    let own: HashSet<&str> = own_versions(caller, &hosts).map(String::as_str).collect();
    let minute = by(deadline, "the stats Redis", traffic.last_minute(Some(&own))).await;
    (Ok(hosts), minute)
}

/// The version types of these hosts whose numbers the caller may see.
fn own_versions<'a>(caller: &Caller, hosts: &'a [HostSummary]) -> impl Iterator<Item = &'a String> {
    hosts
        .iter()
        .flat_map(|host| &host.versions)
        .chain(hosts.iter().flat_map(|host| &host.table.versions))
        .filter(|id| caller.may_count_as(id))
}

/// Facts about hosts, instances and their requests.
fn add_traffic(
    facts: &mut Facts,
    hosts: &Result<Vec<HostSummary>, String>,
    minute: &Minute,
    states: &[State],
) {
    let host = |(host, state): (&HostSummary, &State)| hosts::Host {
        name: host.name.to_string(),
        state: state.clone(),
    };
    facts.hosts = known(hosts, |hosts| hosts.iter().zip(states).map(host).collect());
    facts.instances = known(hosts, |hosts| {
        let instances = hosts.iter().zip(states).flat_map(|(host, state)| {
            host.unhealthy.iter().map(move |(id, why)| traffic::Instance {
                id: id.clone(),
                host: host.name.to_string(),
                unhealthy: Some(why.clone()),
                planned: state.condition.is_planned(),
            })
        });
        instances.collect()
    });
    // Without the hosts, there is no minute either.
    facts.traffic = known(minute, |minute| {
        let hosts = hosts.iter().flatten();
        let versions = hosts.flat_map(|host| host.versions.iter().map(move |id| (id, host)));
        let counted = versions.filter_map(|(id, host)| Some((id, host, minute.by_id.get(id)?)));
        counted.map(|(id, host, sums)| facts::version_type(id, host.name.as_str(), sums)).collect()
    });
}

type EventFacts = (
    Checked<Bus>,
    Checked<Vec<messages::Subscriber>>,
    Checked<Vec<messages::Queue>>,
    Checked<Vec<messages::Backend>>,
    Checked<Parked>,
);

/// Facts about events, queues and objects.
async fn events(app: &Site, caller: &Caller, deadline: Instant) -> EventFacts {
    const FABRIC: &str = "the fabric Redis";
    let bus = app.bus.handle();
    let accepts_events = bus.is_ready();
    let all_skipped = |reason: &str| -> EventFacts {
        let bus = match bus.was_checked() {
            true => Checked::Known(Bus { accepts_events }),
            false => skipped("the pacemaker has not reached the fabric yet"),
        };
        (bus, skipped(reason), skipped(reason), skipped(reason), skipped(reason))
    };
    if !accepts_events {
        return all_skipped("the bus is not initialized");
    }
    if !caller.confinement().is_empty() {
        // Tenants must not see each other's subscribers and queues.
        return all_skipped(CONFINED);
    }
    let registry = bus.registry();
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).collect();
    let sequencer = &app.sequencer.handle;
    let (subscribers, queues, numbers, parked) = tokio::join!(
        by(deadline, FABRIC, bus.subscriptions()),
        by(deadline, FABRIC, app.queues.numbers(&names)),
        by(deadline, FABRIC, sequencer.numbers()),
        by(deadline, FABRIC, sequencer.parked(MAX_PARKED)),
    );
    let subscriber = |status: &signalbox_bus::SubscriptionStatus| {
        facts::subscriber(app.bus.name_of(&status.subscription.token), status)
    };
    let queue =
        |(name, one): (&&str, &QueueNumbers)| messages::Queue { name: (*name).to_owned(), dead: one.dead };
    // The count is useful even if the names cannot be read.
    let parked = parked.unwrap_or_default().into_iter().map(|(object, _)| object).collect();
    (
        Checked::Known(Bus { accepts_events }),
        known(&subscribers, |all| all.iter().map(subscriber).collect()),
        known(&queues, |all| names.iter().zip(all).map(queue).collect()),
        known(&numbers, |numbers| numbers.backends.iter().map(facts::backend).collect()),
        known(&numbers, |numbers| Parked { count: numbers.parked, names: parked }),
    )
}

async fn idempotency_keys(app: &Site, deadline: Instant) -> Checked<Vec<messages::KeyUse>> {
    let used = by(deadline, "the fabric Redis", app.bus.handle().idempotency_keys_used()).await;
    let one =
        |(client, percent): (&String, &u64)| messages::KeyUse { client: client.clone(), percent: *percent };
    known(&used, |all| all.iter().map(one).collect())
}

async fn pacemakers(app: &Site, whole: bool, deadline: Instant) -> Checked<Vec<Pacemaker>> {
    if !whole {
        return skipped(CONFINED);
    }
    let seen = by(deadline, "the fabric Redis", app.presence.all()).await;
    let running =
        |one: &signalbox_lease::Seen| Pacemaker { node: one.node.clone(), version: one.version.clone() };
    known(&seen, |all| all.iter().map(running).collect())
}

/// Facts about state machines.
async fn machines(app: &Site, whole: bool, deadline: Instant) -> Checked<Vec<Machine>> {
    if !whole {
        return skipped(CONFINED);
    }
    let read = async {
        let mut found = Vec::new();
        for name in app.machines.definitions.names().await? {
            // A machine may have been deleted since its name was read.
            if let Ok(counts) = app.machines.inspector.overview.counts(&name).await {
                found.push(facts::machine(&app.machines.label_store, name, &counts).await?);
            }
        }
        Ok::<_, signalbox_machines::Error>(found)
    };
    by(deadline, "the fabric Redis", read).await.map_or_else(Checked::Skipped, Checked::Known)
}
