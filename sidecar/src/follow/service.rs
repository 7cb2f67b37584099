//! Runs the follower on its own thread, and publishes its progress.
//!
//! Reading and folding block, and a megabyte of either takes too long for an async runtime. So the follower has an OS thread,
//! and the runtime only executes its Redis commands. A hint (a filesystem notification) or a timer of half a second wakes it.
//! Hints can be lost or frequent; only the timer is reliable.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use notify::{RecursiveMode, Watcher};
use parking_lot::{Condvar, Mutex};
use signalbox_store::Kind;
use tokio::time::Instant;

use super::{CHECK_INTERVAL, Error, Follower, Step};
use crate::{
    commit::{Store, Tally},
    rotate::{self, Rotator},
};

/// The time between two windows of a follower without a backlog, and between two polls without filesystem notifications.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The minimum pause after a long window, so that Redis can serve other clients.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// The condition of the follower.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    /// No step has been performed yet.
    #[default]
    Starting,
    /// The log is counted.
    Following,
    /// The statistics Redis does not respond. The log waits.
    StoreAway,
    /// The statistics Redis rejects writes (memory, disk, a replica). The log waits.
    StoreRefuses,
    /// The statistics Redis returned an unexpected reply.
    StoreBroken,
    /// The log cannot be read.
    LogUnreadable,
    /// A newer sidecar took over this node. This one stopped counting.
    Fenced {
        /// The newer process.
        owner: String,
    },
}

impl Condition {
    /// The alarm that the router reports, or an empty string.
    pub fn alarm(&self) -> &'static str {
        match self {
            Self::Starting | Self::Following => "",
            Self::StoreAway => "statistics_away",
            Self::StoreRefuses => "statistics_refused",
            Self::StoreBroken => "statistics_unreadable",
            Self::LogUnreadable => "log_unreadable",
            Self::Fenced { .. } => "fenced",
        }
    }
}

/// The progress of the follower. Counters belong to this process unless they mention the node.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The condition.
    pub condition: Condition,
    /// The counters of the node since its first line.
    pub tally: Tally,
    /// Bytes that are not counted yet.
    pub lag_bytes: u64,
    /// The end of the latest counted request, in unix milliseconds.
    pub latest_ms: u64,
    /// Everything that was in the log at this unix millisecond is counted.
    pub counted_ms: u64,
    /// The position in the current file.
    pub position: u64,
    /// The number of the current file, which rises with every change of file.
    pub generation: u64,
    /// Number of commits.
    pub commits: u64,
    /// Number of failed steps.
    pub failures: u64,
    /// Increments that were rejected because a key has the wrong type.
    pub refused: u64,
    /// Number of rotations.
    pub rotations: u64,
    /// Whether the last attempt to rotate failed.
    pub rotation_failed: bool,
}

impl Progress {
    /// The delay of the counters behind the log, in milliseconds, at the unix millisecond `now_ms`.
    pub fn lag_ms(&self, now_ms: u64) -> u64 {
        // During catch-up, the latest counted request determines the delay.
        let counted_ms = self.counted_ms.max(self.latest_ms);
        if self.lag_bytes == 0 || counted_ms == 0 { 0 } else { now_ms.saturating_sub(counted_ms) }
    }
}

/// Shared access to the progress of a follower. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Mutex<Progress>>);

impl Watch {
    /// The current progress.
    pub fn progress(&self) -> Progress {
        self.0.lock().clone()
    }

    /// Changes the progress.
    pub fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.0.lock());
    }
}

/// The options of the follower.
#[derive(Debug, Clone)]
pub struct Options {
    /// The log that nginx writes.
    pub access_log: PathBuf,
    /// When to rotate the log; `None` for never.
    pub rotate: Option<rotate::Options>,
    /// Reads the wall clock, in unix milliseconds.
    pub clock: fn() -> u64,
}

/// A running follower.
#[derive(Debug)]
pub struct Handle {
    watch: Watch,
    wake: Arc<Wake>,
    thread: thread::JoinHandle<()>,
}

impl Handle {
    /// Access to its progress.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Counts the remaining lines and ends. Blocks until then.
    pub fn stop(self) {
        self.wake.set(|state| state.stopping = true);
        if self.thread.join().is_err() {
            tracing::error!("follower thread panicked");
        }
    }
}

/// Starts following.
///
/// # Errors
/// If the operating system cannot create a thread.
pub fn start<S: Store + Send + 'static>(store: S, options: Options) -> std::io::Result<Handle> {
    let watch = Watch::default();
    let wake = Arc::new(Wake::default());
    let follower = Follower::new(options.access_log.clone(), store);
    let rotator = options.rotate.map(|rotate| Rotator::new(options.access_log.clone(), rotate));
    let service =
        Service { follower, rotator, watch: watch.clone(), wake: Arc::clone(&wake), clock: options.clock };
    let path = options.access_log;
    let thread = thread::Builder::new().name("follow".into()).spawn(move || {
        let watcher = hints(&path, &service.wake);
        service.run(if watcher.is_some() { CHECK_INTERVAL } else { POLL_INTERVAL });
        drop(watcher);
    })?;
    Ok(Handle { watch, wake, thread })
}

