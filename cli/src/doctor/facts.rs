//! What the doctor sees. It looks and changes nothing.

use std::time::Duration;

use signalbox_client::{Client, Error, stats::Subject};
use tokio::time::{Instant, sleep};

use super::{
    Args,
    metrics::Metrics,
    server::{Server, Target},
};
use crate::{exit::Failure, terminal::Progress};

/// How long a request may take until it is counted. nginx writes its log at least every 200 ms and the sidecar commits
/// twice a second.
const COUNTED_WITHIN: Duration = Duration::from_secs(10);

/// Everything that rules look at.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) servers: Vec<Server>,
    /// Parts that should answer and do not, with the reason.
    pub(super) silent: Vec<(String, String)>,
    pub(super) routers: Vec<Router>,
    /// What is wrong with the nginx that was asked.
    pub(super) edge: Option<Edge>,
    pub(super) metrics: Metrics,
    /// Whether a request was counted that was made for this; nothing when it was not tried.
    pub(super) counted: Option<bool>,
    pub(super) receivers: Vec<Receiver>,
    pub(super) machines: Vec<Machine>,
    /// Whether this machine knows the time zones of the world.
    pub(super) zones: Option<bool>,
    pub(super) pacemakers: Vec<Pacemaker>,
    /// What could not be looked at, and why.
    pub(super) unseen: Vec<String>,
}

/// A router that reported in the last minute.
#[derive(Debug, Clone, Default)]
pub(super) struct Router {
    pub(super) node: String,
    pub(super) state: String,
    pub(super) alarm: Option<String>,
    pub(super) behind_by: Option<u64>,
}

/// The nginx behind the address.
#[derive(Debug, Clone, Default)]
pub(super) struct Edge {
    pub(super) connected: bool,
    pub(super) alarm: Option<String>,
}

/// A subscriber, or a backend of objects.
#[derive(Debug, Clone, Default)]
pub(super) struct Receiver {
    pub(super) name: String,
    pub(super) is_backend: bool,
    pub(super) disabled: Option<String>,
    pub(super) health: Option<u32>,
    pub(super) dead: u64,
}

/// A machine, and those of its labels that do not go on by themselves.
#[derive(Debug, Clone, Default)]
pub(super) struct Machine {
    pub(super) name: String,
    /// Labels whose action failed for good.
    pub(super) errored: Held,
    /// Labels that wait for a feed that failed.
    pub(super) choosing: Held,
    /// Labels that wait where nothing looks at them again.
    pub(super) stuck: Held,
}

/// Labels that something holds up.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    pub(super) count: u64,
    /// One of them, and what went wrong (or where it waits).
    pub(super) such_as: Option<(String, String)>,
}

