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
//! **Two sidecars of one node.** The newest starter takes over, so a restart never waits for a lease of the process
//! that died. The one that was replaced stops following (its process stays up, not ready, with an alarm): were it to
//! exit, its supervisor would start it again and the two would take turns for ever.
//!
//! [`Store`] is the seam: the follower knows only the trait, and its property test puts a store behind it that loses
//! replies and forgets.

mod store;

use signalbox_store::Kind;

pub use store::RedisStore;

use crate::{fold::Fold, place::Place};

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

/// A range of lines, counted.
#[derive(Debug)]
pub struct Commit<'a> {
    /// The place as it is believed to be stored.
    pub from: &'a Place,
    /// The place after it.
    pub to: &'a Place,
    /// What the lines between add up to.
    pub fold: &'a Fold,
    /// Gaps found on the way.
    pub gaps: u64,
    /// Bytes known to be lost in them.
    pub gap_bytes: u64,
}

impl Commit<'_> {
    /// What the commit adds to the node's tally.
    pub fn tally(&self) -> Tally {
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
    /// Nothing changed: the stored place, or its owner, is another. [`Store::claim`] again.
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
