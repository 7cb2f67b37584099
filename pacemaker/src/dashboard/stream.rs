//! Updates of an open page, as server-sent events.
//!
//! | event | data | sent |
//! |---|---|---|
//! | `page` | the page's inner HTML, as a JSON string | immediately, then after each change, at most once per second |
//! | `charts` | the newest points of its charts | in the same way |
//! | `problems` | the number of problems, which the navigation shows | when it changes |
//! | `beat` | nothing | every second; if it does not arrive, the browser shows that its data is old |

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::{
    page::Viewer,
    pages::{self, Kind, View},
};
use crate::dashboard::Site;
use crate::http::{Problem, Query, auth::Credential, slots::Slot};
use signalbox_access::{Caller, Scope};

const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Refreshes after which the problems are counted again.
const CHECKUP_ROUNDS: u64 = 5;
/// How long a browser waits before it reconnects.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Disables buffering in nginx, which would delay messages.
static UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

/// One open stream.
struct PageStream {
    app: Site,
    caller: Caller,
    credential: Credential,
    view: View,
    refresh: Interval,
    round: u64,
    html: String,
    charts: String,
    problems: String,
    /// Messages to send before the next refresh, the last one first.
    pending: Vec<Event>,
    _place: Slot,
}

pub(super) async fn stream(
    viewer: Viewer,
    State(app): State<Site>,
    Query(mut view): Query<View>,
) -> Result<Response, Problem> {
    view.kind = Kind::named(&view.page)
        .ok_or_else(|| Problem::not_found("unknown_page", format!("Unknown page `{}`.", view.page)))?;
    let place = app.dashboard.streams.take(&viewer.caller)?;
    let mut refresh = interval(REFRESH_INTERVAL);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let open = PageStream {
        app,
        caller: viewer.caller,
        credential: viewer.credential,
        view,
        refresh,
        round: 0,
        html: String::new(),
        charts: String::new(),
        problems: String::new(),
        pending: vec![Event::default().retry(RECONNECT_DELAY).comment("open")],
        _place: place,
    };
    let events = stream::unfold(open, |mut open| async {
        let event = open.next().await?;
        Some((Ok::<_, Infallible>(event), open))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::default()).into_response();
    response.headers_mut().insert(UNBUFFERED.clone(), HeaderValue::from_static("no"));
    Ok(response)
}

impl PageStream {
    /// The next message; `None` ends the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop() {
                return Some(event);
            }
            tokio::select! {
                _ = self.refresh.tick() => {}
                () = self.app.shutdown.cancelled() => return None,
            }
            if !self.still_allowed().await {
                return None;
            }
            self.render().await;
            // Shows that the page is current, also if nothing on it has changed. Browsers ignore events without data.
            self.pending.insert(0, Event::default().event("beat").data("current"));
        }
    }

    /// Whether the session is still open, and its token is valid and has the scope `read`. While the fabric Redis does not
    /// respond, the stream stays open with the scopes that were read last.
    async fn still_allowed(&mut self) -> bool {
        let caller = &mut self.caller;
        let allowed = |now: Caller| {
            let reads = now.has_any(&[Scope::Read]);
            *caller = now;
            reads
        };
        self.credential.is_still(&self.app, allowed).await
    }

    async fn render(&mut self) {
        // A page reads as much as a list of the API.
        let content = match self.app.limits.lists.wait(&self.caller).await {
            Ok(_place) => {
                pages::content(&self.app, &self.caller, &self.view, self.round, Instant::now()).await
            }
            Err(problem) => Err(problem),
        };
        let (html, charts) = match content {
            Ok(content) => (content.html, serde_json::to_string(&content.charts).unwrap_or_default()),
            Err(problem) => (pages::notice(&problem).unwrap_or_default(), String::new()),
        };
        self.round += 1;
        // Most pages make no checkup; the count in their navigation may be a few seconds old.
        if self.round % CHECKUP_ROUNDS == 1 && self.caller.sees_all_numbers() {
            let deadline = Instant::now() + REFRESH_INTERVAL;
            self.app.dashboard.checkups.get(&self.app, &self.caller, deadline).await;
        }
        let (problems, critical) = self.app.dashboard.checkups.count(&self.caller);
        let problems = format!("{problems} {}", if critical { "bad" } else { "warn" });
        if problems != self.problems {
            self.pending.push(Event::default().event("problems").data(&problems));
            self.problems = problems;
        }
        if charts != self.charts && charts != "[]" && !charts.is_empty() {
            self.pending.push(Event::default().event("charts").data(&charts));
            self.charts = charts;
        }
        // Messages are taken from the end: the page is sent before its charts, because it contains their elements.
        if html != self.html {
            // Line breaks would end the field; JSON escapes them.
            let data = serde_json::to_string(&html).unwrap_or_default();
            self.pending.push(Event::default().event("page").data(data));
            self.html = html;
        }
    }
}
