//! Recent traffic of version types, second by second, from the history of the statistics.

mod latency;
mod series;

use std::{collections::HashMap, hash::Hash, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use signalbox_store::{self as redis, Key, Stats, StatsSpace, keys::stats as key};

pub(super) use latency::{Latencies, Times};
pub(super) use series::{Range, Series};

const HOUR_SECONDS: i64 = 3600;
const MINUTE_SECONDS: i64 = 60;
/// With more version types, the last minute is read at most once in this time.
const MANY: usize = 50;
const MINUTE_TTL: Duration = Duration::from_secs(5);
/// How long a reading of histograms is reused: they change slowly and are expensive to read.
const LATENCIES_TTL: Duration = Duration::from_secs(5);
/// How long a chart's reading of minutes is reused.
const SERIES_TTL: Duration = Duration::from_secs(10);
/// In the order of the fields of [`Sums`].
const METRICS: [&str; 6] = ["requests", "bytes", "4xx", "5xx", "timecount", "time"];

/// Reads traffic from the stats Redis. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Traffic {
    stats: Stats,
    latencies: Arc<Cache<latency::Asked, Latencies>>,
    series: Arc<Cache<series::Asked, Series>>,
    minutes: Arc<Mutex<Option<Minute>>>,
}

/// When the last minute was read, and its counters by version type.
type Minute = (Instant, Arc<HashMap<String, Sums>>);

/// The counters of a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) client_errors: u64,
    pub(super) server_errors: u64,
    /// Requests with a recorded duration.
    pub(super) timed: u64,
    /// The sum of these durations.
    pub(super) time_ms: u64,
}

impl Sums {
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.client_errors += other.client_errors;
        self.server_errors += other.server_errors;
        self.timed += other.timed;
        self.time_ms += other.time_ms;
    }

    pub(super) fn of<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sums = Self::default();
        all.into_iter().for_each(|one| sums.add(one));
        sums
    }

    /// The average latency in milliseconds.
    pub(super) fn mean_ms(&self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "display precision")]
        (self.timed > 0).then(|| self.time_ms as f64 / self.timed as f64)
    }

    fn read(values: [u64; METRICS.len()]) -> Self {
        let [requests, bytes, client_errors, server_errors, timed, time_ms] = values;
        Self { requests, bytes, client_errors, server_errors, timed, time_ms }
    }
}

/// Recent readings, by what was asked for.
#[derive(Debug)]
pub(super) struct Cache<K, V>(Mutex<HashMap<K, (Instant, Arc<V>)>>);

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V> Cache<K, V> {
    /// A reading that is at most `ttl` old, otherwise a new one.
    pub(super) async fn get<E>(
        &self,
        key: K,
        ttl: Duration,
        read: impl Future<Output = Result<V, E>>,
    ) -> Result<Arc<V>, E> {
        let now = Instant::now();
        let cached = self.0.lock().get(&key).cloned();
        if let Some((_, cached)) = cached.filter(|(read_at, _)| now - *read_at < ttl) {
            return Ok(cached);
        }
        let fresh = Arc::new(read.await?);
        let mut readings = self.0.lock();
        readings.retain(|_, (read_at, _)| now - *read_at < ttl);
        readings.insert(key, (now, Arc::clone(&fresh)));
        Ok(fresh)
    }
}

impl Traffic {
    pub(super) fn new(stats: Stats) -> Self {
        Self { stats, latencies: Arc::default(), series: Arc::default(), minutes: Arc::default() }
    }

    /// The traffic of version types in a range, or in its last steps only.
    pub(super) async fn series(
        &self,
        ids: &[String],
        range: Range,
        tail: bool,
    ) -> Result<Arc<Series>, redis::Error> {
        let read = series::read(&self.stats, ids, range, tail);
        match range.of_minutes() {
            true => self.series.get((range, ids.to_vec(), tail), SERIES_TTL, read).await,
            false => read.await.map(Arc::new),
        }
    }

    /// Request latencies of version types in the last `minutes`.
    pub(super) async fn latencies(
        &self,
        ids: &[String],
        minutes: i64,
    ) -> Result<Arc<Latencies>, redis::Error> {
        self.histograms(latency::Source::VersionTypes, ids, minutes).await
    }

    /// Response times of the instances at `addresses` in the last `minutes`.
    pub(super) async fn instance_latencies(
        &self,
        addresses: &[String],
        minutes: i64,
    ) -> Result<Arc<Latencies>, redis::Error> {
        self.histograms(latency::Source::Instances, addresses, minutes).await
    }

    async fn histograms(
        &self,
        source: latency::Source,
        ids: &[String],
        minutes: i64,
    ) -> Result<Arc<Latencies>, redis::Error> {
        let read = latency::read(&self.stats, source, ids, minutes);
        self.latencies.get((source, ids.to_vec(), minutes), LATENCIES_TTL, read).await
    }

