//! Changing instances.

use axum::{
    Json as Answer,
    extract::State as AppState,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    params::NodeId,
    view::changed,
    wait::{self, Patience, Removed, serial_header, wait},
};
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{Confined, Hosts, ManageRoutes, Whole},
    body::{self, Body, Json, Query},
    path::Path,
    precondition::expected,
};
use signalbox_access::Caller;
use signalbox_api::{
    Time,
    routes::{ChangedInstance, Drain, DrainedNode, Fault, Faults, Heartbeat, NewInstance},
};
use signalbox_route_table::{InstanceId, Invalid, Label, Record, Spec};
use signalbox_routing::{ChangeKind, RouteChange};

const MAX_BULK: usize = 1000;
pub(super) const DEFAULT_DEADLINE_SECONDS: u32 = 30;
pub(super) const MAX_DEADLINE_SECONDS: u32 = 86_400;
const MAX_FAULT_MESSAGE: usize = 1000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(put))
        .routes(routes!(put_many))
        .routes(routes!(remove))
        .routes(routes!(heartbeat))
        .routes(routes!(drain, resume))
        .routes(routes!(drain_node, resume_node))
        .routes(routes!(report_fault))
}

/// How long to wait for the routers.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// Answer when every live router has the change: `5s`, `500ms`, `5`; at most 60 s. If it takes longer the answer
    /// is 504, although the change was applied.
    #[param(example = "5s")]
    pub(super) wait: Option<String>,
}

impl WaitQuery {
    pub(crate) fn patience(&self, app: &App, caller: &Caller) -> Result<Option<Patience>, Problem> {
        let Some(text) = self.wait.as_deref() else { return Ok(None) };
        let duration = wait::parse(text)?;
        Ok(Some(Patience { duration, _place: app.limits.waits.take(caller)? }))
    }
}

/// Register or update an instance
///
/// `state` in the response shows whether it receives requests: it is `standby` if a promotion of its host replaced its version type.
/// Repeating the call changes nothing and publishes no event, but renews the lease. An address belongs to one
/// instance: the last registration takes it over, and its previous instance is removed (`displaced` names it). With
/// `If-Match` only the instance with that `ETag` of `GET` is replaced.
#[utoipa::path(put, path = "/instances/{id}", params(WaitQuery), request_body = NewInstance,
    responses((status = 200, description = "Updated, or unchanged", body = ChangedInstance),
    (status = 201, description = "Registered", body = ChangedInstance),
    (status = "default", description = "403 version_type_not_allowed, address_taken | 409 foreign_key | \
        412 instance_changed | 422 invalid_address, address_not_allowed, reserved_address, invalid_hostname, \
        invalid_hostnames, invalid_label, invalid_weight, invalid_lease, invalid_health, too_many_instances | \
        503 contended. `recorded` shows whether the change will still be applied")))]
async fn put(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(id): Path<InstanceId>,
    Query(query): Query<WaitQuery>,
    headers: HeaderMap,
    Json(new): Json<NewInstance>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    let standby = new.standby;
    let requested = json!(new);
    let spec = Spec::check(new, app.registry.rules())?;
    notes.requested(requested);
    let change = app.registry.put_as(&caller, &id, spec, standby, expected(&headers)?).await?;
    answer(&app, &notes, change, patience).await
}

/// The answer to a change of one instance. Notes the instance before the change for the audit log.
async fn answer(
    app: &App,
    notes: &Notes,
    change: RouteChange,
    patience: Option<Patience>,
) -> Result<Response, Problem> {
    if let Some(record) = change.before.clone() {
        notes.before(json!(super::view::instance(&change.subject, record, None, None)));
    }
    let headers = wait(app, &change.epoch, change.serial, patience).await?;
    let created = change.kind == ChangeKind::Registered;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(match changed(change) {
        Some(view) => (status, headers, Answer(view)).into_response(),
        None => (StatusCode::NO_CONTENT, headers).into_response(),
    })
}

/// An item of a bulk registration: an instance with its ID. [`BulkItem`] describes it to clients.
#[derive(Debug, Deserialize)]
struct Named {
    id: String,
}

impl Body for Named {}

impl Body for NewInstance {}

/// An instance with its ID among its members. It only describes the body: an item is read in two steps, so that each gets its
/// own error. It is not a flattened struct, because its schema would consist of two parts of which one rejects `id`.
struct BulkItem;

impl PartialSchema for BulkItem {
    fn schema() -> RefOr<Schema> {
        let mut schema = NewInstance::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            object.properties.insert("id".to_owned(), String::schema());
            object.required.push("id".to_owned());
            object.description = Some("An instance to be registered, with its ID.".to_owned());
        }
        schema
    }
}

impl ToSchema for BulkItem {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        NewInstance::schemas(schemas);
    }
}

