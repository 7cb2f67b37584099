//! Create, change, list and delete queues.

use axum::{
    Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use serde_json::json;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ReadQueues, UseQueues, current};
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{Confined, Tenants, Whole},
    body::{Body, Json, Query},
    list::{ListQuery, Listing, SortKey},
    path::Path,
    precondition::{expected, tagged},
};
use signalbox_api::queues::{NewQueue, Numbers, Queue, QueueList, QueuePatch, TenantSettings};
use signalbox_bus::Error;
use signalbox_queues::{Definition, QueueNumbers};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, patch, remove))
}

impl Body for NewQueue {}

impl Body for QueuePatch {}

/// The definition with changes.
fn patched(patch: &QueuePatch, known: &Definition) -> NewQueue {
    let now = known.wanted();
    let mut weights = known.weights.clone();
    for (tenant, weight) in &patch.weights {
        match weight {
            Some(weight) => weights.insert(tenant.clone(), *weight),
            None => weights.remove(tenant),
        };
    }
    NewQueue {
        pattern: patch.pattern.clone().unwrap_or(now.pattern),
        lease_seconds: patch.lease_seconds.or(now.lease_seconds),
        in_flight_limit: patch.in_flight_limit.unwrap_or(now.in_flight_limit),
        max_attempts: patch.max_attempts.or(now.max_attempts),
        retention_seconds: patch.retention_seconds.or(now.retention_seconds),
        backoff_seconds: patch.backoff_seconds.or(now.backoff_seconds),
        max_backoff_seconds: patch.max_backoff_seconds.or(now.max_backoff_seconds),
        max_waiting: patch.max_waiting.unwrap_or(now.max_waiting),
        max_waiting_per_tenant: patch.max_waiting_per_tenant.unwrap_or(now.max_waiting_per_tenant),
        overflow: patch.overflow.unwrap_or(now.overflow),
        weights: Some(weights),
    }
}

fn show(name: String, definition: &Definition, numbers: QueueNumbers) -> Queue {
    let QueueNumbers { waiting, in_flight, delayed, dead, .. } = numbers;
    #[allow(clippy::cast_precision_loss, reason = "twelve hours")]
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let settings = |tenant: &String| {
        let set = TenantSettings { weight: None, ..definition.wanted_tenant(tenant) };
        (tenant.clone(), set)
    };
    Queue {
        name,
        pattern: definition.pattern.clone(),
        lease_seconds: seconds(definition.lease_ms),
        in_flight_limit: definition.in_flight_limit,
        max_attempts: definition.max_attempts,
        retention_seconds: definition.retention_seconds,
        backoff_seconds: seconds(definition.backoff_ms),
        max_backoff_seconds: seconds(definition.max_backoff_ms),
        max_waiting: definition.max_waiting,
        max_waiting_per_tenant: definition.max_waiting_per_tenant,
        overflow: definition.overflow,
        weights: definition.weights.clone(),
        tenants: definition.tenants.keys().map(settings).collect(),
        revision: definition.revision,
        messages: Numbers { waiting, in_flight, delayed, dead },
    }
}

async fn view(app: &App, name: String, definition: &Definition) -> Result<Queue, Problem> {
    let numbers = app.queues.numbers(&[&name]).await?.pop().unwrap_or_default();
    Ok(show(name, definition, numbers))
}

/// The queue as a token sees it that is confined to the tenants `own`: their weights and messages only. Dead letters
/// are not counted by tenant.
async fn view_within(
    app: &App,
    own: &[String],
    name: String,
    definition: &Definition,
) -> Result<Queue, Problem> {
    let mut numbers = QueueNumbers::default();
    for tenant in app.queues.tenants_named(&name, own).await? {
        numbers.waiting += tenant.waiting;
        numbers.in_flight += tenant.in_flight;
        numbers.delayed += tenant.delayed;
    }
    let mut queue = show(name, definition, numbers);
    queue.weights.retain(|tenant, _| own.contains(tenant));
    queue.tenants.retain(|tenant, _| own.contains(tenant));
    Ok(queue)
}

/// Notes the definition before a change for the audit log.
fn note_before(app: &App, notes: &Notes, name: &str) {
    if let Some(definition) = app.bus.handle().registry().queues.get(name) {
        let mut before = json!(show(name.to_owned(), definition, QueueNumbers::default()));
        // Numbers are no part of the definition.
        if let Some(members) = before.as_object_mut() {
            members.remove("messages");
        }
        notes.before(before);
    }
}

