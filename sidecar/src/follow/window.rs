//! Continues an unfinished window: commits its next part, or skips it if its lines are lost.
//!
//! A step commits one part. So a stop, a takeover by another process or a log rotation between two parts has the same
//! effect as between two steps. The folded lines are kept in memory from part to part, also while the store is
//! unavailable. A process that continues the window of another process folds the window's bytes again.

use std::{io, time::Duration};

use signalbox_daemon::traces;

use super::{
    Error, Follower, State, Step,
    decide::Seen,
    lag_bytes,
    read::{Found, Until},
};
use crate::{
    commit::{Commit, Store, Window},
    fold::{FORMAT, Fold, Increments},
    place::Place,
};

/// A folded window.
#[derive(Debug)]
pub(super) struct Batch {
    from: Place,
    to: Place,
    /// Without finished parts.
    window: Window,
    increments: Increments,
    fold: Fold,
    /// Whether more lines were waiting when it was read. Newer lines wait for the next poll; otherwise a busy
    /// log would be sent in ever smaller windows.
    more: bool,
}

impl Batch {
    pub(super) fn new(from: Place, to: Place, increments: Increments, fold: Fold, part: usize) -> Self {
        let parts = u32::try_from(increments.len().div_ceil(part)).unwrap_or(u32::MAX);
        let window = Window::new(to.position, parts, increments.digest());
        Self { from, to, window, increments, fold, more: false }
    }

    pub(super) fn with_more(self, more: bool) -> Self {
        Self { more, ..self }
    }

    /// Whether it must be committed next.
    pub(super) fn follows(&self, state: &State) -> bool {
        // The list of other files is not compared: it changes only together with the generation.
        let start = |place: &Place| {
            (place.generation, place.position, place.fingerprint, place.file.map(|file| file.inode))
        };
        start(&self.from) == start(&state.stored) && state.window.is_none_or(|window| self.window.is(&window))
    }
}

impl<S: Store> Follower<S> {
    /// Commits the next part of the unfinished window.
    pub(super) fn continue_window(&mut self, mut state: State, now: Duration) -> Result<Step, Error> {
        let files = self.directory.read(&state.place, now).map_err(|source| self.unreadable(source))?;
        let batch = match self.batch.take().filter(|batch| batch.follows(&state)) {
            Some(batch) => batch,
            None => match state.window {
                Some(window) => match self.fold_again(&state, window, now) {
                    Ok(Some(batch)) => batch,
                    Ok(None) => return self.skip_window(state, window, &files, now),
                    Err(source) => return Err(self.unreadable(source)),
                },
                // The caller ensures that there is a window or a batch that follows.
                None => return Ok(Step { more: true, ..Step::default() }),
            },
        };
        let done = state.window.map_or(0, |window| window.done);
        let then = Window { done, ..batch.window }.next();
        let commit = Commit {
            from: &state.stored,
            to: &batch.to,
            under_way: state.window,
            then,
            part: batch.increments.part(done, self.limits.part),
            fold: &batch.fold,
            gaps: 0,
            gap_bytes: 0,
        };
        let sent = self.send(&commit, &files, now);
        let mut step = match sent {
            Ok(Some(step)) => step,
            // The folded lines are kept: the next claim returns how many parts are finished.
            other => {
                self.batch = Some(batch);
                return other.map(|_| Step { more: true, ..Step::default() });
            }
        };
        if then.is_some() {
            step.more = true;
            state.window = then;
            self.batch = Some(batch);
        } else {
            step.more = batch.more;
            self.away_since = None;
            self.current_bytes = self.current_bytes.max(batch.to.position);
            state = State::new(batch.to, None);
        }
        self.last.clone_from(&state.stored);
        self.state = Some(state);
        Ok(step)
    }

    /// Folds the lines of a window that is not in memory. `None` if they are missing or fold to a different result.
    fn fold_again(&mut self, state: &State, window: Window, now: Duration) -> io::Result<Option<Batch>> {
        let place = &state.stored;
        let Some((file, fingerprint)) = place.file.zip(place.fingerprint) else { return Ok(None) };
        if window.format != FORMAT {
            return Ok(None);
        }
        // A directory that is read while files are renamed can lack one. Only a file that is missing twice is
        // gone.
        for _ in 0..2 {
            let mut files = self.directory.read(place, now)?;
            // The original file is tried first. A copy is equally good, because the digest verifies both.
            files.sort_by_key(|seen| seen.id.inode != file.inode);
            for seen in files.iter().filter(|seen| seen.fingerprint == Some(fingerprint)) {
                let Some(log) = self.directory.log(seen.id)? else { continue };
                let mut fold = Fold::default();
                let until = Until::End(window.end);
                let found = self.reader.read(log, fingerprint, place.position, until, &mut fold)?;
                if found != (Found::Lines { to: window.end }) {
                    continue;
                }
                let to = Place { position: window.end, ..place.clone() };
                let increments = fold.increments();
                let batch = Batch::new(place.clone(), to, increments, fold, self.limits.part);
                if batch.window.is(&window) {
                    return Ok(Some(batch.with_more(true)));
                }
            }
        }
        Ok(None)
    }

    /// Skips a window whose remaining lines are lost. Part of it is counted, so it cannot be started again either.
    fn skip_window(
        &mut self,
        mut state: State,
        window: Window,
        files: &[Seen],
        now: Duration,
    ) -> Result<Step, Error> {
        let lost = window.end.saturating_sub(state.stored.position);
        tracing::error!(?window, format = FORMAT, place = ?state.stored, bytes = lost, "log data lost");
        state.place = Place { position: window.end, ..state.stored.clone() };
        (state.gaps, state.gap_bytes) = (1, lost);
        self.fold.clear();
        self.commit_all(state, &Increments::default(), files, true, now)
    }

    /// Sends a commit. `None` if the stored place differs.
    pub(super) fn send(
        &mut self,
        commit: &Commit<'_>,
        files: &[Seen],
        now: Duration,
    ) -> Result<Option<Step>, Error> {
        use crate::commit::Outcome;
        // Nothing of this is counted until the store confirms it.
        self.lag_bytes = lag_bytes(commit.from, files);
        let span = traces::commit(commit.tally().lines, commit.bytes());
        let outcome = span.in_scope(|| self.store.commit(commit));
        if let Err(error) = &outcome {
            traces::failed(&span, &error.to_string());
        }
        let Outcome::Committed { refused } = outcome? else { return Ok(None) };
        self.tally += commit.tally();
        if commit.then.is_none() {
            self.lag_bytes = lag_bytes(commit.to, files);
        }
        self.checked = now;
        Ok(Some(Step {
            committed: true,
            more: false,
            lag_bytes: self.lag_bytes,
            active_bytes: files.iter().find(|file| file.active).map(|file| file.size),
            latest_ms: Some(commit.fold.latest_ms()).filter(|latest| *latest > 0 && commit.then.is_none()),
            refused,
        }))
    }

    pub(super) fn unreadable(&mut self, source: io::Error) -> Error {
        self.forget();
        Error::Log { path: self.path.clone(), source }
    }
}
