//! `GET /stats/…/stream`: one point per second, as server-sent events.
//!
//! The point of a second is sent when it is final: nginx writes its log within 200 ms and the follower commits within
//! another 500 ms, so the second does not change after two more seconds. The ID of each event is its second, in Unix
//! time.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use signalbox_api::stats::Metric;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{
    App, FORWARDED, Problem,
    auth::Credential,
    history::metric,
    store,
    subject::{Subject, SubjectPath},
};
use crate::edge;

/// The maximum number of streams, and of one token's. Each needs one Redis round trip per second.
const MAX_STREAMS: usize = 64;
const MAX_STREAMS_PER_TOKEN: usize = 16;
/// The maximum number of version types in one stream.
const MAX_VERSION_TYPES: usize = 1_000;
/// The time after which a second is final.
const SETTLED_AFTER: u64 = 2;
/// The maximum number of missed seconds that are sent after Redis was unavailable.
const CATCH_UP: u64 = 30;

/// Stream a metric
///
/// Server-sent events, one a second: `[unix second, value]`. A second is sent when it no longer changes, after two
/// seconds.
#[utoipa::path(get, path = "/stats/{kind}/{id}/stream", tag = "statistics", params(SubjectPath, Metric),
    responses((status = 200, description = "The values", content_type = "text/event-stream", body = String),
    (status = 400, description = "invalid_query", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "unknown_kind, unknown_subject", body = Problem,
        content_type = "application/problem+json"),
    (status = 422, description = "invalid_id, unknown_metric, group_too_large", body = Problem,
        content_type = "application/problem+json"),
    (status = 429, description = "token_limit_reached", body = Problem,
        content_type = "application/problem+json"),
    (status = 503, description = "too_many_streams", body = Problem,
        content_type = "application/problem+json")))]
pub(super) async fn stream(
    State(app): State<App>,
    Extension(credential): Extension<Credential>,
    subject: Subject,
    headers: HeaderMap,
    query: Result<Query<Metric>, QueryRejection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let Query(asked) = query?;
    let metric = metric(asked.metric.as_deref())?;
    let ids = store::version_types(&app.stats, &subject).await?;
    if ids.len() > MAX_VERSION_TYPES {
        let detail = format!(
            "The group has more than {MAX_VERSION_TYPES} version types, the limit of a stream. Use a smaller group."
        );
        return Err(Problem::unprocessable("group_too_large", detail));
    }
    let place = app.streams.take(&credential)?;
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stopping = app.stopping.clone();
    let forwarded = Forwarded(headers.contains_key(FORWARDED).then(|| app.edge.clone()));
    let points = Points {
        app,
        credential,
        ids,
        metric,
        ticks,
        sent: None,
        revoked: false,
        _place: place,
        _forwarded: forwarded,
    };
    let events = futures_util::stream::unfold(points, |mut points| async {
        let events = points.next().await?;
        Some((futures_util::stream::iter(events), points))
    });
    let events = events.flatten().map(Ok).take_until(stopping.cancelled_owned());
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// The open streams, by the digest of their token. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams(Arc<Mutex<HashMap<[u8; 32], usize>>>);

/// The slot of a stream, which is freed when this is dropped.
#[derive(Debug)]
struct Place {
    streams: Streams,
    digest: [u8; 32],
}

impl Streams {
    /// Takes a slot. The root token is subject only to the limit for all tokens together.
    fn take(&self, credential: &Credential) -> Result<Place, Problem> {
        let mut open = self.0.lock();
        let Credential { digest, root } = *credential;
        if !root && open.get(&digest).is_some_and(|count| *count >= MAX_STREAMS_PER_TOKEN) {
            let detail = format!(
                "Stream limit of one token reached ({MAX_STREAMS_PER_TOKEN}). Close a stream, or use `/history`."
            );
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail));
        }
        if open.values().sum::<usize>() >= MAX_STREAMS {
            let detail = format!("Stream limit reached ({MAX_STREAMS}). Close a stream, or use `/history`.");
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", detail));
        }
        *open.entry(digest).or_default() += 1;
        Ok(Place { streams: self.clone(), digest })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.streams.0.lock();
        if let Some(count) = open.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.digest);
            }
        }
    }
}

struct Points {
    app: App,
    credential: Credential,
    ids: Vec<String>,
    metric: &'static str,
    ticks: Interval,
    /// The last second that was sent.
    sent: Option<u64>,
    revoked: bool,
    _place: Place,
    _forwarded: Forwarded,
}

/// Counts a forwarded stream when it ends.
struct Forwarded(Option<edge::Watch>);

impl Drop for Forwarded {
    fn drop(&mut self) {
        if let Some(edge) = &self.0 {
            edge.forwarded();
        }
    }
}

impl Points {
    /// Waits for the next tick and returns its events. While Redis is unavailable there are none; the missed
    /// seconds are sent later. After the token was revoked it returns a last event, then `None`.
    async fn next(&mut self) -> Option<Vec<Event>> {
        if self.revoked {
            return None;
        }
        self.ticks.tick().await;
        if !self.app.tokens.can_still_read(&self.credential).await {
            self.revoked = true;
            return Some(vec![Event::default().event("end").data(r#"{"reason":"token_revoked"}"#)]);
        }
        Some(self.settled().await.unwrap_or_default())
    }

    async fn settled(&mut self) -> Result<Vec<Event>, Problem> {
        let now = self.app.stats.now_ms().await? / 1000;
        let end = now.saturating_sub(SETTLED_AFTER) + 1;
        let start = self.sent.map_or(end - 1, |sent| sent + 1).max(end.saturating_sub(CATCH_UP));
        let points = store::seconds(&self.app.stats, &self.ids, self.metric, start..end).await?;
        self.sent = points.last().map(|(second, _)| *second).or(self.sent);
        Ok(points
            .iter()
            .map(|(second, value)| {
                Event::default().id(second.to_string()).data(format!("[{second},{value}]"))
            })
            .collect())
    }
}
