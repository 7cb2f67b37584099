//! Objects: their events and state, and what an operator decides about one that waits.

use axum::{
    Json as Answer,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::params::ObjectName;
use crate::http::{
    App, Problem,
    auth::{Confined, PublishEvents, ReadAll, RootOnly, Tenants, Whole},
    body::{Body, Json, JsonBytes, Query},
    list::{ListQuery, Listing, Page, SortKey},
    path::Path,
};
use crate::own_events::AUDIT_OBJECT;
use signalbox_access::{Caller, Scope};
use signalbox_api::objects::{Accepted, ObjectList, ObjectState, Skip};
use signalbox_bus::EventId;
use signalbox_sequencer::{Decided, Decision};

/// The largest group that is read: a state and a hundred events of the largest size, about.
const GROUP_BYTES: usize = 8 << 20;
/// Parked objects of a page.
const DEFAULT_LIMIT: usize = 100;

pub(super) fn routes() -> OpenApiRouter<App> {
    let publish = OpenApiRouter::new().routes(routes!(publish)).layer(DefaultBodyLimit::max(GROUP_BYTES));
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(unpark))
        .routes(routes!(skip))
        .merge(publish)
}

impl Body for Skip {}

/// Publish events of an object, with its new state
///
/// The body: `events`, the main event and up to 99 sub-events, each with `topic` and `type` and if wanted `url` (else
/// one made from the object's name), `timestamp`, `data` and `tenant`; `data`, the object's new state, if it changes (`null` removes it); and
/// `idempotency_key` for all of it. All are accepted together, in this order, or none. An object whose name begins with
/// a backend's prefix has its events sent there, one at a time; all others go to the bus. In the path, `/` and other
/// reserved characters of the object's name are written as `%XX`. What is published to a topic directly for such an
/// object (`POST /topics/{name}` with its name as `object`) goes to its backend as well, also while nothing waits there.
/// An object's state belongs to no tenant, so a token that is confined to tenants publishes without `data` of the object.
#[utoipa::path(post, path = "/objects/{object}/events", params(("object" = String, Path, example = "work:1")),
    request_body = Object, responses((status = 202, body = Accepted),
    (status = "default", description = "400 invalid_object, invalid_event, invalid_topic, too_many_events, \
        invalid_idempotency_key | 403 reserved_object, topic_claimed, limit_reached | 422 idempotency_conflict | \
        429 object_queue_full, tenant_limit_reached | 503 fabric_full, fabric_read_only, busy")))]
async fn publish(
    caller: Confined<PublishEvents, Tenants>,
    State(app): State<App>,
    Path(ObjectName(object)): Path<ObjectName>,
    headers: HeaderMap,
    JsonBytes(body): JsonBytes,
) -> Result<(StatusCode, Answer<Accepted>), Problem> {
    app.bus.check_object(&object)?;
    let count = |events| app.count_events(&caller, events);
    let ids = app.bus.publish_group(&caller, object, &headers, &body, count).await?;
    Ok((StatusCode::ACCEPTED, Answer(Accepted { ids: ids.into_iter().map(|EventId(id)| id).collect() })))
}

/// Maximum parked objects that one list is made of.
const MAX_PARKED: usize = 100_000;

/// How parked objects are listed: by name, and since when they wait.
pub const LISTING: Listing<'static, (String, u64)> = Listing {
    name: |(object, _)| object,
    texts: |_| Vec::new(),
    fields: &[
        ("parked_since", |(_, since_ms)| SortKey::from(*since_ms)),
        ("object", |(object, _)| SortKey::from(&**object)),
    ],
};

/// A page of the parked objects, each with since when it is parked.
pub async fn parked(app: &App, query: &ListQuery) -> Result<Page<(String, u64)>, Problem> {
    LISTING.page(app.sequencer.handle.parked(MAX_PARKED).await?, query)
}

