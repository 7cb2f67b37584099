//! A subscriber's operations other than its subscription: secrets, test deliveries, dead letters, replay.
//!
//! Each route acts on the calling client; root names a client with `?subscriber=`.

use std::sync::{Arc, OnceLock};

use axum::{Json as Answer, extract::State, http::StatusCode};
use rand::Rng as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    front::name_of,
    subscriptions::{ensure_secret, random_hex},
};
use crate::http::{
    App, Problem,
    auth::{Confined, SubscribeToEvents, Tenants},
    body::{JsonBytes, Query},
};
use signalbox_access::Caller;
use signalbox_api::{
    Time,
    events::{
        DeadLetter, DeadLetters, Dropped, Previous, Redriven, Replay, Retried, Rotation, Secrets, Tested,
    },
};
use signalbox_bus::{BatchContents, Error, Event, EventId, Kind, Registry, intake, rendered_for};
use signalbox_egress::{Outcome, Secret, new_secret, secret_key};

/// How long an old secret signs along with the new one.
const OVERLAP_SECONDS: u64 = 24 * 3600;
const MAX_OVERLAP_SECONDS: u64 = 30 * 24 * 3600;
/// Secrets that sign at a time.
const MAX_SECRETS: usize = 5;
/// Dead letters in one answer.
const DEAD_LETTERS: usize = 50;
const MAX_DEAD_LETTERS: usize = 200;
/// Events a second of a replay.
const REPLAY_RATE: u64 = 100;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(secret, rotate_secret))
        .routes(routes!(test))
        .routes(routes!(retry))
        .routes(routes!(dead, drop_dead))
        .routes(routes!(redrive))
        .routes(routes!(replay))
}

/// Selects the subscription.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Whose {
    /// For root: the client's name or token.
    pub(super) subscriber: Option<String>,
}

/// The client that a request is about: the caller, or the one that root names.
fn whose(caller: &Caller, named: Option<&str>, registry: &Registry) -> Result<String, Problem> {
    let own = caller.bus_client();
    let Some(named) = named else { return Ok(own.into_owned()) };
    if !caller.is_root() {
        let own_name = *own == *named || caller.name == named;
        let detail = "only root may name another subscriber";
        return if own_name { Ok(own.into_owned()) } else { Err(Problem::forbidden("not_yours", detail)) };
    }
    if registry.subscriptions.contains_key(named) {
        return Ok(named.to_owned());
    }
    let mut of_name = registry.subscriptions.keys().filter(|client| name_of(client, registry) == named);
    match (of_name.next(), of_name.next()) {
        (Some(client), None) => Ok(client.clone()),
        (None, _) => Err(Error::NoSuchSubscription.into()),
        (Some(_), Some(_)) => {
            let detail = "several clients have this name; name the client by its token";
            Err(Problem::new(StatusCode::CONFLICT, "ambiguous_subscriber", detail))
        }
    }
}

/// As [`whose`], by the registry as the fabric has it now: the client may have subscribed through another pacemaker.
pub(super) async fn subscriber(app: &App, caller: &Caller, named: Option<&str>) -> Result<String, Problem> {
    let registry = app.bus.handle.fresh_registry().await?;
    whose(caller, named, &registry)
}

fn secrets_of(registry: &Registry, client: &str, now_ms: u64) -> Result<Secrets, Problem> {
    let subscription = registry.subscriptions.get(client).ok_or(Error::NoSuchSubscription)?;
    if subscription.is_locked() {
        return Err(Error::Locked.into());
    }
    let mut living = living(&subscription.secrets, now_ms);
    if living.is_empty() {
        return Err(Problem::not_found("no_secret", "deliveries are not signed; create a secret with POST"));
    }
    let newest = living.remove(0);
    let previous = living.into_iter();
    Ok(Secrets {
        secret: newest.secret,
        previous: previous
            .filter_map(|one| Some(Previous { until: Time::from_ms(one.until_ms?), secret: one.secret }))
            .collect(),
    })
}

/// Secrets that are used for signing, newest first.
fn living(secrets: &[Secret], now_ms: u64) -> Vec<Secret> {
    secrets.iter().filter(|secret| secret.until_ms.is_none_or(|until| until > now_ms)).cloned().collect()
}

/// Show the signing secret
#[utoipa::path(get, path = "/subscriber/secret", params(Whose), responses((status = 200, body = Secrets),
    (status = "default", description = "503 credentials_locked")))]
async fn secret(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    Query(query): Query<Whose>,
) -> Result<Answer<Secrets>, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    ensure_secret(&app.bus, &client).await?;
    secrets_of(&app.bus.handle.registry(), &client, app.bus.now_ms()).map(Answer)
}

/// Replace the signing secret
///
/// Deliveries are signed with the new and the old secret until the overlap ends. The body is optional.
#[utoipa::path(post, path = "/subscriber/secret", params(Whose), request_body = Option<Rotation>,
    responses((status = 200, body = Secrets), (status = "default", description = "400 invalid_secret")))]
