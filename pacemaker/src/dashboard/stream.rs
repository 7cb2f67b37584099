//! A page's changes, as long as somebody looks: server-sent events.
//!
//! `page` carries the page's inner part as a JSON string, `charts` the newest points of its charts. Both come at once
//! and then when they changed, at most once a second.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::{Query, State},
    http::{HeaderName, HeaderValue, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Interval, MissedTickBehavior, interval},
};

use super::{
    page::Viewer,
    pages::{self, Asked, Kind, View},
};
use crate::dashboard::Site;
use crate::http::Problem;
use signalbox_access::{Caller, Scope};

/// Between two looks.
const PACE: Duration = Duration::from_secs(1);
/// How long a browser waits before it connects again.
const RECONNECT: Duration = Duration::from_secs(1);
/// nginx passes on each message when it comes.
static UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

/// One who looks at a page.
struct Watching {
    app: Site,
    caller: Caller,
    /// What the session's token is known by; a program's was checked when it came.
    digest: Option<String>,
    view: View,
    pace: Interval,
    round: u64,
    html: String,
    charts: String,
    /// What has to be sent before the next look.
    ready: Vec<Event>,
    _seat: OwnedSemaphorePermit,
}

pub(super) async fn stream(
    viewer: Viewer,
    State(app): State<Site>,
    Query(asked): Query<Asked>,
) -> Result<Response, Problem> {
    let kind = Kind::named(&asked.page)
        .ok_or_else(|| Problem::not_found("unknown_page", "the dashboard has no such page"))?;
    let seat = std::sync::Arc::clone(&app.dashboard.seats).try_acquire_owned().map_err(|_| {
        let detail = "as many pages are open as one pacemaker serves; close one";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", detail)
    })?;
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watching = Watching {
        app,
        caller: viewer.caller,
        digest: viewer.session.map(|session| session.digest),
        view: asked.of(kind),
        pace,
        round: 0,
        html: String::new(),
        charts: String::new(),
        ready: vec![Event::default().retry(RECONNECT).comment("watching")],
        _seat: seat,
    };
    let events = stream::unfold(watching, |mut watching| async {
        let event = watching.next().await?;
        Some((Ok::<_, Infallible>(event), watching))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::default()).into_response();
    response.headers_mut().insert(UNBUFFERED.clone(), HeaderValue::from_static("no"));
    Ok(response)
}

impl Watching {
    /// The next message; none when the stream ends.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop() {
                return Some(event);
            }
            tokio::select! {
                _ = self.pace.tick() => {}
                () = self.app.shutdown.cancelled() => return None,
            }
            if !self.still_allowed().await {
                return None;
            }
            self.look().await;
        }
    }

    /// Whether the token still is what it was when the page was opened. While the fabric is away nothing new is
    /// decided, and little is shown.
    async fn still_allowed(&mut self) -> bool {
        let Some(digest) = &self.digest else { return true };
        match self.app.remember(digest).await {
            Ok(Some(caller)) if caller.has_any(&[Scope::Read]) => {
                self.caller = caller;
                true
            }
            Ok(_) => false,
            Err(_) => true,
        }
    }

    async fn look(&mut self) {
        let (html, charts) = match pages::content(&self.app, &self.caller, &self.view, self.round).await {
            Ok(content) => (content.html, serde_json::to_string(&content.charts).unwrap_or_default()),
            Err(problem) => (pages::notice(problem.detail()).unwrap_or_default(), String::new()),
        };
        self.round += 1;
        if charts != self.charts && charts != "[]" && !charts.is_empty() {
            self.ready.push(Event::default().event("charts").data(&charts));
            self.charts = charts;
        }
        // Taken from the end, so the page comes before the charts that it has a place for.
        if html != self.html {
            // As JSON it is one line, whatever line ends are in it.
            let data = serde_json::to_string(&html).unwrap_or_default();
            self.ready.push(Event::default().event("page").data(data));
            self.html = html;
        }
    }
}
