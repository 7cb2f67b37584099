//! Computations that may take long: conditions that compare many values, in gates that follow one another.
//!
//! An evaluation usually takes microseconds, and is made where its result is needed. If an evaluation of a machine has taken
//! longer, the next ones get a place first, and run outside of the threads that serve requests.

use std::{
    num::NonZero,
    sync::atomic::{AtomicU32, Ordering},
    thread::available_parallelism,
    time::Duration,
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
    time::Instant,
};

use crate::fair::{Caps, FairPlaces};

/// An evaluation that takes so long delays requests.
const LONG: Duration = Duration::from_millis(2);
/// After so many evaluations that did not take long, the next ones are expected to be the same.
const REMEMBERED: u32 = 100;

/// Whether evaluations of a machine have taken long.
#[derive(Debug, Default)]
pub(crate) struct Effort(AtomicU32);

impl Effort {
    /// Whether the next evaluation is expected to take long.
    pub(crate) fn is_high(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Makes an evaluation, and notes how long it takes.
    pub(crate) fn noting<T>(&self, evaluate: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let evaluated = evaluate();
        self.note(began.elapsed());
        evaluated
    }

    fn note(&self, took: Duration) {
        if took >= LONG {
            self.0.store(REMEMBERED, Ordering::Relaxed);
        } else if let left @ 1.. = self.0.load(Ordering::Relaxed) {
            self.0.store(left - 1, Ordering::Relaxed);
        }
    }
}

/// The places for computations: enough for all cores, of which one client cannot use all.
pub(crate) fn places() -> FairPlaces {
    let cores = available_parallelism().map_or(1, NonZero::get);
    FairPlaces::new(Caps { all: cores + 1, client: cores, machine: cores })
}

/// Computes while other threads take over what this one would do. A runtime of one thread has no others.
pub(crate) fn aside<T>(compute: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => compute(),
        _ => block_in_place(compute),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_evaluation_that_takes_long_is_remembered_for_the_next_ones() {
        let effort = Effort::default();
        effort.note(LONG - Duration::from_nanos(1));
        assert!(!effort.is_high());
        effort.note(LONG);
        for _ in 0..REMEMBERED {
            assert!(effort.is_high());
            effort.note(Duration::ZERO);
        }
        assert!(!effort.is_high());
    }
}
