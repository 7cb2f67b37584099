//! Subscriptions: making, ending and listing them.

use axum::{
    Json as Answer,
    extract::State,
    http::StatusCode,
    response::{AppendHeaders, IntoResponse as _, Response},
};
use rand::Rng as _;
use serde_json::{Value, json};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    front::{Front, name_of},
    subscriber::{Whose, subscriber},
};
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{Confined, ReadBus, SubscribeToEvents, Tenants, Whole, check_whole},
    body::{JsonBytes, Query},
    list::{ListQuery, Listing, SortKey},
    path::Path,
};
use signalbox_access::{Caller, Scope};
use signalbox_api::{
    Time,
    events::{EventCounts, Subscription},
};
use signalbox_bus::{Error, intake, is_audit_topic, is_reserved_topic};
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
/// to 64; default `bus.concurrency`) and `on_exhausted` (`dead` or `block`). A token that is confined to tenants gets
/// only their events, and none of the topics `signalbox.*`. Also available as `/subscriber`.
#[utoipa::path(method(post, put), path = "/subscription", request_body = Object, responses((status = 204),
    (status = "default", description = "400 invalid_subscription | 403 limit_reached")))]
pub(super) async fn subscribe(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    notes: Notes,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Problem> {
    let mut wanted = intake::subscription(&body, app.bus.limits)?;
    if wanted.topics.iter().any(|topic| is_audit_topic(topic)) && !caller.has_any(&[Scope::Audit]) {
        return Err(Problem::forbidden("scope_missing", "the topic of the audit log needs the scope audit"));
    }
    check_callback(&app.bus, &wanted.callback)?;
    if let Some(own) = caller.tenants() {
        // Signalbox's own events belong to no tenant.
        if wanted.topics.iter().any(|topic| is_reserved_topic(topic)) {
            check_whole(&caller)?;
        }
        wanted.tenants = Some(own.iter().cloned().collect());
    }
    let client = caller.bus_client();
    if wanted.uuid.is_none() {
        // As the fabric has it: a name that another pacemaker has given must stay.
        let before = app.bus.handle.fresh_registry().await?;
        let before = before.subscriptions.get(&*client).map(|before| before.uuid.clone());
        wanted.uuid = Some(before.unwrap_or_else(random_hex));
    }
    note_before(&app, &notes, &client);
    app.bus.handle.subscribe(&client, wanted).await?;
    ensure_secret(&app.bus, &client).await?;
    note_after(&app, &notes, &client);
    Ok(StatusCode::NO_CONTENT)
}

/// Rejects a callback that could never be delivered to.
pub(super) fn check_callback(bus: &Front, callback: &str) -> Result<(), Problem> {
    if bus.webhooks.forbids(callback) {
        let detail = "`callback` leads to an address that is not allowed; an operator allows it with `bus.allow_networks`";
        return Err(Problem::bad_request("invalid_subscription", detail));
    }
    Ok(())
}

/// The subscription of a client for the audit log: without its credentials.
fn noted(app: &App, client: &str) -> Option<Value> {
    let registry = app.bus.handle.registry();
    let subscription = registry.subscriptions.get(client)?;
    Some(json!({
        "subscriber": name_of(client, &registry),
        // Without its path, which may hold a key. The member `callback` would be hidden.
        "receiver": visible_callback(&subscription.callback, &Caller::named(String::new(), Vec::new(), None), false),
        "topics": subscription.topics,
        "tenants": subscription.tenants,
        "timeout": subscription.timeout_ms,
        "max": subscription.max_events,
        "concurrency": subscription.concurrency,
        "disabled": subscription.disabled,
    }))
}

/// Notes the subscription before a change.
fn note_before(app: &App, notes: &Notes, client: &str) {
    if let Some(before) = noted(app, client) {
        notes.before(before);
    }
}

/// Notes the subscription after a change.
fn note_after(app: &App, notes: &Notes, client: &str) {
    if let Some(after) = noted(app, client) {
        notes.after(after);
    }
}

/// Every subscription signs. It is created first and then gets its secret, so a crash between the two leaves one that
/// gets its secret when its client subscribes again, as clients do on start, or requests it.
pub(super) async fn ensure_secret(bus: &Front, client: &str) -> Result<(), Error> {
    let registry = bus.handle.registry();
    let lacks = |one: &signalbox_bus::Subscription| one.secrets.is_empty() && !one.is_locked();
    let none = registry.subscriptions.get(client).is_some_and(lacks);
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
/// Waiting events are dropped. Root ends the subscription of any client. Also as `/subscriber`.
#[utoipa::path(delete, path = "/subscription", params(Whose), responses((status = 204)))]
pub(super) async fn unsubscribe(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    notes: Notes,
    Query(query): Query<Whose>,
) -> Result<StatusCode, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    note_before(&app, &notes, &client);
    app.bus.handle.unsubscribe(&client).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Unsubscribe from one topic
///
/// Also available below `/subscription`.
#[utoipa::path(delete, path = "/subscriber/topics/{topic}", responses((status = 204),
    (status = "default", description = "404 unknown_subscription, unknown_topic")))]
