//! A pacemaker's machines, driven by the test, with a clock that only the test advances.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    Answer, Audit, AuditLog, Change, Dependencies, Handle, Options, Secrets, Service, Update,
    actions::Actions,
    assembly::Hooks,
    clock::Clock,
    faults::{FaultInjector, Faults},
    record::Record,
    store::{DueSet, Records, Shards, StoredSecrets, Versions},
};
use signalbox_access::{Author, Caller, Rates, Scope};
use signalbox_bus::{self as bus, NewEvent};
use signalbox_bus_testkit::{Pacemaker, Time, event, with_fixed_clock};
use signalbox_egress::Budget;
use signalbox_route_table::AddressRules;
use signalbox_routing as routing;
use signalbox_routing::Metrics;
use signalbox_testkit::{Servers, eventually};

pub(super) const M: &str = "m";

/// Two fuses. A fuse that is not lit has no effect.
#[derive(Debug, Default)]
pub(super) struct Fuses {
    /// Canceled when the pacemaker dies.
    death: CancellationToken,
    calls: AtomicI64,
    commits: AtomicI64,
}

impl Fuses {
    /// The pacemaker dies at this call from now.
    pub(super) fn dies_after(&self, calls: i64) {
        self.calls.store(calls, Ordering::SeqCst);
    }

    /// The commit with this number from now fails. Each commit counts twice: before and after it is made.
    pub(super) fn fails_after(&self, commits: i64) {
        self.commits.store(commits, Ordering::SeqCst);
    }
}

impl FaultInjector for Fuses {
    fn before_call(&self) {
        if self.calls.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.death.cancel();
        }
    }

    fn fails_commit(&self) -> bool {
        self.before_call();
        self.commits.fetch_sub(1, Ordering::SeqCst) == 1
    }
}

/// Records nothing.
struct NoAudit;

impl Audit for NoAudit {
    fn record(&self, _: Change) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}

/// The machines of one pacemaker, and what a test needs of the fabric.
#[derive(Clone)]
pub(super) struct Machines {
    pub(super) service: Service,
    pub(super) actions: Arc<Actions>,
    pub(super) client: signalbox_egress::Client,
    pub(super) faults: Arc<Fuses>,
    /// Canceled when the pacemaker has died.
    pub(super) stopped: CancellationToken,
    pub(super) records: Records,
    pub(super) versions: Versions,
    pub(super) due: DueSet,
}

impl Deref for Machines {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        self.service.handle()
    }
}

pub(super) struct World {
    pub(super) servers: Servers,
    pub(super) time: Time,
    pub(super) bus: Pacemaker,
    pub(super) machines: Machines,
    pub(super) routes: routing::Registry,
    shards: usize,
}

impl World {
    pub(super) async fn new(yaml: &str) -> Self {
        let world = Self::bare().await;
        world.apply(yaml, 0).await;
        world
    }

    pub(super) async fn bare() -> Self {
        Self::on_shards(1).await
    }

    pub(super) async fn on_shards(shards: usize) -> Self {
        let servers = Servers::start().await;
        let time = Time::default();
        let bus = with_fixed_clock(&servers.fabric(), shards, &time, 86_400_000).await;
        let routes = registry(&servers);
        let machines = pacemaker(&servers, &time, &bus, &routes, (shards, Budget::default()));
        Self { servers, time, bus, machines, routes, shards }
    }

    /// Another pacemaker on the same servers.
    pub(super) fn another(&self) -> Machines {
        self.another_with(Budget::default())
    }

    /// Another pacemaker, with a budget of outgoing calls.
    pub(super) fn another_with(&self, budget: Budget) -> Machines {
        pacemaker(&self.servers, &self.time, &self.bus, &self.routes, (self.shards, budget))
    }

    /// Publishes, and gives the events' ids.
    pub(super) async fn publish(&self, topic: &str, object: &str, data: Value) {
        let data = serde_json::value::to_raw_value(&data).unwrap();
        let new =
            NewEvent { object: Some(object.to_owned()), data: Some(data), ..event("https://shop.test/1") };
        for published in self.bus.handle.publish("shop", topic, vec![new]).await {
            published.unwrap();
        }
    }

    /// All events of a topic in the first shard's log.
    pub(super) async fn events(&self, topic: &str) -> Vec<bus::Event> {
        let mut window = self.bus.handle.window(0, bus::EventId(0));
        let mut found = Vec::new();
        loop {
            let logged = window.next(100).await.unwrap();
            if logged.is_empty() {
                return found;
            }
            let events = logged.iter().map(|logged| bus::Event::from_log(&logged.entry).unwrap());
            found.extend(events.filter(|event| event.topic == topic));
        }
    }

    /// Waits until the label is as wanted.
    pub(super) async fn until(&self, label: &str, wanted: impl Fn(&Record) -> bool) -> Record {
        eventually("the label to be as wanted", async || {
            let record = self.machines.label_store.read(M, label).await.unwrap();
            record.clone().filter(|record| wanted(record)).ok_or_else(|| format!("{record:?}"))
        })
        .await
    }

