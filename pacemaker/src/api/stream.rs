//! `GET /events`.

use std::convert::Infallible;

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_util::stream;
use serde::Deserialize;
use signalbox_access::Scope;
use signalbox_bus::is_audit_topic;
use signalbox_stream::{Filter, FilterError, Message, Position, StreamLimit};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::auth::Confined as _;
use crate::http::{
    App, Problem,
    auth::{Granted, ReadAll},
};

static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// nginx passes on each message when it comes.
static UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");
/// How long a client waits before it connects again.
const RECONNECT: std::time::Duration = std::time::Duration::from_secs(1);

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Which events, and from where on.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Asked {
    /// Only of this topic.
    topic: Option<String>,
    /// Only of this environment.
    environment: Option<String>,
    /// Only of this object.
    object: Option<String>,
    /// Only where this regular expression matches all of `environment:type:topic`.
    pattern: Option<String>,
    /// The id of the last message that was seen, for clients that cannot send the header `Last-Event-ID`, which wins.
    last_event_id: Option<String>,
}

/// Watch events as they are accepted
///
/// Server-sent events. Each message is an event as subscribers get it, with `environment`; its id, brought back as
/// `Last-Event-ID`, makes the stream go on after it, as far as the log still has what follows. `event: gap` says that it
/// has not; `event: end` says why the stream ends (`slow_reader`, `shutdown`).
#[utoipa::path(get, path = "/events", tag = "live", params(Asked), responses(
    (status = 200, body = String, content_type = "text/event-stream"),
    (status = 422, description = "invalid_pattern, invalid_last_event_id", body = Problem),
    (status = 503, description = "too_many_streams", body = Problem)))]
async fn events(
    Granted { 0: caller, .. }: Granted<ReadAll>,
    State(app): State<App>,
    headers: HeaderMap,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(asked) = asked?;
    // A token that is confined to environments watches one of them.
    if caller.environments().is_some() {
        caller.check_environment(asked.environment.as_deref().unwrap_or_default())?;
    }
    // Records of the audit log are in the stream only if it is asked for them.
    let audit = asked.topic.as_deref().is_some_and(is_audit_topic) && caller.has_any(&[Scope::Audit]);
    let filter = Filter::new(asked.topic, asked.environment, asked.object, asked.pattern.as_deref())?
        .with_audit(audit);
    let slot = app.live.acquire().await?;
    let shards = app.live.shards();
    let brought = match headers.get(&LAST_EVENT_ID) {
        Some(header) => Some(header.to_str().unwrap_or("(no text)").to_owned()),
        None => asked.last_event_id,
    };
    let position = match brought {
        // What a browser sends that was told to forget its place.
        Some(text) if !text.is_empty() => Position::read(&text, shards).ok_or_else(|| {
            let detail = "`Last-Event-ID` must be the id of a message of this stream; leave it out to watch from now on";
            Problem::unprocessable("invalid_last_event_id", detail)
        })?,
        _ => Position::new(app.live.ends(shards).await?),
    };
    let messages = signalbox_stream::watch(app.live.clone(), slot, filter, position, app.shutdown.clone());
    let greeting = Event::default().retry(RECONNECT).comment("watching");
    let messages = stream::unfold((Some(greeting), messages), |(greeting, mut messages)| async {
        let event = match greeting {
            Some(greeting) => greeting,
            None => server_sent(messages.recv().await?),
        };
        Some((Ok::<_, Infallible>(event), (None, messages)))
    });
    let mut response = Sse::new(messages).into_response();
    response.headers_mut().insert(UNBUFFERED.clone(), HeaderValue::from_static("no"));
    Ok(response)
}

fn server_sent(message: Message) -> Event {
    let Message { id, kind, data } = message;
    let event = match data {
        Some(data) => Event::default().data(data),
        None => Event::default().comment(""),
    };
    let event = kind.into_iter().fold(event, Event::event);
    id.into_iter().fold(event, Event::id)
}

impl From<FilterError> for Problem {
    fn from(error: FilterError) -> Self {
        let detail = error.to_string();
        match error {
            FilterError::TooLong(_) => Self::bad_request("invalid_query", detail),
            FilterError::BadPattern(_) => Self::unprocessable("invalid_pattern", detail),
        }
    }
}

impl From<StreamLimit> for Problem {
    fn from(limit: StreamLimit) -> Self {
        match limit {
            StreamLimit::Full => {
                let detail =
                    "Stream limit reached. Close a stream, raise `bus.streams`, or use another pacemaker.";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", detail)
            }
            StreamLimit::Unavailable => Self::unavailable(
                "fabric_unavailable",
                "The fabric is not reachable at the moment; try again.",
            ),
        }
    }
}
