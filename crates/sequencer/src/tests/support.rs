//! A fabric with a bus, backends, and hands that do what workers do, one step at a time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
pub(super) use signalbox_store::FabricRole;
use signalbox_store::{Clock, Fabric, Shard};
use tokio_util::sync::CancellationToken;

use crate::{
    Call, Handle, Options, Sequencer, Sink,
    store::{Commit, Committed, Failed, Held, Store, Taken},
};
use signalbox_bus::{Backend, NewEvent, NewGroup, OnFailure, Refusal, WantedBackend, shard_of};
use signalbox_bus_testkit::{Pacemaker, Recorder, event, without_bytes};
pub(super) use signalbox_bus_testkit::{number, quick, strings};
use signalbox_egress::Outcome;
pub(super) use signalbox_testkit::{Server, equal, eventually};

pub(super) const START_MS: u64 = 1_800_000_000_000;
pub(super) const LEASE_MS: u64 = 10_000;

/// A backend whose objects begin with `prefix`.
pub(super) fn wanted(prefix: &str, on_failure: OnFailure) -> WantedBackend {
    WantedBackend {
        prefix: prefix.to_owned(),
        callback: "https://backend.example/".to_owned(),
        uuid: "signalbox".to_owned(),
        secret: None,
        on_failure,
        max_attempts: 3,
        workers: 4,
    }
}

/// A fabric with a running bus. The test itself acts as the sequencer, with a clock that only it advances.
pub(super) struct World {
    pub(super) server: Server,
    pub(super) redis: Fabric,
    pub(super) bus: Pacemaker,
    pub(super) stores: Vec<Arc<Store>>,
    pub(super) clock: Arc<AtomicU64>,
}

impl World {
    pub(super) async fn start() -> Self {
        Self::start_on(Server::in_memory().await, 1).await
    }

    pub(super) async fn start_on(server: Server, shards: usize) -> Self {
        let redis = server.open::<FabricRole>();
        let bus = Pacemaker::start_on(&redis, shards, quick(), None, Recorder::default()).ready().await;
        let clock = Arc::new(AtomicU64::new(START_MS));
        let stores = Shard::all(&redis, shards);
        let stores = stores
            .into_iter()
            .map(|shard| Arc::new(Store::new(shard, Clock::Fixed(Arc::clone(&clock)))))
            .collect();
        Self { server, redis, bus, stores, clock }
    }

    pub(super) async fn backend(&self, name: &str, prefix: &str, on_failure: OnFailure) {
        self.bus.handle.put_backend(name, wanted(prefix, on_failure), "whsec_").await.expect("a backend");
    }

    pub(super) fn advance(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    /// Publishes this many events of an object in one group; returns their IDs.
    pub(super) async fn publish(&self, object: &str, events: usize) -> Vec<u64> {
        self.try_publish(object, events).await.expect("accepted")
    }

    pub(super) async fn try_publish(&self, object: &str, events: usize) -> Result<Vec<u64>, Refusal> {
        let accepted = self.bus.handle.publish_group("shop", group(object, events)).await?;
        Ok(accepted.into_iter().map(|id| id.0).collect())
    }

    fn store(&self, object: &str) -> &Store {
        &self.stores[shard_of(object, self.stores.len())]
    }

    /// Takes an object of the backend for a worker in the first shard.
    pub(super) async fn take(&self, backend: &str, worker: &str) -> Option<Taken> {
        let free = [(backend.to_owned(), vec![worker.to_owned()])];
        let turn = self.stores[0].take(&free, LEASE_MS, 100).await.expect("a turn");
        assert!(turn.taken.len() <= 1);
        turn.taken.into_iter().next()
    }

    pub(super) async fn commit(&self, held: &Held, id: u64, reported: usize, more: bool) -> Committed {
        let commit = Commit { held: held.clone(), id, reported, more };
        let mut replies = self.store(&held.object).commit(&[commit], LEASE_MS).await.expect("a reply");
        assert_eq!(replies.len(), 1);
        replies.remove(0)
    }

    pub(super) async fn fail(&self, held: &Held, id: u64, failed: &Failed) -> bool {
        self.store(&held.object).fail(held, id, failed, "answered 500", 5, 0).await.expect("a reply")
    }

    pub(super) async fn unpark(&self, object: &str) -> String {
        self.store(object).decide(object, None, 5).await.expect("a reply")
    }

    pub(super) async fn skip(&self, object: &str, id: u64) -> String {
        self.store(object).decide(object, Some(id), 5).await.expect("a reply")
    }

    /// Checks every predicate except O7: time stops or jumps in these tests, and no fetcher sweeps.
    pub(super) async fn expect_consistent(&self, when: &str) {
        let registry = self.bus.handle.registry();
        let names: Vec<&str> = registry.backends.keys().map(String::as_str).collect();
        for store in &self.stores {
            let (next, found) = store.audit("0", 10_000, &[], 1_000 * LEASE_MS).await.expect("a reply");
            assert_eq!((&*next, &found), ("0", &Vec::new()), "{when}");
            assert_eq!(store.sums(&names).await.expect("a reply"), [], "{when}");
            assert_eq!(without_bytes(&self.redis, store.shard().tag().as_str()).await, [""; 0], "{when}");
        }
    }

    pub(super) fn handle(&self) -> Handle {
        let options = Options { lease_ms: LEASE_MS, ..Options::default() };
        Sequencer::open(&self.redis, self.stores.len(), options, self.bus.handle.clone(), Receiver::new()).0
    }
}

pub(super) fn group(object: &str, events: usize) -> NewGroup {
    let one = || ("works".to_owned(), NewEvent { object: None, ..event("https://a.example/1") });
    NewGroup {
        object: object.to_owned(),
        state: None,
        events: std::iter::repeat_with(one).take(events).collect(),
        idempotency_key: None,
    }
}

/// A delivery that a backend received.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) object: String,
    pub(super) id: u64,
    pub(super) prev: Option<u64>,
    pub(super) epoch: u64,
    pub(super) attempts: u32,
    pub(super) gaps: Vec<(u64, u64)>,
    pub(super) redriven: bool,
    /// Whether the backend accepted it.
    pub(super) taken: bool,
}

