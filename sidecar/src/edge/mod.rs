//! The router beside us: what its workers acknowledged, what its table is, what its log lacks.
//!
//! ```text
//!  nginx /edge/ack (long poll) ─▶ Report ─▶ router:<node> + PUBLISH on the statistics Redis ─▶ pacemaker's ?wait=
//!  nginx /edge/status          ─▶ alarm, requests under way; generation changed ─▶ /edge/snapshot ─▶ routes.snapshot on disk
//!  nginx /edge/connections     ─▶ lost lines (with what the follower counted)
//!  routes replica              ─▶ metrics
//! ```
//!
//! A router is reported while its nginx answers, each second and at once when its serial changed; a router whose nginx
//! is gone falls silent, and nobody waits for it. A sidecar that was fenced says nothing: the newer one does.
//! Nothing here touches the counters.

mod lost;
mod nginx;
mod snapshot;
mod store;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use signalbox_store::{RoutesReplica, Stats};
use tokio::{
    sync::Notify,
    time::{self, Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use crate::follow::service::{Condition, Watch as Follower};
use lost::{Counted, Lost, Sample};
use nginx::Nginx;

/// How often the router is reported and looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Counters that are so far behind the log are an alarm.
const LATE_MS: u64 = 30_000;
/// How long to leave an nginx alone that does not answer.
const RETRY: Duration = Duration::from_millis(300);
/// The shortest time between two snapshots; also at least twenty times what the last one took.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(2);

/// What is known of the router.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Whether nginx answers.
    pub up: bool,
    /// The serial that every worker has acknowledged.
    pub serial: u64,
    /// The newest token of the table's lineage.
    pub epoch: String,
    /// The workers, as nginx' JSON.
    pub workers: String,
    /// Why the edge does not believe its table.
    pub alarm: Option<String>,
    /// Requests under way at instances by address, as nginx' JSON; of hosts whose policy has them counted.
    pub in_flight: String,
    /// Requests that never came to the log.
    pub lost: u64,
    /// Snapshots written.
    pub snapshots: u64,
    /// Snapshots that were damaged.
    pub bad_snapshots: u64,
    /// The routes replica.
    pub replica: Replica,
}

/// How the routes replica is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Replica {
    /// Whether it answers.
    pub up: bool,
    /// Whether it hears its master.
    pub linked: bool,
    /// The serial of its table.
    pub serial: u64,
}

/// What is known of the router by now. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    report: Arc<Mutex<Report>>,
    changed: Arc<Notify>,
    forwarded: Arc<AtomicU64>,
}

impl Watch {
    /// The latest report.
    pub fn report(&self) -> Report {
        self.lock().clone()
    }

