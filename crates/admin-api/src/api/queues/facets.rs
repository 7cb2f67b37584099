//! Environments of a queue: what is set for each, and what they have.

use axum::{
    Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Environment, ReadQueues, UseQueues, current, find, look::PageQuery};
use crate::http::auth::CheckEnvironment as _;
use crate::http::{
    App, Problem,
    auth::{Confined, Environments, Whole},
    body::{Body, Json, Query},
    path::Path,
    precondition::{expected, tagged},
};
use signalbox_api::queues::{Count, Facet, FacetPage, FacetPatch, FacetSettings};
use signalbox_bus::Error;
use signalbox_queues::{DEFAULT_WEIGHT, Definition, FacetStatus, is_part};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(facets)).routes(routes!(facet, set_facet, change_facet, drop_facet))
}

impl Body for FacetSettings {}

impl Body for FacetPatch {}

fn show(status: FacetStatus, definition: &Definition) -> Facet {
    let set = definition.wanted_tenant(&status.environment);
    Facet {
        environment: status.environment,
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

/// One facet, which may have no messages.
async fn view(app: &App, queue: &str, environment: &str, definition: &Definition) -> Result<Facet, Problem> {
    let named = app.queues.facets_named(queue, &[environment.to_owned()]).await?;
    let empty = || FacetStatus { environment: environment.to_owned(), ..FacetStatus::default() };
    Ok(show(named.into_iter().next().unwrap_or_else(empty), definition))
}

/// List the environments that have messages in a queue
///
/// Ordered by name. A token confined to environments sees only its own.
#[utoipa::path(get, path = "/queues/{name}/facets", params(PageQuery), responses((status = 200, body = FacetPage)))]
async fn facets(
    caller: Confined<ReadQueues, Environments>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Answer<FacetPage>, Problem> {
    let (after, limit) = page.read()?;
    if !after.is_empty() && !is_part(&after) {
        return Err(Error::InvalidCursor.into());
    }
    let definition = current(&app, &name).await?.definition;
    let shown = |facets: Vec<FacetStatus>| facets.into_iter().map(|one| show(one, &definition)).collect();
    if let Some(own) = caller.environments() {
        let facets = app.queues.facets_named(&name, own).await?;
        return Ok(Answer(FacetPage { facets: shown(facets), next: None }));
    }
    let page = app.queues.facets(&name, &after, limit).await?;
    let next = page.next.map(|last| URL_SAFE_NO_PAD.encode(last));
    Ok(Answer(FacetPage { facets: shown(page.items), next }))
}

/// Show an environment of a queue
///
/// Its settings and counts of messages, also if it has none.
#[utoipa::path(get, path = "/queues/{name}/facets/{environment}", responses((status = 200, body = Facet)))]
async fn facet(
    caller: Confined<ReadQueues, Environments>,
    State(app): State<App>,
    Path((name, environment)): Path<(String, Environment)>,
) -> Result<Response, Problem> {
    caller.check_environment(&environment)?;
    let definition = current(&app, &name).await?.definition;
    let facet = view(&app, &name, &environment, &definition).await?;
    Ok(tagged(StatusCode::OK, definition.revision, Answer(facet)))
}

/// Changes what is set for an environment.
async fn set(
    app: &App,
    headers: &HeaderMap,
    queue: &str,
    environment: &str,
    wanted: impl Fn(FacetSettings) -> FacetSettings,
) -> Result<Response, Problem> {
    let change = |known: Option<&Definition>| {
        let known = known.ok_or(Error::NoSuchQueue)?;
        let wanted = wanted(known.wanted_tenant(environment));
        known.with_tenant(environment, wanted).map_err(Error::InvalidQueue)
    };
    let most = app.queues.options().queues;
    let (_, definition) = app.bus.handle().put_queue(queue, expected(headers)?, most, change).await?;
    let facet = view(app, queue, environment, &definition).await?;
    Ok(tagged(StatusCode::OK, definition.revision, Answer(facet)))
}

/// Set the weight, the pause and the limits of an environment
///
/// A missing field gets its default. Nothing of other environments changes, and a new definition of the queue keeps what
/// is set here.
#[utoipa::path(put, path = "/queues/{name}/facets/{environment}", request_body = FacetSettings,
    responses((status = 200, body = Facet)))]
async fn set_facet(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path((name, environment)): Path<(String, Environment)>,
    headers: HeaderMap,
    Json(wanted): Json<FacetSettings>,
) -> Result<Response, Problem> {
    set(&app, &headers, &name, &environment, |_| wanted).await
}

/// Change the weight, the pause or the limits of an environment
///
/// A missing field stays as it is, and `null` sets the default: `{"paused": true}` pauses an environment and changes
/// nothing else.
#[utoipa::path(patch, path = "/queues/{name}/facets/{environment}", request_body = FacetPatch,
    responses((status = 200, body = Facet)))]
async fn change_facet(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path((name, environment)): Path<(String, Environment)>,
    headers: HeaderMap,
    Json(patch): Json<FacetPatch>,
) -> Result<Response, Problem> {
    let wanted = |known: FacetSettings| FacetSettings {
        weight: patch.weight.unwrap_or(known.weight),
        paused: patch.paused.unwrap_or(known.paused),
        in_flight_limit: patch.in_flight_limit.unwrap_or(known.in_flight_limit),
        rate_per_second: patch.rate_per_second.unwrap_or(known.rate_per_second),
    };
    set(&app, &headers, &name, &environment, wanted).await
}

/// Drop all messages of an environment
///
/// Includes waiting, delayed and in-flight messages: their receipts settle nothing afterwards.
#[utoipa::path(delete, path = "/queues/{name}/facets/{environment}", responses((status = 200, body = Count)))]
async fn drop_facet(
    caller: Confined<UseQueues, Environments>,
    State(app): State<App>,
    Path((name, environment)): Path<(String, Environment)>,
) -> Result<Answer<Count>, Problem> {
    caller.check_environment(&environment)?;
    find(&app, &name).await?;
    Ok(Answer(Count { messages: app.queues.drop_facet(&name, &environment).await? }))
}
