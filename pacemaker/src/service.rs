//! The daemon: connections, background work, the HTTP server, and the shutdown of all of them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use rand::RngExt as _;
use signalbox_daemon::{
    door::Door,
    serve::{self, Limits as ListenerLimits},
    traces::Exporter,
};
use signalbox_store::{Fabric, Options, RoutesPrimary, Shard, Stats};
use tokio::{net::TcpListener, sync::Notify, task::JoinSet, time};
use tokio_util::sync::CancellationToken;

use parking_lot::Mutex;
use signalbox_access::{AuditLog, SharedSecret, Tokens};
use signalbox_acme::{self as acme, Acme};
use signalbox_bus::{self as bus, Bus, FabricMemory, Handle, Webhooks};
use signalbox_certificates::Certificates;
use signalbox_egress::{Budget, Client, Limits, open_files};
use signalbox_lease::{Lease, Presence};
use signalbox_machines as machines;
use signalbox_queues as queues;
use signalbox_route_table::{AddressRules, OwnAddresses};
use signalbox_routing::{
    Announcer, Limits as RegistryLimits, Prober, Reconciler, Registry, Routers, Store, Sweeper,
};
use signalbox_seal::Statement;
use signalbox_sequencer::{Calls, Http, Sequencer};
use signalbox_stream::Hub;

use signalbox_admin_api::{
    App, Limits as ApiLimits, OwnEvents, Parts,
    api::{
        bus::Front,
        check::Checks,
        machines::end_lost_tasks,
        routing::{Directory, TableNames},
        sequencer,
    },
    http::{audit::AuditTrail, cursor::Cursors, metrics::Metrics, session::Sessions},
};

use crate::{
    config::{Config, Routing},
    dashboard::{self, Dashboard, Site},
    own_addresses,
};

/// Files for connections to Redis, for configuration, logs and the like.
const OTHER_FILES: usize = 64;
/// The HTTP API accepts this many connections with any limit of open files.
const MIN_CONNECTIONS: usize = 16;
/// How long requests in flight may take after the shutdown was requested.
const DRAIN: Duration = Duration::from_secs(10);
/// Missed turns after which another pacemaker takes a lease over.
const MISSED_TURNS: u32 = 5;
const MIN_LEASE: Duration = Duration::from_secs(3);
/// Interval between checks for changes that no pacemaker made, such as those by hand.
const ANNOUNCE: Duration = Duration::from_secs(1);
/// Interval at which the prober selects instances to check.
const PROBE: Duration = Duration::from_secs(1);
/// Interval between sweeps of a shard's labels.
const MACHINES: Duration = Duration::from_secs(1);
/// Interval between questions whether hosts changed, for automatic HTTPS.
const ACME: Duration = Duration::from_secs(1);
/// How long connecting to the DNS webhook and the check URL may take.
const ACME_CONNECT: Duration = Duration::from_secs(5);
/// How long the DNS webhook may take: until all name servers have the record.
const ACME_WEBHOOK: Duration = Duration::from_secs(600);
/// Interval at which subscriptions are compared with the tokens.
const END_LOST_CLIENTS: Duration = Duration::from_secs(5);
/// Interval at which the last use of tokens is stored.
const USES: Duration = Duration::from_secs(30);
/// Interval between fabric identity checks.
const REMEMBER: Duration = Duration::from_secs(1);
/// The same, until the identity has been stored for the first time.
const REMEMBER_FIRST: Duration = Duration::from_millis(50);

