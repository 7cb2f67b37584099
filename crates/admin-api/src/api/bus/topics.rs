//! Topics: publishing to them, listing and deleting them.

use std::{borrow::Cow, mem::discriminant};

use axum::{
    Json as Answer,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{AppendHeaders, IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{front::name_of, problems};
use crate::http::auth::CheckTenant as _;
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{Confined, PublishEvents, ReadBus, Tenants, Whole},
    body::{Body, Json, JsonBytes, Query},
    list::{ListQuery, Listing, SortKey},
    path::{Parameter, Path},
};
use signalbox_access::Caller;
use signalbox_api::events::{Published, Topic};
use signalbox_bus::{EventId, NewEvent, Refusal, intake, is_topic_name};

/// Maximum size of an array of events: about a hundred of the largest events.
pub(super) const ARRAY_BYTES: usize = 8 << 20;
/// Characters of an idempotency key.
const MAX_KEY: usize = 255;

static EVENT_ID: HeaderName = HeaderName::from_static("x-signalbox-event-id");

pub(super) fn routes() -> OpenApiRouter<App> {
    let many = OpenApiRouter::new().routes(routes!(publish_many)).layer(DefaultBodyLimit::max(ARRAY_BYTES));
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(publish, remove))
        .routes(routes!(hand_over))
        .merge(many)
}

pub(super) fn published(result: Result<EventId, Problem>) -> Published {
    match result {
        Ok(EventId(id)) => Published { status: 200, id: Some(id), code: None, detail: None },
        Err(problem) => Published {
            status: problem.status().as_u16(),
            id: None,
            code: Some(problem.code()),
            detail: Some(problem.detail().to_owned()),
        },
    }
}

/// How topics are listed.
pub const LISTING: Listing<'static, Topic> = Listing {
    name: |topic| &topic.name,
    texts: |topic| topic.publisher.iter().map(String::as_str).collect(),
    fields: &[
        ("name", |topic| SortKey::from(&*topic.name)),
        ("events", |topic| SortKey::from(topic.events)),
        ("publisher", |topic| SortKey::from(topic.publisher.as_deref().unwrap_or_default())),
    ],
};

/// List the topics
///
/// Sorted by `name`, `events` or `publisher`; a search covers names and publishers. Without `limit`, the answer contains all
/// of them. `X-Total-Count` has their number, and `Link` the address of the next page.
#[utoipa::path(get, path = "/topics", params(ListQuery), responses((status = 200, body = Vec<Topic>)))]
async fn list(
    _: Whole<ReadBus>,
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let page = LISTING.page(all(&app).await?, &query)?;
    Ok((AppendHeaders(page.headers("/topics", &query)), Answer(page.items)).into_response())
}

/// All topics.
pub async fn all(app: &App) -> Result<Vec<Topic>, Problem> {
    Ok(app.bus.handle.topics().await?)
}

/// Publish an event
///
/// The first client that publishes to a topic claims it. The body: `type` (`create`, `update`, `delete`, `noop`),
/// `url` (https, no query string, up to 1,024 characters), and optionally `timestamp` (unix milliseconds), `data` (any
/// JSON, stored byte for byte), `tenant` (default: the client's name) and `object` (default: the URL; events of
/// one object stay in order). An event of an object that has a backend goes to the backend and to no subscriber. With
/// the header `Idempotency-Key` a repeat within ten minutes returns the first event's ID.
#[utoipa::path(post, path = "/topics/{name}", params(("name" = String, Path, example = "orders"), Idempotency),
    request_body = Object,
    responses((status = 200, description = "Accepted; the body is empty", headers(("X-Signalbox-Event-Id" = u64))),
    (status = "default", description = "400 invalid_topic, invalid_event, invalid_idempotency_key | \
        403 topic_claimed, limit_reached, tenant_missing | 422 idempotency_conflict | \
        429 tenant_limit_reached, idempotency_keys_used_up | 503 fabric_full, fabric_read_only, busy")))]