async fn rotate_secret(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    Query(query): Query<Whose>,
    body: Option<JsonBytes>,
) -> Result<Answer<Secrets>, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    let Rotation { secret, overlap_seconds } = match &body {
        Some(JsonBytes(body)) => intake::object(intake::text(body)?, "invalid_secret")?,
        None => Rotation::default(),
    };
    let bad = |detail: &str| Problem::bad_request("invalid_secret", detail);
    if secret.as_deref().is_some_and(|secret| secret_key(secret).is_none()) {
        return Err(bad("`secret` must be `whsec_` and 24 to 64 bytes in base64"));
    }
    let overlap_seconds = overlap_seconds.unwrap_or(OVERLAP_SECONDS);
    if overlap_seconds > MAX_OVERLAP_SECONDS {
        return Err(bad("`overlap_seconds` must be between 0 and 2592000"));
    }
    let secret = secret.unwrap_or_else(|| {
        let mut random = [0; 32];
        rand::rng().fill_bytes(&mut random);
        new_secret(random)
    });
    let now_ms = app.bus.now_ms();
    let until = now_ms + overlap_seconds * 1000;
    let registry = app.bus.handle.registry();
    let before = registry.subscriptions.get(&client).ok_or(Error::NoSuchSubscription)?;
    let mut secrets = vec![Secret { secret: secret.clone(), until_ms: None }];
    let old = living(&before.secrets, now_ms).into_iter().filter(|old| old.secret != secret);
    secrets.extend(
        old.map(|old| Secret { until_ms: Some(old.until_ms.map_or(until, |own| own.min(until))), ..old }),
    );
    secrets.truncate(MAX_SECRETS);
    app.bus.handle.set_secrets(&client, secrets).await?;
    secrets_of(&app.bus.handle.registry(), &client, now_ms).map(Answer)
}

/// Test the callback
///
/// Delivers one event of the topic `signalbox.test` immediately, signed and authorized like all deliveries, and
/// returns the result. It is not counted and not retried. If it succeeds, pauses after failed deliveries end.
#[utoipa::path(post, path = "/subscriber/test", params(Whose), responses((status = 200, body = Tested)))]
async fn test(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    Query(query): Query<Whose>,
) -> Result<Answer<Tested>, Problem> {
    let registry = app.bus.handle.fresh_registry().await?;
    let client = whose(&caller, query.subscriber.as_deref(), &registry)?;
    let subscription = registry.subscriptions.get(&client).ok_or(Error::NoSuchSubscription)?;
    let now_ms = app.bus.now_ms();
    let event = test_event(now_ms);
    let batch = BatchContents {
        id: random_hex(),
        created_ms: now_ms,
        attempts: 0,
        events: vec![event],
        redriven: Vec::new(),
        gaps: Vec::new(),
    };
    let started = Instant::now();
    let outcome = app.bus.webhooks.deliver(Arc::new(subscription.clone()), Arc::new(batch)).await;
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let why = match outcome {
        Outcome::Delivered => None,
        Outcome::Gone => Some("answered 410".to_owned()),
        Outcome::Failed { why, .. } => Some(why),
    };
    if why.is_none() {
        app.bus.handle.retry_now(&client).await?;
    }
    Ok(Answer(Tested { delivered: why.is_none(), why, duration_ms }))
}

/// Retry now
///
/// Ends the pauses after failed deliveries. A test delivery that succeeds and subscribing again do the same.
#[utoipa::path(post, path = "/subscriber/retry", params(Whose), responses((status = 200, body = Retried)))]
async fn retry(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    Query(query): Query<Whose>,
) -> Result<Answer<Retried>, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    Ok(Answer(Retried { retried: app.bus.handle.retry_now(&client).await? }))
}

/// The URL of test events. Receivers that remember the URLs of events, as Routemaster's do, must not take it for a resource of a
/// publisher.
const TEST_URL: &str = "https://signalbox.invalid/subscriber/test";

/// An event of a topic that no client can publish to.
fn test_event(now_ms: u64) -> Arc<Event> {
    Arc::new(Event {
        id: EventId::at_ms(now_ms),
        prev: None,
        tprev: None,
        object: "signalbox:test".to_owned(),
        topic: "signalbox.test".to_owned(),
        kind: Kind::Noop,
        tenant: "signalbox".to_owned(),
        url: TEST_URL.to_owned(),
        timestamp_ms: now_ms,
        data: None,
        cause: None,
        rendered: OnceLock::new(),
    })
}

/// Selects a part of the dead letters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// For root: the client's name or token.
    subscriber: Option<String>,
    /// The cursor of the previous part.
    cursor: Option<String>,
    /// 1 to 200; default 50.
    limit: Option<usize>,
}

fn dead_view(letter: signalbox_bus::DeadLetter, is_confined: bool) -> Option<DeadLetter> {
    let event = rendered_for(&letter.event, is_confined).into_owned();
    let event = RawValue::from_string(String::from_utf8(event).ok()?).ok()?;
    Some(DeadLetter {
        event,
        died_at: Time::from_ms(letter.died_ms),
        attempts: letter.attempts,
        reason: letter.reason,
    })
}

