//! The recent numbers of queues, for the charts of their pages.
//!
//! Each pacemaker reads the numbers of all queues every few seconds and keeps them in memory: fine steps for the short time
//! ranges, and minutes for the long ones. A queue that is empty and receives nothing takes no memory: at the times of its
//! samples it has zeros. Times at which the fabric did not respond have no samples at all, so a chart shows a gap.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use signalbox_bus::Handle as Bus;
use signalbox_queues::{Handle as Queues, QueueNumbers};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::store::Range;

const INTERVAL: Duration = Duration::from_secs(10);
/// A reading that takes longer is dropped.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum queues with a history: those with most messages.
const MAX_QUEUES: usize = 1000;
/// Of that many queues, those with most messages, the age of the oldest message is read.
const MAX_AGES: usize = 100;
/// Tenants of a queue among which the oldest message is searched: the deepest, and as many of the first by name.
const MAX_TENANTS: usize = 500;
/// How long fine samples and minutes are kept, in seconds.
const FINE_SECONDS: i64 = 900;
const COARSE_SECONDS: i64 = 21_600;
const MINUTE_SECONDS: i64 = 60;

/// What was read of a queue at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Sample {
    pub(super) waiting: u64,
    pub(super) in_flight: u64,
    pub(super) delayed: u64,
    /// The age of the oldest waiting message; `None` without one, or if it was not read.
    pub(super) age_ms: Option<u64>,
    /// Messages per second since the previous sample.
    pub(super) received: f64,
    pub(super) acknowledged: f64,
}

/// The totals of a queue at one time, from which rates follow.
#[derive(Debug, Clone, Copy)]
struct Totals {
    at: i64,
    pushed: u64,
    acked: u64,
}

/// Samples with one distance, each with its Unix second.
#[derive(Debug, Default)]
struct Track {
    samples: VecDeque<(i64, Sample)>,
    last: Option<Totals>,
}

impl Track {
    fn add(&mut self, at: i64, numbers: &QueueNumbers, age_ms: Option<u64>, kept_seconds: i64) {
        let totals = Totals { at, pushed: numbers.pushed, acked: numbers.acked };
        let last = self.last.replace(totals);
        #[allow(clippy::cast_precision_loss, reason = "display precision")]
        let rate = |count: fn(&Totals) -> u64| {
            last.map_or(0.0, |last| {
                count(&totals).saturating_sub(count(&last)) as f64 / (at - last.at).max(1) as f64
            })
        };
        let sample = Sample {
            waiting: numbers.waiting,
            in_flight: numbers.in_flight,
            delayed: numbers.delayed,
            age_ms,
            received: rate(|totals| totals.pushed),
            acknowledged: rate(|totals| totals.acked),
        };
        if sample != Sample::default() {
            self.samples.push_back((at, sample));
        }
        while self.samples.front().is_some_and(|(first, _)| *first <= at - kept_seconds) {
            self.samples.pop_front();
        }
    }
}

/// Samples of all queues with one distance.
#[derive(Debug, Default)]
struct Tracks {
    /// The times at which all queues were read.
    times: VecDeque<i64>,
    queues: HashMap<String, Track>,
}

/// The numbers of a queue, and the age of its oldest message.
type Read = (String, QueueNumbers, Option<u64>);

impl Tracks {
    fn add(&mut self, at: i64, read: &[Read], kept_seconds: i64) {
        self.times.push_back(at);
        while self.times.front().is_some_and(|first| *first <= at - kept_seconds) {
            self.times.pop_front();
        }
        for (name, numbers, age_ms) in read {
            self.queues.entry(name.clone()).or_default().add(at, numbers, *age_ms, kept_seconds);
        }
        // A queue that was deleted has not been read now.
        self.queues.retain(|_, track| track.last.is_some_and(|last| last.at == at));
    }

    fn of(&self, queue: &str, from: i64) -> Vec<(i64, Sample)> {
        let stored: HashMap<i64, Sample> =
            self.queues.get(queue).map(|track| track.samples.iter().copied().collect()).unwrap_or_default();
        let times = self.times.iter().filter(|at| **at >= from);
        times.map(|at| (*at, stored.get(at).copied().unwrap_or_default())).collect()
    }
}

/// The recent numbers of all queues. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueHistory(Arc<Mutex<Histories>>);

#[derive(Debug, Default)]
struct Histories {
    fine: Tracks,
    minutes: Tracks,
}