async fn publish(
    caller: Confined<PublishEvents, Tenants>,
    State(app): State<App>,
    Path(TopicName(topic)): Path<TopicName>,
    headers: HeaderMap,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    let event = intake::event(&body, app.bus.limits).inspect_err(|_| app.bus.metrics.invalid())?;
    let event = NewEvent { idempotency_key: key.map(str::to_owned), ..addressed(event, &caller)? };
    app.count_events(&caller, 1)?;
    let tenant = event.tenant.clone();
    let results = app.bus.handle.publish(&caller.bus_client(), &topic, vec![event]).await;
    // The handle returns one result for each event; a missing one means an unknown outcome.
    let result = results.into_iter().next().unwrap_or(Err(Refusal::Unavailable));
    app.bus.metrics.published(&result);
    let id =
        result.map_err(|refusal| problems::refused(refusal, tenant.as_deref().unwrap_or(&caller.name)))?;
    let id = HeaderValue::from(id.0);
    Ok((StatusCode::OK, [(EVENT_ID.clone(), id)]).into_response())
}

/// Publish many events
///
/// An array of events as for `POST /topics/{name}`; each is accepted or rejected separately, in order. With an
/// `Idempotency-Key`, each position in the array has its own key, so a repeat must contain the same events.
#[utoipa::path(post, path = "/topics/{name}/events", params(("name" = String, Path, example = "orders"), Idempotency),
    request_body = Vec<Object>,
    responses((status = 200, description = "A result for each event", body = Vec<Published>),
    (status = "default", description = "400 invalid_topic, invalid_event, too_many_events, invalid_idempotency_key | \
        503 No event was accepted; codes as of one event")))]
async fn publish_many(
    caller: Confined<PublishEvents, Tenants>,
    State(app): State<App>,
    Path(TopicName(topic)): Path<TopicName>,
    headers: HeaderMap,
    JsonBytes(body): JsonBytes,
) -> Result<Answer<Vec<Published>>, Problem> {
    let key = idempotency_key(&headers)?;
    let read = intake::events(&body, app.bus.limits)?;
    app.count_events(&caller, read.len())?;
    let mut good = Vec::with_capacity(read.len());
    let mut bad = Vec::new();
    for (place, event) in read.into_iter().enumerate() {
        match event.map_err(Problem::from).and_then(|event| addressed(event, &caller)) {
            Ok(event) => {
                let idempotency_key = key.map(|key| format!("{key}/{place}"));
                good.push(NewEvent { idempotency_key, ..event });
            }
            Err(problem) => {
                app.bus.metrics.invalid();
                bad.push((place, published(Err(problem))));
            }
        }
    }
    let results = app.bus.handle.publish(&caller.bus_client(), &topic, good).await;
    Ok(Answer(in_order(&app, results, bad)?))
}

/// The results of many events in their order. `bad` are those that were not published, with their places.
pub(super) fn in_order(
    app: &App,
    results: Vec<Result<EventId, Refusal>>,
    bad: Vec<(usize, Published)>,
) -> Result<Vec<Published>, Problem> {
    results.iter().for_each(|result| app.bus.metrics.published(result));
    if bad.is_empty()
        && let Some(refusal) = refused_all(&results)
    {
        return Err(refusal.into());
    }
    let mut answer: Vec<Published> =
        results.into_iter().map(|result| published(result.map_err(Problem::from))).collect();
    // In rising order, so each place is right when its turn comes.
    for (place, result) in bad {
        answer.insert(place.min(answer.len()), result);
    }
    Ok(answer)
}

/// If all events are rejected because the bus cannot accept any now, or because the topic belongs to another client,
/// the status of the whole request shows it: a client that checks only statuses must not assume that it has published.
fn refused_all(results: &[Result<EventId, Refusal>]) -> Option<Refusal> {
    let first = results.first()?.err()?;
    let of_each_alone = matches!(first, Refusal::Conflict);
    // The same reason may come with different numbers, such as how long to wait.
    let same = |result: &Result<EventId, Refusal>| {
        result.is_err_and(|one| discriminant(&one) == discriminant(&first))
    };
    (!of_each_alone && results.iter().all(same)).then_some(first)
}

