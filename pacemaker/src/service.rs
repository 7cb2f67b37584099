//! The daemon: connections, background work, the HTTP server, and their end.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use rand::RngExt as _;
use signalbox_daemon::traces::Exporter;
use signalbox_store::{Fabric, Options, RoutesMaster, Shard, Stats};
use tokio::{net::TcpListener, sync::Notify, task::JoinSet, time};
use tokio_util::sync::CancellationToken;

use signalbox_access::Tokens;
use signalbox_bus::{self as bus, Bus, FabricMemory, Handle, Webhooks};
use signalbox_certificates::Certificates;
use signalbox_egress::Client;
use signalbox_lease::{Lease, Presence};
use signalbox_machines as machines;
use signalbox_queues as queues;
use signalbox_route_table::AddressRules;
use signalbox_routing::{Announcer, Prober, Reconciler, Registry, Routers, Store, Sweeper};
use signalbox_sequencer::{Calls, Http, Sequencer};
use signalbox_stream::Hub;

use crate::{
    api::{bus::Front, sequencer},
    app::{App, Parts},
    config::Config,
    dashboard::{Dashboard, Site},
    http::{metrics::Metrics, session::Sessions},
    own_events::OwnEvents,
    router,
};

/// How long requests under way may take after a shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(10);
/// After how many missed turns another pacemaker takes a lease over.
const MISSED_TURNS: u32 = 5;
const SHORTEST_LEASE: Duration = Duration::from_secs(3);
/// Interval between checks for unannounced changes, for example those written directly.
const ANNOUNCE: Duration = Duration::from_secs(1);
/// Interval between checks of which instances are due.
const PROBE: Duration = Duration::from_secs(1);
/// Interval between maintenance rounds of a shard's labels.
const MACHINES: Duration = Duration::from_secs(1);
/// Interval between fabric identity checks.
const REMEMBER: Duration = Duration::from_secs(1);
/// The same, until it has been kept for the first time.
const REMEMBER_FIRST: Duration = Duration::from_millis(50);

/// Runs the daemon on `listener` until `shutdown`.
pub(crate) async fn run(
    config: Config,
    listener: TcpListener,
    exporter: Option<Exporter>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let options = Options::default();
    let fabric = Fabric::open(config.redis.fabric.as_str(), options).context("redis.fabric")?;
    let fabric = Shard::home(&fabric, config.redis.fabric_shards);
    let routes = RoutesMaster::open(config.redis.routes.as_str(), options).context("redis.routes")?;
    let stats = Stats::open(config.redis.stats.as_str(), options).context("redis.stats")?;
    let route_metrics = signalbox_routing::Metrics::default();
    let metrics = Metrics::new(exporter.as_ref().map(Exporter::counts).unwrap_or_default(), &route_metrics);
    // Last of all: what ends at the very end is a span, too.
    let silence = CancellationToken::new();
    let spans = tokio::spawn(export(exporter, silence.clone()));
    let memory = FabricMemory::new(stats.clone());
    let (handle, front, events, client) = event_bus(&config, &fabric, &memory).await?;
    let tokens = Tokens::new(config.root_token.clone(), fabric.clone(), stats.clone())
        .with_external(front.external_tokens());
    let store = Store::new(fabric.clone(), routes, stats.clone());
    let rules = AddressRules {
        networks: config.instance_networks.clone(),
        reserved: config.reserved_addresses.clone(),
    };
    let nudge = Arc::new(Notify::new());
    let registry = Registry::new(store.clone(), rules, Arc::clone(&nudge), route_metrics.clone());

    // Two processes of one name, or one that was started again, must not take each other for themselves.
    let who = format!("{}/{:016x}", config.node, rand::rng().random::<u64>());
    let lease = |name: &str, interval: Duration| {
        let ttl = (interval * MISSED_TURNS).max(SHORTEST_LEASE);
        Lease::new(fabric.clone(), name, who.clone(), ttl)
    };
    let reconciler = Reconciler::new(
        registry.clone(),
        tokens.clone(),
        lease("reconciler", config.routing.reconcile_interval),
        Arc::clone(&nudge),
        config.routing.reconcile_interval,
        route_metrics.clone(),
    );
    let sweeper = Sweeper::new(
        registry.clone(),
        lease("sweeper", config.routing.sweep_interval),
        config.routing.sweep_interval,
        config.routing.sweep_gap,
        nudge,
        route_metrics.clone(),
    );
    let presence = Presence::new(fabric.clone(), who.clone());
    let calls = Calls::default();
    let (objects, sequencer) = Sequencer::open(
        &fabric,
        config.redis.fabric_shards,
        config.sequencer.clone(),
        handle.clone(),
        Http::new(client.clone(), calls.clone()),
    );
    let sequenced = sequencer::Front::new(objects, calls);

    // Background work outlives the server: a request under way may still need the reconciler.
    let idle = CancellationToken::new();
    let routers = Routers::start(store.clone(), idle.clone());
    let announcer = Announcer::new(
        store.clone(),
        lease("announcer", ANNOUNCE),
        OwnEvents::new(handle.clone()),
        ANNOUNCE,
        routers.alarms(),
        route_metrics.clone(),
    );

    let prober = Prober::new(registry.clone(), lease("prober", PROBE), PROBE, route_metrics.clone());

    let mut background = JoinSet::new();
    background.spawn(reconciler.run(idle.clone()));
    background.spawn(sweeper.run(idle.clone()));
    background.spawn(announcer.run(idle.clone()));
    background.spawn(prober.run(idle.clone()));
    // It leaves the list when it takes no more requests, not when its background work is done.
    background.spawn(presence.clone().run(shutdown.clone()));
    let (ended, stop) = (idle.clone(), shutdown.clone());
    background.spawn(async move {
        if let Err(error) = events.run(ended).await {
            // A pacemaker without a bus would accept routes and lose their events.
            tracing::error!(error = &error as &dyn std::error::Error, "event bus failed; stopping");
            stop.cancel();
        }
    });
    background.spawn(sequencer.run(idle.clone()));
    let queues =
        queues::Handle::new(&fabric, config.redis.fabric_shards, config.queues.clone(), shutdown.clone());
    background.spawn(queues.clone().run(idle.clone()));
    let live = Hub::new(handle.clone(), config.bus.streams);
    background.spawn(live.clone().run(idle.clone()));
    background.spawn(remember(handle.clone(), memory, idle.clone()));
    let machines = machines::Service::new(
        machines::Dependencies {
            fabric: fabric.clone(),
            shards: config.redis.fabric_shards,
            stats: stats.clone(),
            bus: handle,
            client,
            routes: registry.clone(),
            environment: config.machine_environment.clone(),
        },
        config.machines.clone(),
    );
    let leases =
        (0..config.redis.fabric_shards).map(|shard| lease(&machines::lease_name(shard), MACHINES)).collect();
    let machine_handle = machines.handle().clone();
    background.spawn(machines.run(leases, idle.clone()));
    let certificates = Certificates::new(registry.clone(), config.edge_keys.clone(), wall_clock);
    background.spawn(certificates.clone().reseal(idle.clone()));
    let sessions = Sessions::new(tokens.shared_key("sessions"), wall_clock);
    let app = App::new(Parts {
        tokens,
        registry,
        certificates,
        routers,
        bus: front,
        sequencer: sequenced,
        live,
        queues,
        sessions,
        machines: machine_handle,
        presence,
        metrics,
        shutdown: shutdown.clone(),
    });
    let site = Site::new(app, Dashboard::new(stats, wall_clock));
    tracing::info!(listen = %listener.local_addr()?, node = config.node, "pacemaker ready");
    let served = serve(listener, site, shutdown).await;
    idle.cancel();
    let ended = async { while background.join_next().await.is_some() {} };
    if time::timeout(DRAIN, ended).await.is_err() {
        tracing::warn!("background work did not end in time; its leases will expire");
    }
    silence.cancel();
    // A panic in there has been logged, and is no reason to end otherwise.
    let _ = spans.await;
    served
}