/// Runs the daemon on `listener` until `shutdown`.
pub(crate) async fn run(
    mut config: Config,
    listener: TcpListener,
    exporter: Option<Exporter>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let servers = Servers::open(&config)?;
    let routing_metrics = signalbox_routing::Metrics::default();
    let acme_metrics = signalbox_acme::Metrics::default();
    let spans = exporter.as_ref().map(Exporter::counts).unwrap_or_default();
    let files = open_files();
    let budget = Budget::new(Limits::of_files(files));
    let metrics = Metrics::new(spans, budget.clone(), &routing_metrics, &acme_metrics);
    // It ends last, because the end of everything else is traced, too.
    let silence = CancellationToken::new();
    let spans = tokio::spawn(export(exporter, silence.clone()));
    let mut background = Background::new(&servers.fabric, &config.node);
    let counted = (metrics, routing_metrics, acme_metrics);
    let connections = connections(&config, budget.limits().files_left(files));
    config.connections = connections;
    let site = assemble(&config, servers, budget, counted, &mut background, &shutdown).await?;
    tracing::info!(listen = %listener.local_addr()?, node = config.node, "pacemaker ready");
    let limits = ListenerLimits { connections };
    let served = serve(listener, site, limits, shutdown).await;
    background.end().await;
    silence.cancel();
    // A panic in there has been logged, and is no reason to end otherwise.
    let _ = spans.await;
    served
}

/// How many connections to the HTTP API may be open, when this many files remain for them.
fn connections(config: &Config, files: usize) -> usize {
    let most = files.saturating_sub(OTHER_FILES).max(MIN_CONNECTIONS);
    if most < config.connections {
        tracing::warn!(
            connections = config.connections,
            most,
            "the limit of open files permits fewer connections than configured"
        );
    }
    config.connections.min(most)
}

/// Starts all subsystems, and returns what the HTTP server works with.
async fn assemble(
    config: &Config,
    servers: Servers,
    budget: Budget,
    (metrics, routing_metrics, acme_metrics): (Metrics, signalbox_routing::Metrics, signalbox_acme::Metrics),
    background: &mut Background,
    shutdown: &CancellationToken,
) -> anyhow::Result<Site> {
    let own = own_addresses::of(config);
    own_addresses::resolve_first(&own).await;
    let bus = event_bus(config, &servers, (&own, &budget), background, shutdown).await?;
    let Servers { fabric, routes, stats } = servers;
    let tokens = Tokens::new(&config.root_token, fabric.clone(), stats.clone(), wall_clock);
    let store = Store::new(fabric.clone(), routes, stats.clone());
    let (registry, routers) = routing(config, store, own.clone(), &tokens, &bus, routing_metrics, background);
    background.spawn(|idle| own_addresses::keep_resolved(own.clone(), idle));
    let sequencer = sequencer(config, &fabric, &bus, background);
    let log = AuditLog::new(fabric.clone(), config.audit.records);
    let audit = AuditTrail::new(log, OwnEvents::new(bus.handle.clone()), wall_clock);
    let publish_rates = Arc::new(signalbox_access::Rates::new(config.limits.token_events_per_second));
    let rates = Arc::clone(&publish_rates);
    let machines = machines(config, (&fabric, &stats), &bus, &registry, (audit.clone(), rates), background);
    let queues =
        queues::Handle::new(&fabric, config.redis.fabric_shards, config.queues.clone(), shutdown.clone());
    background.spawn(|idle| queues.clone().run(idle));
    let live = Hub::new(bus.handle.clone(), config.bus.streams);
    background.spawn(|idle| live.clone().run(idle));
    let certificates = Certificates::new(registry.clone(), config.edge_keys.clone(), wall_clock);
    background.spawn(|idle| certificates.clone().reseal(idle));
    let dependencies = acme::Dependencies {
        fabric: fabric.clone(),
        certificates: certificates.clone(),
        table: registry.store().clone(),
        routers: routers.clone(),
        client: acme_client(own, budget)?,
        clock: wall_clock,
        metrics: acme_metrics,
        shutdown: shutdown.clone(),
    };
    let acme = automatic_https(config, dependencies, &bus.handle, background);
    background.spawn(|idle| write_uses(tokens.clone(), idle));
    let sessions = signalbox_access::Sessions::new(fabric.clone());
    let cursors = Cursors::new(SharedSecret::new(fabric.clone()));
    let presence = Presence::new(fabric, background.who.clone());
    // It leaves the list when it accepts no more requests, not when its background work is done.
    background.spawn(|_| presence.clone().run(shutdown.clone()));
    background.spawn(|idle| end_lost_clients(bus.front.clone(), tokens.clone(), machines.clone(), idle));
    let dashboard = Dashboard::new(stats, wall_clock, config.installation.clone());
    let keys = config.edge_keys.of_daemons();
    let is_proven =
        move |proof: &str, client: &str| keys.is_proven(Statement::Client(client), proof, unix_seconds());
    let app = App::new(Parts {
        door: Door::new(&config.names, &signalbox_settings::host_name(), Some(Arc::new(is_proven))),
        metrics_networks: config.metrics_networks.clone(),
        sessions: Sessions::new(sessions, config.login.clone(), config.proxy_secret.clone()),
        cursors,
        tokens,
        attempts: Mutex::default(),
        audit,
        registry,
        certificates,
        acme,
        routers,
        bus: bus.front,
        sequencer,
        live,
        queues,
        machines,
        presence,
        metrics,
        limits: ApiLimits::new(
            &config.limits,
            publish_rates,
            config.connections,
            config.bus.streams,
            config.queues.waiting_pulls,
        ),
        directory: Directory::default(),
        table_names: TableNames::default(),
        checks: Checks::default(),
        shutdown: shutdown.clone(),
    });
    background
        .spawn(|idle| dashboard.clone().remember_queues(app.bus.handle().clone(), app.queues.clone(), idle));
    Ok(Site::new(app, dashboard))
}

