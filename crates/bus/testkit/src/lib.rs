//! What tests of the bus, and of the subsystems above it, share: a Redis for each test, a bus on it, a clock that stands
//! still, and a deliverer that records.

use std::{
    future::Future,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use signalbox_store::{Clock, Fabric, Options as StoreOptions, Redis, Shard};
use tempfile::TempDir;
use tokio::{net::TcpSocket, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use signalbox_bus::{
    BatchContents, Bus, Deliverer, Error, Handle, Kind, NewEvent, Options, Subscription, Wanted,
};
use signalbox_egress::Outcome;

/// A redis-server of its own, on a socket in a temporary folder.
pub struct Server {
    child: Child,
    folder: TempDir,
    arguments: Vec<String>,
    /// The port of a cluster's only node.
    cluster: Option<String>,
    /// Keep the ports of a cluster.
    _ports: Vec<TcpSocket>,
}

impl Server {
    /// Starts a server without persistence.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        Self { child: spawn(folder.path(), &arguments), folder, arguments, cluster: None, _ports: Vec::new() }
    }

    /// A cluster of one server that holds all slots: only there are scripts refused that reach across two.
    pub async fn start_cluster() -> Self {
        // Cluster mode insists on ports. A socket that is bound and never listens keeps one from all who ask for any.
        let kept = [(); 2].map(|()| {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_reuseaddr(true).expect("an option");
            socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
            socket
        });
        let [client_port, bus_port] =
            [0, 1].map(|place: usize| kept[place].local_addr().expect("an address").port().to_string());
        let mut server = Self::start_with(&[
            "--cluster-enabled",
            "yes",
            "--bind",
            "127.0.0.1",
            "--port",
            &client_port,
            "--cluster-port",
            &bus_port,
        ]);
        let redis = server.redis();
        server.cluster = Some(client_port);
        server._ports = kept.into();
        answering(&redis).await;
        redis.command("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).run().await.expect("slots");
        until("the cluster", || async {
            let info: String = redis.command("CLUSTER").arg("INFO").query().await.unwrap_or_default();
            info.contains("cluster_state:ok")
        })
        .await;
        server
    }

    /// A connection to it.
    pub fn redis(&self) -> Fabric {
        let url = match &self.cluster {
            Some(port) => format!("redis+cluster://127.0.0.1:{port}/"),
            None => format!("redis+unix://{}", self.folder.path().join("redis.sock").display()),
        };
        let options = StoreOptions { response_timeout: Duration::from_secs(5), ..StoreOptions::default() };
        Redis::open(&url, options).expect("a URL")
    }

    /// As after `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("a running server");
        self.child.wait().expect("a dead server");
    }

    /// Starts it again after [`Self::kill`].
    pub fn start_again(&mut self) {
        self.child = spawn(self.folder.path(), &self.arguments);
    }

    /// Takes all data away while it is down.
    pub fn wipe(&self) {
        let _ = std::fs::remove_dir_all(self.folder.path().join("appendonlydir"));
        let _ = std::fs::remove_file(self.folder.path().join("dump.rdb"));
    }
}

fn spawn(folder: &Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(folder.join("redis.sock"))
        .arg("--dir")
        .arg(folder)
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed (make test installs it)")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the server answers.
pub async fn answering(redis: &Fabric) {
    until("the server to answer", || async { redis.command("PING").run().await.is_ok() }).await;
}

/// Waits for a condition, for at most twenty seconds.
pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    for _ in 0..2000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain for {what}");
}

/// The time that scripts see in a test that holds it still.
#[derive(Clone)]
pub struct Time(pub Arc<AtomicU64>);

/// The first moment of [`Time`], in unix milliseconds.
pub const START_MS: u64 = 1_800_000_000_000;

impl Time {
    /// A clock that stands at [`START_MS`].
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START_MS)))
    }

    /// What scripts take.
    pub fn clock(&self) -> Clock {
        Clock::Fixed(Arc::clone(&self.0))
    }

    /// Advances the clock.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

/// What a deliverer was given.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The subscriber.
    pub token: String,
    /// What it was sent.
    pub batch: Arc<BatchContents>,
}

type Answer = Box<dyn Fn(&Subscription, &BatchContents) -> (Duration, Outcome) + Send + Sync>;

/// Records every attempt and answers what it was told to.
#[derive(Clone)]
pub struct Recorder {
    attempts: Arc<Mutex<Vec<Delivery>>>,
    taken: Arc<Mutex<Vec<Delivery>>>,
    answer: Arc<Mutex<Answer>>,
}

impl Recorder {
    /// Accepts everything.
    pub fn new() -> Self {
        Self {
            attempts: Arc::default(),
            taken: Arc::default(),
            answer: Arc::new(Mutex::new(Box::new(|_, _| (Duration::ZERO, Outcome::Delivered)))),
        }
    }

    /// Decides how long each attempt takes and how it ends.
    pub fn answers(
        &self,
        answer: impl Fn(&Subscription, &BatchContents) -> (Duration, Outcome) + Send + Sync + 'static,
    ) {
        *self.answer.lock().unwrap() = Box::new(answer);
    }

    /// Every attempt.
    pub fn attempts(&self) -> Vec<Delivery> {
        self.attempts.lock().unwrap().clone()
    }

