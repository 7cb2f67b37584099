//! The traffic of a time range, in steps that fit its length.
//!
//! The statistics keep seconds for two hours and minutes for two weeks. A short range is read from seconds, a longer one from
//! minutes. Rates are averages over a step, so a chart is smooth and never has more points than pixels.

use std::collections::HashMap;

use signalbox_store::{
    self as redis, Stats,
    keys::stats as key,
    traffic::{HourKey, LAG_SECONDS, Sums, counters},
};

use super::MINUTE_SECONDS;

/// Counters that are read of each unit of time.
const COUNTERS: i64 = 8;
/// Part of a step after which its rate is shown, although the step is not complete.
const SHOWN_AFTER: i64 = 4;
/// Maximum values that one reading of a chart takes. Of more version types, the busiest are charted.
const MAX_VALUES: i64 = 240_000;

/// The time range of charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Range {
    /// The name in addresses.
    pub(crate) name: &'static str,
    pub(crate) seconds: i64,
    /// Seconds of one point.
    pub(crate) step: i64,
}

const fn range(name: &'static str, seconds: i64, step: i64) -> Range {
    Range { name, seconds, step }
}

impl Range {
    /// All ranges, the shortest first.
    pub(crate) const ALL: [Self; 6] = [
        range("5m", 300, 5),
        range("15m", 900, 10),
        range("1h", 3600, 60),
        range("6h", 21_600, 120),
        range("24h", 86_400, 300),
        range("7d", 604_800, 1800),
    ];
    const DEFAULT: Self = Self::ALL[1];

    /// The range with this name, otherwise the default.
    pub(crate) fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|one| one.name == name).unwrap_or(Self::DEFAULT)
    }

    pub(super) fn of_minutes(self) -> bool {
        self.step >= MINUTE_SECONDS
    }

    /// The number of minutes, for latencies.
    pub(crate) fn minutes(self) -> i64 {
        self.seconds / MINUTE_SECONDS
    }

    /// Minutes of one point of latencies.
    pub(crate) fn minutes_per_point(self) -> i64 {
        (self.step / MINUTE_SECONDS).max(1)
    }

    /// How many version types can be charted.
    pub(crate) fn max_version_types(self) -> usize {
        let unit = if self.of_minutes() { MINUTE_SECONDS } else { 1 };
        let values = self.seconds / unit * COUNTERS;
        usize::try_from(MAX_VALUES / values).unwrap_or(1).max(1)
    }

    /// What a point of a chart is, in words.
    pub(crate) fn resolution(self) -> String {
        let kept =
            if self.of_minutes() { "minutes are kept for 14 days" } else { "seconds are kept for 2 hours" };
        let step = signalbox_diagnosis::span(u64::try_from(self.step * 1000).unwrap_or(0));
        format!("Each point is the average of {step}; {kept}.")
    }
}

/// The counters of the steps of a range.
#[derive(Debug, Default)]
pub(crate) struct Series {
    /// The start of each step in Unix seconds.
    pub(crate) starts: Vec<i64>,
    /// The seconds of each step that have passed.
    lengths: Vec<i64>,
    by_id: HashMap<String, Vec<Sums>>,
}

impl Series {
    /// The counters of each step of one version type.
    pub(crate) fn of(&self, id: &str) -> &[Sums] {
        self.by_id.get(id).map(Vec::as_slice).unwrap_or_default()
    }

    /// The sums over all version types, by step.
    pub(crate) fn totals(&self) -> Vec<Sums> {
        let mut all = vec![Sums::default(); self.starts.len()];
        for steps in self.by_id.values() {
            all.iter_mut().zip(steps).for_each(|(sum, step)| sum.add(step));
        }
        all
    }

    /// A count of each step as a rate per second.
    pub(crate) fn rates(&self, steps: &[Sums], count: impl Fn(&Sums) -> u64) -> Vec<Option<f64>> {
        #[allow(clippy::cast_precision_loss, reason = "display precision")]
        let rate = |(step, length): (&Sums, &i64)| Some(count(step) as f64 / *length as f64);
        steps.iter().zip(&self.lengths).map(rate).collect()
    }
}

/// The steps of `range` before `now`: their starts and how many of their seconds have passed. Of a range that was read
/// before, only the last steps are needed.
fn steps(range: Range, now: i64, tail: bool) -> (Vec<i64>, Vec<i64>) {
    let Range { seconds, step, .. } = range;
    let last = now - now.rem_euclid(step);
    let count = if tail { (MINUTE_SECONDS / step).max(1) } else { seconds / step };
    (0..=count)
        .rev()
        .map(|ago| last - ago * step)
        .map(|start| (start, (now - start).min(step)))
        .filter(|(_, length)| *length * SHOWN_AFTER >= step)
        .unzip()
}