/// Delete a topic
///
/// Allowed for its publisher and root. Events that were accepted are still delivered.
#[utoipa::path(delete, path = "/topics/{name}", responses((status = 204),
    (status = "default", description = "403 topic_claimed | 404 unknown_topic")))]
async fn remove(
    caller: Confined<PublishEvents, Tenants>,
    State(app): State<App>,
    Path(topic): Path<String>,
) -> Result<StatusCode, Problem> {
    let client = caller.bus_client();
    let by = (!caller.is_root()).then_some(&*client);
    app.bus.handle.delete_topic(&topic, by).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The new publisher of a topic.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPublisher {
    /// The name of a client or token with the scope `publish`.
    #[schema(example = "billing")]
    publisher: String,
}

impl Body for NewPublisher {}

/// Hand over a topic
///
/// For its publisher and root. From the answer on, only the new publisher can publish to the topic. Its events and
/// subscriptions stay.
#[utoipa::path(put, path = "/topics/{name}/publisher", request_body = NewPublisher, responses((status = 204),
    (status = "default", description = "403 topic_claimed | 404 unknown_topic | 409 ambiguous_name | \
        422 unknown_publisher")))]
async fn hand_over(
    caller: Whole<PublishEvents>,
    State(app): State<App>,
    notes: Notes,
    Path(topic): Path<String>,
    Json(NewPublisher { publisher }): Json<NewPublisher>,
) -> Result<StatusCode, Problem> {
    let mut clients = app.bus.clients_named(&publisher).await?;
    let named = app.tokens.of_name(&publisher).await?;
    clients.extend(named.map(|token| token.bus_client().into_owned()));
    let [to] = clients.as_slice() else {
        return Err(if clients.is_empty() {
            Problem::unprocessable(
                "unknown_publisher",
                format!("no client and no token has the name `{publisher}`"),
            )
        } else {
            let detail = format!("{} clients have the name `{publisher}`", clients.len());
            Problem::new(StatusCode::CONFLICT, "ambiguous_name", detail)
        });
    };
    let registry = app.bus.handle.registry();
    let before = registry.topics.get(&topic).and_then(Option::as_deref);
    notes.before(json!({"publisher": before.map(|client| name_of(client, &registry))}));
    notes.after(json!({"publisher": publisher}));
    let client = caller.bus_client();
    let by = (!caller.is_root()).then_some(&*client);
    app.bus.handle.hand_over(&topic, to, by).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The name of a topic that clients may publish to.
#[derive(Debug)]
struct TopicName(String);

impl Parameter for TopicName {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        if is_topic_name(&raw) { Ok(Self(raw)) } else { Err(Refusal::BadTopic.into()) }
    }
}

/// The event with its tenant; the default is the client's name. Names may contain colons, tenants may not. A
/// token confined to tenants publishes in no other.
pub(super) fn addressed(event: NewEvent, caller: &Caller) -> Result<NewEvent, Problem> {
    let tenant = event.tenant.unwrap_or_else(|| caller.name.replace(':', "."));
    if let Some(flaw) = intake::reserved_tenant(&tenant) {
        return Err(flaw.into());
    }
    caller.check_tenant(&tenant)?;
    Ok(NewEvent { tenant: Some(tenant), ..event })
}

/// The header of calls that publish, for the OpenAPI document: [`idempotency_key`] reads it.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only the document uses it")]
pub(super) struct Idempotency {
    /// Repeats with the same key within ten minutes return the first result, and publish nothing. Visible ASCII characters.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255)]
    idempotency_key: Option<String>,
}

/// The key as defined by draft-ietf-httpapi-idempotency-key-header, with or without quotes.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let detail =
        || Cow::Owned(format!("the Idempotency-Key must be 1 to {MAX_KEY} visible ASCII characters"));
    let flaw = || Problem::bad_request("invalid_idempotency_key", detail());
    let key = value.to_str().map_err(|_| flaw())?.trim();
    let key = key.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(key);
    if key.is_empty() || key.len() > MAX_KEY { Err(flaw()) } else { Ok(Some(key)) }
}
