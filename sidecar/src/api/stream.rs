//! `GET /stats/…/stream`: one point per second, as server-sent events.
//!
//! A second is sent when it is final: nginx writes its log within 200 ms and the follower commits within another 500 ms, so
//! the second does not change after two more seconds. Each event's ID is its second.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::{Path, Query, State, rejection::PathRejection, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Interval, MissedTickBehavior, interval},
};

use super::{App, FORWARDED, Problem, history::metric, store, subject::Subject};
use crate::edge;

/// The maximum number of streams. Each needs one Redis round trip per second.
pub(super) const MAX_STREAMS: usize = 64;
/// The maximum number of version types in one stream.
const MAX_VERSION_TYPES: usize = 1_000;
/// The time after which a second is final.
const SETTLED_AFTER: u64 = 2;
/// The maximum number of missed seconds that are sent after Redis was unavailable.
const CATCH_UP: u64 = 30;

/// The query string.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    metric: Option<String>,
}

pub(super) async fn group(
    State(app): State<App>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let Path((kind, id)) = path?;
    answer(app, Subject::new(&kind, id)?, query?.0, headers).await
}

pub(super) async fn uncaught(
    State(app): State<App>,
    headers: HeaderMap,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    answer(app, Subject::uncaught(), query?.0, headers).await
}

pub(super) async fn pacemaker(
    State(app): State<App>,
    headers: HeaderMap,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    answer(app, Subject::pacemaker(), query?.0, headers).await
}

async fn answer(
    app: App,
    subject: Subject,
    asked: Asked,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let metric = metric(asked.metric.as_deref())?;
    let ids = store::version_types(&app.stats, &subject).await?;
    if ids.len() > MAX_VERSION_TYPES {
        let detail = format!(
            "The group has more than {MAX_VERSION_TYPES} version types, the limit of a stream. Use a smaller group."
        );
        return Err(Problem::unprocessable("group_too_large", detail));
    }
    let Ok(permit) = Arc::clone(&app.streams).try_acquire_owned() else {
        let detail = "Stream limit reached. Close a stream, or use `/history`.";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", detail));
    };
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stopping = app.stopping.clone();
    let forwarded = Forwarded(headers.contains_key(FORWARDED).then(|| app.edge.clone()));
    let points = Points { app, ids, metric, ticks, sent: None, _permit: permit, _forwarded: forwarded };
    let events = stream::unfold(points, |mut points| async {
        let events = points.next().await;
        Some((stream::iter(events), points))
    });
    let events = events.flatten().map(Ok).take_until(stopping.cancelled_owned());
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

struct Points {
    app: App,
    ids: Vec<String>,
    metric: &'static str,
    ticks: Interval,
    /// The last second that was sent.
    sent: Option<u64>,
    _permit: OwnedSemaphorePermit,
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
    /// Waits for the next tick and returns its events. While Redis is unavailable there are none; the seconds follow later.
    async fn next(&mut self) -> Vec<Event> {
        self.ticks.tick().await;
        self.settled().await.unwrap_or_default()
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