async fn export(exporter: Option<Exporter>, shutdown: CancellationToken) {
    if let Some(exporter) = exporter {
        exporter.run(shutdown).await;
    }
}

/// The event bus: its door, what the HTTP API works with, and the part that runs.
async fn event_bus(
    config: &Config,
    fabric: &Fabric,
    memory: &FabricMemory,
) -> anyhow::Result<(Handle, Front, Bus<Webhooks>, Client)> {
    let metrics = bus::Metrics::default();
    let client = Client::new(&config.bus.egress(), wall_clock).context("bus.ca_file")?;
    let webhooks = Webhooks::new(client.clone(), metrics.deliveries.clone());
    // Without the memory an existing fabric is still recognized; only an empty one would be accepted as new.
    let known = memory.recall().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the identity of the previous fabric is unknown");
        None
    });
    let (handle, events) =
        Bus::open(fabric, config.redis.fabric_shards, config.bus.clone(), known, webhooks.clone());
    let front = Front::new(handle.clone(), webhooks, metrics, &config.bus, wall_clock);
    Ok((handle, front, events, client))
}

/// Stores the fabric's identity for the next process. It changes once in the life of an installation, so an occasional
/// check (in memory) is enough; but while none is stored, a process that starts now would accept an empty fabric as
/// new. A process that rejects the fabric checks whether an operator initialized it through another one.
async fn remember(handle: Handle, memory: FabricMemory, shutdown: CancellationToken) {
    let mut kept = memory.recall().await.ok().flatten().unwrap_or_default();
    loop {
        match handle.fabric() {
            fabric if fabric.is_empty() => match memory.recall().await {
                Ok(Some(other)) if other != kept => match handle.adopt(&other).await {
                    Ok(()) => kept = other,
                    Err(error) => tracing::debug!(%error, "the fabric cannot be checked now"),
                },
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "which fabric is used is not known now"),
            },
            fabric if fabric != kept => match memory.keep(&fabric).await {
                Ok(()) => kept = fabric,
                Err(error) => tracing::debug!(%error, "the fabric's identity is kept later"),
            },
            _ => {}
        }
        let pause = if kept.is_empty() { REMEMBER_FIRST } else { REMEMBER };
        if shutdown.run_until_cancelled(time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// The time of day for external use: signatures, dates in headers. No decision depends on it.
#[allow(clippy::disallowed_methods, reason = "the source of the clock that is passed to other code")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

async fn serve(listener: TcpListener, site: Site, shutdown: CancellationToken) -> anyhow::Result<()> {
    let stop = shutdown.clone();
    let server = axum::serve(listener, router::router(site))
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .into_future();
    let mut server = std::pin::pin!(server);
    tokio::select! {
        served = &mut server => return served.context("the HTTP server failed"),
        () = shutdown.cancelled() => {}
    }
    tracing::info!("shutting down");
    match time::timeout(DRAIN, server).await {
        Ok(served) => served.context("the HTTP server failed"),
        Err(_) => {
            tracing::warn!("requests did not end in time and are aborted");
            Ok(())
        }
    }
}
