//! Workers: take objects, send their events, commit.
//!
//! One fetcher for each shard gives ready objects to the free workers of all backends in one call. It sleeps until a
//! lease may expire or a retry is due, and is woken when an object becomes ready; it never polls. A visit (the events
//! of one object under one lease) runs in a separate task.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt as _;
use signalbox_store::{Kind, Notice, SharedResult};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Options,
    delivery::{Call, Sink},
    removal::{self, Step},
    store::{Commit, Committed, Failed, Held, Sending, Store, Taken, Turn},
    verdict,
};
use signalbox_bus::{self as bus, Backend, Event, Gap, Queued, Registry, Retry};
use signalbox_egress::Outcome;

/// The longest time between two checks for ready objects.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// Maximum number of leases to sweep, and of objects to make ready, in one call.
pub(super) const PART: usize = 100;
/// Maximum number of workers in one call, unless a single backend has more. Each costs a few commands, so this
/// limits how long a call blocks Redis.
pub(super) const MAX_ASKED: usize = 128;
/// The longest pause between two attempts to record the result of a visit while the fabric is unavailable.
const MAX_SETTLE_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of attempts to record a result that the fabric rejects. After that the lease expires.
const BROKEN_TRIES: u32 = 10;

/// The leases of this process in a shard, by worker. The heartbeats extend them.
pub(super) type Holding = Arc<Mutex<BTreeMap<String, Held>>>;

/// A visit that has ended: its backend and worker.
type Over = (String, String);

/// State that all parts of one process share.
#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) options: Options,
    pub(super) bus: bus::Handle,
    pub(super) sink: Arc<S>,
    /// Identifies this run of this process.
    pub(super) incarnation: String,
    pub(super) stores: Vec<Arc<Store>>,
}

/// One shard's fetcher with its workers.
pub(super) struct Fetcher<S> {
    shared: Arc<Shared<S>>,
    store: Arc<Store>,
    holding: Holding,
    /// Backends that had fewer ready objects than free workers at the last check. Objects that became ready
    /// since then were announced.
    dry: HashSet<String>,
    /// By backend: the free workers, and the total number of workers.
    workers: HashMap<String, (Vec<String>, u64)>,
    /// Whether objects may be ready that were not taken.
    more: bool,
    next_due: Option<Instant>,
    retry: Retry,
    /// The server's time, and this process's time when it was received.
    clock: (u64, Instant),
    /// Backends that are being removed, each with the cursor at which the check of its objects continues.
    clearing: HashMap<String, String>,
    visits: TaskTracker,
    over: (mpsc::UnboundedSender<Over>, mpsc::UnboundedReceiver<Over>),
}

impl<S: Sink> Fetcher<S> {
    pub(super) fn new(shared: &Arc<Shared<S>>, store: &Arc<Store>, holding: &Holding) -> Self {
        Self {
            shared: Arc::clone(shared),
            store: Arc::clone(store),
            holding: Arc::clone(holding),
            dry: HashSet::new(),
            workers: HashMap::new(),
            more: true,
            next_due: None,
            retry: Retry::default(),
            clock: (0, Instant::now()),
            clearing: HashMap::new(),
            visits: TaskTracker::new(),
            over: mpsc::unbounded_channel(),
        }
    }

