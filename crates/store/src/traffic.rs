//! Requests of the last seconds, as sidecars have counted them: in total, and of version types, those with most requests or
//! errors first.
//!
//! The rankings of a minute ([`keys::stats::ranking`]) contain every version type that has requests in it. So a reader finds
//! the loudest ones among any number without reading all of them, and reads their exact counters only. The clocks of the
//! sidecars, which assign requests to seconds, are close enough to that of the stats Redis.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
};

use crate::{
    Error, Key, Stats, StatsSpace,
    keys::{self, stats::TOTAL},
};

/// Seconds of a minute.
const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
/// The most recent seconds are left out: sidecars report them a moment later.
pub const LAG_SECONDS: i64 = 2;
/// The id under which requests without a version type are counted.
pub const NO_ROUTE: &str = "null";
/// Maximum members that are read of a ranking: all that it can have.
const MAX_RANKED: i64 = 14_000;
/// The maximum number of seconds or minutes, of all version types together, that are read in one round trip: other clients of the
/// server wait while it answers.
const MAX_UNITS: usize = 6_000;
/// In the order of [`Sums::read`].
const METRICS: [&str; 8] = ["requests", "bytes", "4xx", "5xx", "edge_5xx", "timecount", "time", "nginxtime"];

/// The counters of a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests.
    pub requests: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Those with a status of 400 to 499.
    pub client_errors: u64,
    /// Those with a status of 500 to 599.
    pub server_errors: u64,
    /// Those of them that the edge answered without trying an instance.
    pub edge_errors: u64,
    /// Requests that an instance answered.
    pub timed: u64,
    /// Milliseconds that instances took for them.
    pub time_ms: u64,
    /// Milliseconds that all requests took.
    pub nginx_ms: u64,
}

impl Sums {
    /// Adds other requests.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.client_errors += other.client_errors;
        self.server_errors += other.server_errors;
        self.edge_errors += other.edge_errors;
        self.timed += other.timed;
        self.time_ms += other.time_ms;
        self.nginx_ms += other.nginx_ms;
    }

    /// The sum of all.
    pub fn of<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sums = Self::default();
        all.into_iter().for_each(|one| sums.add(one));
        sums
    }

    /// Requests that an instance answered with 5xx, or that no instance answered although one was tried.
    pub fn failed(&self) -> u64 {
        self.server_errors.saturating_sub(self.edge_errors)
    }

    /// The mean response time of instances in milliseconds.
    pub fn mean_ms(&self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "display precision")]
        (self.timed > 0).then(|| self.time_ms as f64 / self.timed as f64)
    }

    fn read(values: [u64; METRICS.len()]) -> Self {
        let [requests, bytes, client_errors, server_errors, edge_errors, timed, time_ms, nginx_ms] = values;
        Self { requests, bytes, client_errors, server_errors, edge_errors, timed, time_ms, nginx_ms }
    }
}

/// Requests of the last seconds.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    /// The unix second after them.
    pub end: i64,
    /// All requests of applications. Those of the version types that were asked for, if only some were.
    pub total: Sums,
    /// Those without a version type; zero if only some version types were asked for.
    pub no_route: Sums,
    /// Every version type with requests in the present minute or the one before. The counters are exact for those with most
    /// requests or errors ([`Self::exact`]). Of the others, requests and errors are estimated from whole minutes.
    pub by_id: HashMap<String, Sums>,
    /// The version types whose counters are exact.
    pub exact: HashSet<String>,
}