    /// The last complete minute of each of these version types, by the clock of the stats Redis. The clocks of the sidecars,
    /// which assign requests to seconds, are close enough to it for display. A reading of many is reused for some seconds.
    pub(super) async fn minute(&self, ids: &[String]) -> Result<HashMap<String, Sums>, redis::Error> {
        let recent = self.minutes.lock().clone();
        if let Some((read_at, minute)) = recent
            && ids.len() > MANY
            && read_at.elapsed() < MINUTE_TTL
            && ids.iter().all(|id| minute.contains_key(id))
        {
            return Ok(HashMap::clone(&minute));
        }
        let now = i64::try_from(self.stats.now_ms().await? / 1000).unwrap_or(0);
        let seconds: Vec<i64> = (now - MINUTE_SECONDS..now).collect();
        let by_second = counters(&self.stats, ids, &seconds, key::history).await?;
        let minute: HashMap<String, Sums> =
            by_second.into_iter().map(|(id, seconds)| (id, Sums::of(&seconds))).collect();
        if ids.len() > MANY {
            *self.minutes.lock() = Some((Instant::now(), Arc::new(minute.clone())));
        }
        Ok(minute)
    }
}

/// The key of an hour of counters, from a version type, an hour and a metric.
type HourKey = fn(&str, i64, &str) -> Key<StatsSpace>;

/// The counters of version types in each of these seconds or minutes.
async fn counters(
    stats: &Stats,
    ids: &[String],
    units: &[i64],
    key: HourKey,
) -> Result<HashMap<String, Vec<Sums>>, redis::Error> {
    if ids.is_empty() || units.is_empty() {
        return Ok(HashMap::new());
    }
    let hours = by_hour(units.iter().copied());
    let mut batch = stats.batch();
    for id in ids {
        for metric in METRICS {
            for (hour, fields) in &hours {
                batch.add("HMGET", &key(id, *hour, metric), fields);
            }
        }
    }
    let replies: Vec<Vec<Option<u64>>> = batch.query().await?;
    let by_id = ids.iter().cloned().zip(replies.chunks(METRICS.len() * hours.len()).map(|replies| {
        let metrics: Vec<Vec<u64>> = replies
            .chunks(hours.len())
            .map(|hours| hours.iter().flatten().map(|value| value.unwrap_or(0)).collect())
            .collect();
        let value = |metric: usize, unit: usize| {
            metrics.get(metric).and_then(|values| values.get(unit)).copied().unwrap_or(0)
        };
        let sums = |unit| Sums::read(std::array::from_fn(|metric| value(metric, unit)));
        (0..units.len()).map(sums).collect()
    }));
    Ok(by_id.collect())
}

/// Groups seconds by hour: the history has one hash per hour.
fn by_hour(range: impl IntoIterator<Item = i64>) -> Vec<(i64, Vec<i64>)> {
    let mut hours: Vec<(i64, Vec<i64>)> = Vec::new();
    for second in range {
        let hour = second - second.rem_euclid(HOUR_SECONDS);
        match hours.last_mut() {
            Some((last, seconds)) if *last == hour => seconds.push(second),
            _ => hours.push((hour, vec![second])),
        }
    }
    hours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_grouped_by_hour() {
        let hours = by_hour(7150..7210);
        assert_eq!(hours.len(), 2);
        assert_eq!((hours[0].0, hours[0].1.len()), (3600, 50));
        assert_eq!((hours[1].0, hours[1].1.len()), (7200, 10));
        let all: Vec<i64> = hours.into_iter().flat_map(|(_, seconds)| seconds).collect();
        assert_eq!(all, (7150..7210).collect::<Vec<_>>());
        assert_eq!(by_hour(4940..5000).len(), 1);
    }

    #[tokio::test]
    async fn traffic_is_read_across_an_hour_boundary() {
        let servers = signalbox_testkit::Servers::start().await;
        let stats = servers.stats();
        let now = i64::try_from(stats.now_ms().await.unwrap() / 1000).unwrap();
        for (second, metric, value) in [
            (now - 4000, "requests", 7),
            (now - 5, "requests", 3),
            (now - 5, "time", 60),
            (now - 5, "timecount", 2),
        ] {
            let hour = second - second.rem_euclid(HOUR_SECONDS);
            let history = format!("history:17:{hour}:{metric}");
            stats.command("HSET").arg(history).arg(second).arg(value).run().await.unwrap();
        }
        let ids = ["17".to_owned(), "18".to_owned()];
        let seconds: Vec<i64> = (now - 4100..now).collect();
        let past = counters(&stats, &ids, &seconds, key::history).await.unwrap();
        assert_eq!((past["17"].len(), Sums::of(&past["17"]).requests), (4100, 10));
        let minute = Traffic::new(stats).minute(&ids).await.unwrap();
        assert_eq!((minute["17"].requests, minute["17"].mean_ms()), (3, Some(30.0)));
        assert_eq!(minute["18"], Sums::default());
    }
}
