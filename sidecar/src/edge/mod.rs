//! Watches the nginx on this machine: acknowledged serials, the snapshot of the route table, and lost log lines.
//!
//! ```text
//!  nginx /edge/ack (long poll) ─▶ Report ─▶ router:<node> + PUBLISH on the statistics Redis ─▶ pacemaker's ?wait=
//!  nginx /edge/status          ─▶ alarm, requests in flight; generation changed ─▶ /edge/snapshot ─▶ routes.snapshot on disk
//!  nginx /edge/connections     ─▶ lost lines (compared with the follower's counters)
//!  routes replica              ─▶ metrics
//!  Sentinels                   ─▶ REPLICAOF at the routes replica, if `redis.routes_primary` is set
//! ```
//!
//! A router is reported while its nginx answers: every second, and immediately when its serial changes. If nginx is down,
//! the reports stop, and changes no longer wait for the router. A fenced sidecar does not report, because the newer one
//! does. Nothing here changes the counters.

mod lost;
mod nginx;
mod snapshot;
mod store;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use signalbox_diagnosis::thresholds::COUNTING_ALARM_MS;
use signalbox_seal::{Keys, Statement};
use signalbox_store::{RoutesPrimary, RoutesReplica, Stats};
use tokio::{
    sync::Notify,
    time::{self, Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use crate::follow::service::{Condition, Watch as Follower};
use lost::{Counted, Lost, Sample};
use nginx::Nginx;

/// Interval of the reports and of the checks of nginx.
const INTERVAL: Duration = Duration::from_secs(1);
/// Delay before the next request to an nginx that did not answer.
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// The minimum time between two snapshots. It is at least twenty times the duration of the last one.
const MIN_SNAPSHOT_INTERVAL: Duration = Duration::from_secs(2);

/// How long nginx is not asked again after it did not prove its answer.
const UNPROVEN_INTERVAL: Duration = Duration::from_secs(30);

/// The last known state of the router.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Whether nginx answers.
    pub up: bool,
    /// The serial that every worker has acknowledged.
    pub serial: u64,
    /// The newest token of the table's lineage.
    pub epoch: String,
    /// The workers, as JSON from nginx.
    pub workers: String,
    /// The reason why the edge rejects the table in Redis.
    pub alarm: Option<String>,
    /// Requests in flight by instance address, as JSON from nginx. Only hosts whose policy counts them are included.
    pub in_flight: String,
    /// Server names without a certificate that clients asked for recently, as JSON from nginx.
    pub requested_names: String,
    /// Ejected instances, as JSON from nginx: address and end of the ejection in unix milliseconds.
    pub ejected: String,
    /// Requests that never reached the log.
    pub lost: u64,
    /// Snapshots written.
    pub snapshots: u64,
    /// Snapshots that were damaged.
    pub bad_snapshots: u64,
    /// The routes replica.
    pub replica: Replica,
}

/// The state of the routes replica.
#[derive(Debug, Clone, Copy, Default)]
pub struct Replica {
    /// Whether it answers.
    pub up: bool,
    /// Whether it is connected to its primary.
    pub linked: bool,
    /// The serial of its table.
    pub serial: u64,
}

/// Shared access to the state of the router. Cheap to clone.
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

    /// Records a finished request that reached the sidecar's API through nginx. nginx counts such a request but does not log
    /// it.
    pub fn forwarded(&self) {
        self.forwarded.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        self.report.lock()
    }
}

