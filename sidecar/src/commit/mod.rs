//! Changes the counters, and the position up to which the access log is counted, in one step.
//!
//! Counting exactly once depends on one script. It compares the owner (a sidecar) and the position, and only then adds
//! the increments *and* moves the position. Redis writes a script to its append-only file as one transaction. If Redis
//! loses the last second of the file, counters and position are rolled back together, and the same lines are counted
//! again from the older place.
//!
//! ```text
//!             claim                        commit                       commit
//!  starting ─────────▶ owner ─ place P ───────────────▶ owner, place Q ─────────▶ …
//!                        │ reply lost: claim again, continue from the stored place (P or Q)
//!                        │ stored claim is older: Redis was rolled back, claim again
//!                        ╰ stored claim is newer: fenced permanently
//! ```
//!
//! **Windows.** A range of lines that needs more increments than one script may add is committed in parts. Between two
//! parts, the position's hash contains the [`Window`]: its end, the number of parts, the number of finished parts, and a
//! digest of all. Each script compares these as well, so a repeated or late part changes nothing. The last part moves
//! the position and counts the lines. A process that claims a node with an unfinished window folds the same bytes again
//! and continues after the finished parts. If Redis is rolled back, window and counters are rolled back together.
//!
//! ```text
//!  place P ──part 1──▶ P, window 1/3 ──part 2──▶ P, window 2/3 ──part 3──▶ place Q
//!                        │ claim by any process: fold P…end again, continue with part 2
//!                        ╰ bytes missing or folded differently: place = end, a gap of P…end, never counted twice
//! ```
//!
//! **Two sidecars of one node.** The process that started last takes over, so a restart never waits for the lease of a
//! dead process. The replaced process stops following. It keeps running, not ready and with an alarm, because if it
//! exited, its supervisor would start it again and the two would alternate.
//!
//! The follower knows only the trait [`Store`]. Its property test uses a store that loses replies and is rolled back.

mod store;
mod window;

use signalbox_store::Kind;

pub use store::RedisStore;
pub use window::Window;

use crate::{
    fold::{Fold, Part},
    place::Place,
};

/// The store of counters and position. Synchronous, because the follower has its own thread.
pub trait Store {
    /// Takes ownership (`again: false`, at the start) or renews it (`again: true`), and returns the place up to which
    /// the log is counted.
    ///
    /// # Errors
    /// If the store is unavailable or rejects the call. The place is unknown then.
    fn claim(&mut self, again: bool) -> Result<Claim, Error>;

    /// Commits, unless the stored place differs from the one where the commit starts.
    ///
    /// # Errors
    /// If the store is unavailable, the outcome is unknown: call [`Self::claim`] again. If it rejects the commit,
    /// nothing changed.
    fn commit(&mut self, commit: &Commit<'_>) -> Result<Outcome, Error>;
}

/// The result of [`Store::claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// This process owns the node's position.
    Owned {
        /// The place to continue from. A node that was never counted starts at the default place.
        place: Place,
        /// The counters of the node.
        tally: Tally,
        /// The lines after that place that are partly counted.
        window: Option<Window>,
    },
    /// A newer process owns it.
    Fenced {
        /// The newer process.
        owner: String,
    },
}

/// The counters of a node since its first line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Good lines.
    pub lines: u64,
    /// Bad lines.
    pub bad_lines: u64,
    /// The number of times that data was lost, or may have been lost.
    pub gaps: u64,
    /// Bytes known to be lost in gaps. Bytes that were never seen are not included.
    pub gap_bytes: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.lines += more.lines;
        self.bad_lines += more.bad_lines;
        self.gaps += more.gaps;
        self.gap_bytes += more.gap_bytes;
    }
}

/// A counted range of lines, or a part of one.
#[derive(Debug, Clone)]
pub struct Commit<'a> {
    /// The place that is expected in the store.
    pub from: &'a Place,
    /// The place after it.
    pub to: &'a Place,
    /// The unfinished window that is expected in the store.
    pub under_way: Option<Window>,
    /// The unfinished window after this commit. `None` completes the range. Only then the position moves, and the fields
    /// below `part` are counted.
    pub then: Option<Window>,
    /// The increments of the counters.
    pub part: Part<'a>,
    /// All lines of the range, for their number.
    pub fold: &'a Fold,
    /// Gaps found before the lines.
    pub gaps: u64,
    /// Bytes known to be lost in these gaps.
    pub gap_bytes: u64,
}

impl Commit<'_> {
    /// The number of bytes that the position advances in the file where the commit ends.
    pub fn bytes(&self) -> u64 {
        if self.from.generation == self.to.generation {
            self.to.position.saturating_sub(self.from.position)
        } else {
            self.to.position
        }
    }

    /// The increments of the node's tally.
    pub fn tally(&self) -> Tally {
        if self.then.is_some() {
            return Tally::default();
        }
        Tally {
            lines: self.fold.lines(),
            bad_lines: self.fold.bad_lines(),
            gaps: self.gaps,
            gap_bytes: self.gap_bytes,
        }
    }
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The commit was applied.
    Committed {
        /// Increments that were rejected because a key or field has the wrong type. They are lost.
        refused: u64,
    },
    /// Nothing changed: the stored place, window or owner differs. Call [`Store::claim`] again.
    Elsewhere,
}

/// The store did not respond, or responded with an error.
#[derive(Debug, thiserror::Error)]
#[error("cannot read or move the place in the log")]
pub struct Error {
    kind: Kind,
    #[source]
    source: Option<signalbox_store::Error>,
}

impl Error {
    /// An error of a store that is not Redis.
    pub fn new(kind: Kind) -> Self {
        Self { kind, source: None }
    }

    /// The kind of the error, which decides what a caller can do.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl From<signalbox_store::Error> for Error {
    fn from(source: signalbox_store::Error) -> Self {
        Self { kind: source.kind(), source: Some(source) }
    }
}
