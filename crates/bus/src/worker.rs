//! Workers: take jobs, deliver their batches, settle them.
//!
//! One fetcher for each shard gives jobs to its idle workers in one call. It sleeps until the earliest scheduled job
//! is due, and is woken when that time is brought forward or when a job becomes available; it never polls. A delivery
//! runs in a separate task, so a panic in one is only a failed delivery. `shares.rs` decides which deliveries occupy a
//! worker: those of subscribers whose last attempts succeeded quickly. A delivery that takes longer than a tenth of
//! `slow_ms` releases its worker. So receivers that hang or fail cannot use up the workers of the others.
//!
//! Redis executes one call at a time, so taking and settling a job can each wait for a publish call. A
//! [`DeliverySlot`] is therefore held only while a batch is sent: it is released when the receiver has answered. By then
//! the next batch has been fetched.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::json;
use signalbox_store::{Kind, Notice};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    BatchContents, Deliverer, Event, EventId, NewEvent, Subscription,
    batcher::{Batched, Batcher},
    core::Core,
    retry::Retry,
    shares::{Ended, Share, Shares},
    store::{Ack, Held, Nack, Nacked, Store, Taken, Turn, read_gap},
    verdict::{self, Failure, Patience, Verdict},
};
use signalbox_api::events::{DeliveryAttempt, DeliveryResult};
use signalbox_egress::{Answered, Outcome};

/// The maximum time between two checks for jobs.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// Jobs held per concurrent delivery: one is sent while others are taken or settled.
const HELD: usize = 3;
/// The part of `slow_ms` after which a delivery no longer counts as a worker: it waits for its receiver and needs no
/// processor.
const RELEASE_PART: u32 = 10;
/// How long a lane pauses at least that got no share. Up to twice as long, so that lanes do not return together.
const REFUSED_PAUSE_MS: u64 = 1_000;
/// Due jobs made instant in one call.
const PROMOTE: usize = 1_000;
/// How long a disabled subscription's lane pauses before its age is checked again.
const DISABLED_PAUSE_MS: u64 = 3_600_000;
/// How long a lane rests whose subscription this process does not know (it was ended just now).
const UNKNOWN_PAUSE_MS: u64 = 1_000;
/// Between two attempts to settle a job while the fabric is unavailable.
const MAX_SETTLE_PAUSE: Duration = Duration::from_secs(2);

/// Attempts to settle a job that the fabric cannot understand; then it stays where it is until its worker asks again.
const BROKEN_TRIES: u32 = 10;

/// Maximum acknowledgements in one call. It limits how long a call blocks Redis.
const MAX_ACKS: usize = 32;

/// Where a shard's deliveries send their acknowledgements.
pub(super) type Acks = Batcher<Ack, bool>;

/// The batcher of a shard's acknowledgements, with the task that it needs.
pub(super) fn acks(store: &Arc<Store>) -> (Acks, impl Future<Output = ()> + use<>) {
    let store = Arc::clone(store);
    Batcher::new(MAX_ACKS, move |acks| ack_all(Arc::clone(&store), acks))
}

/// Acknowledges batches in one call. If that fails because of the data of one of them, the others are acknowledged
/// alone.
async fn ack_all(store: Arc<Store>, acks: Vec<Ack>) -> Vec<Batched<bool>> {
    match store.ack(&acks).await {
        Ok(held) => held.into_iter().map(Ok).collect(),
        Err(error) if error.kind() == Kind::Broken && acks.len() > 1 => {
            let mut results = Vec::with_capacity(acks.len());
            for ack in &acks {
                let result = store.ack(std::slice::from_ref(ack)).await;
                results.push(result.map(|held| held == [true]).map_err(Arc::new));
            }
            results
        }
        Err(error) => vec![Err(Arc::new(error)); acks.len()],
    }
}

/// The busy workers of a shard, for their heartbeats.
pub(super) type Busy = Arc<Mutex<BTreeSet<String>>>;

/// A delivery's notification of its fetcher.
enum Note {
    /// It no longer counts as a worker.
    Released,
    /// It has been under way for long.
    Hangs { token: String },
    /// It is over and its job settled.
    Done(Done),
}