impl QueueHistory {
    /// Reads the numbers of all queues until `idle` is canceled.
    pub(crate) async fn run(
        self,
        bus: Bus,
        queues: Queues,
        clock: fn() -> std::time::SystemTime,
        idle: CancellationToken,
    ) {
        let mut turns = interval(INTERVAL);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = turns.tick() => {}
                () = idle.cancelled() => return,
            }
            // While the fabric does not respond, pages and alarms report it.
            if let Ok(Some(read)) = timeout(PATIENCE, read(&bus, &queues)).await {
                let since = clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                self.record(i64::try_from(since.as_secs()).unwrap_or(0), &read);
            }
        }
    }

    fn record(&self, at: i64, read: &[Read]) {
        let mut histories = self.0.lock();
        let minute = |at: i64| at - at.rem_euclid(MINUTE_SECONDS);
        let last = histories.minutes.times.back().copied();
        histories.fine.add(at, read, FINE_SECONDS);
        if last.is_none_or(|last| minute(last) != minute(at)) {
            histories.minutes.add(at, read, COARSE_SECONDS);
        }
    }

    /// The samples of a queue in a time range, oldest first.
    pub(super) fn of(&self, queue: &str, range: Range, now: i64) -> Vec<(i64, Sample)> {
        let histories = self.0.lock();
        let tracks = if range.seconds <= FINE_SECONDS { &histories.fine } else { &histories.minutes };
        tracks.of(queue, now - range.seconds)
    }

    /// Whether a range is short enough for the history.
    pub(super) fn covers(range: Range) -> bool {
        range.seconds <= COARSE_SECONDS
    }
}

async fn read(bus: &Bus, queues: &Queues) -> Option<Vec<Read>> {
    let registry = bus.registry();
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).collect();
    let numbers = queues.numbers(&names).await.ok()?;
    let mut busiest: Vec<(&str, QueueNumbers)> = names.into_iter().zip(numbers).collect();
    busiest.sort_by_key(|(_, numbers)| Reverse(numbers.waiting + numbers.delayed + numbers.in_flight));
    let mut read = Vec::with_capacity(busiest.len().min(MAX_QUEUES));
    for (rank, (name, numbers)) in busiest.into_iter().take(MAX_QUEUES).enumerate() {
        let mut age_ms = None;
        if numbers.waiting > 0 && rank < MAX_AGES {
            let mut tenants = queues.deepest(name, MAX_TENANTS).await.ok()?;
            tenants.extend(queues.tenants(name, "", MAX_TENANTS).await.ok()?.items);
            age_ms = tenants.iter().filter_map(|tenant| tenant.oldest_age_ms).max();
        }
        read.push((name.to_owned(), numbers, age_ms));
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(waiting: u64, pushed: u64, acked: u64) -> QueueNumbers {
        QueueNumbers { waiting, pushed, acked, ..QueueNumbers::default() }
    }

    fn range(name: &str) -> Range {
        Range::named(name)
    }

    #[test]
    fn a_history_has_depth_and_rates_and_forgets_what_is_old() {
        let history = QueueHistory::default();
        let record = |at, one| history.record(at, &[("mail".to_owned(), one, None)]);
        record(1200, numbers(0, 5, 5));
        record(1210, numbers(20, 25, 5));
        record(1220, numbers(0, 25, 25));
        record(1230, numbers(0, 25, 25));
        let samples = history.of("mail", range("5m"), 1230);
        let depths: Vec<_> = samples.iter().map(|(at, one)| (*at, one.waiting)).collect();
        assert_eq!(depths, [(1200, 0), (1210, 20), (1220, 0), (1230, 0)]);
        let rates: Vec<_> = samples.iter().map(|(_, one)| (one.received, one.acknowledged)).collect();
        assert_eq!(rates, [(0.0, 0.0), (2.0, 0.0), (0.0, 2.0), (0.0, 0.0)]);
        // A long range has a sample per minute, with the rates of the minute.
        record(1260, numbers(1, 145, 144));
        let minutes = history.of("mail", range("1h"), 1260);
        assert_eq!((minutes.len(), minutes[1].1.received), (2, 140.0 / 60.0));
        // Idle times take no memory.
        assert_eq!(history.0.lock().fine.queues["mail"].samples.len(), 3);
        record(1260 + FINE_SECONDS, numbers(0, 145, 145));
        assert_eq!(history.of("mail", range("15m"), 1260 + FINE_SECONDS).len(), 1);
        // A deleted queue is forgotten, and an unknown one has no messages.
        history.record(3000, &[]);
        assert!(history.0.lock().fine.queues.is_empty());
        assert_eq!(history.of("mail", range("5m"), 3000), [(3000, Sample::default())]);
    }
}