/// A control plane that serves.
#[derive(Debug, Clone, Default)]
pub(super) struct Pacemaker {
    pub(super) node: String,
    pub(super) version: String,
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Looks at everything that can be reached.
pub(super) async fn gather(args: &Args, progress: &Progress) -> Result<Facts, Failure> {
    let client = args.remote.client()?;
    let mut facts = Facts { zones: Some(zones_are_known()), ..Facts::default() };
    let here = args.remote.here();
    let targets = match &here {
        Some(running) if args.redis.is_empty() => Target::of(running),
        _ => args.redis.clone(),
    };
    if targets.is_empty() {
        facts
            .unseen
            .push("the Redis servers: name them with --redis, such as --redis stats=redis://…".to_owned());
    }
    for target in targets {
        progress.say(&format!("looking at {}", target.url));
        match target.look(now_ms).await {
            Ok(server) => facts.servers.push(server),
            Err(why) => facts.silent.push((format!("Redis {} ({})", target.role, target.url), why)),
        }
    }
    for part in here.iter().flat_map(|running| &running.parts) {
        // The others were asked just now.
        if matches!(part.probe, signalbox_stack::Probe::Http(_))
            && let Err(why) = part.probe.check().await
        {
            facts.silent.push((part.name.clone(), why));
        }
    }
    progress.say("asking the API");
    ask(&client, &mut facts).await?;
    if !args.skip_log {
        progress.say("waiting for a request to be counted");
        match is_counted(&client).await {
            Ok(counted) => facts.counted = Some(counted),
            Err(error) => facts.unseen.push(format!("whether requests are counted: {error}")),
        }
    }
    Ok(facts)
}

/// What only the machine that daemons run on can say, and it is asked about this one.
fn zones_are_known() -> bool {
    ["Europe/London", "America/New_York", "Asia/Tokyo"]
        .iter()
        .all(|name| jiff::tz::TimeZone::get(name).is_ok())
}

/// Asks the API. That one part does not answer is a finding; that the token may not ask is a failure.
async fn ask(client: &Client, facts: &mut Facts) -> Result<(), Failure> {
    match client.routes().convergence().await {
        Ok(state) => {
            let router = |router: signalbox_client::routes::Router| Router {
                node: router.node,
                state: router.state,
                alarm: router.alarm,
                behind_by: router.behind_by,
            };
            facts.routers = state.routers.into_iter().map(router).collect();
        }
        Err(error) => missed(facts, "the routers", error)?,
    }
    match client.health().edge().await {
        Ok(edge) => facts.edge = Some(Edge { connected: edge.connected, alarm: edge.alarm }),
        // One of the daemons is asked, and not the admin listener.
        Err(error) if error.status() == Some(404) => {
            facts.unseen.push("nginx: ask the admin listener".to_owned())
        }
        Err(error) => missed(facts, "nginx", error)?,
    }
    match client.health().metrics().await {
        Ok(page) => facts.metrics = Metrics::read(&page),
        Err(error) => missed(facts, "the metrics", error)?,
    }
    receivers(client, facts).await?;
    match client.machines().list().await {
        Ok(names) => {
            for name in names {
                match machine(client, &name).await {
                    Ok(machine) => facts.machines.push(machine),
                    Err(error) => missed(facts, "the machines", error)?,
                }
            }
        }
        Err(error) => missed(facts, "the machines", error)?,
    }
    match client.health().pacemakers().await {
        Ok(list) => {
            let one =
                |one: signalbox_client::health::Pacemaker| Pacemaker { node: one.node, version: one.version };
            facts.pacemakers = list.into_iter().map(one).collect();
        }
        Err(error) => missed(facts, "the pacemakers", error)?,
    }
    Ok(())
}

async fn receivers(client: &Client, facts: &mut Facts) -> Result<(), Failure> {
    let numbers = match client.events().numbers().await {
        Ok(numbers) => numbers.subscribers,
        Err(error) => return missed(facts, "the subscribers", error),
    };
    match client.events().subscriptions().await {
        Ok(subscriptions) => facts.receivers.extend(subscriptions.into_iter().map(|one| Receiver {
            dead: numbers.get(&one.subscriber).map_or(0, |numbers| numbers.dead),
            name: one.subscriber,
            is_backend: false,
            disabled: one.disabled,
            health: Some(one.health),
        })),
        Err(error) => missed(facts, "the subscribers", error)?,
    }
    match client.objects().backends().await {
        Ok(backends) => facts.receivers.extend(backends.into_iter().map(|one| Receiver {
            name: one.name,
            is_backend: true,
            disabled: one.disabled,
            health: None,
            dead: one.dead,
        })),
        Err(error) => missed(facts, "the backends", error)?,
    }
    Ok(())
}

async fn machine(client: &Client, name: &str) -> Result<Machine, Error> {
    let machines = client.machines();
    let signalbox_client::machines::Machine { busy, stuck, .. } = machines.show(name).await?;
    let mut found = Machine { name: name.to_owned(), ..Machine::default() };
    for (status, held) in [("errored", &mut found.errored), ("choosing", &mut found.choosing)] {
        held.count = busy.get(status).copied().unwrap_or(0);
        if held.count == 0 {
            continue;
        }
        if let Some(label) = machines.labels(name, None, Some(status), 1).await?.pop() {
            // It may have gone on, or away, since.
            let error = machines.label(name, &label).await.ok().and_then(|label| label.error);
            held.such_as = error.map(|error| (label, error));
        }
    }
    found.stuck.count = stuck.values().sum();
    if let Some(gate) = stuck.keys().next() {
        let label = machines.labels(name, Some(gate), None, 1).await?.pop();
        found.stuck.such_as = label.map(|label| (label, gate.clone()));
    }
    Ok(found)
}

/// Notes what could not be asked. A token that is not known ends the visit: nothing else could be asked either.
fn missed(facts: &mut Facts, what: &str, error: Error) -> Result<(), Failure> {
    match error.status() {
        Some(401) => return Err(error.into()),
        Some(403) => facts.unseen.push(format!("{what}: {error}")),
        // An older version.
        Some(404) => {}
        _ => facts.silent.push((what.to_owned(), error.to_string())),
    }
    Ok(())
}

/// Asks for something by way of nginx until what was asked before has been counted. Every request to the admin listener
/// is logged and counted like any other.
async fn is_counted(client: &Client) -> Result<bool, Error> {
    let before = client.stats().totals(&Subject::Pacemaker).await?.requests;
    let deadline = Instant::now() + COUNTED_WITHIN;
    loop {
        sleep(Duration::from_millis(200)).await;
        if client.stats().totals(&Subject::Pacemaker).await?.requests > before {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
    }
}