/// The results, in the order of the items.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct BulkResult {
    results: Vec<ItemResult>,
    /// The serial of the route table after the last change.
    serial: u64,
}

/// The result for one item.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct ItemResult {
    /// The same as for a separate request.
    status: u16,
    instance: Option<ChangedInstance>,
    error: Option<Problem>,
}

/// Register many instances
///
/// An array of at most 1000 objects, each as for one instance plus its `id`. Each is a separate change with its own
/// result; an invalid one does not affect the others. They are applied in order.
#[utoipa::path(put, path = "/instances", params(WaitQuery), request_body = Vec<BulkItem>,
    responses((status = 200, body = BulkResult), (status = "default", description = "422 too_many_items")))]
async fn put_many(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Query(query): Query<WaitQuery>,
    Json(items): Json<Vec<Box<RawValue>>>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    if items.len() > MAX_BULK {
        let detail = format!("send at most {MAX_BULK} instances per request");
        return Err(Problem::unprocessable("too_many_items", detail));
    }
    let mut results = Vec::with_capacity(items.len());
    let (mut serial, mut epoch) = (0, String::new());
    let (mut changed_items, mut all_refused) = (0_u32, true);
    for item in items {
        results.push(match put_item(&app, &caller, &item).await {
            Ok(change) => {
                (serial, epoch) = (change.serial, change.epoch.clone());
                all_refused = false;
                if change.kind != ChangeKind::Unchanged {
                    changed_items += 1;
                    note_instance(&notes, &change);
                }
                let status = if change.kind == ChangeKind::Registered { 201 } else { 200 };
                ItemResult { status, instance: changed(change), error: None }
            }
            Err(problem) => {
                if problem.status() == StatusCode::FORBIDDEN {
                    let id = serde_json::from_str::<Named>(item.get()).map(|named| named.id);
                    notes.refused(json!({"id": id.ok(), "code": problem.code()}));
                } else {
                    all_refused = false;
                }
                // It is registered all the same, or may be.
                if problem.says("recorded") || problem.status().is_server_error() {
                    let requested: Value = serde_json::from_str(item.get()).unwrap_or_default();
                    notes.instance(None, Some(json!({"requested": requested, "code": problem.code()})));
                }
                ItemResult {
                    status: problem.status().as_u16(),
                    instance: None,
                    error: Some(problem.of_item()),
                }
            }
        });
    }
    if !all_refused {
        notes.after(json!({"items": results.len(), "changed": changed_items}));
    }
    if !epoch.is_empty() {
        wait(&app, &epoch, serial, patience).await?;
    }
    Ok(Answer(BulkResult { results, serial }).into_response())
}

/// Notes an instance of a bulk registration for the audit log.
fn note_instance(notes: &Notes, change: &RouteChange) {
    let view = |record: &Option<Record>| {
        let record = record.clone()?;
        Some(json!(super::view::instance(&change.subject, record, None, None)))
    };
    let mut after = view(&change.record);
    if let (Some(Value::Object(after)), Some(displaced)) = (&mut after, &change.displaced) {
        after.insert("displaced".to_owned(), displaced.to_string().into());
    }
    notes.instance(view(&change.before), after);
}

async fn put_item(app: &App, caller: &Caller, item: &RawValue) -> Result<RouteChange, Problem> {
    let Named { id } = body::parse(item.get().as_bytes())?;
    let mut object: serde_json::Map<_, _> = body::parse(item.get().as_bytes())?;
    object.remove("id");
    let new: NewInstance = body::parse(serde_json::Value::Object(object).to_string().as_bytes())?;
    let id = InstanceId::parse(&id)?;
    let standby = new.standby;
    let spec = Spec::check(new, app.registry.rules())?;
    Ok(app.registry.put_as(caller, &id, spec, standby, None).await?)
}

/// Remove an instance
///
/// The call can be repeated.
#[utoipa::path(delete, path = "/instances/{id}", params(WaitQuery), responses(Removed))]
async fn remove(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(id): Path<InstanceId>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    let change = app.registry.remove(&caller, &id).await?;
    answer(&app, &notes, change, patience).await
}

/// Renew an instance's lease
///
/// 404 means that the instance is not registered, or no longer: register it again.
#[utoipa::path(post, path = "/instances/{id}/heartbeat", responses((status = 200, body = Heartbeat)))]
async fn heartbeat(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    Path(id): Path<InstanceId>,
) -> Result<Answer<Heartbeat>, Problem> {
    Ok(Answer(app.registry.heartbeat(&caller, &id).await?))
}

impl Body for Drain {}