/// List the dead letters
///
/// Oldest first. A part has fewer than `limit` if they have more than about 4 MiB.
#[utoipa::path(get, path = "/subscriber/dead", params(Part), responses((status = 200, body = DeadLetters),
    (status = "default", description = "400 out_of_range")))]
async fn dead(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    Query(part): Query<Part>,
) -> Result<Answer<DeadLetters>, Problem> {
    let client = subscriber(&app, &caller, part.subscriber.as_deref()).await?;
    let limit = part.limit.unwrap_or(DEAD_LETTERS);
    if !(1..=MAX_DEAD_LETTERS).contains(&limit) {
        return Err(Error::OutOfRange { field: "limit", least: 1, most: MAX_DEAD_LETTERS as u64 }.into());
    }
    let page = app.bus.handle.dead_letters(&client, part.cursor.as_deref(), limit).await?;
    let is_confined = caller.tenants().is_some();
    Ok(Answer(DeadLetters {
        dead: page.items.into_iter().filter_map(|letter| dead_view(letter, is_confined)).collect(),
        cursor: page.cursor,
    }))
}

/// Deliver the dead letters again
#[utoipa::path(post, path = "/subscriber/dead/redrive", params(Whose), responses((status = 200, body = Redriven)))]
async fn redrive(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    Query(query): Query<Whose>,
) -> Result<Answer<Redriven>, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    Ok(Answer(Redriven { redriven: app.bus.handle.redrive(&client).await? }))
}

/// Delete the dead letters
#[utoipa::path(delete, path = "/subscriber/dead", params(Whose), responses((status = 200, body = Dropped)))]
async fn drop_dead(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    Query(query): Query<Whose>,
) -> Result<Answer<Dropped>, Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    Ok(Answer(Dropped { dropped: app.bus.handle.drop_dead(&client).await? }))
}

/// Deliver a range of time again
///
/// Events of the client's topics that the log still has are delivered again through its lanes, with their original
/// IDs. A replay that is in progress is replaced.
#[utoipa::path(post, path = "/subscriber/replay", params(Whose), request_body = Replay,
    responses((status = 202, description = "Begun", body = Replay),
    (status = "default", description = "400 invalid_replay, out_of_range")))]
async fn replay(
    caller: Confined<SubscribeToEvents, Tenants>,
    State(app): State<App>,
    Query(query): Query<Whose>,
    JsonBytes(body): JsonBytes,
) -> Result<(StatusCode, Answer<Replay>), Problem> {
    let client = subscriber(&app, &caller, query.subscriber.as_deref()).await?;
    let Replay { from, to, rate } = intake::object(intake::text(&body)?, "invalid_replay")?;
    let rate = rate.unwrap_or(REPLAY_RATE);
    app.bus.handle.replay(&client, from.ms(), to.ms(), rate).await?;
    Ok((StatusCode::ACCEPTED, Answer(Replay { from, to, rate: Some(rate) })))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;
    use signalbox_bus::{ApiToken, Subscription};

    use super::*;

    fn subscription(token: &str) -> Subscription {
        let stored = json!({
            "token": token, "callback": "https://a.example/", "uuid": "u", "timeout_ms": 500, "max_events": 100,
            "concurrency": 4, "generation": 1, "topics": [],
        });
        serde_json::from_value(stored).unwrap()
    }

    fn registry() -> Registry {
        let mut registry = Registry::default();
        for (token, name) in [("a--1", "a"), ("b--1", "b"), ("b--2", "b")] {
            let client = ApiToken::new(name.to_owned(), BTreeSet::new(), token.to_owned(), None, None);
            registry.api_tokens.insert(token.to_owned(), client);
            registry.subscriptions.insert(token.to_owned(), subscription(token));
        }
        registry
    }

    #[test]
    fn root_names_a_subscriber_and_others_are_themselves() {
        let (registry, root) = (registry(), Caller::root());
        let client = Caller::of_bus("a--1".to_owned(), "a".to_owned(), Vec::new());
        assert_eq!(whose(&client, None, &registry).unwrap(), "a--1");
        assert_eq!(whose(&client, Some("a"), &registry).unwrap(), "a--1");
        assert_eq!(whose(&client, Some("b--1"), &registry).unwrap_err().code(), "not_yours");
        assert_eq!(whose(&root, None, &registry).unwrap(), "@root");
        assert_eq!(whose(&root, Some("a"), &registry).unwrap(), "a--1");
        assert_eq!(whose(&root, Some("b--2"), &registry).unwrap(), "b--2");
        assert_eq!(whose(&root, Some("b"), &registry).unwrap_err().code(), "ambiguous_subscriber");
        assert_eq!(whose(&root, Some("c"), &registry).unwrap_err().code(), "unknown_subscription");
    }
}
