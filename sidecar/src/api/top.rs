//! `GET /stats/top`: the version types with most requests or errors in the last seconds.

use std::cmp::Reverse;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use signalbox_api::stats::{Loud, Loudest, Recent, Top};
use signalbox_store::traffic::{self, Sums};

use super::{App, Problem};
use crate::fold::RANKINGS;

/// The longest period: rankings are kept by minute.
const MAX_SECONDS: u64 = 60;
const MAX_LIMIT: usize = 1000;
const DEFAULT_LIMIT: usize = 100;

fn recent(sums: &Sums) -> Recent {
    Recent {
        requests: sums.requests,
        bytes: sums.bytes,
        timecount: sums.timed,
        time: sums.time_ms,
        nginxtime: sums.nginx_ms,
        client_errors: sums.client_errors,
        server_errors: sums.server_errors,
        edge_5xx: sums.edge_errors,
    }
}

/// List the loudest version types
///
/// Version types by their requests or errors of the last seconds, and all requests together. One call reads as many as are
/// asked for, whatever the number of version types.
#[utoipa::path(get, path = "/stats/top", tag = "statistics", params(Loudest),
    responses((status = 200, description = "The version types, the loudest first", body = Top),
    (status = 400, description = "invalid_query", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "unknown_ranking, invalid_seconds, invalid_limit", body = Problem,
        content_type = "application/problem+json")))]
pub(super) async fn top(
    State(app): State<App>,
    query: Result<Query<Loudest>, QueryRejection>,
) -> Result<Json<Top>, Problem> {
    let Query(Loudest { by, seconds, limit }) = query?;
    let by = by.as_deref().unwrap_or(RANKINGS[0]);
    if !RANKINGS.contains(&by) {
        let detail = format!("Unknown ranking. The rankings are {}.", RANKINGS.join(", "));
        return Err(Problem::unprocessable("unknown_ranking", detail));
    }
    let seconds = seconds.unwrap_or(MAX_SECONDS);
    if !(1..=MAX_SECONDS).contains(&seconds) {
        let detail = format!("`seconds` must be 1 to {MAX_SECONDS}.");
        return Err(Problem::unprocessable("invalid_seconds", detail));
    }
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::unprocessable("invalid_limit", format!("`limit` must be 1 to {MAX_LIMIT}.")));
    }
    let read = traffic::recent(&app.stats, seconds as i64, limit, None).await?;
    let mut loudest: Vec<(&String, &Sums)> =
        read.by_id.iter().filter(|(id, _)| read.exact.contains(*id)).collect();
    let by_errors = by == RANKINGS[1];
    loudest.sort_by_key(|(id, sums)| {
        let count = if by_errors { sums.failed() } else { sums.requests };
        (Reverse(count), Reverse(sums.requests), id.as_str())
    });
    loudest.truncate(limit);
    Ok(Json(Top {
        end: u64::try_from(read.end).unwrap_or(0),
        seconds,
        total: recent(&read.total),
        uncaught: recent(&read.no_route),
        active: read.by_id.len() as u64,
        version_types: loudest
            .into_iter()
            .map(|(id, sums)| Loud { id: id.clone(), recent: recent(sums) })
            .collect(),
    }))
}
