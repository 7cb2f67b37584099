//! `GET /stats/…/latency`: upstream response times over a period, as a histogram.
//!
//! For a version type or a group of them, each answered request is one value: the total time that it waited for
//! instances. For an instance, each answer is one value, including those to retries. The log contains only the
//! addresses of instances. The route table on this machine shows which instance had an address at which time, up to an
//! hour after its removal.

use std::time::Duration;

use axum::{
    Json,
    extract::{Path, Query, State, rejection::PathRejection, rejection::QueryRejection},
    http::StatusCode,
};
use signalbox_api::stats::{Bucket, Latency, Period};
use signalbox_store::{Key, StatsSpace, keys::stats};

use super::{
    App, Problem,
    history::{hours, is_kept, period},
    store,
    subject::{Subject, SubjectPath},
};
use crate::fold::{
    INSTANCES_KEPT_SECONDS, ROLLUP_KEPT_SECONDS,
    latency::{self, BELOW_MS, BUCKETS, NAMES},
};

/// The maximum number of hashes that one answer reads: hours times version types times buckets. Most of them do not
/// exist and cost almost nothing.
const MAX_HASHES: usize = 64_000;
/// The time limit for the replica, which is on this machine.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(2);

/// Whole minutes, unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Minutes {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Minutes {
    /// Validates a request at the unix second `now`. Partly covered minutes are included.
    fn new(asked: &Period, now: u64, kept_seconds: u64) -> Result<Self, Problem> {
        let (start, end) = period(asked.start, asked.end, now)?;
        if !is_kept(start, kept_seconds, now) {
            let detail = format!(
                "`start` is too early: these latencies are stored for {} days.",
                kept_seconds / 86_400
            );
            return Err(Problem::unprocessable("range_too_old", detail));
        }
        Ok(Self { start: start - start % 60, end: end.next_multiple_of(60) })
    }

    fn hours(self) -> impl Iterator<Item = u64> {
        hours(self.start, self.end)
    }
}

/// The histogram of a subject, without the fields that only some subjects have.
fn histogram(kind: &str, id: String, range: Minutes, as_at: u64, counts: &[u64; BUCKETS]) -> Latency {
    let quantile = |part: f64| latency::quantile(counts, part).map(|value| (value * 1000.0).round() / 1000.0);
    Latency {
        kind: kind.to_owned(),
        id,
        version_types: Vec::new(),
        address: None,
        start: range.start,
        end: range.end,
        as_at,
        count: counts.iter().sum(),
        p50_ms: quantile(0.5),
        p90_ms: quantile(0.9),
        p95_ms: quantile(0.95),
        p99_ms: quantile(0.99),
        buckets: (counts.iter().enumerate())
            .map(|(at, count)| Bucket { below_ms: BELOW_MS.get(at).copied(), count: *count })
            .collect(),
    }
}

/// Hours fit a signed number, because they are derived from the server's clock and a validated range.
fn hashes(ids: &[String], range: Minutes, key: fn(&str, i64, &str) -> Key<StatsSpace>) -> Hashes {
    let ids = ids.iter();
    ids.flat_map(|id| range.hours().map(move |hour| (id, hour as i64)))
        .flat_map(|(id, hour)| NAMES.iter().enumerate().map(move |(at, name)| (at, key(id, hour, name))))
        .collect()
}

/// Keys, each with the index of its bucket.
pub(super) type Hashes = Vec<(usize, Key<StatsSpace>)>;

/// Show the response times of a subject
///
/// A value is the total time that an answered request waited for its instances.
#[utoipa::path(get, path = "/stats/{kind}/{id}/latency", tag = "statistics", params(SubjectPath, Period),
    responses((status = 200, description = "The histogram", body = Latency),
    (status = 400, description = "invalid_query", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "unknown_kind, unknown_subject", body = Problem,
        content_type = "application/problem+json"),
    (status = 422, description = "invalid_id, empty_range, range_in_future, range_too_old, range_too_large",
        body = Problem,
        content_type = "application/problem+json")))]
