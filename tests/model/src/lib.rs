//! The protocols of the queues and of the sequencer without Redis, workers or HTTP.
//!
//! Each protocol is specified once, as a `Reference`: a plain value whose methods correspond to the atomic scripts,
//! with time passed in. It has two uses:
//!
//! * **Explored**: a model adds consumers, workers, producers and all their faults, and visits every state that they
//!   can cause. The predicates F1–F7 and O1–O12 are checked in each, and from each a settled state must be reachable.
//! * **As oracle**: the tests of the real scripts make the same calls to a real Redis and to a `Reference`, and
//!   compare answers and contents.
//!
//! A model that finds nothing proves nothing unless it is known to find faults. So every part of a protocol can be left out
//! ([`queues::Part`], [`sequencer::Part`]), and a test names the predicate that is violated then.
//!
//! ```text
//!  queues/reference.rs ◀── queues/model.rs ──┐
//!                                            ├─▶ explore.rs: breadth first, shortest counterexample, liveness
//!  sequencer/reference.rs ◀─ …/model.rs ─────┘
//! ```

use std::fmt;

pub mod explore;
pub mod queues;
pub mod sequencer;

/// A predicate that does not hold, with the observed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the predicate: `F2`, `O9`.
    pub predicate: &'static str,
    /// The observed state.
    pub detail: String,
}

impl Violation {
    /// `predicate` does not hold.
    #[must_use]
    pub fn new(predicate: &'static str, detail: impl Into<String>) -> Self {
        Self { predicate, detail: detail.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.predicate, self.detail)
    }
}

impl std::error::Error for Violation {}

/// `Err` with `predicate` unless `holds`; the description is built only when it is needed.
pub(crate) fn ensure(
    holds: bool,
    predicate: &'static str,
    detail: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(predicate, detail())) }
}
