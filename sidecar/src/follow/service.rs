//! The follower on a thread of its own, and what others may know of it.
//!
//! File reading and folding block, and a megabyte of either is long for an async runtime; so the follower has an OS
//! thread, and the runtime only carries its Redis commands. It wakes by a hint (a filesystem notification) or every
//! half second; hints may be lost or come in floods, the poll is the truth.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use notify::{RecursiveMode, Watcher};
use signalbox_store::Kind;
use tokio::time::Instant;

use super::{Error, Follower, Step};
use crate::{
    commit::{Store, Tally},
    rotate::{self, Rotator},
};

/// The longest rest between two looks, and the time from one window to the next of a follower that has caught up.
const POLL: Duration = Duration::from_millis(500);
/// The shortest rest after a window that took long, so that Redis gets to others.
const BREATH: Duration = Duration::from_millis(50);

/// How the follower is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    /// Not a step was made yet.
    #[default]
    Starting,
    /// All is well.
    Following,
    /// The statistics Redis does not answer. The log waits.
    StoreAway,
    /// The statistics Redis refuses to write (memory, disk, a replica). The log waits.
    StoreRefuses,
    /// The statistics Redis answers what it should not.
    StoreBroken,
    /// The log cannot be read.
    LogUnreadable,
    /// Another sidecar took this node over; this one stopped counting.
    Fenced {
        /// That process.
        owner: String,
    },
}

impl Condition {
    /// The name under which a router reports it; empty while all is well.
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

/// What the follower did so far. Counters without a word on it are of this process, not of the node.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// How it is.
    pub condition: Condition,
    /// What the node counted since its first line.
    pub tally: Tally,
    /// Bytes that wait to be counted.
    pub lag_bytes: u64,
    /// When the latest counted request ended, in unix milliseconds.
    pub latest_ms: u64,
    /// Everything that stood in the log at this unix millisecond is counted.
    pub counted_ms: u64,
    /// Where in the current file.
    pub position: u64,
    /// The how-manieth current file.
    pub generation: u64,
    /// Commits made.
    pub commits: u64,
    /// Steps that failed.
    pub failures: u64,
    /// Increments that a key in the way refused.
    pub refused: u64,
    /// Rotations made.
    pub rotations: u64,
    /// Whether the last attempt to rotate failed.
    pub rotation_failed: bool,
}

impl Progress {
    /// How far the counters are behind the log in milliseconds, at the unix millisecond `now_ms`.
    pub fn lag_ms(&self, now_ms: u64) -> u64 {
        // While it catches up, the latest request that is counted says how far it is.
        let counted_ms = self.counted_ms.max(self.latest_ms);
        if self.lag_bytes == 0 || counted_ms == 0 { 0 } else { now_ms.saturating_sub(counted_ms) }
    }
}

/// A look at a running follower. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Mutex<Progress>>);

impl Watch {
    /// How it is now.
    pub fn progress(&self) -> Progress {
        self.lock().clone()
    }

    /// For tests of what only looks.
    pub fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        // Nobody panics while holding it, and numbers cannot be left half changed in a way that matters.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the follower needs besides a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The log that nginx writes.
    pub access_log: PathBuf,
    /// Whether and when to rotate it.
    pub rotate: Option<rotate::Options>,
    /// The wall clock, in unix milliseconds.
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
    /// How it is doing.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Lets it count what is there, and end. Blocks for as long as that takes.
    pub fn stop(self) {
        self.wake.set(|state| state.stopping = true);
        if self.thread.join().is_err() {
            tracing::error!("the follower's thread panicked");
        }
    }
}

/// Starts following.
///
/// # Errors
/// When the operating system gives no thread.
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
        service.run();
        drop(watcher);
    })?;
    Ok(Handle { watch, wake, thread })
}

