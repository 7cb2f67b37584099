//! Recent traffic of version types, second by second, from the history of the statistics.

mod latency;
mod series;

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use signalbox_store::{
    self as redis, Stats,
    keys::stats as key,
    traffic::{LAG_SECONDS, Recent, counters, recent},
};

pub(super) use latency::{Latencies, Times};
pub(super) use series::{Range, Series};
pub(super) use signalbox_store::traffic::Sums;

const MINUTE_SECONDS: i64 = 60;
/// How many version types with most requests, and as many with most errors, are read exactly.
const MAX_EXACT: usize = 300;
/// How long a reading of the last minute is reused.
const MINUTE_TTL: Duration = Duration::from_secs(1);
/// How long a reading of histograms is reused: they change slowly and are expensive to read.
const LATENCIES_TTL: Duration = Duration::from_secs(5);
/// How long a chart's reading of minutes is reused.
const SERIES_TTL: Duration = Duration::from_secs(10);
/// Reads traffic from the stats Redis. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Traffic {
    stats: Stats,
    latencies: Arc<Cache<latency::Asked, Latencies>>,
    series: Arc<Cache<series::Asked, Series>>,
    minutes: Arc<Cache<(), Recent>>,
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

    /// The last minute: in total, and of all version types, or of `own` only.
    pub(super) async fn last_minute(&self, own: Option<&HashSet<&str>>) -> Result<Arc<Recent>, redis::Error> {
        match own {
            None => {
                let read = recent(&self.stats, MINUTE_SECONDS, MAX_EXACT, None);
                self.minutes.get((), MINUTE_TTL, read).await
            }
            own => recent(&self.stats, MINUTE_SECONDS, MAX_EXACT, own).await.map(Arc::new),
        }
    }

    /// The last minute of each of these version types.
    pub(super) async fn minute(&self, ids: &[String]) -> Result<HashMap<String, Sums>, redis::Error> {
        let now = i64::try_from(self.stats.now_ms().await? / 1000).unwrap_or(0) - LAG_SECONDS;
        let seconds: Vec<i64> = (now - MINUTE_SECONDS..now).collect();
        let by_second = counters(&self.stats, ids, &seconds, key::history).await?;
        Ok(by_second.into_iter().map(|(id, seconds)| (id, Sums::of(&seconds))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let hour = second - second.rem_euclid(3600);
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

    #[tokio::test]
    async fn the_loudest_version_types_are_exact_whatever_their_names() {
        let servers = signalbox_testkit::Servers::start().await;
        let stats = servers.stats();
        let now = i64::try_from(stats.now_ms().await.unwrap() / 1000).unwrap();
        let (minute, second) = (now - now.rem_euclid(60), now - 5);
        let fill = "for n = 1, 3000 do redis.call('ZADD', KEYS[1], 2, string.format('t%04d', n)) end
            redis.call('ZADD', KEYS[1], 900, 'zz') redis.call('ZADD', KEYS[2], 4, 'zy')";
        let [requests, errors] = ["requests", "errors"].map(|by| key::ranking(minute, by));
        let fill = stats.command("EVAL").arg(fill).arg(2).key(&requests).key(&errors);
        fill.run().await.unwrap();
        let hour = second - second.rem_euclid(3600);
        for (id, metric, value) in
            [("zz", "requests", 900), ("zz", "bytes", 7), ("zy", "5xx", 4), ("*", "requests", 6904)]
        {
            let history = key::history(id, hour, metric);
            stats.command("HSET").key(&history).arg(second).arg(value).run().await.unwrap();
        }
        let traffic = Traffic::new(stats);
        let read = traffic.last_minute(None).await.unwrap();
        assert_eq!((read.total.requests, read.by_id.len()), (6904, 3002));
        assert_eq!((read.by_id["zz"].requests, read.by_id["zz"].bytes), (900, 7));
        assert_eq!((read.by_id["zy"].server_errors, read.by_id["t3000"].requests), (4, 2));
        assert!(read.exact.contains("zz") && read.exact.contains("zy") && read.exact.len() <= 2 * MAX_EXACT);
        // A confined caller's total is that of its own version types.
        let own = HashSet::from(["t0001", "t0002"]);
        let read = traffic.last_minute(Some(&own)).await.unwrap();
        assert_eq!((read.by_id.len(), read.exact.len()), (2, 2));
    }
}
