//! How long changes take to reach the routers, measured with this pacemaker's clock.
//!
//! Pure: the time is passed in. A sample runs from the table's answer to a change until the router's announcement of its
//! serial arrives here, so it includes the way back.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use signalbox_api::routes::{Bucket, Propagation as Measured};
use tokio::time::Instant;

/// Changes that are remembered until the routers have them.
const MAX_CHANGES: usize = 1024;
/// Samples that percentiles are taken of, for each router.
const MAX_SAMPLES: usize = 512;
/// Routers that are remembered. More have not been seen; the bound is against names made up.
const MAX_ROUTERS: usize = 256;

/// Upper bounds of the histogram, in milliseconds.
const BOUNDS_MS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// The measurements.
#[derive(Debug, Default)]
pub(crate) struct Propagation {
    /// By serial, oldest first.
    changes: VecDeque<(u64, Instant)>,
    routers: HashMap<String, Router>,
}

#[derive(Debug, Default)]
struct Router {
    acknowledged: u64,
    samples: VecDeque<Duration>,
}

impl Propagation {
    /// A change of this pacemaker got `serial`.
    pub(crate) fn applied(&mut self, serial: u64, now: Instant) {
        // A reseeded table continues with higher serials; an unchanged serial is not a change.
        if self.changes.back().is_some_and(|(last, _)| *last >= serial) {
            return;
        }
        if self.changes.len() == MAX_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back((serial, now));
    }

    /// A router announced that it has everything up to `serial`.
    pub(crate) fn acknowledged(&mut self, node: &str, serial: u64, now: Instant) {
        if !self.routers.contains_key(node) && self.routers.len() == MAX_ROUTERS {
            return;
        }
        // Changes before a router's first announcement may have waited for the router to exist.
        let router = self
            .routers
            .entry(node.to_owned())
            .or_insert_with(|| Router { acknowledged: serial, samples: VecDeque::new() });
        let new = self.changes.iter().filter(|(one, _)| *one > router.acknowledged && *one <= serial);
        for (_, applied) in new {
            if router.samples.len() == MAX_SAMPLES {
                router.samples.pop_front();
            }
            router.samples.push_back(now.saturating_duration_since(*applied));
        }
        router.acknowledged = router.acknowledged.max(serial);
    }

    /// The measurements of a router.
    pub(crate) fn percentiles(&self, node: &str) -> Option<Measured> {
        let mut samples: Vec<Duration> = self.routers.get(node)?.samples.iter().copied().collect();
        samples.sort_unstable();
        let at = |percent: usize| samples.get((samples.len().max(1) - 1) * percent / 100).copied();
        let count = |le_ms| samples.partition_point(|took| *took <= Duration::from_millis(le_ms));
        let histogram = BOUNDS_MS.map(|le_ms| Bucket { le_ms, count: count(le_ms) }).into();
        let ms = |took: Duration| took.as_secs_f64() * 1000.0;
        Some(Measured { p50_ms: ms(at(50)?), p99_ms: ms(at(99)?), samples: samples.len(), histogram })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_measured_once_for_each_router() {
        let mut propagation = Propagation::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(propagation.percentiles("a").is_none());
        for serial in 1..=100_u64 {
            propagation.applied(serial, at(serial * 100));
            propagation.acknowledged("a", serial, at(serial * 100 + serial));
            propagation.acknowledged("a", serial, at(serial * 100 + 99));
        }
        let measured = propagation.percentiles("a").unwrap();
        assert_eq!(measured.samples, 99);
        assert_eq!((measured.p50_ms, measured.p99_ms), (51.0, 99.0));
        // The first announcement of a router is not a sample: 2 to 100 ms are.
        let counts: Vec<usize> = measured.histogram.iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [0, 1, 4, 9, 19, 49, 99, 99, 99, 99]);
        // One announcement may acknowledge several changes.
        propagation.applied(101, at(20_000));
        propagation.applied(102, at(20_001));
        propagation.acknowledged("a", 102, at(20_005));
        assert_eq!(propagation.percentiles("a").unwrap().samples, 101);
    }

    #[test]
    fn memory_is_bounded() {
        let mut propagation = Propagation::default();
        let now = Instant::now();
        for number in 1..5000 {
            propagation.applied(number, now);
            propagation.acknowledged(&format!("router-{number}"), number, now);
            propagation.acknowledged("router-1", number, now);
        }
        assert_eq!(propagation.changes.len(), MAX_CHANGES);
        assert_eq!(propagation.routers.len(), MAX_ROUTERS);
        assert_eq!(propagation.percentiles("router-1").unwrap().samples, MAX_SAMPLES);
    }
}