/// Uses filesystem notifications as hints. Without them (too many watches, a network filesystem) the timer remains.
fn hints(path: &Path, wake: &Arc<Wake>) -> Option<notify::RecommendedWatcher> {
    let wake = Arc::clone(wake);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let started = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // This process's own reading is reported, too.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            wake.set(|state| state.hinted = true);
        }
    })
    .and_then(|mut watcher| watcher.watch(folder, RecursiveMode::NonRecursive).map(|()| watcher));
    started.inspect_err(|error| tracing::warn!(%error, "file notifications unavailable, polling only")).ok()
}

struct Service<S> {
    follower: Follower<S>,
    rotator: Option<Rotator>,
    watch: Watch,
    wake: Arc<Wake>,
    clock: fn() -> u64,
}

impl<S: Store> Service<S> {
    /// Follows the log until it is stopped or fenced. Without hints, it polls after `idle`.
    fn run(mut self, idle: Duration) {
        let started = Instant::now();
        let mut rested = Duration::ZERO;
        loop {
            // Read before the step, so that the step covers everything that was written before the stop.
            let stopping = self.wake.is_stopping();
            let polled_ms = (self.clock)();
            let step = self.follower.step(started.elapsed());
            self.note(&step, polled_ms);
            let (more, committed) = match step {
                Ok(step) => {
                    self.tend(&step, started.elapsed());
                    (step.more, step.committed)
                }
                Err(Error::Fenced { .. }) => return,
                Err(_) => {
                    // A failure is never retried immediately, however long it took.
                    rested = started.elapsed();
                    (false, true)
                }
            };
            match (stopping, more) {
                (true, false) => return,
                (_, true) => {}
                // A hint does not end the pause after a commit, because two windows per second are
                // sufficient. The duration of a long window is subtracted, so that newer lines do not wait
                // for twice as long.
                (false, false) => {
                    let took = started.elapsed().saturating_sub(rested);
                    let rest =
                        if committed { POLL_INTERVAL.saturating_sub(took).max(MIN_PAUSE) } else { idle };
                    self.wake.rest(rest, !committed);
                    rested = started.elapsed();
                }
            }
        }
    }

    fn note(&self, step: &Result<Step, Error>, polled_ms: u64) {
        let mut progress = self.watch.0.lock();
        let condition = match step {
            Ok(_) => Condition::Following,
            Err(Error::Fenced { owner }) => Condition::Fenced { owner: owner.clone() },
            Err(Error::Log { .. }) => Condition::LogUnreadable,
            Err(Error::Store(error)) => match error.kind() {
                Kind::Unavailable => Condition::StoreAway,
                Kind::Refused => Condition::StoreRefuses,
                Kind::Broken => Condition::StoreBroken,
            },
        };
        if progress.condition != condition {
            match step {
                Ok(_) => tracing::info!("counting log lines"),
                Err(error) => tracing::error!(error = chain(error), ?condition, "log lines not counted"),
            }
            progress.condition = condition;
        }
        let tally = self.follower.tally();
        if tally.lines < progress.tally.lines {
            // The store was rolled back: counted lines must be counted again.
            progress.counted_ms = 0;
        }
        progress.tally = tally;
        if let Some(place) = self.follower.place() {
            (progress.position, progress.generation) = (place.position, place.generation);
        }
        progress.lag_bytes = self.follower.lag_bytes();
        let Ok(step) = step else {
            progress.failures += 1;
            return;
        };
        progress.commits += u64::from(step.committed);
        progress.refused += step.refused;
        progress.latest_ms = progress.latest_ms.max(step.latest_ms.unwrap_or(0));
        if !step.more && step.lag_bytes == 0 {
            progress.counted_ms = polled_ms;
        }
    }

    fn tend(&mut self, step: &Step, now: Duration) {
        let Some(rotator) = &mut self.rotator else { return };
        let rotated = self.follower.rotated();
        let done = rotator.tend(step.active_bytes, &rotated, now, (self.clock)());
        self.watch.update(|progress| match done {
            Ok(rotated) => {
                progress.rotations += u64::from(rotated);
                progress.rotation_failed = false;
            }
            Err(error) => {
                if !progress.rotation_failed {
                    tracing::error!(error = chain(&error), "log rotation failed");
                }
                progress.rotation_failed = true;
            }
        });
    }
}

/// An error with its causes, for a log field.
fn chain(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Wakes the thread.
#[derive(Debug, Default)]
struct Wake {
    state: Mutex<WakeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WakeState {
    hinted: bool,
    stopping: bool,
    /// Whether a hint ends the pause. A busy log hints thousands of times per second; unless the thread waits for a hint,
    /// a hint only sets a flag.
    listening: bool,
}

impl Wake {
    fn set(&self, change: impl FnOnce(&mut WakeState)) {
        let mut state = self.state.lock();
        change(&mut state);
        if state.listening || state.stopping {
            self.changed.notify_one();
        }
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    fn rest(&self, at_most: Duration, hints_count: bool) {
        let mut state = self.state.lock();
        state.listening = hints_count;
        let resting = |state: &mut WakeState| !(state.stopping || hints_count && state.hinted);
        self.changed.wait_while_for(&mut state, resting, at_most);
        state.listening = false;
        // The next poll covers earlier hints.
        state.hinted = false;
    }
}