/// A delivery that is over.
struct Done {
    worker: String,
    token: String,
    lane: String,
    ended: Ended,
    /// Whether it counts as a worker.
    quick: bool,
    /// Whether it was reported as [`Note::Hangs`].
    hung: bool,
    refused: bool,
}

/// One shard's fetcher with its workers.
pub(super) struct Fetcher<D> {
    core: Arc<Core>,
    store: Arc<Store>,
    deliverer: Arc<D>,
    acks: Acks,
    busy: Busy,
    idle: Vec<String>,
    /// Deliveries that count as workers, and those that no longer do.
    quick: usize,
    slow: usize,
    shares: Shares,
    /// Jobs that may be held at a time, slow ones apart.
    most: usize,
    /// Limits how many batches are sent at a time.
    slots: Arc<Semaphore>,
    /// There may be jobs that were not taken.
    more: bool,
    next_due: Option<Instant>,
    retry: Retry,
    /// The server's time, and this process's time when it was received.
    clock: (u64, Instant),
    deliveries: TaskTracker,
    notes: (mpsc::UnboundedSender<Note>, mpsc::UnboundedReceiver<Note>),
}

impl<D: Deliverer> Fetcher<D> {
    pub(super) fn new(
        core: &Arc<Core>,
        store: &Arc<Store>,
        deliverer: &Arc<D>,
        acks: Acks,
        busy: &Busy,
    ) -> Self {
        let workers = core.options.workers.div_ceil(core.stores.len()).max(1);
        let most = workers * HELD;
        // Deliveries that become slow are not in the slow share yet. Some more names keep them from using up those of
        // others.
        let all = most + 2 * core.options.slow_deliveries;
        let name = |n: usize| format!("{}.{}.{n}", core.worker_prefix(), store.shard().index());
        Self {
            core: Arc::clone(core),
            store: Arc::clone(store),
            deliverer: Arc::clone(deliverer),
            acks,
            busy: Arc::clone(busy),
            // The last is taken first, so the same few names are used while there is little to do.
            idle: (0..all).rev().map(name).collect(),
            quick: 0,
            slow: 0,
            shares: Shares::default(),
            most,
            slots: Arc::new(Semaphore::new(workers)),
            more: true,
            next_due: None,
            retry: Retry::default(),
            clock: (0, Instant::now()),
            deliveries: TaskTracker::new(),
            notes: mpsc::unbounded_channel(),
        }
    }