/// The options of [`Service`].
#[derive(Debug, Clone)]
pub struct Options {
    /// The URL of nginx's admin listener.
    pub url: String,
    /// The name of this router.
    pub node: String,
    /// The file for the last-known-good table.
    pub snapshot_path: PathBuf,
    /// The keys by which this sidecar and nginx recognize each other. Without any, nginx shows the table without secrets, and no
    /// file is written.
    pub keys: Keys,
    /// Reads the wall clock, in unix milliseconds.
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
    /// Creates a watcher.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
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
        if self.options.keys.is_empty() {
            tracing::warn!(
                "no snapshot of the route table is written, because daemons_key_file is not set: after a restart without Redis, \
                 nginx has no routes"
            );
        }
        let all = async {
            tokio::join!(self.acknowledgements(), self.reports(), self.checks());
        };
        shutdown.run_until_cancelled(all).await;
    }

    /// Long-polls the acknowledged serials.
    async fn acknowledgements(&self) {
        let mut known = None;
        loop {
            match self.nginx.acknowledged(known).await {
                Ok(acknowledged) => {
                    known = Some(acknowledged.serial);
                    let mut report = self.watch.lock();
                    let changed = !report.up || report.serial != acknowledged.serial;
                    report.up = true;
                    report.serial = acknowledged.serial;
                    report.epoch = acknowledged.epoch;
                    report.workers = acknowledged.workers.get().to_owned();
                    drop(report);
                    if changed {
                        self.watch.changed.notify_one();
                    }
                }
                Err(error) => {
                    known = None;
                    if std::mem::replace(&mut self.watch.lock().up, false) {
                        tracing::warn!(%error, "nginx admin listener does not respond");
                    }
                    time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Reports every second, and immediately when the serial changes.
    async fn reports(&self) {
        let mut ticks = time::interval(INTERVAL);
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
            // Only one alarm is reported. A router that uses an old table matters more than late counters.
            let late = progress.lag_ms((self.options.clock)()) > COUNTING_ALARM_MS;
            let of_counting = if late { "statistics_late" } else { progress.condition.alarm() };
            let alarm = report.alarm.as_deref().unwrap_or(of_counting);
            let Options { node, url, .. } = &self.options;
            if let Err(error) = store::report(&self.stats, node, url, &report, alarm).await {
                tracing::debug!(%error, "router report failed");
            }
        }
    }

    /// Checks alarm, snapshot and connections every second. The requests are sent one after the other on one
    /// connection: nginx has finished each request before it receives the next, so their count is exact.
    async fn checks(&self) {
        let mut snapshot = Snapshot::default();
        let mut lost = Lost::default();
        let mut forwarded = 0;
        let mut ticks = time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.nginx.status().await {
                Ok(status) => {
                    {
                        let mut report = self.watch.lock();
                        report.alarm = status.alarm;
                        let text = |part: Option<Box<serde_json::value::RawValue>>| {
                            part.map_or_else(String::new, |part| part.get().to_owned())
                        };
                        report.in_flight = text(status.in_flight);
                        report.requested_names = text(status.requested_names);
                        report.ejected = text(status.ejected);
                    }
                    self.snapshot(&mut snapshot, status.generation, &status.run).await;
                }
                Err(error) => tracing::debug!(%error, "edge status request failed"),
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

    /// Reads nginx's counters. `forwarded_before` is the number of forwarded requests one second ago; all of them have
    /// finished.
    async fn sample(&self, forwarded_before: u64) -> Option<Sample> {
        let tally = self.follower.progress().tally;
        let at_ms = (self.options.clock)();
        let answered_before = self.nginx.answered();
        let connections = self.nginx.connections().await.ok()?;
        // Requests that nginx does not log. Either nginx counts them itself, or they are the requests of this process and
        // those that nginx forwarded to its API. The current request was in flight when nginx answered it.
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

    /// Fetches and writes the table of this run of nginx if it changed.
    async fn snapshot(&self, state: &mut Snapshot, generation: Option<u64>, run: &str) {
        let now = (self.options.clock)() / 1000;
        let Some(proof) = self.options.keys.prove(Statement::Table(run), now) else { return };
        let fresh = generation.is_some() && generation == state.generation;
        if fresh || state.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let started = Instant::now();
        let done = self.fetch(state, &proof).await;
        state.next = Some(Instant::now() + MIN_SNAPSHOT_INTERVAL.max(started.elapsed() * 20));
        match done {
            Ok(written) => {
                state.generation = generation;
                self.watch.lock().snapshots += u64::from(written);
            }
            Err(error) => {
                if matches!(error, Failed::Nginx(nginx::Error::Unproven)) {
                    state.next = Some(Instant::now() + UNPROVEN_INTERVAL);
                }
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, source, "route table snapshot failed");
                self.watch.lock().bad_snapshots +=
                    u64::from(matches!(error, Failed::Snapshot(snapshot::Error::Damaged(_))));
            }
        }
    }

    async fn fetch(&self, state: &mut Snapshot, proof: &str) -> Result<bool, Failed> {
        let Some(nginx::Table { response, tag, proof: answer }) =
            self.nginx.snapshot(&state.tag, proof).await?
        else {
            return Ok(false);
        };
        let now = (self.options.clock)() / 1000;
        if !self.options.keys.is_proven(Statement::Answer(proof), &answer, now) {
            return Err(nginx::Error::Unproven.into());
        }
        let kept = snapshot::write(response, &self.options.snapshot_path).await?;
        state.tag = tag;
        Ok(kept)
    }
}

/// The table that was written last.
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

/// Makes the routes replica a replica of the primary that Sentinels report, until `shutdown`. The replica
/// keeps the old table until it has copied the new one, and the edge accepts the new table only if it is not
/// older.
pub async fn follow_primary(replica: RoutesReplica, primary: RoutesPrimary, shutdown: CancellationToken) {
    let mut ticks = time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let Some((host, port)) = primary.primary() else { continue };
        match store::copy_from(&replica, &host, port).await {
            Ok(true) => tracing::info!(host, port, "routes replica copies another primary"),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "routes replica unavailable"),
        }
    }
}

/// Polls the routes replica for metrics until `shutdown`.
pub async fn watch_replica(replica: RoutesReplica, watch: Watch, shutdown: CancellationToken) {
    let mut ticks = time::interval(INTERVAL * 5);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let seen = store::replica(&replica).await.unwrap_or_default();
        watch.lock().replica = seen;
    }
}