pub(super) async fn unsubscribe_topic(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    notes: Notes,
    Path(topic): Path<String>,
) -> Result<StatusCode, Problem> {
    note_before(&app, &notes, &caller.bus_client());
    app.bus.handle.unsubscribe_topic(&caller.bus_client(), &topic).await?;
    note_after(&app, &notes, &caller.bus_client());
    Ok(StatusCode::NO_CONTENT)
}

/// How subscriptions are listed: a search also covers topics and callbacks.
pub(super) const LISTING: Listing<'static, Subscription> = Listing {
    name: |one| &one.subscriber,
    texts: |one| one.topics.iter().chain([&one.callback]).map(String::as_str).collect(),
    fields: &[
        ("subscriber", |one| SortKey::from(&*one.subscriber)),
        ("queued", |one| SortKey::from(one.events.queued)),
        ("oldest", |one| SortKey::from(one.events.oldest)),
        ("health", |one| SortKey::from(u64::from(one.health))),
        ("sent", |one| SortKey::from(one.events.sent)),
    ],
};

/// List the subscriptions
///
/// Sorted by `subscriber`, `queued`, `oldest`, `health` or `sent`; a search covers names, topics and callbacks. Without
/// `limit`, the answer contains all of them. `X-Total-Count` has their number, and `Link` the address of the next page. Also
/// available as `/subscribers`.
#[utoipa::path(get, path = "/subscriptions", params(ListQuery), responses((status = 200, body = Vec<Subscription>)))]
pub(super) async fn list(
    caller: Whole<ReadBus>,
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let page = LISTING.page(all(&app, &caller).await?, &query)?;
    Ok((AppendHeaders(page.headers("/subscriptions", &query)), Answer(page.items)).into_response())
}

/// All subscriptions, as the caller may see them.
pub(super) async fn all(app: &App, caller: &Caller) -> Result<Vec<Subscription>, Problem> {
    let subscriptions = app.bus.handle.subscriptions().await?;
    let registry = app.bus.handle.registry();
    let client = caller.bus_client();
    let view = |status: signalbox_bus::SubscriptionStatus| {
        let (subscription, numbers) = (status.subscription, status.numbers);
        let own = caller.is_root() || subscription.token == *client;
        Subscription {
            subscriber: name_of(&subscription.token, &registry),
            callback: visible_callback(&subscription.callback, caller, own).to_owned(),
            max_events: subscription.max_events,
            timeout: subscription.timeout_ms,
            topics: subscription.topics.iter().cloned().collect(),
            events: EventCounts {
                sent: numbers.sent,
                queued: numbers.events,
                oldest: numbers.oldest_at.map(Time::ms),
            },
            health: numbers.health,
            concurrency: subscription.concurrency,
            disabled: subscription.disabled.clone(),
            paused: subscription.paused,
            max_attempts: subscription.max_attempts,
            max_age_seconds: subscription.max_age_seconds,
            retry_seconds: subscription.retry_seconds.clone(),
            uuid: own.then(|| subscription.uuid.clone()),
        }
    };
    Ok(subscriptions.into_iter().map(view).collect())
}

/// As much of a subscription's callback as the caller may see. A receiver may have put a key into the query or the path.
pub fn visible_callback<'a>(callback: &'a str, caller: &Caller, own: bool) -> &'a str {
    if own || caller.is_root() {
        return callback;
    }
    let without_query = callback.split(['?', '#']).next().unwrap_or_default();
    if caller.has_any(&[Scope::Subscribe]) {
        return without_query;
    }
    let host = without_query.find("://").map_or(0, |scheme| scheme + 3);
    let path = without_query.get(host..).and_then(|rest| rest.find('/'));
    path.and_then(|path| without_query.get(..host + path)).unwrap_or(without_query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_is_shown_as_far_as_it_holds_no_key() {
        let callback = "https://hooks.example:8443/T0/B1/key?token=secret";
        let of = |scope| Caller::named("a".to_owned(), vec![scope], None);
        assert_eq!(visible_callback(callback, &Caller::root(), false), callback);
        assert_eq!(visible_callback(callback, &of(Scope::Read), true), callback);
        let of_subscriber = visible_callback(callback, &of(Scope::Subscribe), false);
        assert_eq!(of_subscriber, "https://hooks.example:8443/T0/B1/key");
        assert_eq!(visible_callback(callback, &of(Scope::Read), false), "https://hooks.example:8443");
        assert_eq!(visible_callback("https://a.example", &of(Scope::Read), false), "https://a.example");
    }
}