/// The Redis servers.
struct Servers {
    fabric: Fabric,
    routes: RoutesPrimary,
    stats: Stats,
}

impl Servers {
    fn open(config: &Config) -> anyhow::Result<Self> {
        let options = Options::default();
        let redis = &config.redis;
        let fabric = Fabric::open(&redis.login(&redis.fabric), options).context("redis.fabric")?;
        Ok(Self {
            fabric: Shard::home(&fabric, redis.fabric_shards),
            routes: RoutesPrimary::open(&redis.login(&redis.routes), options).context("redis.routes")?,
            stats: Stats::open(&redis.login(&redis.stats), options).context("redis.stats")?,
        })
    }
}

/// Background work. It outlives the server: a request in flight may still need the reconciler.
struct Background {
    tasks: JoinSet<()>,
    idle: CancellationToken,
    fabric: Fabric,
    /// This process. Its random part distinguishes it from an earlier or another process on the same node.
    who: String,
}

impl Background {
    fn new(fabric: &Fabric, node: &str) -> Self {
        let who = format!("{node}/{:016x}", rand::rng().random::<u64>());
        Self { tasks: JoinSet::new(), idle: CancellationToken::new(), fabric: fabric.clone(), who }
    }

    /// A lease for work that is repeated every `interval`.
    fn lease(&self, name: &str, interval: Duration) -> Lease {
        let ttl = (interval * MISSED_TURNS).max(MIN_LEASE);
        Lease::new(self.fabric.clone(), name, self.who.clone(), ttl)
    }

    /// Starts a task, which ends when its token is canceled.
    fn spawn<F: Future<Output = ()> + Send + 'static>(&mut self, task: impl FnOnce(CancellationToken) -> F) {
        self.tasks.spawn(task(self.idle.clone()));
    }

    async fn end(mut self) {
        self.idle.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if time::timeout(DRAIN, ended).await.is_err() {
            tracing::warn!("background work did not end in time; its leases will expire");
        }
    }
}

async fn export(exporter: Option<Exporter>, shutdown: CancellationToken) {
    if let Some(exporter) = exporter {
        exporter.run(shutdown).await;
    }
}

/// The event bus, as other subsystems use it.
struct EventBus {
    handle: Handle,
    front: Front,
    client: Client,
}

