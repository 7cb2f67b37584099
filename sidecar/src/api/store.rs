//! Reads the statistics. The only file of the API that uses Redis.

use std::collections::{BTreeMap, HashMap};

use axum::http::StatusCode;
use data_encoding::HEXLOWER;
use signalbox_store::{
    RoutesReplica, Stats,
    keys::{routes, stats},
};

use crate::fold::latency::BUCKETS;

use super::{
    Problem,
    history::{Range, Source},
    latency::{Hashes, Minutes},
    subject::Subject,
};

/// The maximum number of hashes per round trip. Each has up to 60 fields.
const MAX_BATCH: usize = 100;
/// The number of fields at which a round trip ends, so that none keeps Redis busy for more than a few milliseconds.
const MAX_FIELDS: usize = 6_000;
/// The arguments of a command that has only a key.
const NONE: &[&str] = &[];

/// The stored token with this digest.
pub(super) async fn token(redis: &Stats, digest: &[u8; 32]) -> Result<Option<String>, Problem> {
    let field = HEXLOWER.encode(digest);
    Ok(redis.command("HGET").key(&stats::tokens()).arg(field).query().await?)
}

/// The version types of a subject, in a stable order.
pub(super) async fn version_types(redis: &Stats, subject: &Subject) -> Result<Vec<String>, Problem> {
    let Some(members) = subject.members() else { return Ok(vec![subject.id.clone()]) };
    let mut ids: Vec<String> = redis.command("SMEMBERS").key(&members).query().await?;
    if ids.is_empty() {
        // Sets are filled at registration and never emptied, so an empty set means an unknown subject. A version type has
        // no such set: an unknown one has zero requests.
        let detail =
            format!("Unknown {0} `{1}`: no instance was ever registered with it.", subject.kind, subject.id);
        return Err(Problem::new(StatusCode::NOT_FOUND, "unknown_subject", detail));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// The summed totals of some version types, by field.
pub(super) async fn totals(redis: &Stats, ids: &[String]) -> Result<BTreeMap<String, u64>, Problem> {
    let mut sum = BTreeMap::new();
    for ids in ids.chunks(MAX_BATCH) {
        let mut batch = redis.batch();
        for id in ids {
            batch.add("HGETALL", &stats::stat(id), NONE);
        }
        let hashes: Vec<HashMap<String, u64>> = batch.query().await?;
        for (field, value) in hashes.into_iter().flatten() {
            *sum.entry(field).or_default() += value;
        }
    }
    Ok(sum)
}

/// The summed metric of some version types in the steps of `range`.
pub(super) async fn series(
    redis: &Stats,
    ids: &[String],
    metric: &str,
    range: &Range,
) -> Result<Vec<(u64, u64)>, Problem> {
    let mut points = range.points();
    let hours: Vec<u64> = range.hours().collect();
    let mut reads: Vec<(&String, u64)> = Vec::with_capacity(ids.len() * hours.len());
    for id in ids {
        reads.extend(hours.iter().map(|hour| (id, *hour)));
    }
    let mut reads = reads.into_iter().peekable();
    while reads.peek().is_some() {
        let (mut batch, mut asked) = (redis.batch(), Vec::new());
        while asked.len() < MAX_FIELDS
            && let Some((id, hour)) = reads.next()
        {
            // Hours fit: they are derived from the server's clock and a validated range.
            let key = match range.source {
                Source::Seconds => stats::history(id, hour as i64, metric),
                Source::Minutes => stats::rollup(id, hour as i64, metric),
            };
            let fields: Vec<u64> = range.fields(hour).collect();
            batch.add("HMGET", &key, &fields);
            asked.extend(fields);
        }
        let values: Vec<Vec<Option<u64>>> = batch.query().await?;
        for (at, value) in asked.into_iter().zip(values.into_iter().flatten()) {
            if let Some(point) = range.index(at).and_then(|index| points.get_mut(index)) {
                point.1 += value.unwrap_or(0);
            }
        }
    }
    Ok(points)
}

/// The sums of the minutes of `range` in each bucket.
pub(super) async fn latency(
    redis: &Stats,
    hashes: &Hashes,
    range: Minutes,
) -> Result<[u64; BUCKETS], Problem> {
    let mut counts = [0; BUCKETS];
    for some in hashes.chunks(MAX_BATCH) {
        let mut batch = redis.batch();
        for (_, key) in some {
            batch.add("HGETALL", key, NONE);
        }
        let found: Vec<HashMap<u64, u64>> = batch.query().await?;
        for ((bucket, _), minutes) in some.iter().zip(found) {
            counts[*bucket] += (minutes.iter())
                .filter(|(at, _)| (range.start..range.end).contains(*at))
                .map(|(_, count)| count)
                .sum::<u64>();
        }
    }
    Ok(counts)
}

/// An instance in the route table.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) address: String,
    /// The unix second at which it got that address.
    pub(super) joined_at: u64,
}

/// Reads an instance from the route table. It may have been removed within the last hour.
pub(super) async fn instance(
    redis: &RoutesReplica,
    id: &str,
) -> Result<Option<Instance>, signalbox_store::Error> {
    let fields: (Option<String>, Option<u64>) =
        redis.command("HMGET").key(&routes::instance(id)).arg("address").arg("joined_ms").query().await?;
    let (address, joined_ms) = fields;
    Ok(address.map(|address| Instance { address, joined_at: joined_ms.unwrap_or(0) / 1000 }))
}

/// The summed metric of some version types, per second.
pub(super) async fn seconds(
    redis: &Stats,
    ids: &[String],
    metric: &str,
    seconds: std::ops::Range<u64>,
) -> Result<Vec<(u64, u64)>, Problem> {
    let mut points: Vec<_> = seconds.map(|second| (second, 0)).collect();
    for ids in ids.chunks(MAX_BATCH) {
        let mut batch = redis.batch();
        for id in ids {
            for (second, _) in &points {
                let hour = (second - second % 3600) as i64;
                batch.add("HGET", &stats::history(id, hour, metric), *second);
            }
        }
        if batch.is_empty() {
            break;
        }
        let values: Vec<Option<u64>> = batch.query().await?;
        let count = points.len();
        for (index, value) in values.into_iter().enumerate() {
            points[index % count].1 += value.unwrap_or(0);
        }
    }
    Ok(points)
}