    /// Delivers until `shutdown`; deliveries under way then are waited for by the caller dropping or aborting this.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let mut wakes = self.store.wakes();
        loop {
            // All who are done first: a look costs the same for one worker and for all of them.
            while let Ok(note) = self.notes.1.try_recv() {
                self.note(Some(note));
            }
            if self.more && !self.retry.is_paused() && self.free_slots() > 0 {
                self.fetch(&shutdown).await;
                continue;
            }
            // Without a free worker there is no reason to wake up. The last check is a safety net and not polling:
            // after a clock change or a lost notification, jobs wait a minute at most.
            let look = (self.free_slots() > 0).then_some(self.clock.1 + MAX_SLEEP);
            let due = self.next_due.filter(|_| self.free_slots() > 0);
            let due = self.retry.next([due, look]);
            tokio::select! {
                () = shutdown.cancelled() => break,
                note = self.notes.1.recv() => self.note(note),
                notice = wakes.next() => self.wake(&notice),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.more = true;
                    self.next_due = None;
                    self.retry.resume();
                }
            }
        }
        self.deliveries.close();
        self.deliveries.wait().await;
    }

    /// How many more jobs may be taken.
    fn free_slots(&self) -> usize {
        self.most.saturating_sub(self.quick).min(self.idle.len())
    }

    async fn fetch(&mut self, shutdown: &CancellationToken) {
        let asked = self.free_slots();
        let workers: Vec<String> = self.idle[self.idle.len() - asked..].to_vec();
        match self.store.acquire(&workers, PROMOTE).await {
            Ok(turn) => {
                if self.retry.succeeded() {
                    tracing::info!(shard = self.store.shard().index(), "jobs can be taken again");
                }
                self.more = turn.left > 0 || turn.taken.len() == asked;
                self.clock = (turn.now_ms, Instant::now());
                self.next_due = turn.next_due_ms.map(|due| in_future(due, turn.now_ms));
                self.start(turn, shutdown).await;
            }
            Err(error) => {
                self.retry.failed();
                if error.kind() == Kind::Unavailable {
                    tracing::debug!(%error, "no jobs while the fabric is unavailable");
                } else if self.retry.reports() {
                    tracing::error!(%error, source = ?std::error::Error::source(&error), "jobs cannot be taken");
                }
            }
        }
    }

    async fn start(&mut self, turn: Turn, shutdown: &CancellationToken) {
        let mut view = self.core.view();
        if turn.stamp != view.stamp
            && let Ok(refreshed) = self.core.refresh().await
        {
            view = refreshed;
            self.shares.retain(|token| view.subscription(token).is_some());
        }
        for taken in turn.taken {
            let worker = taken.held.worker.clone();
            self.idle.retain(|idle| *idle != worker);
            self.busy.lock().insert(worker);
            let subscription = view.subscription(&taken.held.token).cloned();
            self.deliver(taken, subscription, turn.now_ms, shutdown);
        }
    }

    /// Starts one delivery in its share.
    fn deliver(
        &mut self,
        taken: Taken,
        subscription: Option<Arc<Subscription>>,
        now_ms: u64,
        shutdown: &CancellationToken,
    ) {
        let (token, lane) =
            (taken.held.token.clone(), format!("{}.{}", taken.held.generation, taken.held.lane));
        let slow_is_full = self.slow >= self.core.options.slow_deliveries;
        let share = self.shares.begin(&token, &lane, taken.health, slow_is_full);
        *if share == Share::Slow { &mut self.slow } else { &mut self.quick } += 1;
        let delivery = Delivery {
            core: Arc::clone(&self.core),
            store: Arc::clone(&self.store),
            deliverer: Arc::clone(&self.deliverer),
            acks: self.acks.clone(),
            shutdown: shutdown.clone(),
        };
        let notes = self.notes.0.clone();
        let slow_after = Duration::from_millis(self.core.options.slow_ms);
        let slots = Arc::clone(&self.slots);
        self.deliveries.spawn(async move {
            let mut done = Done {
                worker: taken.held.worker.clone(),
                token,
                lane,
                ended: Ended::NotAttempted,
                quick: share != Share::Slow,
                hung: false,
                refused: share == Share::Refused,
            };
            if share == Share::Refused {
                delivery.refuse(&taken).await;
            } else {
                let slot = if done.quick { DeliverySlot::acquire(slots).await } else { DeliverySlot::none() };
                let running = tokio::spawn(delivery.run(taken, subscription, now_ms, slot.clone()));
                watch(running, &slot, slow_after, &mut done, &notes).await;
            }
            // The fetcher is gone only when everything is.
            let _ = notes.send(Note::Done(done));
        });
    }

    fn note(&mut self, note: Option<Note>) {
        match note {
            Some(Note::Released) => {
                self.quick -= 1;
                self.slow += 1;
            }
            Some(Note::Hangs { token }) => self.shares.hangs(&token),
            Some(Note::Done(done)) => {
                *if done.quick { &mut self.quick } else { &mut self.slow } -= 1;
                if !done.refused {
                    self.shares.end(&done.token, &done.lane, done.ended, done.hung);
                }
                self.busy.lock().remove(&done.worker);
                self.idle.push(done.worker);
            }
            None => {}
        }
    }

    fn wake(&mut self, notice: &Notice) {
        match notice {
            // Notifications missed while disconnected are recovered by a check.
            Notice::Resumed => self.more = true,
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
}

/// Waits for a delivery, and reports when it stops counting as a worker and when it hangs.
async fn watch(
    mut running: JoinHandle<Ended>,
    slot: &DeliverySlot,
    slow_after: Duration,
    done: &mut Done,
    notes: &mpsc::UnboundedSender<Note>,
) {
    let release_after = slow_after / RELEASE_PART;
    let mut ended = timeout(release_after, &mut running).await.ok();
    if ended.is_none() {
        slot.release();
        if done.quick {
            done.quick = false;
            let _ = notes.send(Note::Released);
        }
        ended = timeout(slow_after - release_after, &mut running).await.ok();
    }
    if ended.is_none() {
        done.hung = true;
        let _ = notes.send(Note::Hangs { token: done.token.clone() });
        ended = Some(running.await);
    }
    // A panic here is not a failure of the receiver.
    done.ended = ended.and_then(Result::ok).unwrap_or(Ended::NotAttempted);
}

/// The moment on this process's clock of `at_ms` on the server's, which shows `now_ms`.
fn in_future(at_ms: u64, now_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(at_ms.saturating_sub(now_ms))
}

/// The permission to send one batch. It is released when the receiver has answered, or when the delivery is slow.
#[derive(Clone)]
struct DeliverySlot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl DeliverySlot {
    /// Waits for a free slot.
    async fn acquire(slots: Arc<Semaphore>) -> Self {
        // The semaphore is never closed.
        Self(Arc::new(Mutex::new(slots.acquire_owned().await.ok())))
    }

    /// A delivery of the slow share has none.
    fn none() -> Self {
        Self(Arc::default())
    }

    /// Frees the slot for the next delivery. A repeat does nothing.
    fn release(&self) {
        self.0.lock().take();
    }
}

/// One delivery.
struct Delivery<D> {
    core: Arc<Core>,
    store: Arc<Store>,
    deliverer: Arc<D>,
    acks: Acks,
    shutdown: CancellationToken,
}

/// An attempt that ended.
struct Attempt {
    outcome: Outcome,
    answered: Answered,
    duration: Duration,
    events: usize,
    /// The lowest and the highest ID of its events.
    range: (EventId, EventId),
}

/// How to settle a job in the end.
enum Settle {
    Ack { events: usize },
    Nack(Nack),
    Bury { why: String, attempted: bool },
}

impl Settle {
    fn ended(&self) -> Ended {
        match self {
            Self::Ack { .. } => Ended::Delivered,
            Self::Nack(Nack { attempted: true, .. }) | Self::Bury { attempted: true, .. } => Ended::Failed,
            Self::Nack(_) | Self::Bury { .. } => Ended::NotAttempted,
        }
    }
}

impl<D: Deliverer> Delivery<D> {
    async fn run(
        self,
        taken: Taken,
        subscription: Option<Arc<Subscription>>,
        now_ms: u64,
        slot: DeliverySlot,
    ) -> Ended {
        let timeout_ms = subscription.as_ref().map_or(0, |subscription| subscription.timeout_ms);
        let settle = match subscription {
            // It ended a moment ago, and its lanes are being cleared away; or this process is behind.
            None => Settle::Nack(Nack { pause_ms: UNKNOWN_PAUSE_MS, attempted: false, split: false }),
            Some(subscription) if subscription.disabled.is_some() || subscription.paused => {
                self.rest(&taken, &subscription, now_ms)
            }
            Some(subscription) => self.attempt(&taken, &subscription, now_ms).await,
        };
        slot.release();
        self.settle(&taken, timeout_ms, &settle).await;
        settle.ended()
    }

    /// Returns a job that got no share.
    async fn refuse(&self, taken: &Taken) {
        let pause_ms =
            (Duration::from_millis(REFUSED_PAUSE_MS).mul_f64(1.0 + self.core.rng.uniform())).as_millis();
        let pause_ms = u64::try_from(pause_ms).unwrap_or(REFUSED_PAUSE_MS);
        let settle = Settle::Nack(Nack { pause_ms, attempted: false, split: false });
        self.settle(taken, 0, &settle).await;
    }

    /// A disabled or paused subscription gets no deliveries. Its waiting events become dead letters when they are old
    /// enough.
    fn rest(&self, taken: &Taken, subscription: &Subscription, now_ms: u64) -> Settle {
        let max_age = self.patience(subscription).max_age;
        if Duration::from_millis(now_ms.saturating_sub(taken.created_ms)) >= max_age {
            let what = if subscription.disabled.is_some() { "disabled" } else { "paused" };
            return Settle::Bury { why: format!("the subscription is {what}"), attempted: false };
        }
        Settle::Nack(Nack { pause_ms: DISABLED_PAUSE_MS, attempted: false, split: false })
    }

    async fn attempt(&self, taken: &Taken, subscription: &Arc<Subscription>, now_ms: u64) -> Settle {
        let (events, missing) = match self.contents(taken).await {
            Ok(contents) => contents,
            Err(error) => {
                tracing::debug!(%error, "a batch cannot be read now");
                return Settle::Nack(Nack { pause_ms: 1000, attempted: false, split: false });
            }
        };
        if missing > 0 {
            tracing::error!(
                subscriber = self.core.name_of(&taken.held.token),
                batch = taken.held.batch,
                missing,
                "events of a batch are no longer in the log"
            );
        }
        if events.is_empty() {
            return Settle::Bury { why: "the events are lost".into(), attempted: false };
        }
        let batch = Arc::new(BatchContents {
            id: taken.held.batch.clone(),
            created_ms: taken.created_ms,
            attempts: taken.attempts,
            gaps: taken.gaps.iter().filter_map(|gap| read_gap(gap)).collect(),
            events,
        });
        let count = batch.events.len();
        let ids = || batch.events.iter().map(|event| event.id);
        let range = (ids().min().unwrap_or(EventId(0)), ids().max().unwrap_or(EventId(0)));
        let started = Instant::now();
        // In a separate task: a panic in a deliverer is only a failed delivery.
        let deliverer = Arc::clone(&self.deliverer);
        let to = Arc::clone(subscription);
        let mut delivering = tokio::spawn(async move { deliverer.attempt(to, batch).await });
        let (outcome, answered) = tokio::select! {
            ended = &mut delivering => ended.unwrap_or_else(|error| {
                (Outcome::Failed { why: error.to_string(), retry_after: None }, Answered::default())
            }),
            () = self.shutdown.cancelled() => {
                delivering.abort();
                return Settle::Nack(Nack { pause_ms: 0, attempted: false, split: false });
            }
        };
        let attempt =
            Attempt { outcome: outcome.clone(), answered, duration: started.elapsed(), events: count, range };
        let settle = self.judge(outcome, count, taken, subscription, now_ms).await;
        self.log(taken, &attempt, now_ms, &settle);
        settle
    }

    /// The state of a batch after an attempt.
    async fn judge(
        &self,
        outcome: Outcome,
        count: usize,
        taken: &Taken,
        subscription: &Subscription,
        now_ms: u64,
    ) -> Settle {
        match outcome {
            Outcome::Delivered => Settle::Ack { events: count },
            Outcome::Gone => {
                self.disable(subscription).await;
                Settle::Nack(Nack { pause_ms: DISABLED_PAUSE_MS, attempted: true, split: false })
            }
            Outcome::Failed { why, retry_after } => {
                self.failed(taken, subscription, why, retry_after, now_ms)
            }
        }
    }

    fn failed(
        &self,
        taken: &Taken,
        subscription: &Subscription,
        why: String,
        retry_after: Option<Duration>,
        now_ms: u64,
    ) -> Settle {
        let failure = Failure {
            attempts: taken.attempts + 1,
            age: Duration::from_millis(now_ms.saturating_sub(taken.created_ms)),
            events: taken.items.len(),
            health: verdict::health_after(taken.health, false),
            retry_after,
        };
        let verdict = verdict::judge(&failure, &self.patience(subscription), self.core.rng.uniform());
        tracing::debug!(
            subscriber = self.core.name_of(&taken.held.token),
            batch = taken.held.batch,
            attempts = failure.attempts,
            why,
            ?verdict,
            "a batch was not delivered"
        );
        let nack = |pause: Duration, split| {
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            Settle::Nack(Nack { pause_ms, attempted: true, split })
        };
        match verdict {
            Verdict::Retry(pause) => nack(pause, false),
            Verdict::Split(pause) => nack(pause, true),
            Verdict::Dead => Settle::Bury { why, attempted: true },
        }
    }

    /// The limits of a subscription, or the configured ones.
    fn patience<'a>(&self, subscription: &'a Subscription) -> Patience<'a> {
        let options = &self.core.options;
        Patience {
            max_attempts: subscription.max_attempts.unwrap_or(options.max_attempts),
            max_age: Duration::from_secs(subscription.max_age_seconds.unwrap_or(options.max_age_seconds)),
            on_exhausted: subscription.on_exhausted,
            retry_seconds: &subscription.retry_seconds,
        }
    }

    /// Logs an attempt with what becomes of it.
    fn log(&self, taken: &Taken, attempt: &Attempt, now_ms: u64, settle: &Settle) {
        let duration_ms = u64::try_from(attempt.duration.as_millis()).unwrap_or(u64::MAX);
        let (result, next, why) = match (&attempt.outcome, settle) {
            (Outcome::Gone, _) => (DeliveryResult::Gone, None, None),
            (_, Settle::Ack { .. }) => (DeliveryResult::Delivered, None, None),
            (_, Settle::Bury { why, .. }) => (DeliveryResult::Dead, None, Some(why.as_str())),
            (outcome, Settle::Nack(nack)) => {
                let why = match outcome {
                    Outcome::Failed { why, .. } => Some(why.as_str()),
                    Outcome::Delivered | Outcome::Gone => None,
                };
                (DeliveryResult::Retried, Some(now_ms + duration_ms + nack.pause_ms), why)
            }
        };
        let (first, last) = attempt.range;
        let entry = DeliveryAttempt {
            at: now_ms,
            batch: taken.held.batch.clone(),
            attempt: taken.attempts + 1,
            events: attempt.events as u64,
            first: first.0,
            last: last.0,
            result,
            status: attempt.answered.status,
            duration_ms,
            why: why.map(|why| shortened(why).to_owned()),
            response: attempt.answered.excerpt.clone(),
            next,
        };
        self.core.attempts.note(&taken.held.token, entry);
    }

    /// The callback answered that it is gone permanently.
    async fn disable(&self, subscription: &Subscription) {
        let token = &subscription.token;
        let callback = &subscription.callback;
        let disabled = self
            .core
            .change(|registry, _| {
                // Unless it subscribed again in the meantime, with another callback.
                if let Some(one) = registry.subscriptions.get_mut(token)
                    && one.callback == *callback
                {
                    one.disabled = Some("the callback answered that it is gone".into());
                }
                Ok(())
            })
            .await;
        match disabled {
            Ok(()) => {
                let subscriber = self.core.name_of(token);
                tracing::warn!(subscriber, "subscription disabled: its callback is gone");
                self.core.announce("subscriber.disabled", token, json!({ "reason": "gone" }));
            }
            // The next attempt finds the same answer.
            Err(error) => {
                let subscriber = self.core.name_of(token);
                tracing::warn!(subscriber, %error, "subscription not disabled; it stays active");
            }
        }
    }

    /// The batch's events in order, and how many are no longer in the log.
    async fn contents(&self, taken: &Taken) -> Result<(Vec<Arc<Event>>, usize), signalbox_store::Error> {
        let items: Vec<(EventId, u64)> = taken.items.iter().filter_map(|item| read_item(item)).collect();
        let mut events = self.core.cache.get(items.iter().map(|(id, _)| *id));
        let mut wanted: BTreeMap<u64, Vec<EventId>> = BTreeMap::new();
        for ((id, segment), _) in items.iter().zip(&events).filter(|(_, event)| event.is_none()) {
            wanted.entry(*segment).or_default().push(*id);
        }
        if !wanted.is_empty() {
            let mut read = BTreeMap::new();
            for (id, body) in self.store.bodies(&wanted).await? {
                let event = body.and_then(|body| {
                    Event::read(&body)
                        .inspect_err(|error| tracing::error!(%id, %error, "event in the log not readable"))
                        .ok()
                });
                read.extend(event.map(|event| (id, Arc::new(event))));
            }
            self.core.cache.put(read.values().cloned());
            for ((id, _), event) in items.iter().zip(&mut events).filter(|(_, event)| event.is_none()) {
                *event = read.get(id).cloned();
            }
        }
        let missing = taken.items.len() - events.iter().flatten().count();
        Ok((events.into_iter().flatten().collect(), missing))
    }

    /// Settles the job, and retries while the fabric does not answer. Until then the worker's heartbeat continues, so
    /// no other worker takes the job; the scripts make a repeat harmless.
    async fn settle(&self, taken: &Taken, timeout_ms: u64, settle: &Settle) {
        let mut pause = Duration::from_millis(50);
        let mut broken = 0;
        loop {
            match self.settle_once(&taken.held, taken, timeout_ms, settle).await {
                Ok(true) => return,
                Ok(false) => {
                    tracing::debug!(worker = taken.held.worker, "a job was taken from its worker");
                    return;
                }
                Err(error) if error.kind() == Kind::Broken => {
                    tracing::error!(%error, source = ?std::error::Error::source(&*error), "job not settled");
                    broken += 1;
                    if broken == BROKEN_TRIES {
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "a job cannot be settled now"),
            }
            tokio::select! {
                () = sleep(pause) => {}
                // Another pacemaker will scrub this worker.
                () = self.shutdown.cancelled(), if pause == MAX_SETTLE_PAUSE => return,
            }
            pause = (pause * 2).min(MAX_SETTLE_PAUSE);
        }
    }

    async fn settle_once(
        &self,
        held: &Held,
        taken: &Taken,
        timeout_ms: u64,
        settle: &Settle,
    ) -> Batched<bool> {
        let options = &self.core.options;
        match settle {
            Settle::Ack { events } => {
                let (held, gaps) = (held.clone(), taken.gaps.clone());
                let acked = self.acks.call(Ack { held, timeout_ms, events: *events, gaps }).await;
                // The task ends after the last delivery. If it is gone nevertheless, another worker delivers the batch
                // again.
                acked.unwrap_or(Ok(false))
            }
            Settle::Nack(nack) => {
                let nacked = self.store.nack(held, nack, &self.core.rng.seed()).await.map_err(Arc::new)?;
                // Reported once: again only after full health was restored. If this reply is lost, not at all.
                if nacked == Nacked::PacingBegins {
                    self.core.announce("subscriber.paced", &held.token, json!({ "pause_ms": nack.pause_ms }));
                }
                Ok(nacked != Nacked::NotHeld)
            }
            Settle::Bury { why, attempted } => {
                let keep = (options.dead_events, options.dead_bytes);
                let why = shortened(why);
                self.store.bury(held, timeout_ms, why, *attempted, keep).await.map_err(Arc::new)
            }
        }
    }
}