/// Filesystem notifications as hints. Without them (too many watches, a network filesystem) there is still the poll.
fn hints(path: &Path, wake: &Arc<Wake>) -> Option<notify::RecommendedWatcher> {
    let wake = Arc::clone(wake);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let started = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own reading is reported as well.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            wake.set(|state| state.hinted = true);
        }
    })
    .and_then(|mut watcher| watcher.watch(folder, RecursiveMode::NonRecursive).map(|()| watcher));
    started.inspect_err(|error| tracing::warn!(%error, "no file notifications, polling only")).ok()
}

struct Service<S> {
    follower: Follower<S>,
    rotator: Option<Rotator>,
    watch: Watch,
    wake: Arc<Wake>,
    clock: fn() -> u64,
}

impl<S: Store> Service<S> {
    fn run(mut self) {
        let started = Instant::now();
        let mut rested = Duration::ZERO;
        loop {
            // Asked before the step: what was written before the stop is in it.
            let stopping = self.wake.is_stopping();
            let looked_ms = (self.clock)();
            let step = self.follower.step(started.elapsed());
            self.note(&step, looked_ms);
            let (more, committed) = match step {
                Ok(step) => {
                    self.tend(&step, started.elapsed());
                    (step.more, step.committed)
                }
                Err(Error::Fenced { .. }) => return,
                Err(_) => {
                    // A failure is not tried again at once, however long it took.
                    rested = started.elapsed();
                    (false, true)
                }
            };
            match (stopping, more) {
                (true, false) => return,
                (_, true) => {}
                // After a commit a rest that no hint ends: two windows a second are enough. A window of many parts took
                // its time already, and what came meanwhile should not wait for as long again.
                (false, false) => {
                    let took = started.elapsed().saturating_sub(rested);
                    let rest = if committed { POLL.saturating_sub(took).max(BREATH) } else { POLL };
                    self.wake.rest(rest, !committed);
                    rested = started.elapsed();
                }
            }
        }
    }

    fn note(&self, step: &Result<Step, Error>, looked_ms: u64) {
        let mut progress = self.watch.lock();
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
                Ok(_) => tracing::info!("following the log"),
                Err(error) => tracing::error!(error = %Chain(error), ?condition, "not counting"),
            }
            progress.condition = condition;
        }
        let tally = self.follower.tally();
        if tally.lines < progress.tally.lines {
            // The store went back in time: what was counted has to be counted again.
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
            progress.counted_ms = looked_ms;
        }
    }

    fn tend(&mut self, step: &Step, now: Duration) {
        let Some(rotator) = &mut self.rotator else { return };
        let rotated = self.follower.rotated();
        let done = rotator.tend(step.active_bytes, &rotated, now, (self.clock)());
        let mut progress = self.watch.lock();
        match done {
            Ok(rotated) => {
                progress.rotations += u64::from(rotated);
                progress.rotation_failed = false;
            }
            Err(error) => {
                if !progress.rotation_failed {
                    tracing::error!(error = %Chain(&error), "the log could not be rotated");
                }
                progress.rotation_failed = true;
            }
        }
    }
}

/// An error with its causes, for a log field.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// How the thread is woken.
#[derive(Debug, Default)]
struct Wake {
    state: Mutex<WakeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WakeState {
    hinted: bool,
    stopping: bool,
    /// Whether a hint would end the rest. A busy log hints thousands of times a second; while nobody waits for it a
    /// hint only sets a flag.
    listening: bool,
}

impl Wake {
    fn set(&self, change: impl FnOnce(&mut WakeState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        if state.listening || state.stopping {
            self.changed.notify_one();
        }
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopping
    }

    fn rest(&self, at_most: Duration, hints_count: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.listening = hints_count;
        let resting = |state: &mut WakeState| !(state.stopping || hints_count && state.hinted);
        let (mut state, _) =
            self.changed.wait_timeout_while(state, at_most, resting).unwrap_or_else(PoisonError::into_inner);
        state.listening = false;
        // Hints of before a look are served by it.
        state.hinted = false;
    }
}
