//! The sums that `stats` feeds read: over the last seconds, of one version type or of all in a group.

use serde_json::{Map, Value, json};
use signalbox_store::{Error, Stats, keys::stats as keys};

const HOUR_SECONDS: i64 = 3600;
/// Windows up to this length sum seconds, longer ones minutes.
const MAX_WINDOW_OF_SECONDS: i64 = 3600;
const METRICS: [&str; 9] = ["requests", "bytes", "1xx", "2xx", "3xx", "4xx", "5xx", "time", "timecount"];

/// The statistics of the edge. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Statistics(pub(crate) Stats);

impl Statistics {
    /// The sums of `kind` `id` in the window that ends with the last whole second.
    pub(crate) async fn window(&self, kind: &str, id: &str, seconds: u64) -> Result<Value, Error> {
        let version_types: Vec<String> = match kind {
            "version_type" => vec![id.to_owned()],
            group => {
                let key = match group {
                    "version" => keys::version(id),
                    "application" => keys::application(id),
                    "workspace" => keys::workspace(id),
                    _ => keys::node(id),
                };
                self.0.command("SMEMBERS").key(&key).query().await?
            }
        };
        let now = i64::try_from(self.0.now_ms().await? / 1000).unwrap_or(i64::MAX);
        let window = i64::try_from(seconds).unwrap_or(i64::MAX);
        let mut sums = [0_u64; METRICS.len()];
        for id in &version_types {
            let mut batch = self.0.batch();
            let parts = parts(now, window);
            for metric in METRICS {
                for (hour, fields) in &parts {
                    let minutes = window > MAX_WINDOW_OF_SECONDS;
                    let key = if minutes {
                        keys::rollup(id, *hour, metric)
                    } else {
                        keys::history(id, *hour, metric)
                    };
                    batch.add("HMGET", &key, fields);
                }
            }
            let replies: Vec<Vec<Option<u64>>> = batch.query().await?;
            for (sum, replies) in sums.iter_mut().zip(replies.chunks(parts.len().max(1))) {
                *sum += replies.iter().flatten().flatten().sum::<u64>();
            }
        }
        Ok(to_json(&sums))
    }
}

/// The seconds (or minutes) of the window by the hour whose hash holds them. The second `now` is incomplete and left out.
fn parts(now: i64, window: i64) -> Vec<(i64, Vec<i64>)> {
    let step = if window > MAX_WINDOW_OF_SECONDS { 60 } else { 1 };
    let first = (now - window).div_euclid(step) * step;
    let mut parts: Vec<(i64, Vec<i64>)> = Vec::new();
    let mut at = first;
    while at < now {
        let hour = at.div_euclid(HOUR_SECONDS) * HOUR_SECONDS;
        match parts.last_mut() {
            Some((last, fields)) if *last == hour => fields.push(at),
            _ => parts.push((hour, vec![at])),
        }
        at += step;
    }
    parts
}

#[allow(clippy::cast_precision_loss, reason = "sums of a few hours")]
fn to_json(sums: &[u64; METRICS.len()]) -> Value {
    let sum = |metric: &str| METRICS.iter().position(|known| *known == metric).map_or(0, |place| sums[place]);
    let requests = sum("requests");
    let mut object = Map::new();
    object.insert("requests".into(), json!(requests));
    object.insert("bytes".into(), json!(sum("bytes")));
    for class in ["1xx", "2xx", "3xx", "4xx", "5xx"] {
        object.insert(class.into(), json!(sum(class)));
        let share = (requests > 0).then(|| sum(class) as f64 * 100.0 / requests as f64);
        object.insert(format!("{class}_percentage"), json!(share));
    }
    let timed = sum("timecount");
    object.insert("time_average_ms".into(), json!((timed > 0).then(|| sum("time") as f64 / timed as f64)));
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_with_the_last_whole_second() {
        let all =
            |now, window| parts(now, window).into_iter().flat_map(|(_, fields)| fields).collect::<Vec<_>>();
        assert_eq!(all(7_205, 10), (7_195..7_205).collect::<Vec<_>>());
        assert_eq!(parts(7_205, 10).len(), 2);
        let minutes = all(36_030, 7_200);
        assert_eq!((minutes[0], minutes.len(), *minutes.last().unwrap()), (28_800, 121, 36_000));
    }

    #[test]
    fn without_requests_there_are_no_percentages() {
        let none = to_json(&[0; METRICS.len()]);
        assert!(none["5xx_percentage"].is_null() && none["time_average_ms"].is_null());
        let some = to_json(&[200, 1, 0, 195, 0, 0, 5, 300, 100]);
        assert_eq!((&some["5xx_percentage"], &some["time_average_ms"]), (&json!(2.5), &json!(3.0)));
    }
}