/// A reason is for people; a receiver's answer may be of any length.
fn shortened(why: &str) -> &str {
    let end = (0..=why.len().min(500)).rev().find(|end| why.is_char_boundary(*end)).unwrap_or_default();
    &why[..end]
}

/// Reads an item of a batch: the id, and the segment of the log that its body lies in.
fn read_item(item: &str) -> Option<(EventId, u64)> {
    match item.split_once('@') {
        Some((id, segment)) => Some((EventId(id.parse().ok()?), segment.parse().ok()?)),
        None => {
            let id = item.parse().ok()?;
            Some((EventId(id), id / super::store::SEGMENT_IDS))
        }
    }
}

/// Writes the heartbeats of busy workers in a separate task: neither a slow delivery nor a slow reply delays it.
pub(super) async fn beat(core: Arc<Core>, store: Arc<Store>, busy: Busy, shutdown: CancellationToken) {
    let every = Duration::from_millis(core.options.beat_ms);
    loop {
        tokio::select! {
            () = sleep(every) => {}
            () = shutdown.cancelled() => return,
        }
        let workers: Vec<String> = busy.lock().iter().cloned().collect();
        if !workers.is_empty()
            && let Err(error) = store.beat(&workers).await
        {
            tracing::debug!(%error, "a heartbeat was not noted");
        }
    }
}

impl Core {
    /// How a client is called towards others, logs included.
    pub(super) fn name_of(&self, client: &str) -> String {
        self.view().registry.name_of(client)
    }

    /// Announces an event about a subscriber, under Signalbox's own topics; `data` is an object, to which its name is
    /// added. The caller does not wait for the publish.
    pub(super) fn announce(self: &Arc<Self>, topic: &'static str, client: &str, mut data: serde_json::Value) {
        let handle = super::Handle::from_core(Arc::clone(self));
        let subscriber = self.name_of(client);
        data["subscriber"] = subscriber.as_str().into();
        let event = NewEvent {
            kind: super::Kind::Update,
            url: "/subscriptions".to_owned(),
            timestamp_ms: None,
            data: serde_json::value::to_raw_value(&data).ok(),
            environment: None,
            object: Some(format!("signalbox:subscriber:{subscriber}")),
            idempotency_key: None,
        };
        tokio::spawn(async move {
            for refusal in handle.announce(topic, vec![event]).await.into_iter().filter_map(Result::err) {
                tracing::warn!(topic, %refusal, "own event not accepted");
            }
        });
    }
}
