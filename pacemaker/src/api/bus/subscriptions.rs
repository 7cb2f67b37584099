//! Subscriptions: making, ending and listing them.

use axum::{Json as Answer, extract::State, http::StatusCode};
use rand::Rng as _;
use serde::Serialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::front::{Front, name_of};
use crate::http::{
    App, Problem,
    auth::{BeKnown, Granted, SubscribeToEvents},
    body::JsonBytes,
    path::Path,
};
use signalbox_bus::{Error, intake};
use signalbox_egress::{Secret, new_secret};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(subscribe))
        .routes(routes!(unsubscribe))
        .routes(routes!(unsubscribe_topic))
        .routes(routes!(list))
}

/// Subscribe
///
/// The body: `topics` (the complete list; others are unsubscribed), `callback` (https), and optionally `uuid` (the
/// user name of deliveries; by default generated at the first subscription), `timeout` (milliseconds that a batch
/// waits to fill, 0 to 3,600,000; default 500), `max` (events in a batch, 1 to 10,000; default 100), `concurrency` (1
/// to 64; default 4) and `on_exhausted` (`dead` or `block`). Also available as `/subscriber`.
#[utoipa::path(method(post, put), path = "/subscription", tag = "bus", request_body = Object, responses(
    (status = 204), (status = 400, description = "invalid_subscription", body = Problem),
    (status = 403, description = "limit_reached", body = Problem)))]
pub(super) async fn subscribe(
    Granted { 0: caller, .. }: Granted<SubscribeToEvents>,
    State(app): State<App>,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Problem> {
    let mut wanted = intake::subscription(&body, app.bus.limits)?;
    let client = caller.bus_client();
    if wanted.uuid.is_none() {
        let before = app.bus.handle.registry();
        let before = before.subscriptions.get(&*client).map(|before| before.uuid.clone());
        wanted.uuid = Some(before.unwrap_or_else(random_hex));
    }
    app.bus.handle.subscribe(&client, wanted).await?;
    ensure_secret(&app.bus, &client).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Every subscription signs. It is created first and then gets its secret, so a crash between the two leaves one that
/// gets its secret when its client subscribes again, as clients do on start, or requests it.
pub(super) async fn ensure_secret(bus: &Front, client: &str) -> Result<(), Error> {
    let registry = bus.handle.registry();
    let none = registry.subscriptions.get(client).is_some_and(|subscription| subscription.secrets.is_empty());
    if none {
        let mut random = [0; 32];
        rand::rng().fill_bytes(&mut random);
        let secret = Secret { secret: new_secret(random), until_ms: None };
        bus.handle.set_secrets(client, vec![secret]).await?;
    }
    Ok(())
}

/// 128 random bits.
pub(super) fn random_hex() -> String {
    format!("{:032x}", rand::RngExt::random::<u128>(&mut rand::rng()))
}

/// End the subscription
///
/// Events that wait for the client are dropped. Also available as `/subscriber`.
#[utoipa::path(delete, path = "/subscription", tag = "bus", responses(
    (status = 204), (status = 404, description = "unknown_subscription", body = Problem)))]
pub(super) async fn unsubscribe(
    Granted { 0: caller, .. }: Granted<SubscribeToEvents>,
    State(app): State<App>,
) -> Result<StatusCode, Problem> {
    app.bus.handle.unsubscribe(&caller.bus_client()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Unsubscribe from one topic
///
/// Also available below `/subscription`.
#[utoipa::path(delete, path = "/subscriber/topics/{topic}", tag = "bus", params(("topic" = String, Path)), responses(
    (status = 204), (status = 404, description = "unknown_subscription, unknown_topic", body = Problem)))]
pub(super) async fn unsubscribe_topic(
    Granted { 0: caller, .. }: Granted<SubscribeToEvents>,
    State(app): State<App>,
    Path(topic): Path<String>,
) -> Result<StatusCode, Problem> {
    app.bus.handle.unsubscribe_topic(&caller.bus_client(), &topic).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The public view of a subscription.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct SubscriptionView {
    /// The client's name.
    subscriber: String,
    /// Without its query string, unless the caller owns it or is root.
    callback: String,
    max_events: u64,
    /// Milliseconds that a batch waits to fill.
    timeout: u64,
    topics: Vec<String>,
    events: EventCounts,
    /// 0 to 100: plus one for each delivery, minus two for each failure.
    health: u8,
    concurrency: u64,
    /// Why deliveries are stopped; subscribing again starts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled: Option<String>,
    /// The user name of deliveries; only for the subscription's owner and root.
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
}

/// Events of a subscription.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct EventCounts {
    /// Delivered in total.
    sent: u64,
    /// Waiting or being delivered.
    queued: u64,
    /// Creation time of the oldest waiting batch, in unix milliseconds; null when none waits.
    oldest: Option<u64>,
}

/// List the subscriptions
///
/// Also available as `/subscribers`.
#[utoipa::path(get, path = "/subscriptions", tag = "bus", responses(
    (status = 200, body = Vec<SubscriptionView>)))]
pub(super) async fn list(
    Granted { 0: caller, .. }: Granted<BeKnown>,
    State(app): State<App>,
) -> Result<Answer<Vec<SubscriptionView>>, Problem> {
    let subscriptions = app.bus.handle.subscriptions().await?;
    let registry = app.bus.handle.registry();
    let client = caller.bus_client();
    let view = |status: signalbox_bus::SubscriptionStatus| {
        let (subscription, gauges) = (status.subscription, status.gauges);
        let own = caller.is_root() || subscription.token == *client;
        // A query is where a receiver may have put a key.
        let shown = if own { Some(&*subscription.callback) } else { subscription.callback.split('?').next() };
        SubscriptionView {
            subscriber: name_of(&subscription.token, &registry),
            callback: shown.unwrap_or_default().to_owned(),
            max_events: subscription.max_events,
            timeout: subscription.timeout_ms,
            topics: subscription.topics.iter().cloned().collect(),
            events: EventCounts { sent: gauges.sent, queued: gauges.queued, oldest: gauges.oldest_ms },
            health: gauges.health,
            concurrency: subscription.concurrency,
            disabled: subscription.disabled.clone(),
            uuid: own.then(|| subscription.uuid.clone()),
        }
    };
    Ok(Answer(subscriptions.into_iter().map(view).collect()))
}
