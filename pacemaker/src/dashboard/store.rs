//! The last minute of each version type, from the statistics' history of single seconds.

use std::collections::HashMap;

use signalbox_store::{self as redis, Stats, keys::stats as key};

const WINDOW_SECONDS: i64 = 60;
const HOUR_SECONDS: i64 = 3600;
const METRICS: [&str; 3] = ["requests", "4xx", "5xx"];

/// Reads traffic from the stats Redis. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Traffic {
    stats: Stats,
}

/// What a version type did in the last minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    pub(crate) requests: u64,
    pub(crate) client_errors: u64,
    pub(crate) server_errors: u64,
}

impl Traffic {
    pub(crate) fn new(stats: Stats) -> Self {
        Self { stats }
    }

    /// The last full minute of these version types, by the stats server's clock, which the sidecars' hours follow
    /// closely enough for a page.
    pub(crate) async fn last_minute(&self, ids: &[String]) -> Result<HashMap<String, Minute>, redis::Error> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let now = i64::try_from(self.stats.now_ms().await? / 1000).unwrap_or(0);
        let hours = seconds_by_hour(now);
        let mut batch = self.stats.batch();
        for id in ids {
            for metric in METRICS {
                for (hour, seconds) in &hours {
                    batch.add("HMGET", &key::history(id, *hour, metric), seconds);
                }
            }
        }
        let replies: Vec<Vec<Option<u64>>> = batch.query().await?;
        let sum = |replies: &[Vec<Option<u64>>]| replies.iter().flatten().flatten().sum::<u64>();
        let per_metric = hours.len();
        let minutes = replies.chunks(per_metric * METRICS.len()).map(|replies| {
            let metric = |index: usize| sum(&replies[index * per_metric..(index + 1) * per_metric]);
            Minute { requests: metric(0), client_errors: metric(1), server_errors: metric(2) }
        });
        Ok(ids.iter().cloned().zip(minutes).collect())
    }
}

/// The seconds of the window, `now` excluded because it is not over, by the hour whose hash holds them.
fn seconds_by_hour(now: i64) -> Vec<(i64, Vec<i64>)> {
    let mut hours: Vec<(i64, Vec<i64>)> = Vec::new();
    for second in now - WINDOW_SECONDS..now {
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
    fn a_minute_may_lie_in_two_hours() {
        let hours = seconds_by_hour(7200 + 10);
        assert_eq!(hours.len(), 2);
        assert_eq!((hours[0].0, hours[0].1.len()), (3600, 50));
        assert_eq!((hours[1].0, hours[1].1.len()), (7200, 10));
        let all: Vec<i64> = hours.into_iter().flat_map(|(_, seconds)| seconds).collect();
        assert_eq!(all, (7150..7210).collect::<Vec<_>>());
        assert_eq!(seconds_by_hour(5000).len(), 1);
    }
}
