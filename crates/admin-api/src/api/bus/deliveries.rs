//! Calls for operators and subscribers when deliveries fail: settings of the subscription, the log of attempts, and single
//! events that are skipped or delivered again.

use axum::{Json as Answer, extract::State, http::StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    subscriber::{Whose, subscriber},
    subscriptions::check_callback,
};
use crate::http::{
    App, Problem,
    auth::{SubscribeToEvents, Whole},
    body::{JsonBytes, Query},
};
use signalbox_api::events::{DeliveryLog, EventChoice};
use signalbox_bus::{Error, EventId, intake};

/// Attempts in one answer.
const DELIVERIES: usize = 50;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(alter))
        .routes(routes!(deliveries))
        .routes(routes!(skip))
        .routes(routes!(resend))
}

/// Change settings of a subscription
///
/// Members that are left out stay as they are: `callback` (waiting events go there, too), `uuid`, `max_attempts`,
/// `max_age_seconds` (limits of a batch; null for the configured ones), `retry_seconds` (seconds before each retry, 1 to 50
/// numbers up to 86,400 of which the last repeats; null for the default), `paused` (events wait until it is false), and
/// for root `disabled` (no new events are stored, and subscribing again does not enable it). Pauses after failures end.
/// Also as `/subscriber`.
#[utoipa::path(patch, path = "/subscription", params(Whose), request_body = Object, responses((status = 204),
    (status = "default", description = "400 invalid_subscription")))]
pub(super) async fn alter(
    caller: Whole<SubscribeToEvents>,
    State(app): State<App>,
    Query(query): Query<Whose>,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    let change = intake::alteration(&body, app.bus.limits)?;
    if change.disabled.is_some() && !caller.is_root() {
        return Err(Problem::forbidden(
            "not_yours",
            "only root can disable or enable a subscription; use `paused`",
        ));
    }
    if let Some(callback) = &change.callback {
        check_callback(&app.bus, callback)?;
    }
    app.bus.handle.alter(&client, change).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Selects a part of the log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// For root: the client's name or token.
    subscriber: Option<String>,
    /// 1 to 50; default 50.
    limit: Option<usize>,
}

/// List the last attempts to deliver
///
/// Newest first, with status, duration, the beginning of a failed response, and the time of the retry. The last 50
/// attempts of a subscriber are stored for a week.
#[utoipa::path(get, path = "/subscriber/deliveries", params(Part), responses((status = 200, body = DeliveryLog),
    (status = "default", description = "400 out_of_range")))]
async fn deliveries(
    caller: Whole<SubscribeToEvents>,
    State(app): State<App>,
    Query(part): Query<Part>,
) -> Result<Answer<DeliveryLog>, Problem> {
    let client = subscriber(&app, &caller, part.subscriber.as_deref()).await?;
    let limit = part.limit.unwrap_or(DELIVERIES);
    if !(1..=DELIVERIES).contains(&limit) {
        return Err(Error::OutOfRange { field: "limit", least: 1, most: DELIVERIES as u64 }.into());
    }
    Ok(Answer(DeliveryLog { deliveries: app.bus.handle.deliveries(&client, limit).await? }))
}

/// Skip an event
///
/// An event that waits, for example because the receiver rejects it, becomes a dead letter, and those after it are delivered.
/// Its next delivery reports the gap with the reason `skipped`. The next 200 batches of its lane are searched.
#[utoipa::path(post, path = "/subscriber/skip", params(Whose), request_body = EventChoice, responses((status = 204),
    (status = "default", description = "400 invalid_event | 404 unknown_event")))]
async fn skip(
    caller: Whole<SubscribeToEvents>,
    State(app): State<App>,
    Query(query): Query<Whose>,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    app.bus.handle.skip(&client, choice(&body)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deliver one event again
///
/// A dead letter of the subscriber, or an event of its topics that the log still has. It keeps its ID.
#[utoipa::path(post, path = "/subscriber/resend", params(Whose), request_body = EventChoice, responses((status = 204),
    (status = "default", description = "400 invalid_event | 404 unknown_event")))]
async fn resend(
    caller: Whole<SubscribeToEvents>,
    State(app): State<App>,
    Query(query): Query<Whose>,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    app.bus.handle.resend(&client, choice(&body)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn choice(body: &[u8]) -> Result<EventId, Problem> {
    let EventChoice { id } = intake::object(intake::text(body)?, "invalid_event")?;
    Ok(EventId(id))
}