async fn event_bus(
    config: &Config,
    servers: &Servers,
    (own, budget): (&OwnAddresses, &Budget),
    background: &mut Background,
    shutdown: &CancellationToken,
) -> anyhow::Result<EventBus> {
    let metrics = bus::Metrics::default();
    let client =
        Client::new(&config.bus.egress(own.clone(), budget.clone()), wall_clock).context("bus.ca_file")?;
    let webhooks = Webhooks::new(client.clone(), metrics.deliveries.clone());
    let memory = FabricMemory::new(servers.stats.clone());
    // Without the memory, a known fabric is still recognized; only an empty one would be accepted as a new one.
    let known = memory.recall().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "fabric of the last start unknown");
        None
    });
    let shards = config.redis.fabric_shards;
    let (handle, events) = Bus::open(&servers.fabric, shards, config.bus.clone(), known, webhooks.clone());
    let events = events.on_node(&config.node).with_keys(config.edge_keys.clone());
    let front = Front::new(handle.clone(), webhooks, metrics, &config.bus, wall_clock);
    let stop = shutdown.clone();
    background.spawn(|idle| async move {
        if let Err(error) = events.run(idle).await {
            // A pacemaker without a bus would accept routes and lose their events.
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "event bus failed; the pacemaker exits"
            );
            stop.cancel();
        }
    });
    background.spawn(|idle| remember(handle.clone(), memory, idle));
    Ok(EventBus { handle, front, client })
}

/// The route table: what keeps it as desired, checks instances, and follows the routers.
fn routing(
    config: &Config,
    store: Store,
    own: OwnAddresses,
    tokens: &Tokens,
    bus: &EventBus,
    metrics: signalbox_routing::Metrics,
    background: &mut Background,
) -> (Registry, Routers) {
    let rules = AddressRules {
        networks: config.instance_networks.clone(),
        unix_folders: config.routing.unix_folders.clone(),
        own,
        check_local: config.routing.check_local,
    };
    let Routing { reconcile_interval, sweep_interval, sweep_gap, .. } = config.routing;
    let nudge = Arc::new(Notify::new());
    let registry = Registry::new(store.clone(), rules, Arc::clone(&nudge), metrics.clone())
        .with_limits_per_token(RegistryLimits {
            instances: config.limits.token_instances,
            names: config.limits.token_new_names_per_day,
        });
    let routers = Routers::start(store.clone(), background.idle.clone());
    let reconciler = Reconciler::new(
        registry.clone(),
        tokens.clone(),
        background.lease("reconciler", reconcile_interval),
        Arc::clone(&nudge),
        reconcile_interval,
        metrics.clone(),
    );
    let lease = background.lease("sweeper", sweep_interval);
    let sweeper = Sweeper::new(registry.clone(), lease, sweep_interval, sweep_gap, nudge, metrics.clone());
    let announcer = Announcer::new(
        store,
        background.lease("announcer", ANNOUNCE),
        OwnEvents::new(bus.handle.clone()),
        ANNOUNCE,
        routers.alarms(),
        metrics.clone(),
    );
    let prober = Prober::new(registry.clone(), background.lease("prober", PROBE), PROBE, metrics)
        .with_budget(bus.client.budget().clone());
    background.spawn(|idle| reconciler.run(idle));
    background.spawn(|idle| sweeper.run(idle));
    background.spawn(|idle| announcer.run(idle));
    background.spawn(|idle| prober.run(idle));
    (registry, routers)
}

fn sequencer(
    config: &Config,
    fabric: &Fabric,
    bus: &EventBus,
    background: &mut Background,
) -> sequencer::Front {
    let calls = Calls::default();
    let http = Http::new(bus.client.clone(), calls.clone());
    let shards = config.redis.fabric_shards;
    let (objects, sequencer) =
        Sequencer::open(fabric, shards, config.sequencer.clone(), bus.handle.clone(), http);
    background.spawn(|idle| sequencer.run(idle));
    sequencer::Front::new(objects, calls)
}

