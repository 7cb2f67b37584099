//! `GET /events`.

use std::{convert::Infallible, time::Duration};

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
use tokio::{
    sync::mpsc,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::auth::{CheckTenant as _, Divided as _, Permission as _};
use crate::http::{
    App, Problem,
    auth::{Confined, Credential, ReadAll, Tenants, check_divided},
    slots::Slot,
};
use signalbox_access::Caller;

static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// nginx forwards each message immediately.
static UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");
/// How long a client waits before it connects again.
const RECONNECT: Duration = Duration::from_secs(1);
/// How often an open stream checks its token.
const RECHECK: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

/// The filter and the start position.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Asked {
    /// Only of this topic.
    topic: Option<String>,
    /// Only of this tenant.
    tenant: Option<String>,
    /// Only of this object.
    object: Option<String>,
    /// Only events whose `tenant:type:topic` matches this regular expression completely.
    pattern: Option<String>,
    /// The ID of the last received message, for clients that cannot send the header `Last-Event-ID`, which takes
    /// precedence.
    last_event_id: Option<String>,
}

/// Stream events as they are accepted
///
/// Server-sent events. Each message is an event as subscribers get it, with `tenant`; with its id as
/// `Last-Event-ID`, a stream continues after it, if the log still has the events that follow. `event: gap` reports that
/// it has not; `event: end` reports why the stream ends (`slow_reader`, `shutdown`, `token_revoked`).
#[utoipa::path(get, path = "/events", params(Asked),
    responses((status = 200, body = String, content_type = "text/event-stream"),
    (status = "default", description = "422 invalid_pattern, invalid_last_event_id | 503 too_many_streams")))]
async fn events(
    caller: Confined<ReadAll, Tenants>,
    credential: Credential,
    State(app): State<App>,
    headers: HeaderMap,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(asked) = asked?;
    let tenant = asked.tenant.clone();
    check(&caller, tenant.as_deref())?;
    let place = app.limits.streams.take(&caller)?;
    // Records of the audit log are in the stream only if it is asked for them.
    let audit = asked.topic.as_deref().is_some_and(is_audit_topic) && caller.has_any(&[Scope::Audit]);
    let filter = Filter::new(asked.topic, asked.tenant, asked.object, asked.pattern.as_deref(), audit)?;
    let slot = app.live.acquire().await?;
    let brought = match headers.get(&LAST_EVENT_ID) {
        Some(header) => Some(header.to_str().unwrap_or("(no text)").to_owned()),
        None => asked.last_event_id,
    };
    let position = match brought {
        // The value of a browser whose position was reset.
        Some(text) if !text.is_empty() => {
            let last = app.live.position().await?;
            let read = Position::read(&text, app.live.shards());
            read.filter(|position| position.is_reached(&last, app.tokens.now_ms())).ok_or_else(|| {
                let detail = "`Last-Event-ID` must be the id of a message of this stream; omit it to start with the next event";
                Problem::unprocessable("invalid_last_event_id", detail)
            })?
        }
        _ => app.live.position().await?,
    };
    let messages = signalbox_stream::watch(app.live.clone(), slot, filter, position, app.shutdown.clone());
    let mut recheck = interval_at(Instant::now() + RECHECK, RECHECK);
    recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let greeting = Some(Event::default().retry(RECONNECT).comment("watching"));
    let watching =
        Watching { app, credential, tenant, greeting, messages, recheck, revoked: false, _place: place };
    let messages = stream::unfold(watching, |mut watching| async {
        let event = watching.next().await?;
        Some((Ok::<_, Infallible>(event), watching))
    });
    let mut response = Sse::new(messages).into_response();
    response.headers_mut().insert(UNBUFFERED.clone(), HeaderValue::from_static("no"));
    Ok(response)
}

/// Checks that a token that is confined to tenants watches one of them.
fn check(caller: &Caller, tenant: Option<&str>) -> Result<(), Problem> {
    match caller.tenants() {
        Some(_) => caller.check_tenant(tenant.unwrap_or_default()),
        None => Ok(()),
    }
}

/// An open stream.
struct Watching {
    app: App,
    credential: Credential,
    tenant: Option<String>,
    greeting: Option<Event>,
    messages: mpsc::Receiver<Message>,
    recheck: Interval,
    revoked: bool,
    _place: Slot,
}

impl Watching {
    /// The next message; `None` ends the stream.
    async fn next(&mut self) -> Option<Event> {
        if self.revoked {
            return None;
        }
        if let Some(greeting) = self.greeting.take() {
            return Some(greeting);
        }
        loop {
            tokio::select! {
                // A busy stream must not put the check off.
                biased;
                _ = self.recheck.tick() => {
                    if !self.is_allowed().await {
                        self.revoked = true;
                        return Some(Event::default().event("end").data(r#"{"reason":"token_revoked"}"#));
                    }
                }
                message = self.messages.recv() => return message.map(server_sent),
            }
        }
    }

    async fn is_allowed(&self) -> bool {
        let allowed = |caller: Caller| {
            caller.has_any(ReadAll::ANY_OF)
                && check_divided(&caller, Tenants::BY).is_ok()
                && check(&caller, self.tenant.as_deref()).is_ok()
        };
        self.credential.is_still(&self.app, allowed).await
    }
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
                "The fabric Redis does not respond; repeat the request.",
            ),
        }
    }
}
