//! Follows the access log. Every complete line is counted exactly once, whatever happens to the file.
//!
//! ```text
//!             ┌────────────── read all log files ◀─────────────┐
//!             ▼                                                 │ hint (notify) or 500 ms
//!          decide ──▶ continue in the current file ──▶ fold ─▶ commit
//!             │  ├───▶ read another file that is not read to its end
//!             │  └───▶ switch to the active file after the rotated one is finished
//!             └──────▶ data is missing: count a gap
//! ```
//!
//! **Handled faults.** Rotation by renaming, also several times while the sidecar was down, lines that workers still
//! write to the old file, deletion of an open file, copy-truncate (the copy is read from where the original was left),
//! inode reuse, a partial last line, a missing file, and a store that is unavailable, loses replies or is rolled back.
//! After every uncertain outcome it reads the place from the store and continues from there.
//!
//! **Windows.** All unread lines of a file, up to a limit, are folded together. If they need more increments than one
//! script may add, they are committed part by part, one per step (`window.rs`), before any further line is read. A
//! window belongs to one file and starts at the stored place: a change of file, or a gap, is committed before it.
//!
//! **Limits.** It cannot know lines that were written and truncated or deleted before it ever saw their file. If the
//! place where it was reading is missing, it counts a gap. The router's lost-lines metric shows the rest.
//!
//! [`decide`](decide::decide) is pure. [`Follower::step`] performs one round with a time that is passed in, so the
//! model-based test drives exactly this code. [`service`] adds a thread and a clock.

pub mod decide;
mod directory;
mod file;
mod read;
pub mod service;
mod window;

use std::{io, path::PathBuf, time::Duration};

use crate::{
    commit::{self, Claim, Commit, Store, Tally, Window},
    fold::{Fold, Increments, Limits},
    place::{Known, Place},
    rotate::Rotated,
};
use decide::{Action, Gap, Seen, decide, position, unread};
use directory::Directory;
use read::{Found, Reader, Until};
use window::Batch;

/// How long a rotated file is watched for late lines before the active one becomes current. Workers reopen their log
/// within milliseconds of the signal. A file that grows later is still read as long as it has a name.
pub const GRACE: Duration = Duration::from_secs(2);