type Answer = Box<dyn Fn(&Call) -> (Duration, Outcome) + Send + Sync>;

/// A backend that records every attempt and answers as configured. As documented, it rejects deliveries with a lower epoch than
/// an earlier one of the object: their worker has lost its lease, and they may come at any time.
#[derive(Clone)]
pub(super) struct Receiver {
    log: Arc<Mutex<Vec<Received>>>,
    epochs: Arc<Mutex<BTreeMap<String, u64>>>,
    answer: Arc<Mutex<Answer>>,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            log: Arc::default(),
            epochs: Arc::default(),
            answer: Arc::new(Mutex::new(Box::new(|_| (Duration::ZERO, Outcome::Delivered)))),
        }
    }

    pub(super) fn answers(&self, answer: impl Fn(&Call) -> (Duration, Outcome) + Send + Sync + 'static) {
        *self.answer.lock() = Box::new(answer);
    }

    pub(super) fn log(&self) -> Vec<Received> {
        self.log.lock().clone()
    }

    /// The ids that the backend accepted of an object, in order, without repeats.
    pub(super) fn taken(&self, object: &str) -> Vec<u64> {
        let mut ids = Vec::new();
        for one in self.log().iter().filter(|one| one.taken && one.object == object) {
            if !ids.contains(&one.id) {
                ids.push(one.id);
            }
        }
        ids
    }
}

impl Sink for Receiver {
    async fn send(&self, _: &Backend, call: &Call) -> Outcome {
        let (delay, outcome) = (self.answer.lock())(call);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut epochs = self.epochs.lock();
        let highest = epochs.entry(call.object.clone()).or_default();
        if call.epoch < *highest {
            return failed();
        }
        *highest = call.epoch;
        self.log.lock().push(Received {
            object: call.object.clone(),
            id: call.event.id.0,
            prev: call.event.prev.map(|id| id.0),
            epoch: call.epoch,
            attempts: call.attempts,
            gaps: call.gaps.iter().map(|gap| (gap.first.0, gap.last.0)).collect(),
            redriven: call.redriven,
            taken: outcome == Outcome::Delivered,
        });
        outcome
    }
}

pub(super) fn failed() -> Outcome {
    Outcome::Failed { why: "answered 500".to_owned(), retry_after: None }
}

/// Short pauses and leases, so that tests of failures are quick.
pub(super) fn hasty() -> Options {
    Options { lease_ms: 400, first_pause_ms: 10, longest_pause_ms: 50, ..Options::default() }
}

/// The running sequencer of one pacemaker.
pub(super) struct Running {
    pub(super) handle: Handle,
    shutdown: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
    /// A separate runtime, so that it can be stopped like a process.
    runtime: Option<tokio::runtime::Runtime>,
}

impl Running {
    pub(super) fn start(world: &World, options: Options, receiver: &Receiver) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let redis = {
            let _inside = runtime.enter();
            world.server.open::<FabricRole>()
        };
        let (handle, sequencer) =
            Sequencer::open(&redis, world.stores.len(), options, world.bus.handle.clone(), receiver.clone());
        let shutdown = CancellationToken::new();
        let task = runtime.spawn(sequencer.run(shutdown.clone()));
        Self { handle, shutdown, task: Some(task), runtime: Some(runtime) }
    }

    /// As after `kill -9`: no object is released and nothing is announced.
    pub(super) fn abandon(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        if let Some(task) = self.task.take() {
            task.await.expect("no panic");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
        // A runtime cannot be dropped inside another one, because it would wait for itself.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Checks O1 to O4 on the deliveries of a backend: per object, first deliveries and commits are in ID order,
/// `prev` is the event before or one that was reported as a gap, and epochs never decrease.
pub(super) fn in_order(log: &[Received]) {
    let mut last: BTreeMap<&str, &Received> = BTreeMap::new();
    let mut first: BTreeMap<(&str, u64), Option<u64>> = BTreeMap::new();
    for one in log {
        let known = first.insert((&one.object, one.id), one.prev);
        assert!(known.is_none_or(|prev| prev == one.prev), "an event's prev never changes: {one:?}");
        if let Some(before) = last.get(&*one.object) {
            assert!(one.epoch >= before.epoch, "{before:?} {one:?}");
            if known.is_none() && !one.redriven {
                assert!(one.id > before.id, "first receipts rise: {before:?} {one:?}");
                let reported = one
                    .gaps
                    .iter()
                    .any(|(start, end)| one.prev.is_some_and(|prev| (*start..=*end).contains(&prev)));
                assert!(one.prev == Some(before.id) || reported, "{before:?} {one:?}");
            }
        }
        if last.get(&*one.object).is_none_or(|before| before.id <= one.id) {
            last.insert(&one.object, one);
        }
    }
}
