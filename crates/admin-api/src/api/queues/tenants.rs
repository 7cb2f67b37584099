//! Tenants of a queue: what is set for each, and what they have.

use axum::{
    Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ReadQueues, TenantName, UseQueues, current, find, look::PageQuery};
use crate::http::auth::CheckTenant as _;
use crate::http::{
    App, Problem,
    auth::{Confined, Tenants, Whole},
    body::{Body, Json, Query},
    path::Path,
    precondition::{expected, tagged},
};
use signalbox_api::queues::{Count, Tenant, TenantPage, TenantPatch, TenantSettings};
use signalbox_bus::Error;
use signalbox_queues::{DEFAULT_WEIGHT, Definition, TenantStatus, is_part};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(tenants)).routes(routes!(
        tenant,
        set_tenant,
        change_tenant,
        drop_tenant
    ))
}

impl Body for TenantSettings {}

impl Body for TenantPatch {}

fn show(status: TenantStatus, definition: &Definition) -> Tenant {
    let set = definition.wanted_tenant(&status.tenant);
    Tenant {
        tenant: status.tenant,
        weight: set.weight.unwrap_or(DEFAULT_WEIGHT),
        paused: set.paused,
        in_flight_limit: set.in_flight_limit,
        rate_per_second: set.rate_per_second,
        waiting: status.waiting,
        in_flight: status.in_flight,
        delayed: status.delayed,
        oldest_age_ms: status.oldest_age_ms,
        dwell_ms: status.dwell_ms,
    }
}

/// One tenant, which may have no messages.
async fn view(app: &App, queue: &str, tenant: &str, definition: &Definition) -> Result<Tenant, Problem> {
    let named = app.queues.tenants_named(queue, &[tenant.to_owned()]).await?;
    let empty = || TenantStatus { tenant: tenant.to_owned(), ..TenantStatus::default() };
    Ok(show(named.into_iter().next().unwrap_or_else(empty), definition))
}

/// List the tenants that have messages in a queue
///
/// Ordered by name. A token confined to tenants sees only its own.
#[utoipa::path(get, path = "/queues/{name}/tenants", params(PageQuery), responses((status = 200, body = TenantPage)))]
async fn tenants(
    caller: Confined<ReadQueues, Tenants>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Answer<TenantPage>, Problem> {
    let (after, limit) = page.read()?;
    if !after.is_empty() && !is_part(&after) {
        return Err(Error::InvalidCursor.into());
    }
    let definition = current(&app, &name).await?.definition;
    let shown = |tenants: Vec<TenantStatus>| tenants.into_iter().map(|one| show(one, &definition)).collect();
    if let Some(own) = caller.tenants() {
        let tenants = app.queues.tenants_named(&name, own).await?;
        return Ok(Answer(TenantPage { tenants: shown(tenants), next: None }));
    }
    let page = app.queues.tenants(&name, &after, limit).await?;
    let next = page.next.map(|last| URL_SAFE_NO_PAD.encode(last));
    Ok(Answer(TenantPage { tenants: shown(page.items), next }))
}

/// Show a tenant of a queue
///
/// Its settings and counts of messages, even if it has none.
#[utoipa::path(get, path = "/queues/{name}/tenants/{tenant}", responses((status = 200, body = Tenant)))]
async fn tenant(
    caller: Confined<ReadQueues, Tenants>,
    State(app): State<App>,
    Path((name, tenant)): Path<(String, TenantName)>,
) -> Result<Response, Problem> {
    caller.check_tenant(&tenant)?;
    let definition = current(&app, &name).await?.definition;
    let shown = view(&app, &name, &tenant, &definition).await?;
    Ok(tagged(StatusCode::OK, definition.revision, Answer(shown)))
}

/// Changes what is set for a tenant.
async fn set(
    app: &App,
    headers: &HeaderMap,
    queue: &str,
    tenant: &str,
    wanted: impl Fn(TenantSettings) -> TenantSettings,
) -> Result<Response, Problem> {
    let change = |known: Option<&Definition>| {
        let known = known.ok_or(Error::NoSuchQueue)?;
        let wanted = wanted(known.wanted_tenant(tenant));
        known.with_tenant(tenant, wanted).map_err(Error::InvalidQueue)
    };
    let most = app.queues.options().queues;
    let (_, definition) = app.bus.handle().put_queue(queue, expected(headers)?, most, change).await?;
    let shown = view(app, queue, tenant, &definition).await?;
    Ok(tagged(StatusCode::OK, definition.revision, Answer(shown)))
}

/// Set the weight, the pause and the limits of a tenant
///
/// A missing field gets its default. Nothing of other tenants changes, and a new definition of the queue keeps what
/// is set here.
#[utoipa::path(put, path = "/queues/{name}/tenants/{tenant}", request_body = TenantSettings,
    responses((status = 200, body = Tenant)))]
async fn set_tenant(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path((name, tenant)): Path<(String, TenantName)>,
    headers: HeaderMap,
    Json(wanted): Json<TenantSettings>,
) -> Result<Response, Problem> {
    set(&app, &headers, &name, &tenant, |_| wanted).await
}

/// Change the weight, the pause or the limits of a tenant
///
/// A missing field stays as it is, and `null` sets the default: `{"paused": true}` pauses a tenant and changes
/// nothing else.
#[utoipa::path(patch, path = "/queues/{name}/tenants/{tenant}", request_body = TenantPatch,
    responses((status = 200, body = Tenant)))]
async fn change_tenant(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path((name, tenant)): Path<(String, TenantName)>,
    headers: HeaderMap,
    Json(patch): Json<TenantPatch>,
) -> Result<Response, Problem> {
    let wanted = |known: TenantSettings| TenantSettings {
        weight: patch.weight.unwrap_or(known.weight),
        paused: patch.paused.unwrap_or(known.paused),
        in_flight_limit: patch.in_flight_limit.unwrap_or(known.in_flight_limit),
        rate_per_second: patch.rate_per_second.unwrap_or(known.rate_per_second),
    };
    set(&app, &headers, &name, &tenant, wanted).await
}

/// Drop all messages of a tenant
///
/// Includes waiting, delayed and in-flight messages: their receipts settle nothing afterwards.
#[utoipa::path(delete, path = "/queues/{name}/tenants/{tenant}", responses((status = 200, body = Count)))]
async fn drop_tenant(
    caller: Confined<UseQueues, Tenants>,
    State(app): State<App>,
    Path((name, tenant)): Path<(String, TenantName)>,
) -> Result<Answer<Count>, Problem> {
    caller.check_tenant(&tenant)?;
    find(&app, &name).await?;
    Ok(Answer(Count { messages: app.queues.drop_tenant(&name, &tenant).await? }))
}
