//! The table, its routing decisions, and its propagation.

use axum::{Json as Answer, extract::State as AppState};
use serde::{Deserialize, Serialize};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::wait::behind_by;
use crate::http::{
    App, Problem,
    auth::{Granted, ReadRoutes},
    body::Query,
};
use signalbox_route_table::{Asked, Explanation, Hostname, Invalid, Question, host_of};
use signalbox_routing::{Error, KNOWN_MS, Liveness, PROPAGATION_BOUNDS_MS, RouterReport};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(super::dump::dump))
        .routes(routes!(explain_host))
        .routes(routes!(convergence))
}

/// The host and the request to explain.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExplainQuery {
    /// As in a Host header.
    #[param(example = "a.shop.example")]
    host: String,
    /// A header of the request, as `Name: value`.
    #[param(example = "X-User: ann")]
    header: Option<String>,
    /// Its cookies, as in a Cookie header.
    #[param(example = "sid=1f7a")]
    cookie: Option<String>,
    /// Its client's IP address.
    address: Option<String>,
}

/// Explain a host
///
/// Evaluates the rules of the edge against the routes primary: the candidate keys, the one that decides, and which of
/// its addresses receive requests. With `header`, `cookie` or `address`, `request` shows the instance that such a
/// request gets if that determines it (sessions, version requested by name, consistent hashing), otherwise the
/// probabilities.
#[utoipa::path(get, path = "/routes/explain", tag = "routes", params(ExplainQuery), responses(
    (status = 200, body = Explanation),
    (status = 403, description = "host_not_allowed", body = Problem),
    (status = 422, description = "invalid_host, invalid_header, invalid_cookie, invalid_address", body = Problem),
    (status = 503, description = "routes_unavailable", body = Problem)))]
async fn explain_host(
    caller: Granted<ReadRoutes>,
    AppState(app): AppState<App>,
    Query(query): Query<ExplainQuery>,
) -> Result<Answer<Explanation>, Problem> {
    let host = host_of(&query.host);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
    if host.is_empty() || host.len() > 253 || !host.bytes().all(plain) {
        return Err(Invalid::new("invalid_host", "host", "give a host as in a Host header").into());
    }
    if !caller.0.is_unconfined() {
        let hostname = Hostname::parse(&host)?;
        if !caller.0.may_touch(&hostname) {
            return Err(Error::HostNotAllowed { hostname: host }.into());
        }
    }
    let asked = Asked::parse(query.header.as_deref(), query.cookie.as_deref(), query.address.as_deref())?;
    let secret = app.certificates.edge_key_for("sticky");
    let question = Question { asked: asked.as_ref(), secret: secret.as_ref() };
    Ok(Answer(app.registry.explain(host, question).await?))
}

/// The state of each router.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct ConvergenceView {
    /// The table's serial and epoch.
    serial: u64,
    epoch: String,
    /// Whether every router that is waited for has acknowledged this serial. False without any router.
    converged: bool,
    /// Routers that became silent and are no longer waited for.
    excluded: usize,
    routers: Vec<RouterView>,
}

/// A router that reported in the last minute.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct RouterView {
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// The serial that all its workers have acknowledged.
    serial: u64,
    epoch: String,
    /// The number of changes it has not acknowledged; absent while it follows another table.
    #[serde(skip_serializing_if = "Option::is_none")]
    behind_by: Option<u64>,
    /// Milliseconds since its last report. It reports every second.
    age_ms: u64,
    state: Liveness,
    /// Round-trip time of this pacemaker's changes to the router's acknowledgement.
    #[serde(skip_serializing_if = "Option::is_none")]
    propagation: Option<PropagationView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alarm: Option<String>,
    /// The serial that each of its workers has acknowledged.
    #[schema(value_type = Vec<Object>)]
    workers: serde_json::Value,
}

/// Percentiles of a router's latest acknowledgements.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct PropagationView {
    p50_ms: f64,
    p99_ms: f64,
    samples: usize,
    histogram: Vec<BucketView>,
}

/// A bucket of a histogram, with those of all buckets before it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PropagationBucket)]
pub(super) struct BucketView {
    /// Its upper bound.
    le_ms: u64,
    count: usize,
}

/// Show router convergence
///
/// The routers that reported in the last minute. A router that has been silent for three seconds is shown as silent
/// and still waited for; after ten it is excluded: changes count as converged without it.
#[utoipa::path(get, path = "/routes/convergence", tag = "routes", responses(
    (status = 200, body = ConvergenceView),
    (status = 503, description = "routes_unavailable, stats_unavailable", body = Problem)))]
async fn convergence(
    _: Granted<ReadRoutes>,
    AppState(app): AppState<App>,
) -> Result<Answer<ConvergenceView>, Problem> {
    let store = app.registry.store();
    let (lineage, serial, _) = store.table_head().await?;
    let epoch = lineage.split(' ').next().unwrap_or("").to_owned();
    let reports = store.routers(KNOWN_MS).await?;
    let waited_for = || reports.iter().filter(|router| Liveness::of(router.age_ms) != Liveness::Excluded);
    let converged = waited_for().next().is_some()
        && waited_for().all(|router| signalbox_routing::has_acknowledged(router, &epoch, serial));
    let excluded = reports.len() - waited_for().count();
    let view = |router: RouterReport| RouterView {
        behind_by: behind_by(&router, &epoch, serial),
        propagation: app.routers.percentiles(&router.node).map(|measured| PropagationView {
            p50_ms: measured.p50.as_secs_f64() * 1000.0,
            p99_ms: measured.p99.as_secs_f64() * 1000.0,
            samples: measured.samples,
            histogram: PROPAGATION_BOUNDS_MS
                .into_iter()
                .zip(measured.within)
                .map(|(le_ms, count)| BucketView { le_ms, count })
                .collect(),
        }),
        node: router.node,
        address: router.address,
        serial: router.serial,
        epoch: router.epoch,
        age_ms: router.age_ms,
        state: Liveness::of(router.age_ms),
        alarm: router.alarm,
        workers: router.workers,
    };
    let routers = reports.into_iter().map(view).collect();
    Ok(Answer(ConvergenceView { serial, epoch: epoch.clone(), converged, excluded, routers }))
}