/// Interval at which an idle follower checks the stored place. Otherwise a restarted Redis that lost its last second
/// would be detected only with the next line.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A failed step. All errors but [`Error::Fenced`] can be retried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer sidecar follows this node's log. This one stops.
    #[error("a newer sidecar ({owner}) took over this node")]
    Fenced {
        /// The newer process.
        owner: String,
    },
    /// The store failed.
    #[error("the statistics store failed")]
    Store(#[from] commit::Error),
    /// The log cannot be read.
    #[error("cannot read the log at {path}")]
    Log {
        /// The active log.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// The result of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// Whether something was committed.
    pub committed: bool,
    /// Whether more work is waiting.
    pub more: bool,
    /// Bytes of complete files that are not counted yet.
    pub lag_bytes: u64,
    /// Size of the active file, if there is one.
    pub active_bytes: Option<u64>,
    /// The latest request in this commit, in unix milliseconds.
    pub latest_ms: Option<u64>,
    /// Increments that were rejected because a key has the wrong type.
    pub refused: u64,
}

/// The state of the store, and the uncommitted changes.
#[derive(Debug)]
struct State {
    stored: Place,
    /// The unfinished window after that place, as stored.
    window: Option<Window>,
    place: Place,
    /// The position in the file of `place` where the folded lines begin.
    begin: u64,
    gaps: u64,
    gap_bytes: u64,
}

impl State {
    fn new(place: Place, window: Option<Window>) -> Self {
        let begin = place.position;
        Self { stored: place.clone(), window, place, begin, gaps: 0, gap_bytes: 0 }
    }
}

/// Follows one log into one store, step by step.
#[derive(Debug)]
pub struct Follower<S> {
    path: PathBuf,
    store: S,
    directory: Directory,
    reader: Reader,
    fold: Fold,
    limits: Limits,
    /// The window that is committed in parts.
    batch: Option<Batch>,
    /// `None` until the store reported its place, and after every uncertain outcome.
    state: Option<State>,
    claimed: bool,
    tally: Tally,
    /// The time since which the current file has been neither active nor growing.
    away_since: Option<Duration>,
    /// The largest known size of the current file, from which the minimum size of a gap is calculated.
    current_bytes: u64,
    checked: Duration,
    /// The last known stored place.
    last: Place,
    lag_bytes: u64,
}

impl<S: Store> Follower<S> {
    /// Creates a follower of the log that nginx writes at `path`.
    pub fn new(path: PathBuf, store: S) -> Self {
        Self::with_limits(path, store, Limits::default())
    }

    /// Creates a follower with other limits. Small limits split few lines into many parts.
    pub fn with_limits(path: PathBuf, store: S, limits: Limits) -> Self {
        Self {
            directory: Directory::new(path.clone()),
            path,
            store,
            reader: Reader::new(),
            fold: Fold::default(),
            limits,
            batch: None,
            state: None,
            claimed: false,
            tally: Tally::default(),
            away_since: None,
            current_bytes: 0,
            checked: Duration::ZERO,
            last: Place::default(),
            lag_bytes: 0,
        }
    }

    /// The counters of this node since its first line, as reported by the store.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The place up to which everything is counted, or `None` while it is unknown.
    pub fn place(&self) -> Option<&Place> {
        self.state.as_ref().map(|state| &state.stored)
    }

    /// The rotated files, as of the last step.
    pub fn rotated(&self) -> Vec<Rotated> {
        self.state.as_ref().map_or_else(Vec::new, |state| self.directory.rotated(&state.stored))
    }

    /// Reads, folds and commits once, or commits the next part of the folded lines. `now` is any monotonic time.
    ///
    /// # Errors
    /// See [`Error`]. The next step corrects everything that a failed step changed.
    pub fn step(&mut self, now: Duration) -> Result<Step, Error> {
        let mut state = match self.state.take() {
            Some(state) => state,
            None => match self.claim() {
                Ok(state) => state,
                Err(error) => {
                    self.measure(now);
                    return Err(error);
                }
            },
        };
        // From here to the end of the commit, an error leaves `self.state` empty, and the next step reads the place
        // from the store.
        if state.window.is_some() || self.batch.as_ref().is_some_and(|batch| batch.follows(&state)) {
            return self.continue_window(state, now);
        }
        self.batch = None;
        self.fold.clear();
        let files = self.find_lines(&mut state, now).map_err(|source| self.unreadable(source))?;
        self.commit(state, &files, now)
    }

    /// Bytes that are not counted yet, as of the last step, including a failed one.
    pub fn lag_bytes(&self) -> u64 {
        self.lag_bytes
    }

    /// Updates the lag while the store is unavailable, and holds files open that are deleted in the meantime.
    fn measure(&mut self, now: Duration) {
        // If the log is unreadable, too, a later step reports it.
        if let Ok(files) = self.directory.read(&self.last, now) {
            self.lag_bytes = lag_bytes(&self.last, &files);
        }
    }

    fn claim(&mut self) -> Result<State, Error> {
        match self.store.claim(self.claimed)? {
            Claim::Owned { place, tally, window } => {
                self.claimed = true;
                self.tally = tally;
                self.last.clone_from(&place);
                self.forget();
                Ok(State::new(place, window))
            }
            Claim::Fenced { owner } => Err(Error::Fenced { owner }),
        }
    }

    fn forget(&mut self) {
        self.directory.forget();
        self.reader.forget();
        self.away_since = None;
        self.current_bytes = 0;
    }

    /// Folds unread lines, and moves the place in memory.
    fn find_lines(&mut self, state: &mut State, now: Duration) -> io::Result<Vec<Seen>> {
        let mut files = self.directory.read(&state.place, now)?;
        adopt(state, &files);
        let mut suspected = None;
        // Each round either ends the step or excludes a file. The limit applies if the log changes faster than it is
        // read.
        for _ in 0..files.len() + 16 {
            let rested = self.away_since.is_some_and(|since| now.saturating_sub(since) >= GRACE);
            match decide(&state.place, &files, rested) {
                // A directory that is read while files are renamed can lack one. Only a file that is missing
                // twice is gone.
                Action::Lost(gap) if suspected != Some(gap) => {
                    suspected = Some(gap);
                    files = self.directory.read(&state.place, now)?;
                }
                Action::Lost(gap) => self.note_gap(state, gap),
                Action::Read(index) => {
                    let from = position(&state.place, &files, index).unwrap_or(0);
                    let seen = files[index];
                    match self.read(&seen, from)? {
                        Found::Lines { to } => {
                            self.apply(state, &seen, from, to, &files);
                            return Ok(files);
                        }
                        Found::Nothing => {
                            self.directory.mark_barren(&seen);
                            files[index].barren = true;
                        }
                        Found::Changed => files = self.directory.read(&state.place, now)?,
                    }
                }
                Action::Settle(index) => {
                    let active = files[index];
                    let from = position(&state.place, &files, index).unwrap_or(0);
                    let exists = |known: &Known| files.iter().any(|file| file.is(known));
                    state.place.switch(active.id, active.fingerprint, from, exists);
                    self.away_since = None;
                    break;
                }
                Action::Wait => {
                    self.note_rest(state, &files, now);
                    break;
                }
            }
        }
        Ok(files)
    }

    fn read(&mut self, seen: &Seen, from: u64) -> io::Result<Found> {
        let (Some(fingerprint), Some(log)) = (seen.fingerprint, self.directory.log(seen.id)?) else {
            return Ok(Found::Changed);
        };
        self.reader.read(log, fingerprint, from, Until::Full(self.limits), &mut self.fold)
    }

    /// Moves the place past the lines just read.
    fn apply(&mut self, state: &mut State, seen: &Seen, from: u64, to: u64, files: &[Seen]) {
        let place = &mut state.place;
        let same = place.file.is_some_and(|file| file.inode == seen.id.inode)
            && place.fingerprint == seen.fingerprint
            && place.position == from;
        if !same {
            place.switch(seen.id, seen.fingerprint, from, |known| files.iter().any(|file| file.is(known)));
            self.current_bytes = 0;
        }
        place.file = Some(seen.id);
        place.position = to;
        state.begin = from;
        self.current_bytes = self.current_bytes.max(seen.size).max(to);
        self.away_since = None;
    }

    fn note_gap(&mut self, state: &mut State, gap: Gap) {
        let lost = self.current_bytes.saturating_sub(state.place.position);
        tracing::error!(?gap, place = ?state.place, bytes = lost, "log data lost");
        match gap {
            Gap::Truncated | Gap::Vanished => state.place.leave(),
            Gap::Shrunk { size } => {
                state.place.position = size;
                state.place.generation += 1;
            }
        }
        state.gaps += 1;
        state.gap_bytes += lost;
        self.current_bytes = 0;
        self.reader.forget();
    }

    fn note_rest(&mut self, state: &State, files: &[Seen], now: Duration) {
        let current = files.iter().find(|file| Some(file.id) == state.place.file);
        self.current_bytes = self.current_bytes.max(current.map_or(0, |file| file.size));
        let away = state.place.position > 0 && current.is_none_or(|file| !file.active);
        self.away_since = if away { self.away_since.or(Some(now)) } else { None };
    }

    fn commit(&mut self, state: State, files: &[Seen], now: Duration) -> Result<Step, Error> {
        let lag_bytes = lag_bytes(&state.place, files);
        let moved = state.gaps > 0 || state.place.generation != state.stored.generation;
        let has_changes = !self.fold.is_empty() || moved;
        if !has_changes && now.saturating_sub(self.checked) < CHECK_INTERVAL {
            self.lag_bytes = lag_bytes;
            let active_bytes = files.iter().find(|file| file.active).map(|file| file.size);
            self.state = Some(state);
            return Ok(Step { lag_bytes, active_bytes, ..Step::default() });
        }
        let increments = self.fold.increments();
        if increments.len() > self.limits.part {
            let begin = Place { position: state.begin, ..state.place.clone() };
            let fold = std::mem::take(&mut self.fold);
            let batch = Batch::new(begin.clone(), state.place.clone(), increments, fold, self.limits.part);
            self.batch = Some(batch.with_more(lag_bytes > 0));
            if !moved {
                return self.continue_window(state, now);
            }
            // A window must begin at the stored place. Otherwise a process that finds it would not know its file.
            return self.commit_all(
                State { place: begin, ..state },
                &Increments::default(),
                files,
                true,
                now,
            );
        }
        // Only a step without new lines has checked all files.
        self.commit_all(state, &increments, files, has_changes && lag_bytes > 0, now)
    }

    /// Commits everything up to `state.place` in one script, and ends an unfinished window.
    fn commit_all(
        &mut self,
        state: State,
        increments: &Increments,
        files: &[Seen],
        more: bool,
        now: Duration,
    ) -> Result<Step, Error> {
        let fold = std::mem::take(&mut self.fold);
        let commit = Commit {
            from: &state.stored,
            to: &state.place,
            under_way: state.window,
            then: None,
            part: increments.whole(),
            fold: &fold,
            gaps: state.gaps,
            gap_bytes: state.gap_bytes,
        };
        let has_changes =
            !fold.is_empty() || state.gaps > 0 || state.place.generation != state.stored.generation;
        let sent = self.send(&commit, files, now);
        self.fold = fold;
        let Some(step) = sent? else { return Ok(Step { more: true, ..Step::default() }) };
        self.last.clone_from(&state.place);
        self.state = Some(State::new(state.place, None));
        Ok(Step { committed: has_changes, more, ..step })
    }
}

/// Assigns a position without a file (written by other tools or manually) to the active file, if that is long enough.
fn adopt(state: &mut State, files: &[Seen]) {
    let place = &mut state.place;
    if place.position == 0 || place.fingerprint.is_some() {
        return;
    }
    let active = files.iter().find(|file| file.active && file.size >= place.position);
    place.file = active.map(|file| file.id);
    place.fingerprint = active.and_then(|file| file.fingerprint);
    // Committed immediately: a process that finds a window after this position must know its file.
    place.generation += 1;
    if place.fingerprint.is_none() {
        tracing::error!(
            position = place.position,
            "stored position matches no file, counting from the beginning"
        );
        place.leave();
        state.gaps += 1;
    }
}

/// Bytes that are not counted yet. A partial last line waits for nginx and is not included.
fn lag_bytes(place: &Place, files: &[Seen]) -> u64 {
    (0..files.len()).filter(|index| !files[*index].barren).map(|index| unread(place, files, index)).sum()
}
