//! How many requests never came to the log. Arithmetic only.
//!
//! nginx counts the requests it accepts in shared memory, which survives the death of a worker; the lines in that
//! worker's buffer do not. So *finished − lines*, with finished = accepted − in flight − never logged, stays the same
//! while all is well and rises by what was lost. But the two numbers are never read at the same moment, and under
//! traffic the difference of a snapshot means nothing. Hence two bounds of each sample taken at T:
//!
//! * **at most**: finished(T) − the lines that were counted before T,
//! * **at least**: finished(T) − the lines that are counted once everything of before T is in them.
//!
//! The highest *at least* minus the lowest *at most* of before is a number that was certainly lost. It is never too
//! high, and exact as soon as traffic paused for a second before and after.

use std::collections::VecDeque;

/// nginx writes its log buffer after 200 ms at the latest; this is generous.
const WRITTEN_AFTER_MS: u64 = 1_000;
/// Samples that wait for the follower to catch up. When it is far behind the oldest are given up.
const WAITING: usize = 600;

/// What nginx said at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    /// Unix milliseconds at which it was asked.
    pub(super) at_ms: u64,
    /// Requests accepted since nginx started.
    pub(super) accepted: u64,
    /// Requests whose line is not due yet.
    pub(super) in_flight: u64,
    /// Requests that are not logged, finished for certain.
    pub(super) unlogged_least: u64,
    /// Requests that are not logged, finished perhaps.
    pub(super) unlogged_most: u64,
    /// Lines that were counted before the sample was taken.
    pub(super) lines_before: u64,
}

/// What the follower has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    /// Lines, good and bad.
    pub(super) lines: u64,
    /// Everything in the log at this unix millisecond is among them; 0 when that is not known.
    pub(super) until_ms: u64,
}

/// Keeps count of what was lost.
#[derive(Debug, Default)]
pub(super) struct Lost {
    waiting: VecDeque<Sample>,
    accepted: u64,
    most: Smooth,
    least: Smooth,
    lowest_most: Option<i64>,
    highest_least: Option<i64>,
    /// Of earlier lives of nginx.
    before: u64,
}

impl Lost {
    /// Takes a sample.
    pub(super) fn sample(&mut self, sample: Sample) {
        if sample.accepted < self.accepted {
            // nginx was restarted and counts from zero.
            *self = Self { before: self.total(), ..Self::default() };
        }
        self.accepted = sample.accepted;
        let most = difference(&sample, sample.unlogged_least, sample.lines_before);
        if let Some(most) = self.most.next(most, i64::max) {
            self.lowest_most = Some(self.lowest_most.map_or(most, |lowest| lowest.min(most)));
        }
        if self.waiting.len() == WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(sample);
    }

    /// Takes what was counted by now.
    pub(super) fn counted(&mut self, counted: Counted) {
        while let Some(sample) = self.waiting.front().copied() {
            if counted.until_ms < sample.at_ms + WRITTEN_AFTER_MS {
                break;
            }
            self.waiting.pop_front();
            let least = difference(&sample, sample.unlogged_most, counted.lines);
            if let Some(least) = self.least.next(least, i64::min) {
                self.highest_least = Some(self.highest_least.map_or(least, |highest| highest.max(least)));
            }
        }
    }

    /// Requests lost so far, for certain.
    pub(super) fn total(&self) -> u64 {
        let lost = match (self.highest_least, self.lowest_most) {
            (Some(least), Some(most)) => least - most,
            _ => 0,
        };
        self.before + u64::try_from(lost).unwrap_or(0)
    }
}

fn difference(sample: &Sample, unlogged: u64, lines: u64) -> i64 {
    // Counters of requests; none comes near 2^63.
    sample.accepted as i64 - sample.in_flight as i64 - unlogged as i64 - lines as i64
}

/// The weaker of two consecutive values: nginx counts a request as finished some microseconds after its client saw the
/// end of it, and a sample in between must not become a bound.
#[derive(Debug, Default)]
struct Smooth(Option<i64>);

impl Smooth {
    fn next(&mut self, value: i64, weaker: fn(i64, i64) -> i64) -> Option<i64> {
        self.0.replace(value).map(|before| weaker(before, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two samples and the count after them, a while later.
    fn settle(lost: &mut Lost, at_ms: u64, accepted: u64, lines: u64) {
        for at_ms in [at_ms, at_ms + 100] {
            let sample = Sample {
                at_ms,
                accepted,
                in_flight: 0,
                unlogged_least: 0,
                unlogged_most: 0,
                lines_before: lines,
            };
            lost.sample(sample);
        }
        lost.counted(Counted { lines, until_ms: at_ms + 2_000 });
    }

    #[test]
    fn what_was_accepted_and_not_logged_is_lost() {
        let mut lost = Lost::default();
        settle(&mut lost, 0, 100, 40);
        assert_eq!(lost.total(), 0, "lines of before we looked are no loss");
        settle(&mut lost, 10_000, 200, 140);
        assert_eq!(lost.total(), 0);
        settle(&mut lost, 20_000, 300, 209);
        assert_eq!(lost.total(), 31);
        settle(&mut lost, 30_000, 301, 210);
        assert_eq!(lost.total(), 31, "counted once");
    }

    #[test]
    fn a_restart_of_nginx_begins_anew_and_forgets_nothing() {
        let mut lost = Lost::default();
        settle(&mut lost, 0, 100, 100);
        settle(&mut lost, 10_000, 200, 190);
        settle(&mut lost, 20_000, 5, 195);
        assert_eq!(lost.total(), 10);
        settle(&mut lost, 30_000, 15, 203);
        assert_eq!(lost.total(), 12);
    }

    #[test]
    fn an_unsettled_count_proves_nothing() {
        let mut lost = Lost::default();
        settle(&mut lost, 0, 100, 100);
        let sample = Sample {
            at_ms: 5_000,
            accepted: 900,
            in_flight: 0,
            unlogged_least: 0,
            unlogged_most: 0,
            lines_before: 100,
        };
        lost.sample(sample);
        lost.sample(sample);
        lost.counted(Counted { lines: 100, until_ms: 5_500 });
        assert_eq!(lost.total(), 0, "their lines may still be in a buffer");
        lost.counted(Counted { lines: 900, until_ms: 6_000 });
        assert_eq!(lost.total(), 0);
    }

    proptest::proptest! {
        /// Traffic with lines late by up to a second: never more than what was lost, and exactly that after a pause.
        #[test]
        fn never_too_high_and_exact_after_a_pause(
            rates in proptest::collection::vec((0u64..500, 0u64..20), 1..40),
        ) {
            let mut lost = Lost::default();
            let (mut accepted, mut dropped, mut lines, mut at_ms) = (1_000, 0, 70, 0);
            settle(&mut lost, at_ms, accepted, lines);
            for (rate, drop) in rates {
                let drop = drop.min(rate);
                at_ms += 1_000;
                let lines_before = lines;
                accepted += rate;
                dropped += drop;
                lost.sample(Sample { at_ms, accepted, in_flight: 0, unlogged_least: 0, unlogged_most: 0, lines_before });
                // The lines of this second are counted only after the sample.
                lines += rate - drop;
                lost.counted(Counted { lines, until_ms: at_ms });
                proptest::prop_assert!(lost.total() <= dropped);
            }
            settle(&mut lost, at_ms + 10_000, accepted, lines);
            proptest::prop_assert_eq!(lost.total(), dropped);
        }
    }
}
