//! The test kit of the bus, and of the subsystems above it: a bus on a real Redis, a clock that only tests advance,
//! and a deliverer that records. Redis servers and waiting are those of [`signalbox_testkit`].

#![allow(clippy::expect_used, reason = "a test that cannot set itself up has failed")]

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use signalbox_store::{Clock, Fabric, FabricRole, Shard};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use signalbox_bus::{
    BatchContents, Bus, Deliverer, Error, Handle, Kind, NewEvent, Options, Subscription, Wanted,
};
use signalbox_egress::{Answered, Outcome};
use signalbox_seal::Keys;
use signalbox_testkit::{Server, eventually};

/// A condition for [`eventually`]: at least `expected` were found. Otherwise `found` is the status.
///
/// # Errors
/// `found`, when it is too little.
pub fn at_least<T: PartialOrd>(found: T, expected: T) -> Result<(), T> {
    if found >= expected { Ok(()) } else { Err(found) }
}

/// The time that scripts see in a test. It moves only when the test advances it.
#[derive(Debug, Clone)]
pub struct Time(pub Arc<AtomicU64>);

/// The first moment of [`Time`], in unix milliseconds.
pub const START_MS: u64 = 1_800_000_000_000;

impl Default for Time {
    /// A clock that shows [`START_MS`].
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(START_MS)))
    }
}

impl Time {
    /// The clock for a bus or a store.
    pub fn clock(&self) -> Clock {
        Clock::Fixed(Arc::clone(&self.0))
    }

    /// Advances the clock.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

/// One attempt to deliver.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The subscriber.
    pub token: String,
    /// The batch.
    pub batch: Arc<BatchContents>,
}

type Answer = Box<dyn Fn(&Subscription, &BatchContents) -> (Duration, Outcome) + Send + Sync>;

/// A deliverer that records every attempt, and accepts it unless the test decides otherwise.
#[derive(Clone)]
pub struct Recorder {
    attempts: Arc<Mutex<Vec<Delivery>>>,
    taken: Arc<Mutex<Vec<Delivery>>>,
    answer: Arc<Mutex<Answer>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

impl Default for Recorder {
    /// Accepts everything.
    fn default() -> Self {
        Self {
            attempts: Arc::default(),
            taken: Arc::default(),
            answer: Arc::new(Mutex::new(Box::new(|_, _| (Duration::ZERO, Outcome::Delivered)))),
        }
    }
}

impl Recorder {
    /// Decides how long each attempt takes and how it ends.
    pub fn answers(
        &self,
        answer: impl Fn(&Subscription, &BatchContents) -> (Duration, Outcome) + Send + Sync + 'static,
    ) {
        *self.answer.lock() = Box::new(answer);
    }

    /// Every attempt.
    pub fn attempts(&self) -> Vec<Delivery> {
        self.attempts.lock().clone()
    }

    /// The attempts that were accepted.
    pub fn taken(&self) -> Vec<Delivery> {
        self.taken.lock().clone()
    }

    /// IDs of the events that a subscriber accepted, in the order of their deliveries.
    pub fn ids(&self, token: &str) -> Vec<u64> {
        let taken = self.taken.lock();
        taken
            .iter()
            .filter(|one| one.token == token)
            .flat_map(|one| one.batch.events.iter().map(|event| event.id.0))
            .collect()
    }
}

impl Deliverer for Recorder {
    async fn attempt(
        &self,
        subscription: Arc<Subscription>,
        batch: Arc<BatchContents>,
    ) -> (Outcome, Answered) {
        let delivery = Delivery { token: subscription.token.clone(), batch: Arc::clone(&batch) };
        self.attempts.lock().push(delivery.clone());
        let (delay, outcome) = (self.answer.lock())(&subscription, &batch);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if outcome == Outcome::Delivered {
            self.taken.lock().push(delivery);
        }
        (outcome, Answered::default())
    }
}

/// The running bus of one pacemaker.
#[derive(Debug)]
pub struct Pacemaker {
    /// Its bus.
    pub handle: Handle,
    /// Cancel it to shut down.
    pub shutdown: CancellationToken,
    /// Ends after the bus has shut down.
    pub task: JoinHandle<Result<(), Error>>,
}

impl Pacemaker {
    /// Starts a bus on one shard.
    pub fn start(redis: &Fabric, options: Options, deliverer: impl Deliverer) -> Self {
        Self::start_knowing(redis, options, None, deliverer)
    }

    /// Starts a bus that knows the identity of the fabric that was used before.
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
        Self::run(handle, bus)
    }

    /// Starts a bus as the only process of a machine with this name.
    pub fn start_on_node(redis: &Fabric, node: &str, options: Options, deliverer: impl Deliverer) -> Self {
        let (handle, bus) = Bus::open(redis, 1, options, None, deliverer);
        Self::run(handle, bus.on_node(node))
    }