    /// A number of the metrics.
    pub(super) async fn metric(&self, name: &str) -> u64 {
        let text = self.machines.inspector.overview.metrics_text().await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.unwrap_or(0)
    }

    pub(super) async fn apply(&self, yaml: &str, base: u64) -> u64 {
        self.apply_by(yaml, base, &Author::operator()).await
    }

    /// Stores the definition of an author who may only define machines, as a version that checked less could have done.
    pub(super) async fn apply_by_a_team(&self, yaml: &str, base: u64) -> u64 {
        self.apply_by_client(yaml, base, "team").await
    }

    /// The same for a client of this name.
    pub(super) async fn apply_by_client(&self, yaml: &str, base: u64, client: &str) -> u64 {
        let client = Caller::named(client.to_owned(), vec![Scope::Machines], None);
        self.apply_by(yaml, base, &Author::of(&client)).await
    }

    async fn apply_by(&self, yaml: &str, base: u64, author: &Author) -> u64 {
        let machine = machine(yaml);
        self.machines.applier.apply(&machine, base, author, &BTreeMap::new()).await.unwrap().version
    }

    pub(super) async fn create(&self, label: &str, metadata: Value) -> Answer {
        self.machines.labels.create(M, label, &metadata, false, None).await.unwrap()
    }

    pub(super) async fn send_update(&self, label: &str, metadata: Value) -> Answer {
        send_update(&self.machines, label, &metadata).await
    }

    pub(super) async fn label(&self, label: &str) -> Record {
        self.machines.label_store.label(M, label).await.unwrap()
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.time.0.load(Ordering::SeqCst)
    }

    /// Does everything that is due.
    pub(super) async fn work_off(&self) {
        for shard in 0..self.shards {
            while self.machines.due.next(shard).await.unwrap().is_some_and(|next| next <= self.now_ms()) {
                self.machines.work_off_page(shard, self.now_ms()).await;
            }
        }
    }
}