fn seconds(body: Option<Json<Drain>>) -> Result<u32, Invalid> {
    let seconds = body.and_then(|Json(drain)| drain.deadline_seconds);
    let seconds = seconds.unwrap_or(DEFAULT_DEADLINE_SECONDS);
    let detail = format!("`deadline_seconds` must be between 0 and {MAX_DEADLINE_SECONDS}");
    let fits = seconds <= MAX_DEADLINE_SECONDS;
    fits.then_some(seconds).ok_or_else(|| Invalid::new("invalid_deadline", "deadline_seconds", detail))
}

/// Drain an instance
///
/// It gets no new requests, finishes those in progress, and is removed at the deadline. Repeating the call moves the
/// deadline.
#[utoipa::path(post, path = "/instances/{id}/drain", params(WaitQuery), request_body = Option<Drain>,
    responses((status = 200, body = ChangedInstance), (status = "default", description = "422 invalid_deadline")))]
async fn drain(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(id): Path<InstanceId>,
    Query(query): Query<WaitQuery>,
    body: Option<Json<Drain>>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    let seconds = seconds(body)?;
    notes.requested(json!({"deadline_seconds": seconds}));
    let change = app.registry.drain(&caller, &id, seconds).await?;
    answer(&app, &notes, change, patience).await
}

/// Cancel a drain
#[utoipa::path(delete, path = "/instances/{id}/drain", params(WaitQuery),
    responses((status = 200, body = ChangedInstance)))]
async fn resume(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(id): Path<InstanceId>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    let change = app.registry.resume(&caller, &id).await?;
    answer(&app, &notes, change, patience).await
}

/// Drain every instance of a node
///
/// For a token that is not confined: the hosts of all tenants share a node.
#[utoipa::path(post, path = "/nodes/{id}/drain", params(WaitQuery), request_body = Option<Drain>,
    responses((status = 200, body = DrainedNode), (status = "default", description = "422 invalid_deadline")))]
async fn drain_node(
    caller: Whole<ManageRoutes>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(NodeId(node)): Path<NodeId>,
    Query(query): Query<WaitQuery>,
    body: Option<Json<Drain>>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    let seconds = seconds(body)?;
    notes.requested(json!({"deadline_seconds": seconds}));
    alter_node(&app, &notes, (&caller, &node, Some(seconds)), patience).await
}

/// Cancel the drain of a node
///
/// Every instance of it gets requests again. For a token that is not confined.
#[utoipa::path(delete, path = "/nodes/{id}/drain", params(WaitQuery), responses((status = 200, body = DrainedNode)))]
async fn resume_node(
    caller: Whole<ManageRoutes>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(NodeId(node)): Path<NodeId>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    alter_node(&app, &notes, (&caller, &node, None), patience).await
}

/// Drains a node, or resumes it without a deadline. What was done before an error is in the audit log, too.
async fn alter_node(
    app: &App,
    notes: &Notes,
    (caller, node, deadline_seconds): (&Caller, &Label, Option<u32>),
    patience: Option<Patience>,
) -> Result<Response, Problem> {
    let mut changes = Vec::new();
    let reached = app.registry.drain_node(caller, node, deadline_seconds, &mut changes).await;
    if !changes.is_empty() {
        notes.has_changed();
    }
    for change in &changes {
        let view = |record: &Option<Record>| {
            let desired = &record.as_ref()?.desired;
            let deadline = desired.drain_deadline_ms;
            Some(
                json!({"id": change.subject, "state": desired.state, "drain_deadline": deadline.map(Time::from_ms)}),
            )
        };
        notes.instance(view(&change.before), view(&change.record));
    }
    let (epoch, serial) = reached?;
    notes.after(json!({"serial": serial}));
    if !changes.is_empty() {
        wait(app, &epoch, serial, patience).await?;
    }
    let instances = changes.into_iter().map(|change| change.subject).collect();
    Ok((serial_header(serial), Answer(DrainedNode { instances, serial })).into_response())
}

impl Body for Fault {}

/// Report a fault of an instance
///
/// The fault is counted and the latest one is stored. The instance stays in the table.
#[utoipa::path(post, path = "/instances/{id}/errors", request_body = Fault, responses((status = 200, body = Faults),
    (status = "default", description = "422 invalid_message")))]
async fn report_fault(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    Path(id): Path<InstanceId>,
    Json(fault): Json<Fault>,
) -> Result<Answer<Faults>, Problem> {
    if fault.message.is_empty() || fault.message.len() > MAX_FAULT_MESSAGE {
        let detail = format!("`message` must be 1 to {MAX_FAULT_MESSAGE} bytes");
        return Err(Invalid::new("invalid_message", "message", detail).into());
    }
    let fault_id = fault.fault_id.map(|id| Label::parse(&id, "fault_id")).transpose()?;
    let fault_id = fault_id.as_ref().map(Label::as_str);
    let faults = app.registry.fault(&caller, &id, &fault.message, fault_id).await?;
    Ok(Answer(Faults { faults }))
}
