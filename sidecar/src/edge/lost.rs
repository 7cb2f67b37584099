//! Calculates how many requests never reached the log. No I/O.
//!
//! nginx counts accepted requests in shared memory, which survives the death of a worker. The lines in that worker's
//! buffer do not survive. So *finished − lines*, with finished = accepted − in flight − never logged, is constant
//! during normal operation and increases by the number of lost lines. The two numbers are never read at the same
//! moment, so under traffic a single difference means nothing. Therefore each sample at time T has two bounds:
//!
//! * **at most**: finished(T) − the lines that were counted before T,
//! * **at least**: finished(T) − the lines that are counted as soon as everything that was logged before T is counted.
//!
//! The highest *at least* minus the lowest earlier *at most* is a number of certainly lost lines. It is never too high,
//! and it is exact after traffic paused for a second before and after.

use std::collections::VecDeque;

/// nginx writes its log buffer after at most 200 ms. This limit has a margin.
const MAX_LOG_DELAY_MS: u64 = 1_000;
/// The maximum number of samples that wait for the follower. If it is far behind, the oldest are dropped.
const MAX_WAITING: usize = 600;

/// nginx's counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    /// The time of the request, in unix milliseconds.
    pub(super) at_ms: u64,
    /// Requests accepted since nginx started.
    pub(super) accepted: u64,
    /// Requests that have not finished, so that no line is expected yet.
    pub(super) in_flight: u64,
    /// Requests that are not logged and have certainly finished.
    pub(super) unlogged_least: u64,
    /// Requests that are not logged and may have finished.
    pub(super) unlogged_most: u64,
    /// Lines that were counted before the sample.
    pub(super) lines_before: u64,
}

/// The follower's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    /// Lines, good and bad.
    pub(super) lines: u64,
    /// The lines include everything that was in the log at this unix millisecond. 0 if unknown.
    pub(super) until_ms: u64,
}

/// Counts lost lines.
#[derive(Debug, Default)]
pub(super) struct Lost {
    waiting: VecDeque<Sample>,
    accepted: u64,
    most: Smooth,
    least: Smooth,
    lowest_most: Option<i64>,
    highest_least: Option<i64>,
    /// Lines lost before nginx restarted.
    before: u64,
}

impl Lost {
    /// Adds a sample.
    pub(super) fn sample(&mut self, sample: Sample) {
        if sample.accepted < self.accepted {
            // nginx was restarted, so its counters began at zero.
            *self = Self { before: self.total(), ..Self::default() };
        }
        self.accepted = sample.accepted;
        let most = difference(&sample, sample.unlogged_least, sample.lines_before);
        if let Some(most) = self.most.next(most, i64::max) {
            self.lowest_most = Some(self.lowest_most.map_or(most, |lowest| lowest.min(most)));
        }
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(sample);
    }

    /// Updates the bounds with the current counters.
    pub(super) fn counted(&mut self, counted: Counted) {
        while let Some(sample) = self.waiting.front().copied() {
            if counted.until_ms < sample.at_ms + MAX_LOG_DELAY_MS {
                break;
            }
            self.waiting.pop_front();
            let least = difference(&sample, sample.unlogged_most, counted.lines);
            if let Some(least) = self.least.next(least, i64::min) {
                self.highest_least = Some(self.highest_least.map_or(least, |highest| highest.max(least)));
            }
        }
    }

    /// The number of certainly lost requests.
    pub(super) fn total(&self) -> u64 {
        let lost = match (self.highest_least, self.lowest_most) {
            (Some(least), Some(most)) => least - most,
            _ => 0,
        };
        self.before + u64::try_from(lost).unwrap_or(0)
    }
}

fn difference(sample: &Sample, unlogged: u64, lines: u64) -> i64 {
    // Counters of requests never come near 2^63.
    sample.accepted as i64 - sample.in_flight as i64 - unlogged as i64 - lines as i64
}

/// Returns the weaker of two consecutive values. nginx counts a request as finished some microseconds after its client
/// received the end of the response, and a sample in between must not become a bound.
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

    /// Adds two samples, and later the counters after them.
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
    fn accepted_requests_without_a_log_line_are_lost() {
        let mut lost = Lost::default();
        settle(&mut lost, 0, 100, 40);
        assert_eq!(lost.total(), 0, "lines before the first sample are not lost");
        settle(&mut lost, 10_000, 200, 140);
        assert_eq!(lost.total(), 0);
        settle(&mut lost, 20_000, 300, 209);
        assert_eq!(lost.total(), 31);
        settle(&mut lost, 30_000, 301, 210);
        assert_eq!(lost.total(), 31, "counted once");
    }

    #[test]
    fn the_total_survives_a_restart_of_nginx() {
        let mut lost = Lost::default();
        settle(&mut lost, 0, 100, 100);
        settle(&mut lost, 10_000, 200, 190);
        settle(&mut lost, 20_000, 5, 195);
        assert_eq!(lost.total(), 10);
        settle(&mut lost, 30_000, 15, 203);
        assert_eq!(lost.total(), 12);
    }

    #[test]
    fn lines_that_may_still_be_buffered_are_not_lost() {
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
        /// Under traffic with lines late by up to a second, the total never exceeds the real loss, and equals it after
        /// a pause.
        #[test]
        fn the_total_is_never_too_high_and_is_exact_after_a_pause(
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
