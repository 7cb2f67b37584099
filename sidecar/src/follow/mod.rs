//! Follows the access log: every complete line is counted exactly once, whatever happens to the file.
//!
//! ```text
//!             ┌──────────── look at all log files ◀─────────────┐
//!             ▼                                                 │ hint (notify) or 500 ms
//!          decide ──▶ read on in the current file ──▶ fold ──▶ commit
//!             │  ├───▶ read another that is not read to its end
//!             │  └───▶ settle on the active file, the rotated one being finished
//!             └──────▶ data is gone: count a gap
//! ```
//!
//! **What it lives through.** Rename rotation, several of them while it was down, lines that workers still write to the
//! old file, deletion of a file that it has open, copy-truncate (with the copy read where the original was left),
//! inode reuse, a partial last line, a missing file, a store that is away, that loses replies, or that goes back in
//! time. After any doubt it asks the store where it stands and goes on from there.
//!
//! **Windows.** Everything that is unread in a file, up to a bound, is folded at once. What comes to more increments than
//! one script may add is committed part by part, one a step ([`window`]); the next look comes when the last is done. A
//! window lies in one file and starts where the store stands: a change of file, or a gap, is committed before it.
//!
//! **What it cannot know.** Lines that were written and truncated or deleted before it ever saw their file. Where the
//! place it was reading is gone, that is counted as a gap; the router's lost-lines metric shows the rest.
//!
//! [`decide`](decide::decide) is pure; [`Follower::step`] does one round of it with a time that is passed in, so that
//! the model-based test drives exactly this code; [`service`] gives it a thread and a clock.

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

/// How long a rotated file is watched for late lines before the active one becomes current: workers reopen their log
/// within milliseconds of the signal. A file that grows even later is read all the same, as long as it has a name.
pub const GRACE: Duration = Duration::from_secs(2);

/// How often an idle follower asks whether the stored place is still where it left it. A restarted Redis that lost its
/// last second would otherwise be noticed only with the next line.
const CHECK: Duration = Duration::from_secs(1);

