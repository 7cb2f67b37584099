//! How long requests of version types and answers of instances took, from the statistics' histograms of single minutes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use signalbox_store::{self as redis, Stats, keys::stats as key};
use tokio::time::Instant;

use super::by_hour;

/// Minutes change slowly and are many to read, so pages that look more often get the same.
const FRESH: Duration = Duration::from_secs(5);
/// As the sidecar counts: each bucket holds values below its bound and not below the bound before.
const BELOW_MS: [u32; 31] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12_288, 16_384, 24_576, 32_768, 65_536,
];
/// The last one holds the rest.
const BUCKETS: usize = BELOW_MS.len() + 1;
const MINUTE_SECONDS: i64 = 60;

type Counts = [u64; BUCKETS];

/// The middle, and what 95 and 99 of a hundred requests were not longer than, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Times {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

/// Histograms of some version types or instances.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    /// The beginnings of minutes, unix seconds, one after the other. The last one is not over.
    pub(crate) minutes: Vec<i64>,
    by_id: HashMap<String, Vec<Counts>>,
}

impl Latencies {
    /// Of all the minutes of one of them; none without a request.
    pub(crate) fn of(&self, id: &str) -> Option<Times> {
        times(&sum(self.by_id.get(id).into_iter().flatten()))
    }

    /// Of all of them and all minutes.
    pub(crate) fn all(&self) -> Option<Times> {
        times(&sum(self.by_id.values().flatten()))
    }

    /// Each minute of all of them together.
    pub(crate) fn by_minute(&self) -> Vec<Option<Times>> {
        let of = |at: usize| times(&sum(self.by_id.values().filter_map(|minutes| minutes.get(at))));
        (0..self.minutes.len()).map(of).collect()
    }
}

fn sum<'a>(counts: impl Iterator<Item = &'a Counts>) -> Counts {
    counts.fold([0; BUCKETS], |mut sum, counts| {
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        sum
    })
}

fn times(counts: &Counts) -> Option<Times> {
    let of = |part| quantile(counts, part);
    Some(Times { p50: of(0.5)?, p95: of(0.95)?, p99: of(0.99)? })
}

/// The value that a part of all is at or below, as if the values of a bucket were spread evenly over it.
#[allow(clippy::cast_precision_loss, reason = "for the eye")]
fn quantile(counts: &Counts, part: f64) -> Option<f64> {
    let wanted = counts.iter().sum::<u64>() as f64 * part;
    let (mut below, mut start) = (0, 0.0);
    for (at, count) in counts.iter().enumerate() {
        // What is above the last bound is somewhere above it.
        let end = BELOW_MS.get(at).map_or(start, |end| f64::from(*end));
        if *count > 0 && (below + count) as f64 >= wanted {
            return Some(start + (end - start) * (wanted - below as f64) / *count as f64);
        }
        below += count;
        start = end;
    }
    None
}

/// What histograms are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Of {
    /// Version types, by their ids: how long requests took.
    VersionTypes,
    /// Instances, by their addresses: how long their answers took.
    Instances,
}

type Asked = (Of, Vec<String>, i64);
/// With when it was read.
type Known = HashMap<Asked, (Instant, Arc<Latencies>)>;

/// What was read lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Recent(Arc<Mutex<Known>>);

