//! Latency percentiles of version types and instances, from the per-minute histograms of the statistics.

use std::collections::HashMap;

use signalbox_store::{self as redis, Stats, keys::stats as key, traffic::by_hour};

use super::MINUTE_SECONDS;

/// Upper bounds of the buckets, as in the sidecar. A bucket counts values from the previous bound up to, but not including,
/// its own.
const BELOW_MS: [u32; 31] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12_288, 16_384, 24_576, 32_768, 65_536,
];
/// The last bucket counts all values from the last bound on.
const BUCKETS: usize = BELOW_MS.len() + 1;

type Counts = [u64; BUCKETS];

/// Latency percentiles in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Times {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

/// Histograms of some version types or instances.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    /// The start of each minute in Unix seconds, consecutive. The last minute is not complete.
    pub(crate) minutes: Vec<i64>,
    by_id: HashMap<String, Vec<Counts>>,
}

impl Latencies {
    /// The percentiles of one id over all minutes; `None` without requests.
    pub(crate) fn of(&self, id: &str) -> Option<Times> {
        times(&sum(self.by_id.get(id).into_iter().flatten()))
    }

    /// The percentiles of some ids together.
    pub(crate) fn of_all<'a>(&self, ids: impl IntoIterator<Item = &'a String>) -> Option<Times> {
        times(&sum(ids.into_iter().filter_map(|id| self.by_id.get(id)).flatten()))
    }

    /// The percentiles over all ids and minutes.
    pub(crate) fn all(&self) -> Option<Times> {
        times(&sum(self.by_id.values().flatten()))
    }

    /// The percentiles over all ids, by steps of some minutes that are aligned to the clock, each with its start.
    pub(crate) fn by_step(&self, minutes: i64) -> Vec<(i64, Option<Times>)> {
        let steps = self.steps(&self.minutes, minutes).into_iter();
        steps.map(|step| (step.start, times(&step.counts))).collect()
    }

    /// The values per second over all ids, by the same steps. The last minute is not complete, so it is left out.
    pub(crate) fn rates(&self, minutes: i64) -> Vec<(i64, Option<f64>)> {
        let complete = self.minutes.split_last().map(|(_, complete)| complete).unwrap_or_default();
        #[allow(clippy::cast_precision_loss, reason = "display precision")]
        let rate =
            |step: &Step| step.counts.iter().sum::<u64>() as f64 / (step.minutes * MINUTE_SECONDS) as f64;
        self.steps(complete, minutes).iter().map(|step| (step.start, Some(rate(step)))).collect()
    }

    /// The first minutes of the histograms, in steps of `minutes`.
    fn steps(&self, included: &[i64], minutes: i64) -> Vec<Step> {
        let length = minutes * MINUTE_SECONDS;
        let mut steps: Vec<Step> = Vec::new();
        for (at, minute) in included.iter().enumerate() {
            let start = minute - minute.rem_euclid(length);
            if steps.last().is_none_or(|last| last.start != start) {
                steps.push(Step { start, minutes: 0, counts: [0; BUCKETS] });
            }
            if let Some(step) = steps.last_mut() {
                let of_minute = self.by_id.values().filter_map(|minutes| minutes.get(at));
                step.counts = sum(of_minute.chain([&step.counts]));
                step.minutes += 1;
            }
        }
        steps
    }
}

/// Consecutive minutes together.
struct Step {
    start: i64,
    /// The minutes of the step that are included.
    minutes: i64,
    counts: Counts,
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

/// The value at or below which the given part of all values is. Interpolates linearly within a bucket.
#[allow(clippy::cast_precision_loss, reason = "display precision")]
fn quantile(counts: &Counts, part: f64) -> Option<f64> {
    let wanted = counts.iter().sum::<u64>() as f64 * part;
    let (mut below, mut start) = (0, 0.0);
    for (at, count) in counts.iter().enumerate() {
        // The last bucket has no upper bound, so the estimate is its lower one.
        let end = BELOW_MS.get(at).map_or(start, |end| f64::from(*end));
        if *count > 0 && (below + count) as f64 >= wanted {
            return Some(start + (end - start) * (wanted - below as f64) / *count as f64);
        }
        below += count;
        start = end;
    }
    None
}

/// The quantity that a histogram measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// Requests, by version type id.
    VersionTypes,
    /// Responses of instances, by address.
    Instances,
}

/// Source, ids, and number of minutes.
pub(super) type Asked = (Source, Vec<String>, i64);

