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

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use signalbox_store::{Kind, Notice};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod delivery;

use delivery::Delivery;

use super::{
    Deliverer, Subscription,
    core::Core,
    retry::Retry,
    shares::{Ended, Share, Shares},
    store::{Held, Store, Taken, Turn},
};

/// The maximum time between two checks for jobs.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// Jobs held per concurrent delivery: one is sent while others are taken or settled.
const HELD: usize = 3;
/// The part of `slow_ms` after which a delivery no longer counts as a worker: it waits for its receiver and needs no
/// processor.
const RELEASE_PART: u32 = 10;
/// Due jobs made instant in one call.
const PROMOTE: usize = 1_000;
/// Maximum number of jobs taken in one call. Each is read with its batch, so this limits how long a call blocks Redis.
const MAX_TAKEN: usize = 64;
/// The busy workers of a shard, for their heartbeats.
pub(super) type Busy = Arc<Mutex<BTreeSet<String>>>;

/// A delivery's notification of its fetcher.
enum Note {
    /// It no longer counts as a worker.
    Released,
    /// It has been under way for long.
    Hangs(Held),
    /// It is over and its job settled.
    Done(Done),
}

/// A delivery that is over.
struct Done {
    held: Held,
    ended: Ended,
    /// Whether it counts as a worker.
    quick: bool,
    /// Whether it was reported as [`Note::Hangs`].
    hung: bool,
}

/// One shard's fetcher with its workers.
pub(super) struct Fetcher<D> {
    core: Arc<Core>,
    store: Arc<Store>,
    deliverer: Arc<D>,
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
    /// There may be jobs that wait for a slow delivery.
    slow_waits: bool,
    next_due: Option<Instant>,
    retry: Retry,
    /// The server's time, and this process's time when it was received.
    clock: (u64, Instant),
    deliveries: TaskTracker,
    notes: (mpsc::UnboundedSender<Note>, mpsc::UnboundedReceiver<Note>),
}

impl<D: Deliverer> Fetcher<D> {
    pub(super) fn new(core: &Arc<Core>, store: &Arc<Store>, deliverer: &Arc<D>, busy: &Busy) -> Self {
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
            busy: Arc::clone(busy),
            // The last is taken first, so the same few names are used while there is little to do.
            idle: (0..all).rev().map(name).collect(),
            quick: 0,
            slow: 0,
            shares: Shares::default(),
            most,
            slots: Arc::new(Semaphore::new(workers)),
            more: true,
            slow_waits: false,
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
            self.hear();
            let more = self.more || (self.slow_waits && self.slow_places() > 0);
            if more && !self.retry.is_paused() && self.free_slots() > 0 {
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

    /// How many more slow deliveries may begin.
    fn slow_places(&self) -> usize {
        self.core.options.slow_deliveries.saturating_sub(self.slow)
    }

    /// Processes the notifications of deliveries.
    fn hear(&mut self) {
        while let Ok(note) = self.notes.1.try_recv() {
            self.note(Some(note));
        }
    }

    async fn fetch(&mut self, shutdown: &CancellationToken) {
        let asked = self.free_slots().min(MAX_TAKEN);
        let workers: Vec<String> = self.idle[self.idle.len() - asked..].to_vec();
        let places = self.slow_places();
        match self.store.acquire(&workers, PROMOTE, places).await {
            Ok(turn) => {
                if self.retry.succeeded() {
                    tracing::info!(shard = self.store.shard().index(), "jobs can be taken again");
                }
                // A call that has read many events leaves jobs for the next one.
                let slow_left = turn.slow > 0 && turn.taken.len() < places;
                self.more = turn.left > 0 || slow_left || turn.taken.len() == asked;
                self.slow_waits = turn.slow > 0;
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
        let mut view = Some(self.core.view());
        if view.as_ref().is_some_and(|view| turn.stamp != view.stamp) {
            // With an outdated view, a lane would pause for long although its subscription was enabled.
            view = self.core.refresh().await.ok();
            if let Some(view) = &view {
                self.shares.retain(|token| view.subscription(token).is_some());
            }
        }
        // A lane that waited for a delivery to end may have been taken before the notification of that end.
        self.hear();
        for taken in turn.taken {
            let worker = taken.held.worker.clone();
            self.idle.retain(|idle| *idle != worker);
            self.busy.lock().insert(worker);
            let Held { token, generation, .. } = &taken.held;
            let subscription =
                view.as_ref().and_then(|view| view.subscription_of(token, generation).cloned());
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
        let slow_is_full = self.slow_places() == 0;
        let share = self.shares.begin(&taken.held, taken.health, &taken.kicks, slow_is_full);
        *if share == Share::Slow { &mut self.slow } else { &mut self.quick } += 1;
        let delivery = Delivery {
            core: Arc::clone(&self.core),
            store: Arc::clone(&self.store),
            deliverer: Arc::clone(&self.deliverer),
            shutdown: shutdown.clone(),
        };
        let notes = self.notes.0.clone();
        let slow_after = Duration::from_millis(self.core.options.slow_ms);
        let slots = Arc::clone(&self.slots);
        self.deliveries.spawn(async move {
            let mut done = Done {
                held: taken.held.clone(),
                ended: Ended::NotAttempted,
                quick: share != Share::Slow,
                hung: false,
            };
            let slot = match share {
                Share::Behind(before) => {
                    delivery.refuse(&taken, Some(&before)).await;
                    None
                }
                Share::Full => {
                    delivery.note_waiting(&taken, now_ms);
                    delivery.refuse(&taken, None).await;
                    None
                }
                Share::Quick => Some(DeliverySlot::acquire(slots).await),
                Share::Slow => Some(DeliverySlot::none()),
            };
            if let Some(slot) = slot {
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
            Some(Note::Hangs(held)) => self.shares.hangs(&held),
            Some(Note::Done(done)) => {
                *if done.quick { &mut self.quick } else { &mut self.slow } -= 1;
                self.shares.end(&done.held, done.ended, done.hung);
                self.busy.lock().remove(&done.held.worker);
                self.idle.push(done.held.worker);
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
        let _ = notes.send(Note::Hangs(done.held.clone()));
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