    /// The attempts that were taken.
    pub fn taken(&self) -> Vec<Delivery> {
        self.taken.lock().unwrap().clone()
    }

    /// Ids that a subscriber took, in the order of their deliveries.
    pub fn ids(&self, token: &str) -> Vec<u64> {
        let taken = self.taken.lock().unwrap();
        taken
            .iter()
            .filter(|one| one.token == token)
            .flat_map(|one| one.batch.events.iter().map(|event| event.id.0))
            .collect()
    }
}

impl Deliverer for Recorder {
    async fn deliver(&self, subscription: Arc<Subscription>, batch: Arc<BatchContents>) -> Outcome {
        let delivery = Delivery { token: subscription.token.clone(), batch: Arc::clone(&batch) };
        self.attempts.lock().unwrap().push(delivery.clone());
        let (delay, outcome) =
            (self.answer.lock().unwrap_or_else(PoisonError::into_inner))(&subscription, &batch);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if outcome == Outcome::Delivered {
            self.taken.lock().unwrap().push(delivery);
        }
        outcome
    }
}

/// A pacemaker's bus, running.
pub struct Pacemaker {
    /// Its bus.
    pub handle: Handle,
    /// Cancel it to shut down.
    pub shutdown: CancellationToken,
    /// Ends when it has.
    pub task: JoinHandle<Result<(), Error>>,
}

impl Pacemaker {
    /// Starts a bus on one shard.
    pub fn start(redis: &Fabric, options: Options, deliverer: impl Deliverer) -> Self {
        Self::start_knowing(redis, options, None, deliverer)
    }

    /// Starts a bus that remembers which fabric it used before.
    pub fn start_knowing(
        redis: &Fabric,
        options: Options,
        fabric: Option<String>,
        deliverer: impl Deliverer,
    ) -> Self {
        Self::start_on(redis, 1, options, fabric, deliverer)
    }

    /// Starts a bus on a number of shards.
    pub fn start_on(
        redis: &Fabric,
        shards: usize,
        options: Options,
        fabric: Option<String>,
        deliverer: impl Deliverer,
    ) -> Self {
        let (handle, bus) = Bus::open(redis, shards, options, fabric, deliverer);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(bus.run(shutdown.clone()));
        Self { handle, shutdown, task }
    }

    /// Waits until the bus accepts events.
    pub async fn ready(self) -> Self {
        until("the bus to be ready", || async { self.handle.is_ready() }).await;
        self
    }

    /// Shuts it down and waits for its end.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        (&mut self.task).await.expect("no panic").expect("a clean end");
    }
}

impl Drop for Pacemaker {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// A pacemaker on a runtime of its own, so that it can die as a process does: nothing is put back, nothing is told.
pub struct Mortal {
    /// Its bus.
    pub handle: Handle,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Mortal {
    /// Starts a bus on a runtime of its own.
    pub fn start(server: &Server, options: Options, deliverer: impl Deliverer) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let redis = {
            let _inside = runtime.enter();
            server.redis()
        };
        let (handle, bus) = Bus::open(&redis, 1, options, None, deliverer);
        runtime.spawn(bus.run(CancellationToken::new()));
        Self { handle, runtime: Some(runtime) }
    }

    /// Ends it as `kill -9` would.
    pub fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        // A runtime that is dropped inside another would wait for itself.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An update of the object at `url`.
pub fn event(url: &str) -> NewEvent {
    NewEvent {
        kind: Kind::Update,
        url: url.into(),
        timestamp_ms: None,
        data: None,
        environment: None,
        object: None,
        idempotency_key: None,
    }
}

/// A subscription to these topics.
pub fn wanted(topics: &[&str]) -> Wanted {
    Wanted {
        topics: topics.iter().map(ToString::to_string).collect(),
        callback: "https://receiver.example/".into(),
        timeout_ms: Some(0),
        ..Wanted::default()
    }
}

/// A pacemaker's bus whose time stands still, accepting and not delivering.
pub async fn standing_still(redis: &Fabric, shards: usize, time: &Time, housekeeping_ms: u64) -> Pacemaker {
    let options = Options { deliver: false, housekeeping_ms, ..Options::default() };
    let shards = Shard::all(redis, shards);
    let (handle, bus) = Bus::assemble(shards, time.clock(), options, None, Recorder::new());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(bus.run(shutdown.clone()));
    Pacemaker { handle, shutdown, task }.ready().await
}

/// Quick housekeeping, so that a test of a dead worker takes a moment.
pub fn quick() -> Options {
    Options { beat_ms: 100, dead_after_ms: 500, housekeeping_ms: 50, ..Options::default() }
}

/// Raw strings of a list, for looking at what scripts wrote.
pub async fn strings(redis: &Fabric, command: &'static str, arguments: &[&str]) -> Vec<String> {
    redis.command(command).arg(arguments).query().await.unwrap_or_else(|error| panic!("{command}: {error:?}"))
}

/// The integer that a command returns.
pub async fn number(redis: &Fabric, command: &'static str, arguments: &[&str]) -> i64 {
    redis.command(command).arg(arguments).query().await.unwrap_or_else(|error| panic!("{command}: {error:?}"))
}
