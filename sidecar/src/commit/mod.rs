//! Counters and position, moved together.
//!
//! Exactly-once rests on one script: it compares who commits and from where, and only then adds the increments *and*
//! moves the position. Redis writes a script to its append-only file as one transaction, so when it loses the last
//! second of it, counters and position go back together and the same lines are counted again from the older place.
//!
//! ```text
//!             claim                        commit                       commit
//!  starting ─────────▶ owner ─ place P ───────────────▶ owner, place Q ─────────▶ …
//!                        │ reply lost: claim again, go on from wherever the store stands (P or Q)
//!                        │ stored claim is older: Redis went back in time, claim again
//!                        ╰ stored claim is newer: fenced, for good
//! ```
//!
//! **Windows.** A range of lines that comes to more increments than one script may add is committed in parts. Between two
//! of them the side hash holds the [`Window`]: its end, how many parts, how many are done, and a digest of all. Each
//! script compares that as well, so a part that is repeated or late changes nothing either; the last part moves the
//! position and counts the lines. Whoever claims is told of a window under way, folds the same bytes again and goes on
//! behind the parts that are done. Going back in time, Redis takes window and counters back together.
//!
//! ```text
//!  place P ──part 1──▶ P, window 1/3 ──part 2──▶ P, window 2/3 ──part 3──▶ place Q
//!                        │ claim by anybody: fold P…end again, go on with part 2
//!                        ╰ bytes gone or folded otherwise: place = end, a gap of P…end, never counted twice
//! ```
//!
//! **Two sidecars of one node.** The newest starter takes over, so a restart never waits for a lease of the process
//! that died. The one that was replaced stops following (its process stays up, not ready, with an alarm): were it to
//! exit, its supervisor would start it again and the two would take turns for ever.
//!
//! [`Store`] is the seam: the follower knows only the trait, and its property test puts a store behind it that loses
//! replies and forgets.

mod store;
mod window;

use signalbox_store::Kind;

pub use store::RedisStore;
pub use window::Window;

use crate::{
    fold::{Fold, Part},
    place::Place,
};

/// Where the counters are. Synchronous, because the follower has a thread of its own.
pub trait Store {
    /// Takes ownership (`again: false`, at the start) or makes sure of it (`again: true`), and says where the log is
    /// counted up to.
    ///
    /// # Errors
    /// When the store is away or refuses; nothing is known then.
    fn claim(&mut self, again: bool) -> Result<Claim, Error>;

    /// Commits, unless the stored place is not the one that the commit goes on from.
    ///
    /// # Errors
    /// When the store is away: the outcome is unknown, [`Self::claim`] again to learn it. When it refuses: nothing
    /// changed.
    fn commit(&mut self, commit: &Commit<'_>) -> Result<Outcome, Error>;
}

/// What [`Store::claim`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// This process owns the node's position.
    Owned {
        /// Where to go on. A node that was never counted starts at the default place.
        place: Place,
        /// What was counted so far.
        tally: Tally,
        /// The lines behind that place that are counted in part.
        window: Option<Window>,
    },
    /// A newer process owns it.
    Fenced {
        /// That process.
        owner: String,
    },
}

/// What a node counted since its first line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Good lines.
    pub lines: u64,
    /// Bad lines.
    pub bad_lines: u64,
    /// Times that data was lost, or may have been.
    pub gaps: u64,
    /// Bytes known to be lost in gaps. What was never seen is not in here.
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

/// A range of lines, counted; or a part of one.
#[derive(Debug, Clone)]
pub struct Commit<'a> {
    /// The place as it is believed to be stored.
    pub from: &'a Place,
    /// The place after it.
    pub to: &'a Place,
    /// The window under way as it is believed to be stored.
    pub under_way: Option<Window>,
    /// The window under way after it. `None` completes the range: only then the position moves, and what is below
    /// `part` counts.
    pub then: Option<Window>,
    /// What is added to the counters.
    pub part: Part<'a>,
    /// All lines between, for their number.
    pub fold: &'a Fold,
    /// Gaps found on the way.
    pub gaps: u64,
    /// Bytes known to be lost in them.
    pub gap_bytes: u64,
}

impl Commit<'_> {
    /// Bytes that it moves on by in the file where it ends.
    pub fn bytes(&self) -> u64 {
        if self.from.generation == self.to.generation {
            self.to.position.saturating_sub(self.from.position)
        } else {
            self.to.position
        }
    }

    /// What the commit adds to the node's tally.
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

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Committed {
        /// Increments that a key or field in the way refused. Those are lost.
        refused: u64,
    },
    /// Nothing changed: the stored place, its window or its owner is another. [`Store::claim`] again.
    Elsewhere,
}

/// A store that did not answer, or not as it should.
#[derive(Debug, thiserror::Error)]
#[error("the place in the log could not be read or moved")]
pub struct Error {
    kind: Kind,
    #[source]
    source: Option<signalbox_store::Error>,
}

impl Error {
    /// An error without a Redis behind it, for other stores.
    pub fn new(kind: Kind) -> Self {
        Self { kind, source: None }
    }

    /// What can be done about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl From<signalbox_store::Error> for Error {
    fn from(source: signalbox_store::Error) -> Self {
        Self { kind: source.kind(), source: Some(source) }
    }
}