    /// Starts a bus that encrypts credentials with these keys.
    pub fn start_with_keys(redis: &Fabric, keys: Keys, deliverer: impl Deliverer) -> Self {
        Self::start_with(redis, quick(), keys, deliverer)
    }

    /// As [`Self::start_with_keys`], with other options.
    pub fn start_with(redis: &Fabric, options: Options, keys: Keys, deliverer: impl Deliverer) -> Self {
        let (handle, bus) = Bus::open(redis, 1, options, None, deliverer);
        Self::run(handle, bus.with_keys(keys))
    }

    fn run<D: Deliverer>(handle: Handle, bus: Bus<D>) -> Self {
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(bus.run(shutdown.clone()));
        Self { handle, shutdown, task }
    }

    /// Waits until the bus accepts events.
    ///
    /// # Panics
    /// When it does not within [`signalbox_testkit::PATIENCE`].
    pub async fn ready(self) -> Self {
        self.is_ready().await;
        self
    }

    /// Waits until the bus accepts events, without taking it.
    ///
    /// # Panics
    /// When it does not within [`signalbox_testkit::PATIENCE`].
    pub async fn is_ready(&self) {
        is_ready(&self.handle).await;
    }

    /// Shuts it down and waits for its end.
    ///
    /// # Panics
    /// When a task of the bus panicked, or the bus ended with an error.
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

/// Waits until a bus accepts events.
///
/// # Panics
/// When it does not within [`signalbox_testkit::PATIENCE`].
pub async fn is_ready(bus: &Handle) {
    eventually("the bus to be ready", async || bus.is_ready().then_some(()).ok_or("not ready")).await;
}

/// A bus on a separate runtime, so that it can die as a process does: it returns no job and announces nothing.
#[derive(Debug)]
pub struct Mortal {
    /// Its bus.
    pub handle: Handle,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Mortal {
    /// Starts a bus on a separate runtime.
    ///
    /// # Panics
    /// When the runtime cannot be created.
    pub fn start(server: &Server, options: Options, deliverer: impl Deliverer) -> Self {
        Self::start_on_node(server, "mortal", options, deliverer)
    }

    /// Starts a bus on a separate runtime, as the only process of a machine with this name.
    ///
    /// # Panics
    /// When the runtime cannot be created.
    pub fn start_on_node(server: &Server, node: &str, options: Options, deliverer: impl Deliverer) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let redis = {
            let _inside = runtime.enter();
            server.open::<FabricRole>()
        };
        let (handle, bus) = Bus::open(&redis, 1, options, None, deliverer);
        runtime.spawn(bus.on_node(node).run(CancellationToken::new()));
        Self { handle, runtime: Some(runtime) }
    }

    /// Ends it as `kill -9` would end a process.
    pub fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        // Dropping a runtime inside another one blocks, which tokio does not allow.
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
        tenant: None,
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

/// A bus that accepts events and delivers nothing, with a clock that moves only when the test advances it.
pub async fn with_fixed_clock(redis: &Fabric, shards: usize, time: &Time, housekeeping_ms: u64) -> Pacemaker {
    let options = Options { deliver: false, housekeeping_ms, ..Options::default() };
    let shards = Shard::all(redis, shards);
    let (handle, bus) = Bus::assemble(shards, time.clock(), options, None, Recorder::default());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(bus.run(shutdown.clone()));
    Pacemaker { handle, shutdown, task }.ready().await
}

/// Options with frequent heartbeats and housekeeping, so that a dead worker is found soon.
pub fn quick() -> Options {
    Options { beat_ms: 100, dead_after_ms: 500, housekeeping_ms: 50, ..Options::default() }
}

/// The strings that a command returns.
///
/// # Panics
/// When the command fails.
pub async fn strings(redis: &Fabric, command: &'static str, arguments: &[&str]) -> Vec<String> {
    redis.command(command).arg(arguments).query().await.unwrap_or_else(|error| panic!("{command}: {error:?}"))
}

/// The integer that a command returns.
///
/// # Panics
/// When the command fails.
pub async fn number(redis: &Fabric, command: &'static str, arguments: &[&str]) -> i64 {
    redis.command(command).arg(arguments).query().await.unwrap_or_else(|error| panic!("{command}: {error:?}"))
}

/// Tenants that are still counted for a client although nothing is stored for them: there must be none. `tag` is that of
/// the shard.
///
/// # Panics
/// When the fabric does not answer.
pub async fn without_bytes(redis: &Fabric, tag: &str) -> Vec<String> {
    let search = "local found = {}
        for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
          if redis.call('HEXISTS', KEYS[1], name) == 0 then found[#found + 1] = name end
        end
        return found";
    let (owners, clients) = (format!("{tag}bus:environments"), format!("{tag}bus:environments:clients"));
    strings(redis, "EVAL", &[search, "2", &owners, &clients]).await
}