impl Recent {
    /// The last minutes of these, as they were a few seconds ago at most.
    pub(super) async fn latencies(
        &self,
        stats: &Stats,
        of: Of,
        ids: &[String],
        minutes: i64,
    ) -> Result<Arc<Latencies>, redis::Error> {
        let now = Instant::now();
        let asked = (of, ids.to_vec(), minutes);
        let known = self.lock().get(&asked).cloned();
        if let Some((_, known)) = known.filter(|(read, _)| now - *read < FRESH) {
            return Ok(known);
        }
        let read = Arc::new(read(stats, of, ids, minutes).await?);
        let mut recent = self.lock();
        recent.retain(|_, (read, _)| now - *read < FRESH);
        recent.insert(asked, (now, Arc::clone(&read)));
        Ok(read)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(stats: &Stats, of: Of, ids: &[String], minutes: i64) -> Result<Latencies, redis::Error> {
    let now = i64::try_from(stats.now_ms().await? / 1000).unwrap_or(0);
    let last = now - now.rem_euclid(MINUTE_SECONDS);
    let minutes: Vec<i64> = (0..minutes).rev().map(|ago| last - ago * MINUTE_SECONDS).collect();
    if ids.is_empty() {
        return Ok(Latencies { minutes, by_id: HashMap::new() });
    }
    let hours = by_hour(minutes.iter().copied());
    let mut batch = stats.batch();
    for id in ids {
        for bucket in 0..BUCKETS {
            let name = BELOW_MS.get(bucket).map_or_else(|| "inf".to_owned(), u32::to_string);
            for (hour, minutes) in &hours {
                let key = match of {
                    Of::VersionTypes => key::latency(id, *hour, &name),
                    Of::Instances => key::instance_latency(id, *hour, &name),
                };
                batch.add("HMGET", &key, minutes);
            }
        }
    }
    let replies: Vec<Vec<Option<u64>>> = batch.query().await?;
    let by_id = ids.iter().cloned().zip(replies.chunks(BUCKETS * hours.len()).map(|replies| {
        let mut counts = vec![[0; BUCKETS]; minutes.len()];
        for (bucket, hours) in replies.chunks(hours.len()).enumerate() {
            for (minute, count) in counts.iter_mut().zip(hours.iter().flatten()) {
                minute[bucket] = count.unwrap_or(0);
            }
        }
        counts
    }));
    Ok(Latencies { by_id: by_id.collect(), minutes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::store::HOUR_SECONDS;

    #[test]
    fn quantiles_are_where_the_requests_are() {
        let mut counts = [0; BUCKETS];
        assert_eq!(quantile(&counts, 0.5), None);
        // A hundred requests of 4 to 6 ms, and one that took longer than can be told.
        counts[4] = 100;
        assert_eq!((quantile(&counts, 0.5), quantile(&counts, 1.0)), (Some(5.0), Some(6.0)));
        counts[BUCKETS - 1] = 100;
        assert_eq!((quantile(&counts, 0.5), quantile(&counts, 0.99)), (Some(6.0), Some(65_536.0)));
    }

    #[tokio::test]
    async fn histograms_of_minutes_are_put_together() {
        let servers = signalbox_testkit::Servers::start().await;
        let stats = servers.stats();
        let now = i64::try_from(stats.now_ms().await.unwrap() / 1000).unwrap();
        let minute = |ago: i64| now - now.rem_euclid(60) - ago * 60;
        let put = async |id: &str, minute: i64, bucket: &str, count: u64| {
            let hash = format!("latency:{id}:{}:{bucket}", minute - minute.rem_euclid(HOUR_SECONDS));
            stats.command("HSET").arg(hash).arg(minute).arg(count).run().await.unwrap();
        };
        put("17", minute(0), "6", 10).await;
        put("17", minute(61), "6", 10).await;
        put("18", minute(0), "inf", 10).await;
        put("17", minute(80), "1", 1000).await;
        let recent = Recent::default();
        let ids = ["17".to_owned(), "18".to_owned(), "19".to_owned()];
        let read = recent.latencies(&stats, Of::VersionTypes, &ids, 70).await.unwrap();
        assert_eq!(read.minutes.len(), 70);
        assert_eq!(read.of("17").map(|times| times.p50), Some(5.0));
        assert_eq!((read.of("19"), read.all().map(|times| times.p99)), (None, Some(65_536.0)));
        let known: Vec<usize> =
            read.by_minute().iter().enumerate().filter_map(|(at, one)| one.map(|_| at)).collect();
        assert_eq!(known, [8, 69]);
        // Nothing is read again at once.
        put("19", minute(0), "1", 1).await;
        assert_eq!(recent.latencies(&stats, Of::VersionTypes, &ids, 70).await.unwrap().of("19"), None);
        assert!(recent.latencies(&stats, Of::VersionTypes, &ids[2..], 70).await.unwrap().of("19").is_some());
    }
}