/// List the parked objects
///
/// Objects that wait for an operator's decision, `unpark` or `skip`. Sorted by `parked_since` or `object`.
#[utoipa::path(get, path = "/objects", params(ListQuery), responses((status = 200, body = ObjectList)))]
async fn list(
    _: Whole<ReadAll>,
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<ObjectList>, Problem> {
    let limited = ListQuery { limit: query.limit.or(Some(DEFAULT_LIMIT)), ..query };
    let page = parked(&app, &limited).await?;
    let mut objects = Vec::with_capacity(page.items.len());
    for (name, _) in page.items {
        // Its events may have been sent since the list was read.
        objects.extend(app.sequencer.handle.object(&name).await?);
    }
    Ok(Answer(ObjectList { objects, next: page.next, total: Some(page.total as u64) }))
}

/// Show an object
#[utoipa::path(get, path = "/objects/{object}", params(("object" = String, Path, example = "work:1")),
    responses((status = 200, body = ObjectState),
    (status = "default", description = "400 invalid_object | 404 unknown_object")))]
async fn show(
    caller: Whole<ReadAll>,
    State(app): State<App>,
    Path(ObjectName(object)): Path<ObjectName>,
) -> Result<Answer<ObjectState>, Problem> {
    state(&app, &caller, &object).await.map(Answer)
}

/// The state of an object. The object of the audit log has events that only readers of the log see.
pub async fn state(app: &App, caller: &Caller, object: &str) -> Result<ObjectState, Problem> {
    let state = match object == AUDIT_OBJECT && !caller.has_any(&[Scope::Audit]) {
        true => None,
        false => app.sequencer.handle.object(object).await?,
    };
    state.ok_or_else(|| {
        let detail =
            format!("Unknown object `{object}`: no event was published for it, and it has no state.");
        Problem::not_found("unknown_object", detail)
    })
}

/// Retry an object's event
///
/// For an object that is parked or waits for a retry: the event at the head is retried now, with a new count of
/// attempts.
#[utoipa::path(post, path = "/objects/{object}/unpark", responses((status = 204),
    (status = "default", description = "404 no_queue | 409 nothing_to_decide, in_flight")))]
async fn unpark(
    _: Whole<RootOnly>,
    State(app): State<App>,
    Path(ObjectName(object)): Path<ObjectName>,
) -> Result<StatusCode, Problem> {
    decide(&app, &object, Decision::Unpark).await
}

/// Skip an object's event
///
/// For an object that is parked or waits for a retry: the event `id` at the head (`next_id` of the object) becomes a
/// dead letter of its backend, and the object's next event reports the gap. The ID is required, so that a repeat of a
/// request whose answer was lost skips no other event.
#[utoipa::path(post, path = "/objects/{object}/skip", request_body = Skip, responses((status = 204),
    (status = "default", description = "400 invalid_object | 404 no_queue | 409 nothing_to_decide, in_flight, \
        another_event")))]
async fn skip(
    _: Whole<RootOnly>,
    State(app): State<App>,
    Path(ObjectName(object)): Path<ObjectName>,
    Json(Skip { id }): Json<Skip>,
) -> Result<StatusCode, Problem> {
    decide(&app, &object, Decision::Skip(EventId(id))).await
}

async fn decide(app: &App, object: &str, decision: Decision) -> Result<StatusCode, Problem> {
    let conflict = |code, detail: &str| Err(Problem::new(StatusCode::CONFLICT, code, detail));
    match app.sequencer.handle.decide(object, decision).await? {
        Decided::Done => Ok(StatusCode::NO_CONTENT),
        Decided::Idle => Err(Problem::not_found("no_queue", "no events of this object wait for a backend")),
        Decided::InFlight => {
            conflict("in_flight", "the object's event is being sent now; read the object again")
        }
        Decided::AnotherEvent => {
            conflict("another_event", "another event is next; the object's `next_id` names it")
        }
        Decided::NothingToDecide => {
            conflict("nothing_to_decide", "the object is neither parked nor waiting for a retry")
        }
    }
}