/// List the queues
///
/// Sorted by `name`, `waiting`, `in_flight`, `delayed` or `dead`; a search covers names and patterns. Without `limit`, the
/// answer contains all of them. For a token that is confined to tenants, `weights`, `tenants` and `messages` are those of
/// its tenants, without dead letters.
#[utoipa::path(get, path = "/queues", params(ListQuery), responses((status = 200, body = QueueList)))]
async fn list(
    caller: Confined<ReadQueues, Tenants>,
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<QueueList>, Problem> {
    app.bus.handle().refresh_registry().await?;
    let page = LISTING.page(all(&app, caller.tenants()).await?, &query)?;
    Ok(Answer(QueueList { queues: page.items, next: page.next, total: Some(page.total as u64) }))
}

/// How queues are listed.
pub(crate) const LISTING: Listing<'static, Queue> = Listing {
    name: |queue| &queue.name,
    texts: |queue| vec![queue.pattern.as_str()],
    fields: &[
        ("name", |queue| SortKey::from(&*queue.name)),
        ("waiting", |queue| SortKey::from(queue.messages.waiting)),
        ("in_flight", |queue| SortKey::from(queue.messages.in_flight)),
        ("delayed", |queue| SortKey::from(queue.messages.delayed)),
        ("dead", |queue| SortKey::from(queue.messages.dead)),
    ],
};

/// All queues, with the messages of these tenants only, if there are any.
pub(crate) async fn all(app: &App, tenants: Option<&[String]>) -> Result<Vec<Queue>, Problem> {
    let registry = app.bus.handle().registry();
    if let Some(own) = tenants {
        let mut queues = Vec::with_capacity(registry.queues.len());
        for (name, queue) in &registry.queues {
            queues.push(view_within(app, own, name.clone(), queue).await?);
        }
        return Ok(queues);
    }
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).collect();
    let numbers = app.queues.numbers(&names).await?;
    let views = registry.queues.iter().zip(numbers);
    Ok(views.map(|((name, queue), numbers)| show(name.clone(), queue, numbers)).collect())
}

/// Show a queue
///
/// For a token that is confined to tenants, `weights`, `tenants` and `messages` are those of its tenants, without
/// dead letters.
#[utoipa::path(get, path = "/queues/{name}", responses((status = 200, body = Queue)))]
async fn get(
    caller: Confined<ReadQueues, Tenants>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let queue = current(&app, &name).await?;
    let shown = match caller.tenants() {
        Some(own) => view_within(&app, own, name, &queue.definition).await?,
        None => view(&app, name, &queue.definition).await?,
    };
    Ok(tagged(StatusCode::OK, queue.definition.revision, Answer(shown)))
}

/// Create a queue, or replace its definition
///
/// A missing field gets its default, even if the queue exists. What is set for single tenants stays: `weights`, if
/// the field is missing, and everything of `PUT /queues/{name}/tenants/{tenant}`. Messages that are accepted after the
/// answer are stored in the queue if its pattern matches, whichever pacemaker accepts them; weights, pauses and limits are
/// in effect from then on. With `If-Match` only the definition with that `ETag` is replaced, with `If-None-Match: *` the
/// queue must not exist.
#[utoipa::path(put, path = "/queues/{name}", params(("name" = String, Path, example = "email_events")),
    request_body = NewQueue, responses((status = 200, description = "The queue existed", body = Queue),
    (status = 201, body = Queue),
    (status = "default", description = "403 limit_reached | 422 invalid_queue_name, invalid_pattern (with \
        `position`)")))]
async fn put(
    _: Whole<UseQueues>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
    headers: HeaderMap,
    Json(wanted): Json<NewQueue>,
) -> Result<Response, Problem> {
    let expected = expected(&headers)?;
    let change = |known: Option<&Definition>| {
        Definition::new(&name, wanted.clone(), known).map_err(Error::InvalidQueue)
    };
    note_before(&app, &notes, &name);
    let most = app.queues.options().queues;
    let (created, definition) = app.bus.handle().put_queue(&name, expected, most, change).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let revision = definition.revision;
    Ok(tagged(status, revision, Answer(view(&app, name, &definition).await?)))
}

/// Change parts of a queue's definition
///
/// A missing field stays as it is. `null` removes a limit, or the weight of a tenant.
#[utoipa::path(patch, path = "/queues/{name}", params(("name" = String, Path, example = "email_events")),
    request_body = QueuePatch, responses((status = 200, body = Queue),
    (status = "default", description = "422 invalid_pattern (with `position`)")))]
async fn patch(
    _: Whole<UseQueues>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
    headers: HeaderMap,
    Json(patch): Json<QueuePatch>,
) -> Result<Response, Problem> {
    let change = |known: Option<&Definition>| {
        let known = known.ok_or(Error::NoSuchQueue)?;
        Definition::new(&name, patched(&patch, known), Some(known)).map_err(Error::InvalidQueue)
    };
    note_before(&app, &notes, &name);
    let most = app.queues.options().queues;
    let (_, definition) = app.bus.handle().put_queue(&name, expected(&headers)?, most, change).await?;
    let revision = definition.revision;
    Ok(tagged(StatusCode::OK, revision, Answer(view(&app, name, &definition).await?)))
}

/// Delete a queue with all its messages
///
/// Messages that are accepted after the answer are not stored in it.
#[utoipa::path(delete, path = "/queues/{name}", responses((status = 204)))]
async fn remove(
    _: Whole<UseQueues>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    note_before(&app, &notes, &name);
    app.bus.handle().delete_queue(&name).await?;
    app.queues.forget(&name);
    Ok(StatusCode::NO_CONTENT)
}