    /// Runs until `shutdown`. Then active visits are abandoned, and their objects are released.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let mut wakes = self.store.wakes();
        loop {
            if self.more && !self.retry.is_paused() {
                self.fetch(&shutdown).await;
                continue;
            }
            // This check is a safety net, not a poll: a lost message delays work by a minute at most.
            let look = Some(self.clock.1 + MAX_SLEEP);
            let due = self.retry.next([self.next_due, look]);
            tokio::select! {
                () = shutdown.cancelled() => break,
                over = self.over.1.recv() => self.visits_over(over).await,
                notice = wakes.next() => self.wake(&notice),
                () = sleep_until(due.unwrap_or_else(Instant::now)) => {
                    self.more = true;
                    self.next_due = None;
                    self.retry.resume();
                }
            }
        }
        self.visits.close();
        self.visits.wait().await;
    }

    /// The free workers of each backend that accepts events. Those of a removed backend are discarded once
    /// they are free.
    fn free(&mut self, registry: &Registry) -> Vec<(String, Vec<String>)> {
        let shards = self.shared.stores.len() as u64;
        let shard = self.store.shard().index();
        let mut free = Vec::new();
        for (name, backend) in &registry.backends {
            let (idle, made) = self.workers.entry(name.clone()).or_default();
            let wanted = backend.workers.div_ceil(shards).max(1);
            while *made < wanted {
                idle.push(format!("{}.{shard}.{name}.{made}", self.shared.incarnation));
                *made += 1;
            }
            while *made > wanted && idle.pop().is_some() {
                *made -= 1;
            }
            if backend.is_served() && !idle.is_empty() {
                free.push((name.clone(), idle.clone()));
            }
        }
        free
    }

    /// Asks for objects for all free workers, in several calls if there are many.
    async fn fetch(&mut self, shutdown: &CancellationToken) {
        let registry = self.shared.bus.registry();
        let parts = parts(self.free(&registry));
        self.more = false;
        self.next_due = None;
        self.dry.clear();
        for free in &parts {
            self.fetch_part(free, &registry, shutdown).await;
            if self.retry.is_paused() {
                return;
            }
        }
        self.go_on_removing(&registry).await;
    }

    async fn fetch_part(
        &mut self,
        free: &[(String, Vec<String>)],
        registry: &Arc<Registry>,
        shutdown: &CancellationToken,
    ) {
        match self.store.take(free, self.shared.options.lease_ms, PART).await {
            Ok(turn) => {
                if self.retry.succeeded() {
                    tracing::info!(shard = self.store.shard().index(), "leasing of objects resumed");
                }
                self.clock = (turn.now_ms, Instant::now());
                let in_future =
                    |due: u64| Instant::now() + Duration::from_millis(due.saturating_sub(turn.now_ms));
                self.next_due = self.next_due.into_iter().chain(turn.next_due_ms.map(in_future)).min();
                // The script counts only ready objects of backends with a free worker, so some of them can be
                // taken.
                self.more |= turn.left > 0 && !turn.taken.is_empty();
                for (backend, workers) in free {
                    let taken = turn.taken.iter().filter(|taken| taken.backend == *backend).count();
                    if taken < workers.len() {
                        self.dry.insert(backend.clone());
                    }
                }
                self.start(turn, Arc::clone(registry), shutdown).await;
            }
            Err(error) => {
                self.more = true;
                self.retry.failed();
                if error.kind() == Kind::Unavailable {
                    tracing::debug!(%error, "objects not leased: the fabric is unavailable");
                } else if self.retry.reports() {
                    tracing::error!(%error, source = ?std::error::Error::source(&error), "objects not leased");
                }
            }
        }
    }

    async fn start(&mut self, turn: Turn, mut registry: Arc<Registry>, shutdown: &CancellationToken) {
        match self.shared.bus.registry_of(&turn.stamp).await {
            // A backend may have been added, or may accept events again.
            Ok(newer) if newer.backends != registry.backends => {
                registry = newer;
                self.more = true;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "registry not read"),
        }
        let version =
            turn.stamp.split('.').next().and_then(|version| version.parse().ok()).unwrap_or_default();
        for taken in turn.taken {
            let (worker, name) = (taken.held.worker.clone(), taken.backend.clone());
            if let Some((idle, _)) = self.workers.get_mut(&name) {
                idle.retain(|idle| *idle != worker);
            }
            self.holding.lock().insert(worker.clone(), taken.held.clone());
            let visit = Visit {
                shared: Arc::clone(&self.shared),
                store: Arc::clone(&self.store),
                backend: registry.backends.get(&name).cloned(),
                version,
                shutdown: shutdown.clone(),
            };
            let over = self.over.0.clone();
            self.visits.spawn(async move {
                // A separate task: if a visit panics, its object is released when the lease expires.
                if let Err(error) = tokio::spawn(visit.run(taken)).await {
                    tracing::error!(%error, "visit panicked");
                }
                // The receiver is dropped only at shutdown.
                let _ = over.send((name, worker));
            });
        }
    }

    /// Visits whose commits shared a call end together, so all ended ones are received before the next check.
    async fn visits_over(&mut self, over: Option<Over>) {
        tokio::task::yield_now().await;
        let mut next = over;
        while let Some((backend, worker)) = next {
            self.holding.lock().remove(&worker);
            self.more |= !self.dry.contains(&backend);
            if let Some((idle, _)) = self.workers.get_mut(&backend) {
                idle.push(worker);
            }
            next = self.over.1.try_recv().ok();
        }
    }

    fn wake(&mut self, notice: &Notice) {
        match notice {
            // Notifications missed while disconnected are recovered by a check.
            Notice::Resumed => {
                self.dry.clear();
                self.more = true;
            }
            Notice::Message { payload, .. } => match payload.parse::<u64>() {
                Err(_) => self.more = true,
                Ok(due) => {
                    let (server_ms, at) = self.clock;
                    let due = at + Duration::from_millis(due.saturating_sub(server_ms));
                    self.next_due = Some(self.next_due.map_or(due, |known| known.min(due)));
                }
            },
        }
    }

    /// Continues the removal of backends, one step at a time, because the pacemaker that began it may have
    /// crashed.
    async fn go_on_removing(&mut self, registry: &Registry) {
        self.clearing.retain(|name, _| registry.backends.contains_key(name));
        for (name, backend) in registry.backends.iter().filter(|(_, one)| one.draining) {
            let cursor = self.clearing.entry(name.clone()).or_insert_with(|| "0".to_owned());
            let dead_events = self.shared.options.dead_events;
            match removal::step(&self.shared.bus, &self.store, name, cursor, dead_events).await {
                Ok(Step::Empty) => {
                    let forgotten =
                        removal::forget_if_empty(&self.shared.bus, &self.shared.stores, name).await;
                    if let Err(error) = forgotten {
                        tracing::debug!(backend = name, %error, "removed backend not deleted, retrying");
                    }
                }
                Ok(Step::Going) => self.more |= backend.queued != Queued::Send,
                Ok(Step::Stale) => {}
                Err(error) => {
                    tracing::debug!(backend = name, %error, "removed backend not cleared, retrying");
                }
            }
        }
    }
}