pub(super) async fn group(
    State(app): State<App>,
    subject: Subject,
    query: Result<Query<Period>, QueryRejection>,
) -> Result<Json<Latency>, Problem> {
    let as_at = app.stats.now_ms().await? / 1000;
    let range = Minutes::new(&query?.0, as_at, ROLLUP_KEPT_SECONDS)?;
    let version_types = store::version_types(&app.stats, &subject).await?;
    if version_types.len() * range.hours().count() * BUCKETS > MAX_HASHES {
        let types = version_types.len();
        let detail = format!("The range is too long for {types} version types. Use a shorter range.");
        return Err(Problem::unprocessable("range_too_large", detail));
    }
    let counts = store::latency(&app.stats, &hashes(&version_types, range, stats::latency), range).await?;
    Ok(Json(Latency { version_types, ..histogram(subject.kind, subject.id, range, as_at, &counts) }))
}

/// Show the response times of an instance
///
/// Every answer of the instance is a value, also of repeated requests. `/stats/instance/{id}/latency` is the same call.
#[utoipa::path(get, path = "/stats/instance/{id}", tag = "statistics",
    params(("id" = String, Path, description = "The ID of the instance"), Period),
    responses((status = 200, description = "The histogram", body = Latency),
    (status = 400, description = "invalid_query", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "unknown_instance", body = Problem,
        content_type = "application/problem+json"),
    (status = 422, description = "invalid_id, empty_range, range_in_future, range_too_old", body = Problem,
        content_type = "application/problem+json"),
    (status = 503, description = "route_table_unavailable", body = Problem,
        content_type = "application/problem+json")))]
pub(super) async fn instance(
    State(app): State<App>,
    path: Result<Path<String>, PathRejection>,
    query: Result<Query<Period>, QueryRejection>,
) -> Result<Json<Latency>, Problem> {
    let Path(id) = path?;
    let id = Subject::checked(id)?;
    let Query(asked) = query?;
    let as_at = app.stats.now_ms().await? / 1000;
    let mut range = Minutes::new(&asked, as_at, INSTANCES_KEPT_SECONDS)?;
    let unavailable = |detail: &str| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "route_table_unavailable", detail.to_owned())
    };
    let Some(replica) = &app.replica else {
        return Err(unavailable(
            "This sidecar has no `redis.routes_replica`, so it cannot find the addresses of instances.",
        ));
    };
    let found = tokio::time::timeout(REPLICA_TIMEOUT, store::instance(replica, &id)).await;
    let found = found.map_err(drop).and_then(|found| found.map_err(drop));
    let Some(instance) =
        found.map_err(|()| unavailable("The routes replica of this sidecar does not respond. Try again."))?
    else {
        let detail = format!(
            "Unknown instance `{id}`: it is not in the route table and was not within the last hour."
        );
        return Err(Problem::new(StatusCode::NOT_FOUND, "unknown_instance", detail));
    };
    // Before that time, the address belonged to another instance.
    range.start = range.start.max(instance.joined_at - instance.joined_at % 60);
    range.end = range.end.max(range.start);
    let hashes = hashes(std::slice::from_ref(&instance.address), range, stats::instance_latency);
    let counts = store::latency(&app.stats, &hashes, range).await?;
    Ok(Json(Latency { address: Some(instance.address), ..histogram("instance", id, range, as_at, &counts) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_267_331;

    #[test]
    fn partly_covered_minutes_are_included_and_invalid_ranges_rejected() {
        let asked = |start, end| Minutes::new(&Period { start, end }, NOW, ROLLUP_KEPT_SECONDS);
        let five = asked(None, None).unwrap();
        assert_eq!((five.start % 60, five.end % 60), (0, 0));
        assert!(five.start <= NOW - 299 && five.start > NOW - 361 && five.end > NOW);
        let fortnight = asked(Some(NOW - 14 * 86_400), None).unwrap();
        assert!(fortnight.hours().count() * BUCKETS < MAX_HASHES, "one version type's whole time");
        for (start, end, code) in [
            (Some(5), Some(5), "empty_range"),
            (None, Some(NOW + 90_000), "range_in_future"),
            (None, Some(u64::MAX), "range_in_future"),
            (Some(0), None, "range_too_old"),
        ] {
            assert_eq!(asked(start, end).unwrap_err().code(), code);
        }
    }
}