    /// Notes a finished request that came to our API through nginx: it counted it, and does not log it.
    pub fn forwarded(&self) {
        self.forwarded.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        // Nobody panics while holding it.
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the edge room needs.
#[derive(Debug, Clone)]
pub struct Options {
    /// nginx' admin listener.
    pub url: String,
    /// This router host.
    pub node: String,
    /// Where the last-known-good table goes.
    pub snapshot_path: PathBuf,
    /// The wall clock, in unix milliseconds.
    pub clock: fn() -> u64,
}

/// Watches one router.
#[derive(Debug, Clone)]
pub struct Service {
    options: Options,
    nginx: Nginx,
    stats: Stats,
    follower: Follower,
    watch: Watch,
}

impl Service {
    /// Prepares watching.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(
        options: Options,
        stats: Stats,
        follower: Follower,
        watch: Watch,
    ) -> Result<Self, reqwest::Error> {
        let nginx = Nginx::new(&options.url)?;
        Ok(Self { options, nginx, stats, follower, watch })
    }

    /// Watches until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let all = async {
            tokio::join!(self.acknowledgements(), self.reports(), self.look());
        };
        shutdown.run_until_cancelled(all).await;
    }

    /// Long-polls what the workers acknowledged.
    async fn acknowledgements(&self) {
        let mut known = None;
        loop {
            match self.nginx.acknowledged(known).await {
                Ok(acknowledged) => {
                    known = Some(acknowledged.serial);
                    let mut report = self.watch.lock();
                    let news = !report.up || report.serial != acknowledged.serial;
                    report.up = true;
                    report.serial = acknowledged.serial;
                    report.epoch = acknowledged.epoch;
                    report.workers = acknowledged.workers.get().to_owned();
                    drop(report);
                    if news {
                        self.watch.changed.notify_one();
                    }
                }
                Err(error) => {
                    known = None;
                    if std::mem::replace(&mut self.watch.lock().up, false) {
                        tracing::warn!(%error, "the edge is away");
                    }
                    time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Reports each second, and at once when the serial changed.
    async fn reports(&self) {
        let mut ticks = time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.watch.changed.notified() => {}
            }
            let report = self.watch.report();
            let progress = self.follower.progress();
            if !report.up || matches!(progress.condition, Condition::Fenced { .. }) {
                continue;
            }
            // One alarm at a time: a router that routes by an old table matters more than late numbers.
            let late = progress.lag_ms((self.options.clock)()) > LATE_MS;
            let of_counting = if late { "statistics_late" } else { progress.condition.alarm() };
            let alarm = report.alarm.as_deref().unwrap_or(of_counting);
            let Options { node, url, .. } = &self.options;
            if let Err(error) = store::report(&self.stats, node, url, &report, alarm).await {
                tracing::debug!(%error, "the router could not be reported");
            }
        }
    }

    /// Looks at alarm, snapshot and connections each second. One after the other, over one connection: nginx then has
    /// finished each request before it sees the next, and their count is exact.
    async fn look(&self) {
        let mut snapshot = Snapshot::default();
        let mut lost = Lost::default();
        let mut forwarded = 0;
        let mut ticks = time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.nginx.status().await {
                Ok(status) => {
                    {
                        let mut report = self.watch.lock();
                        report.alarm = status.alarm;
                        report.in_flight =
                            status.in_flight.map_or_else(String::new, |counts| counts.get().to_owned());
                    }
                    self.snapshot(&mut snapshot, status.generation).await;
                }
                Err(error) => tracing::debug!(%error, "no status of the edge"),
            }
            let forwarded_before =
                std::mem::replace(&mut forwarded, self.watch.forwarded.load(Ordering::Relaxed));
            if let Some(sample) = self.sample(forwarded_before).await {
                lost.sample(sample);
            }
            let progress = self.follower.progress();
            let lines = progress.tally.lines + progress.tally.bad_lines;
            lost.counted(Counted { lines, until_ms: progress.counted_ms });
            self.watch.lock().lost = lost.total();
        }
    }

    /// Asks nginx for its counters. `forwarded_before` is what had come through it a second ago: finished by now.
    async fn sample(&self, forwarded_before: u64) -> Option<Sample> {
        let tally = self.follower.progress().tally;
        let at_ms = (self.options.clock)();
        let answered_before = self.nginx.answered();
        let connections = self.nginx.connections().await.ok()?;
        // Requests that nginx does not log: it counts them itself, or they are ours and those that came to our API
        // through it. This very request was in flight when it was answered.
        let ours = (
            answered_before + forwarded_before,
            self.nginx.answered() - 1 + self.watch.forwarded.load(Ordering::Relaxed),
        );
        let (unlogged_least, unlogged_most) = connections.unlogged.map_or(ours, |count| (count, count));
        Some(Sample {
            at_ms,
            accepted: connections.accepted,
            in_flight: connections.in_flight,
            unlogged_least,
            unlogged_most,
            lines_before: tally.lines + tally.bad_lines,
        })
    }

    /// Fetches and writes the table when it changed.
    async fn snapshot(&self, state: &mut Snapshot, generation: Option<u64>) {
        let fresh = generation.is_some() && generation == state.generation;
        if fresh || state.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let started = Instant::now();
        let done = self.fetch(state).await;
        state.next = Some(Instant::now() + SNAPSHOT_EVERY.max(started.elapsed() * 20));
        match done {
            Ok(written) => {
                state.generation = generation;
                self.watch.lock().snapshots += u64::from(written);
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, source, "no snapshot of the route table");
                self.watch.lock().bad_snapshots +=
                    u64::from(matches!(error, Failed::Snapshot(snapshot::Error::Damaged(_))));
            }
        }
    }

    async fn fetch(&self, state: &mut Snapshot) -> Result<bool, Failed> {
        let Some((response, tag)) = self.nginx.snapshot(&state.tag).await? else { return Ok(false) };
        let kept = snapshot::write(response, &self.options.snapshot_path).await?;
        state.tag = tag;
        Ok(kept)
    }
}

/// Which table was written last.
#[derive(Debug, Default)]
struct Snapshot {
    tag: String,
    generation: Option<u64>,
    next: Option<Instant>,
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Nginx(#[from] nginx::Error),
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
}

/// Looks at the routes replica, for metrics, until `shutdown`.
pub async fn watch_replica(replica: RoutesReplica, watch: Watch, shutdown: CancellationToken) {
    let mut ticks = time::interval(EVERY * 5);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let seen = store::replica(&replica).await.unwrap_or_default();
        watch.lock().replica = seen;
    }
}