/// Range, version types, and whether only the end is read.
pub(super) type Asked = (Range, Vec<String>, bool);

/// The counters of `ids` in `range`, or in its last steps only.
pub(super) async fn read(
    stats: &Stats,
    ids: &[String],
    range: Range,
    tail: bool,
) -> Result<Series, redis::Error> {
    let now = i64::try_from(stats.now_ms().await? / 1000).unwrap_or(0) - LAG_SECONDS;
    let (starts, lengths) = steps(range, now, tail);
    let first = starts.first().copied().unwrap_or(now);
    let (unit, key): (_, HourKey) =
        if range.of_minutes() { (MINUTE_SECONDS, key::rollup) } else { (1, key::history) };
    let units: Vec<i64> = (first..now).step_by(usize::try_from(unit).unwrap_or(1)).collect();
    let by_unit = counters(stats, ids, &units, key).await?;
    let by_step = by_unit.into_iter().map(|(id, values)| {
        let mut sums = vec![Sums::default(); starts.len()];
        for (second, value) in units.iter().zip(&values) {
            let step = usize::try_from((second - first) / range.step).unwrap_or(usize::MAX);
            if let Some(sum) = sums.get_mut(step) {
                sum.add(value);
            }
        }
        (id, sums)
    });
    Ok(Series { by_id: by_step.collect(), starts, lengths })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dashboard::store::Traffic;

    #[test]
    fn a_range_ends_with_the_first_part_of_a_step() {
        let five = Range::named("5m");
        let (starts, lengths) = steps(five, 1001, false);
        assert_eq!((starts.len(), starts.first(), starts.last()), (60, Some(&700), Some(&995)));
        assert!(lengths.iter().all(|length| *length == 5));
        let (starts, lengths) = steps(five, 1003, false);
        assert_eq!((starts.last(), lengths.last()), (Some(&1000), Some(&3)));
        let (starts, _) = steps(Range::named("7d"), 1_000_000, true);
        assert_eq!(starts, [997_200, 999_000]);
        assert_eq!(Range::named("nonsense"), Range::DEFAULT);
    }

    #[test]
    fn a_longer_range_charts_fewer_version_types_and_never_none() {
        let most = Range::ALL.map(Range::max_version_types);
        assert!(most[0] > 50 && most[5] >= 1, "{most:?}");
        assert!(Range::ALL.iter().all(|range| (50..=720).contains(&(range.seconds / range.step))));
    }

    #[tokio::test]
    async fn seconds_and_minutes_become_rates_of_steps() {
        let servers = signalbox_testkit::Servers::start().await;
        let stats = servers.stats();
        let now = i64::try_from(stats.now_ms().await.unwrap() / 1000).unwrap();
        let put = async |kind: &str, at: i64, metric: &str, value: u64| {
            let hash = format!("{kind}:17:{}:{metric}", at - at.rem_euclid(3600));
            stats.command("HSET").arg(hash).arg(at).arg(value).run().await.unwrap();
        };
        put("history", now - 100, "requests", 20).await;
        put("history", now - 1000, "requests", 7).await;
        put("rollup", now - now.rem_euclid(60) - 7200, "5xx", 60).await;
        let ids = ["17".to_owned(), "18".to_owned()];
        let traffic = Traffic::new(stats.clone());
        let series = traffic.series(&ids, Range::named("5m"), false).await.unwrap();
        let rates = series.rates(&series.totals(), |sums| sums.requests);
        let highest = rates.iter().flatten().copied().fold(0.0, f64::max);
        assert!((highest - 4.0).abs() < 1e-9, "{rates:?}");
        assert_eq!(series.of("17").iter().map(|sums| sums.requests).sum::<u64>(), 20);
        assert_eq!(series.of("18").iter().map(|sums| sums.requests).sum::<u64>(), 0);
        let series = traffic.series(&ids, Range::named("24h"), false).await.unwrap();
        let errors: u64 = series.totals().iter().map(|sums| sums.server_errors).sum();
        assert_eq!((errors, series.totals().iter().map(|sums| sums.requests).sum::<u64>()), (60, 0));
        // A reading of minutes is reused for some seconds.
        put("rollup", now - now.rem_euclid(60) - 7200, "5xx", 90).await;
        let again = traffic.series(&ids, Range::named("24h"), false).await.unwrap();
        assert!(Arc::ptr_eq(&series, &again));
    }
}