/// Why a step failed. All but [`Error::Fenced`] are worth trying again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer sidecar follows this node's log. This one is done.
    #[error("another sidecar ({owner}) took over this node")]
    Fenced {
        /// The process that did.
        owner: String,
    },
    /// The store failed.
    #[error("the statistics store failed")]
    Store(#[from] commit::Error),
    /// The log could not be read.
    #[error("the log at {path} could not be read")]
    Log {
        /// The active log.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What a step did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// Whether something was committed.
    pub committed: bool,
    /// Whether there is more to do at once.
    pub more: bool,
    /// Bytes of complete files that are not counted yet.
    pub lag_bytes: u64,
    /// Size of the active file, if there is one.
    pub active_bytes: Option<u64>,
    /// The latest request in this commit, in unix milliseconds.
    pub latest_ms: Option<u64>,
    /// Increments that were refused by a key in the way.
    pub refused: u64,
}

/// What is known of the store, and what was done since.
#[derive(Debug)]
struct State {
    stored: Place,
    /// The window under way behind that place, as stored.
    window: Option<Window>,
    place: Place,
    /// Where in the file of `place` the folded lines begin.
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

/// Follows one log into one store, a step at a time.
#[derive(Debug)]
pub struct Follower<S> {
    path: PathBuf,
    store: S,
    directory: Directory,
    reader: Reader,
    fold: Fold,
    limits: Limits,
    /// The window that is being committed in parts.
    batch: Option<Batch>,
    /// `None` until the store said where it stands, and again after any doubt.
    state: Option<State>,
    claimed: bool,
    tally: Tally,
    /// Since when the current file has been neither active nor growing.
    away_since: Option<Duration>,
    /// The largest size that the current file was seen with, for saying how much a gap swallowed at least.
    current_bytes: u64,
    checked: Duration,
    /// The last place that was known to be stored.
    last: Place,
    lag_bytes: u64,
}

impl<S: Store> Follower<S> {
    /// A follower of the log that nginx writes at `path`.
    pub fn new(path: PathBuf, store: S) -> Self {
        Self::with_limits(path, store, Limits::default())
    }

    /// The same with other limits than the usual ones, for tests: small ones make many parts of few lines.
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

    /// What this node counted since its first line, as far as the store told.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Where everything before is counted; `None` while that is not known.
    pub fn place(&self) -> Option<&Place> {
        self.state.as_ref().map(|state| &state.stored)
    }

    /// The files that were rotated away, as of the last step.
    pub fn rotated(&self) -> Vec<Rotated> {
        self.state.as_ref().map_or_else(Vec::new, |state| self.directory.rotated(&state.stored))
    }

    /// Looks, reads, folds and commits once, or commits the next part of what was folded. `now` is any monotonic time.
    ///
    /// # Errors
    /// See [`Error`]. A failed step changed nothing that the next one would not put right.
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
        // From here to the end of the commit any error leaves `self.state` empty, and the next step asks the store.
        if state.window.is_some() || self.batch.as_ref().is_some_and(|batch| batch.follows(&state)) {
            return self.go_on(state, now);
        }
        self.batch = None;
        self.fold.clear();
        let files = self.find_lines(&mut state, now).map_err(|source| self.unreadable(source))?;
        self.commit(state, &files, now)
    }

    /// Bytes that wait to be counted, as of the last step, also of one that failed.
    pub fn lag_bytes(&self) -> u64 {
        self.lag_bytes
    }

    /// Without a store nothing can be counted, but the lag can be told, and files that are deleted meanwhile be held.
    fn measure(&mut self, now: Duration) {
        // A log that cannot be read either is told by the step that gets so far.
        if let Ok(files) = self.directory.look(&self.last, now) {
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

    /// Fills the fold from wherever lines are unread, and moves the place in memory.
    fn find_lines(&mut self, state: &mut State, now: Duration) -> io::Result<Vec<Seen>> {
        let mut files = self.directory.look(&state.place, now)?;
        adopt(state, &files);
        let mut suspected = None;
        // Each round either ends the step or rules a file out; the bound is for a log that changes faster than we look.
        for _ in 0..files.len() + 16 {
            let rested = self.away_since.is_some_and(|since| now.saturating_sub(since) >= GRACE);
            match decide(&state.place, &files, rested) {
                // A directory read while files are being renamed may miss one. Only what is gone twice is gone.
                Action::Lost(gap) if suspected != Some(gap) => {
                    suspected = Some(gap);
                    files = self.directory.look(&state.place, now)?;
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
                            self.directory.is_barren(&seen);
                            files[index].barren = true;
                        }
                        Found::Changed => files = self.directory.look(&state.place, now)?,
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
        tracing::error!(?gap, place = ?state.place, bytes = lost, "log data is gone");
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
        let news = !self.fold.is_empty() || moved;
        if !news && now.saturating_sub(self.checked) < CHECK {
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
                return self.go_on(state, now);
            }
            // A window has to begin where the store stands, or who finds it would not know in which file to look.
            return self.commit_all(
                State { place: begin, ..state },
                &Increments::default(),
                files,
                true,
                now,
            );
        }
        // Only a step without news has looked everywhere and found nothing.
        self.commit_all(state, &increments, files, news && lag_bytes > 0, now)
    }

    /// Commits everything up to `state.place` in one script.
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
            under_way: None,
            then: None,
            part: increments.whole(),
            fold: &fold,
            gaps: state.gaps,
            gap_bytes: state.gap_bytes,
        };
        let news = !fold.is_empty() || state.gaps > 0 || state.place.generation != state.stored.generation;
        let sent = self.send(&commit, files, now);
        self.fold = fold;
        let Some(step) = sent? else { return Ok(Step { more: true, ..Step::default() }) };
        self.last.clone_from(&state.place);
        self.state = Some(State::new(state.place, None));
        Ok(Step { committed: news, more, ..step })
    }
}

/// Gives a position without a file (written by other tools, or by hand) to the active file, if that is long enough.
fn adopt(state: &mut State, files: &[Seen]) {
    let place = &mut state.place;
    if place.position == 0 || place.fingerprint.is_some() {
        return;
    }
    let active = files.iter().find(|file| file.active && file.size >= place.position);
    place.file = active.map(|file| file.id);
    place.fingerprint = active.and_then(|file| file.fingerprint);
    // Written down at once: whoever finds a window behind this position has to know its file.
    place.generation += 1;
    if place.fingerprint.is_none() {
        tracing::error!(
            position = place.position,
            "the stored position is in no file, counting from the beginning"
        );
        place.leave();
        state.gaps += 1;
    }
}

/// Bytes that wait to be counted. A partial last line waits for nginx, not for us.
fn lag_bytes(place: &Place, files: &[Seen]) -> u64 {
    (0..files.len()).filter(|index| !files[*index].barren).map(|index| unread(place, files, index)).sum()
}