/// The requests of the last `seconds`, at most a minute. The counters of the `exact` version types with most requests, and of
/// as many with most errors, are exact. With `own`, only of these version types.
///
/// # Errors
/// If the server is unavailable.
pub async fn recent(
    stats: &Stats,
    seconds: i64,
    exact: usize,
    own: Option<&HashSet<&str>>,
) -> Result<Recent, Error> {
    let now = i64::try_from(stats.now_ms().await? / 1000).unwrap_or(0);
    let end = now - LAG_SECONDS;
    let [requests, failed] = ranked(stats, now, seconds, own).await?;
    let mut by_id: HashMap<String, Sums> = HashMap::new();
    for (id, requests) in &requests {
        by_id.entry(id.clone()).or_default().requests = *requests;
    }
    for (id, failed) in &failed {
        by_id.entry(id.clone()).or_default().server_errors = *failed;
    }
    let loudest = |ranking: BTreeMap<String, u64>| {
        let mut all: Vec<(String, u64)> = ranking.into_iter().collect();
        all.sort_by_key(|(_, count)| Reverse(*count));
        all.truncate(exact);
        all.into_iter().map(|(id, _)| id)
    };
    let exact: HashSet<String> = loudest(requests).chain(loudest(failed)).collect();
    let mut ids: Vec<String> = exact.iter().cloned().collect();
    if own.is_none() {
        ids.extend([TOTAL, NO_ROUTE].map(ToOwned::to_owned));
    }
    let units: Vec<i64> = (end - seconds..end).collect();
    let read = counters(stats, &ids, &units, keys::stats::history).await?;
    let mut read: HashMap<String, Sums> =
        read.into_iter().map(|(id, seconds)| (id, Sums::of(&seconds))).collect();
    let (total, no_route) = (read.remove(TOTAL), read.remove(NO_ROUTE).unwrap_or_default());
    by_id.extend(read);
    let total = total.unwrap_or_else(|| Sums::of(by_id.values()));
    Ok(Recent { end, total, no_route, by_id, exact })
}

/// The version types with requests in the present minute or the one before: their requests and errors in the last `seconds`, as
/// estimated from these minutes.
async fn ranked(
    stats: &Stats,
    now: i64,
    seconds: i64,
    own: Option<&HashSet<&str>>,
) -> Result<[BTreeMap<String, u64>; 2], Error> {
    let minute = now - now.rem_euclid(MINUTE);
    let mut batch = stats.batch();
    for by in ["requests", "errors"] {
        for minute in [minute, minute - MINUTE] {
            batch.add("ZRANGE", &keys::stats::ranking(minute, by), (0, MAX_RANKED, "REV", "WITHSCORES"));
        }
    }
    let rankings: Vec<Vec<(String, f64)>> = batch.query().await?;
    let mut rankings = rankings.into_iter();
    let mut estimate = || {
        let (present, before) = (rankings.next().unwrap_or_default(), rankings.next().unwrap_or_default());
        #[allow(clippy::cast_precision_loss, reason = "seconds of a minute")]
        let (part, share) = (1.0 - (now - minute) as f64 / MINUTE as f64, seconds as f64 / MINUTE as f64);
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        for (ranking, weight) in [(present, 1.0), (before, part)] {
            for (id, count) in ranking {
                if own.is_none_or(|own| own.contains(&*id)) {
                    *sums.entry(id).or_default() += count * weight;
                }
            }
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of a minute")]
        let count = |(id, sum): (String, f64)| (id, (sum * share).round() as u64);
        sums.into_iter().map(count).collect()
    };
    Ok([estimate(), estimate()])
}

/// The key of an hour of counters, from a version type, an hour and a metric.
pub type HourKey = fn(&str, i64, &str) -> Key<StatsSpace>;

/// The counters of version types in each of these seconds or minutes.
///
/// # Errors
/// If the server is unavailable.
pub async fn counters(
    stats: &Stats,
    ids: &[String],
    units: &[i64],
    key: HourKey,
) -> Result<HashMap<String, Vec<Sums>>, Error> {
    if ids.is_empty() || units.is_empty() {
        return Ok(HashMap::new());
    }
    let hours = by_hour(units.iter().copied());
    let mut found = HashMap::with_capacity(ids.len());
    for ids in ids.chunks((MAX_UNITS / units.len()).max(1)) {
        found.extend(counters_of(stats, ids, &hours, key).await?);
    }
    Ok(found)
}

/// The counters of version types in one round trip.
async fn counters_of(
    stats: &Stats,
    ids: &[String],
    hours: &[(i64, Vec<i64>)],
    key: HourKey,
) -> Result<Vec<(String, Vec<Sums>)>, Error> {
    let units: usize = hours.iter().map(|(_, fields)| fields.len()).sum();
    let mut batch = stats.batch();
    for id in ids {
        for metric in METRICS {
            for (hour, fields) in hours {
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
        (0..units).map(sums).collect()
    }));
    Ok(by_id.collect())
}

/// Groups seconds by hour: the history has one hash per hour.
pub fn by_hour(range: impl IntoIterator<Item = i64>) -> Vec<(i64, Vec<i64>)> {
    let mut hours: Vec<(i64, Vec<i64>)> = Vec::new();
    for second in range {
        let hour = second - second.rem_euclid(HOUR);
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
}