impl Machines {
    /// Works on a page of what is due, and waits for what it has started.
    pub(super) async fn work_off_page(&self, shard: usize, now_ms: u64) {
        let due_times = &self.service.due_times;
        due_times.work_off_page(shard, now_ms).await.unwrap();
        while !due_times.background.is_idle() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl DueSet {
    /// The entries of all machines that are due at `now_ms`, the most overdue first.
    pub(super) async fn due(
        &self,
        shard: usize,
        now_ms: u64,
        limit: usize,
    ) -> Result<Vec<(String, u64)>, signalbox_store::Error> {
        let machines = self.machines(shard, now_ms).await?.into_iter().map(|machine| (machine, limit));
        let mut due = self.due_of(shard, now_ms, &Vec::from_iter(machines)).await?.concat();
        due.sort_by_key(|(member, at_ms)| (*at_ms, member.clone()));
        due.truncate(limit);
        Ok(due)
    }
}

pub(super) async fn send_update(machines: &Machines, label: &str, metadata: &Value) -> Answer {
    let update = Update { metadata, patch: false, key: None };
    machines.labels.update(M, label, &update).await.unwrap()
}

pub(super) fn machine(yaml: &str) -> Arc<signalbox_machine::Machine> {
    let file = signalbox_machine::load("test", yaml).unwrap_or_else(|refused| panic!("{refused}"));
    Arc::clone(&file.machines[0])
}

/// The time of the wall clock, unix milliseconds.
pub(super) const NOW_MS: u64 = 1_760_000_000_000;

/// The events that a client may publish per second.
pub(super) const PUBLISH_RATE: u32 = 20;

/// The key that encrypts secrets.
fn keys() -> signalbox_seal::Keys {
    signalbox_seal::Keys::parse(&"0f".repeat(32)).unwrap()
}

fn registry(servers: &Servers) -> routing::Registry {
    let store = routing::Store::new(servers.fabric(), servers.routes(), servers.stats());
    let networks = vec!["127.0.0.0/8".parse().unwrap()];
    let rules = AddressRules { networks, ..AddressRules::default() };
    routing::Registry::new(store, rules, Arc::new(Notify::new()), Metrics::default())
}

fn pacemaker(
    servers: &Servers,
    time: &Time,
    bus: &Pacemaker,
    routes: &routing::Registry,
    (shards, budget): (usize, Budget),
) -> Machines {
    let options = bus::Options {
        allow_http: true,
        allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
        ..bus::Options::default()
    };
    let now: fn() -> SystemTime = || SystemTime::UNIX_EPOCH + Duration::from_millis(NOW_MS);
    let client = signalbox_egress::Client::new(
        &options.egress(signalbox_egress::OwnAddresses::default(), budget),
        now,
    )
    .unwrap();
    let publish_rates = Arc::new(Rates::new(PUBLISH_RATE));
    let dependencies = Dependencies {
        fabric: servers.fabric(),
        shards,
        stats: servers.stats(),
        bus: bus.handle.clone(),
        client: client.clone(),
        routes: routes.clone(),
        keys: keys(),
        audit: AuditLog::new(NoAudit),
        publish_rates: Arc::clone(&publish_rates),
        wall_clock: now,
    };
    let fuses = Arc::new(Fuses::default());
    // A process that dies does nothing more in the background.
    let stopped = fuses.death.clone();
    let hooks = Hooks {
        clock: signalbox_store::Clock::Fixed(Arc::clone(&time.0)),
        faults: Faults(Some(Arc::clone(&fuses) as Arc<dyn FaultInjector>)),
        outcome_pause: Duration::from_millis(5),
        patience: Duration::from_millis(50),
        stopped: stopped.clone(),
    };
    let options = Options { page: 100, ..Options::default() };
    let all = Shards::new(&servers.fabric(), shards, Faults::default());
    let clock = Clock::new(hooks.clock.clone(), all.clone());
    let secrets = Secrets::new(StoredSecrets(all.clone()), keys(), clock);
    let actions = Arc::new(Actions {
        client: client.clone(),
        bus: bus.handle.clone(),
        routes: routes.clone(),
        secrets,
        audit: AuditLog::new(NoAudit),
        publish_rates,
        wall_clock: now,
    });
    Machines {
        service: Service::with_hooks(dependencies, options, hooks),
        actions,
        client,
        faults: fuses,
        stopped,
        records: Records::new(all.clone()),
        versions: Versions(all.clone()),
        due: DueSet(all),
    }
}

/// A webhook that returns the given statuses in order, and 200 afterwards.
#[derive(Clone)]
pub(super) struct Receiver {
    answers: Arc<Mutex<Vec<u16>>>,
    pub(super) tokens: Arc<Mutex<Vec<String>>>,
    /// The body of answers at `/json`.
    body: Arc<Mutex<Value>>,
    /// Answers wait for a permit.
    pub(super) held: Arc<Semaphore>,
    pub(super) url: String,
}

impl Receiver {
    pub(super) async fn start(answers: &[u16]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let mut answers = answers.to_vec();
        answers.reverse();
        let held = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let (answers, body) = (Arc::new(Mutex::new(answers)), Arc::default());
        let receiver = Self { answers, tokens: Arc::default(), body, held, url };
        let router = Router::new().route("/hook", post(hook)).route("/json", post(answer));
        let router = router.with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    /// One whose answers wait until [`Self::held`] gets permits.
    pub(super) async fn holding() -> Self {
        let receiver = Self::start(&[]).await;
        receiver.held.forget_permits(Semaphore::MAX_PERMITS);
        receiver
    }

    /// Answers 2xx with this JSON at `/json` instead of `/hook`.
    pub(super) fn answers(&self, body: Value) -> String {
        *self.body.lock().unwrap() = body;
        self.url.replace("/hook", "/json")
    }

    pub(super) fn seen(&self) -> Vec<String> {
        self.tokens.lock().unwrap().clone()
    }
}

async fn answer(State(receiver): State<Receiver>, headers: HeaderMap) -> Response {
    let status = hook(State(receiver.clone()), headers).await;
    let body = receiver.body.lock().unwrap().clone();
    (status, Json(body)).into_response()
}

async fn hook(State(receiver): State<Receiver>, headers: HeaderMap) -> StatusCode {
    let token = headers["x-idempotency-token"].to_str().unwrap().to_owned();
    receiver.tokens.lock().unwrap().push(token);
    receiver.held.acquire().await.unwrap().forget();
    let answer = receiver.answers.lock().unwrap().pop().unwrap_or(200);
    StatusCode::from_u16(answer).unwrap()
}

/// The answer of a feed.
#[derive(Debug, Clone)]
pub(super) enum Say {
    Json(Value),
    Text(String),
    Status(u16),
    /// Nothing, on a connection that stays open.
    Never,
}

/// A feed that returns the given answers in order, and then always the last one.
#[derive(Clone)]
pub(super) struct Feeder {
    says: Arc<Mutex<Vec<Say>>>,
    asked: Arc<Mutex<Vec<String>>>,
    pub(super) url: String,
}

impl Feeder {
    pub(super) async fn start(says: &[Say]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/feed", listener.local_addr().unwrap());
        let mut says = says.to_vec();
        says.reverse();
        let feeder = Self { says: Arc::new(Mutex::new(says)), asked: Arc::default(), url };
        let router = Router::new().route("/feed/{of}", get(feed)).with_state(feeder.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        feeder
    }

    /// The last path segment of each request.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn feed(State(feeder): State<Feeder>, Path(of): Path<String>) -> Response {
    feeder.asked.lock().unwrap().push(of);
    let say = {
        let mut says = feeder.says.lock().unwrap();
        if says.len() > 1 { says.pop().unwrap() } else { says[0].clone() }
    };
    match say {
        Say::Json(value) => Json(value).into_response(),
        Say::Text(text) => text.into_response(),
        Say::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Say::Never => std::future::pending().await,
    }
}