/// Divides backends and their free workers into the calls that ask for objects. There is always one: it also
/// sweeps leases and reports when something is due.
fn parts(free: Vec<(String, Vec<String>)>) -> Vec<Vec<(String, Vec<String>)>> {
    let (mut parts, mut asked) = (vec![Vec::new()], 0);
    for (backend, workers) in free {
        if asked > 0 && asked + workers.len() > MAX_ASKED {
            parts.push(Vec::new());
            asked = 0;
        }
        asked += workers.len();
        if let Some(part) = parts.last_mut() {
            part.push((backend, workers));
        }
    }
    parts
}

/// The events of one object under one lease.
struct Visit<S> {
    shared: Arc<Shared<S>>,
    store: Arc<Store>,
    backend: Option<Backend>,
    /// The version of the registry that the backend was read from.
    version: u64,
    shutdown: CancellationToken,
}

/// How an attempt to send an event is recorded.
enum Settle {
    Commit { reported: usize, more: bool },
    Fail { failed: Failed, why: String },
}

impl Settle {
    const RELEASE: Self = Self::Fail { failed: Failed::Release, why: String::new() };
}

impl<S: Sink> Visit<S> {
    async fn run(self, taken: Taken) {
        let Taken { held, backend: name, mut sending } = taken;
        let mut served = 0;
        loop {
            served += 1;
            let id = sending.id();
            let settle = match &self.backend {
                Some(backend) => {
                    self.send(&name, backend, &held, &sending, served < self.shared.options.quantum).await
                }
                // The registry of this process is outdated. It is read again before the next take.
                None => Settle::RELEASE,
            };
            match self.settle(&held, id, settle).await {
                Some(next) => sending = next,
                None => return,
            }
        }
    }