/// The last `minutes` of `ids`.
pub(super) async fn read(
    stats: &Stats,
    source: Source,
    ids: &[String],
    minutes: i64,
) -> Result<Latencies, redis::Error> {
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
            for (hour, _) in &hours {
                let key = match source {
                    Source::VersionTypes => key::latency(id, *hour, &name),
                    Source::Instances => key::instance_latency(id, *hour, &name),
                };
                // Most buckets of most hours are empty, so this is less than asking for each minute.
                batch.add("HGETALL", &key, Vec::<i64>::new());
            }
        }
    }
    let replies: Vec<HashMap<i64, u64>> = batch.query().await?;
    let first = minutes.first().copied().unwrap_or(last);
    let by_id = ids.iter().cloned().zip(replies.chunks(BUCKETS * hours.len()).map(|replies| {
        let mut counts = vec![[0; BUCKETS]; minutes.len()];
        for (bucket, hours) in replies.chunks(hours.len()).enumerate() {
            for (minute, count) in hours.iter().flatten() {
                let at = usize::try_from((minute - first) / MINUTE_SECONDS).ok();
                if let Some(counts) = at.filter(|_| *minute >= first).and_then(|at| counts.get_mut(at)) {
                    counts[bucket] = *count;
                }
            }
        }
        counts
    }));
    Ok(Latencies { by_id: by_id.collect(), minutes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::store::Traffic;

    #[test]
    fn quantiles_are_interpolated_within_buckets() {
        let mut counts = [0; BUCKETS];
        assert_eq!(quantile(&counts, 0.5), None);
        // Requests of 4 to 6 ms, then as many above the last bound.
        counts[4] = 100;
        assert_eq!((quantile(&counts, 0.5), quantile(&counts, 1.0)), (Some(5.0), Some(6.0)));
        counts[BUCKETS - 1] = 100;
        assert_eq!((quantile(&counts, 0.5), quantile(&counts, 0.99)), (Some(6.0), Some(65_536.0)));
    }

    #[tokio::test]
    async fn histograms_of_minutes_are_added_up() {
        let servers = signalbox_testkit::Servers::start().await;
        let stats = servers.stats();
        let now = i64::try_from(stats.now_ms().await.unwrap() / 1000).unwrap();
        let minute = |ago: i64| now - now.rem_euclid(60) - ago * 60;
        let put = async |id: &str, minute: i64, bucket: &str, count: u64| {
            let hash = format!("latency:{id}:{}:{bucket}", minute - minute.rem_euclid(3600));
            stats.command("HSET").arg(hash).arg(minute).arg(count).run().await.unwrap();
        };
        put("17", minute(0), "6", 10).await;
        put("17", minute(61), "6", 10).await;
        put("18", minute(0), "inf", 10).await;
        put("17", minute(80), "1", 1000).await;
        let traffic = Traffic::new(stats.clone());
        let ids = ["17".to_owned(), "18".to_owned(), "19".to_owned()];
        let read = traffic.latencies(&ids, 70).await.unwrap();
        assert_eq!(read.minutes.len(), 70);
        assert_eq!(read.of("17").map(|times| times.p50), Some(5.0));
        assert_eq!((read.of("19"), read.all().map(|times| times.p99)), (None, Some(65_536.0)));
        let with_requests: Vec<i64> =
            read.by_step(1).iter().filter_map(|(start, one)| one.map(|_| *start)).collect();
        assert_eq!(with_requests, [minute(61), minute(0)]);
        let steps = read.by_step(10);
        assert!(steps.iter().all(|(start, _)| start % 600 == 0) && (7..=8).contains(&steps.len()));
        assert_eq!(steps.iter().filter(|(_, one)| one.is_some()).count(), 2);
        let rates = read.rates(1);
        assert_eq!((rates.len(), rates.last().map(|(start, _)| *start)), (69, Some(minute(1))));
        let with_requests: Vec<_> = rates.into_iter().filter(|(_, rate)| *rate != Some(0.0)).collect();
        assert_eq!(with_requests, [(minute(61), Some(10.0 / 60.0))]);
        // A reading is reused for a few seconds.
        put("19", minute(0), "1", 1).await;
        assert_eq!(traffic.latencies(&ids, 70).await.unwrap().of("19"), None);
        assert!(traffic.latencies(&ids[2..], 70).await.unwrap().of("19").is_some());
    }
}