fn machines(
    config: &Config,
    (fabric, stats): (&Fabric, &Stats),
    bus: &EventBus,
    registry: &Registry,
    (audit, publish_rates): (AuditTrail, Arc<signalbox_access::Rates>),
    background: &mut Background,
) -> machines::Handle {
    let shards = config.redis.fabric_shards;
    let dependencies = machines::Dependencies {
        fabric: fabric.clone(),
        shards,
        stats: stats.clone(),
        bus: bus.handle.clone(),
        client: bus.client.clone(),
        routes: registry.clone(),
        keys: config.edge_keys.clone(),
        audit: machines::AuditLog::new(audit),
        publish_rates,
        wall_clock,
    };
    let machines = machines::Service::new(dependencies, config.machines.clone());
    let handle = machines.handle().clone();
    let leases = (0..shards).map(|shard| background.lease(&machines::lease_name(shard), MACHINES)).collect();
    background.spawn(|idle| machines.run(leases, idle));
    handle
}

/// The client for the DNS webhook and the check URL. The operator chose both, so they may be in any network; Signalbox's own
/// addresses are never called.
fn acme_client(own: OwnAddresses, budget: Budget) -> anyhow::Result<Client> {
    let options = signalbox_egress::Options {
        allow_networks: ["0.0.0.0/0", "::/0"].iter().filter_map(|network| network.parse().ok()).collect(),
        allow_addresses: Vec::new(),
        allow_http: true,
        own,
        ca_file: None,
        connect_timeout: ACME_CONNECT,
        timeout: ACME_WEBHOOK,
        budget,
    };
    Client::new(&options, wall_clock).context("acme")
}

fn automatic_https(
    config: &Config,
    dependencies: acme::Dependencies,
    bus: &Handle,
    background: &mut Background,
) -> Acme {
    let acme = Acme::new(config.acme.clone(), dependencies);
    let lease = background.lease("acme", ACME);
    let service = acme::Service::new(acme.clone(), lease, OwnEvents::new(bus.clone()));
    background.spawn(|idle| service.run(idle));
    acme
}

/// Ends the subscriptions and tasks of tokens that were deleted or have expired.
async fn end_lost_clients(
    front: Front,
    tokens: Tokens,
    machines: machines::Handle,
    shutdown: CancellationToken,
) {
    while shutdown.run_until_cancelled(time::sleep(END_LOST_CLIENTS)).await.is_some() {
        if let Err(problem) = front.end_lost_clients(&tokens).await {
            tracing::debug!(detail = problem.detail(), "subscriptions of deleted tokens are ended later");
        }
        if let Err(problem) = end_lost_tasks(&machines, &front, &tokens).await {
            tracing::debug!(detail = problem.detail(), "tasks of deleted tokens are ended later");
        }
    }
}

/// Stores the fabric's identity for the next process. It changes once in the life of an installation, so comparing it
/// now and then (in memory) is enough; but until it is stored, a process that starts would accept an empty fabric as a
/// new one. A process that rejects the fabric checks whether an operator initialized it elsewhere.
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

/// Stores periodically when tokens were last used.
async fn write_uses(tokens: Tokens, shutdown: CancellationToken) {
    let mut ended = false;
    while !ended {
        ended = shutdown.run_until_cancelled(time::sleep(USES)).await.is_none();
        if let Err(error) = tokens.write_uses().await {
            tracing::debug!(%error, "the last use of tokens is stored later");
        }
    }
}

/// The time of day, for other programs: signatures, dates in headers. No decision depends on it.
fn unix_seconds() -> u64 {
    wall_clock().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[allow(clippy::disallowed_methods, reason = "this is where the clock comes from that is passed in")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

async fn serve(
    listener: TcpListener,
    site: Site,
    limits: ListenerLimits,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let server = serve::serve(listener, dashboard::router(site), limits, shutdown.clone());
    let mut server = std::pin::pin!(server);
    tokio::select! {
        () = &mut server => return Ok(()),
        () = shutdown.cancelled() => {}
    }
    tracing::info!("shutting down");
    if time::timeout(DRAIN, server).await.is_err() {
        tracing::warn!("requests did not end in time and are aborted");
    }
    Ok(())
}
