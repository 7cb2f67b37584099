//! Liveness, readiness and metrics. Liveness and readiness require no token and name no client.

use std::time::Duration;

use axum::{
    Json as Answer,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use signalbox_api::health::{Live, Ready};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{App, Problem, auth::MetricsReader};

/// How long a server may take to respond.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(live)).routes(routes!(ready)).routes(routes!(metrics))
}

/// Check whether the process answers
#[utoipa::path(get, path = "/health", security(()), responses((status = 200, body = Live)))]
async fn live() -> Answer<Live> {
    Answer(Live {})
}

/// Check whether changes are possible
///
/// The stats Redis is listed but not required: without it only waiting for routers fails.
#[utoipa::path(get, path = "/health/ready", security(()), responses((status = 200, body = Ready),
    (status = 503, body = Ready)))]
async fn ready(State(app): State<App>) -> Response {
    let store = app.registry.store();
    let up = store.ping(PATIENCE).await;
    let is_up = |name| up.iter().any(|(other, up)| *other == name && *up);
    let initialized = is_up("fabric")
        && store.table_state().await.is_ok_and(|state| !state.lineage.is_empty() && !state.seeding);
    let ready = Ready {
        ready: is_up("routes") && is_up("fabric") && initialized,
        routes: is_up("routes"),
        stats: is_up("stats"),
        fabric: is_up("fabric"),
        initialized,
    };
    let status = if ready.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Answer(ready)).into_response()
}

/// Show metrics as OpenMetrics text
///
/// Without a token only for the admin listener and for clients in `metrics_networks`. Others need the scope `read`.
#[utoipa::path(get, path = "/metrics", security((), ("bearer" = [])),
    responses((status = 200, body = String, content_type = "application/openmetrics-text"),
    (status = "default", description = "401 token_required, token_unknown | 403 scope_missing, confined_token")))]
async fn metrics(_: MetricsReader, State(app): State<App>) -> Result<Response, Problem> {
    let failed =
        |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the metrics could not be written");
    let queues = app.bus.handle().registry().queues.keys().cloned().collect();
    let text = [
        app.metrics.encode().map_err(failed)?,
        app.bus.metrics_text().await.map_err(failed)?,
        app.sequencer.metrics_text().await.map_err(failed)?,
        app.machines.inspector.overview.metrics_text().await.map_err(failed)?,
        app.live.metrics_text().map_err(failed)?,
        app.queues.metrics_text(queues).await.map_err(failed)?,
    ];
    let text = text.concat() + "# EOF\n";
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}