    async fn send(
        &self,
        name: &str,
        backend: &Backend,
        held: &Held,
        sending: &Sending,
        more: bool,
    ) -> Settle {
        let event = match Event::from_log(&sending.entry) {
            Ok(event) => Arc::new(event),
            Err(error) => {
                tracing::error!(object = held.object, %error, "event in an object's queue not readable");
                return Settle::Fail { failed: Failed::Park, why: "the event cannot be read".to_owned() };
            }
        };
        let call = Call {
            object: held.object.clone(),
            event,
            epoch: held.epoch,
            attempts: sending.attempts,
            redriven: sending.is_redriven(),
            gaps: sending.gaps.iter().filter_map(|gap| Gap::from_words(gap)).collect(),
        };
        let outcome = tokio::select! {
            outcome = self.shared.sink.send(backend, &call) => outcome,
            () = self.shutdown.cancelled() => {
                return Settle::RELEASE;
            }
        };
        match outcome {
            Outcome::Delivered => {
                Settle::Commit { reported: sending.gaps.len(), more: more && !self.shutdown.is_cancelled() }
            }
            Outcome::Gone => {
                self.disable(name, backend).await;
                Settle::RELEASE
            }
            Outcome::Failed { why, retry_after } => {
                let attempts = sending.attempts.saturating_add(1);
                let failed = verdict::judge(
                    attempts,
                    backend.max_attempts,
                    backend.on_failure,
                    retry_after,
                    &self.shared.options,
                    rand::rng().random(),
                );
                tracing::debug!(
                    backend = name,
                    object = held.object,
                    attempts,
                    why,
                    ?failed,
                    "event not accepted by its backend"
                );
                Settle::Fail { failed, why }
            }
        }
    }

    /// Disables a backend whose callback answered that it is permanently gone.
    async fn disable(&self, name: &str, backend: &Backend) {
        match self.shared.bus.disable_backend(name, backend.changed_in).await {
            Ok(false) => {}
            Ok(true) => tracing::warn!(backend = name, "backend disabled: its callback is gone"),
            // The next attempt will get the same answer.
            Err(error) => tracing::warn!(backend = name, %error, "backend not disabled"),
        }
    }

    /// Records the result, and retries while the fabric does not answer; repeats are harmless. Returns the
    /// next event in flight if the visit continues.
    async fn settle(&self, held: &Held, id: u64, settle: Settle) -> Option<Sending> {
        let mut pause = Duration::from_millis(50);
        let mut broken = 0;
        loop {
            match self.settle_once(held, id, &settle).await {
                Ok(Committed::Next(sending)) => return Some(sending),
                Ok(Committed::Done) => return None,
                Ok(Committed::Lost) => {
                    tracing::debug!(worker = held.worker, object = held.object, "lease of an object lost");
                    return None;
                }
                Err(error) if error.kind() == Kind::Broken => {
                    tracing::error!(%error, source = ?std::error::Error::source(&*error), "visit not settled");
                    broken += 1;
                    if broken == BROKEN_TRIES {
                        return None;
                    }
                }
                Err(error) => tracing::debug!(%error, "result of a visit not recorded, retrying"),
            }
            tokio::select! {
                () = sleep(pause) => {}
                // The lease expires.
                () = self.shutdown.cancelled(), if pause == MAX_SETTLE_PAUSE => return None,
            }
            pause = (pause * 2).min(MAX_SETTLE_PAUSE);
        }
    }

    async fn settle_once(&self, held: &Held, id: u64, settle: &Settle) -> SharedResult<Committed> {
        let options = &self.shared.options;
        match settle {
            Settle::Commit { reported, more } => {
                let commit = Commit { held: held.clone(), id, reported: *reported, more: *more };
                self.store.commit_together(commit, options.lease_ms).await
            }
            Settle::Fail { failed, why } => {
                let fail = self.store.fail(held, id, failed, why, options.dead_events, self.version);
                let stood = fail.await.map_err(Arc::new)?;
                Ok(if stood { Committed::Done } else { Committed::Lost })
            }
        }
    }
}

/// Extends the leases of this process while it holds objects.
pub(super) async fn beat<S: Sink>(
    shared: Arc<Shared<S>>,
    store: Arc<Store>,
    holding: Holding,
    shutdown: CancellationToken,
) {
    let every = Duration::from_millis((shared.options.lease_ms / 3).max(1));
    while shutdown.run_until_cancelled(sleep(every)).await.is_some() {
        let held: Vec<Held> = holding.lock().values().cloned().collect();
        if held.is_empty() {
            continue;
        }
        if let Err(error) = store.beat(&held, shared.options.lease_ms).await {
            tracing::debug!(%error, "leases cannot be extended now");
        }
    }
}
