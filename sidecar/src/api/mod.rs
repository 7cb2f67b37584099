//! HTTP: `/stats`, `/metrics`, `/health`.
//!
//! `read` means a token with this scope that is not confined.
//!
//! | path | answers | access |
//! |---|---|---|
//! | `/stats/{workspace,application,version,version_type,node}/{id}` | totals | `read` |
//! | `/stats/total`, `/stats/uncaught`, `/stats/pacemaker` | totals | `read` |
//! | `/stats/top?by=&seconds=&limit=` | the loudest version types | `read` |
//! | `…/history?metric=&start=&end=&step=` | `[[unix second, value], …]` | `read` |
//! | `…/latency?start=&end=` | histogram of upstream response times | `read` |
//! | `/stats/instance/{id}`, the same with `/latency` | histogram of one instance's answers | `read` |
//! | `…/stream?metric=` | server-sent events, one point per second | `read` |
//! | `/metrics`, `/health`, `/health/ready` | | no token: metrics of this process, without names |

mod auth;
mod health;
mod history;
mod latency;
mod openapi;
mod places;
mod problem;
mod store;
mod stream;
mod subject;
mod top;
mod totals;

use std::{any::Any, sync::Arc};

use axum::{
    Router,
    extract::{
        Request, State,
        rejection::{PathRejection, QueryRejection},
    },
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use signalbox_daemon::door::Door;
use signalbox_store::{RoutesReplica, Stats};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

use crate::{config::TokenDigest, edge, follow::service::Watch, metrics::Metrics};
use auth::Tokens;
pub use openapi::document;
use problem::Problem;

/// A header that nginx's admin listener adds to every forwarded request.
const FORWARDED: &str = "x-forwarded-for";

/// The shared state of the handlers.
#[derive(Debug, Clone)]
struct App {
    stats: Stats,
    replica: Option<RoutesReplica>,
    tokens: Arc<Tokens>,
    door: Arc<Door>,
    follower: Watch,
    edge: edge::Watch,
    metrics: Arc<Metrics>,
    streams: stream::Streams,
    places: places::Places,
    stopping: CancellationToken,
}

/// Builds the API. `replica` contains the addresses of instances. `stopping` ends open streams.
#[expect(clippy::too_many_arguments, reason = "each is a part that the API shows or asks")]
pub fn router(
    stats: Stats,
    replica: Option<RoutesReplica>,
    root_token: Option<&TokenDigest>,
    door: Door,
    metrics: Arc<Metrics>,
    follower: Watch,
    edge: edge::Watch,
    stopping: CancellationToken,
) -> Router {
    let app = App {
        tokens: Arc::new(Tokens::new(root_token, stats.clone())),
        door: Arc::new(door),
        stats,
        replica,
        follower,
        edge,
        metrics,
        streams: stream::Streams::default(),
        places: places::Places::default(),
        stopping,
    };
    let guarded = Router::new()
        .nest("/stats/total", of_subject())
        .nest("/stats/uncaught", of_subject())
        .nest("/stats/pacemaker", of_subject())
        .nest("/stats/{kind}/{id}", of_subject())
        .route("/stats/top", get(top::top))
        .route("/stats/instance/{id}", get(latency::instance))
        .route("/stats/instance/{id}/latency", get(latency::instance))
        .route_layer(middleware::from_fn_with_state(app.clone(), auth::require_read));
    Router::new()
        .route("/health", get(health::live))
        .route("/health/ready", get(health::ready))
        .route("/metrics", get(metrics_page))
        .route("/stats/openapi.json", get(openapi_page))
        .merge(guarded)
        .fallback(|| async {
            let detail = "Unknown path. Use /stats/{kind}/{id}, /stats/total, /stats/uncaught or /stats/pacemaker, each also with /history, /latency or /stream, or /stats/top or /stats/instance/{id}.";
            Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Statistics are read-only. Use GET.")
        })
        .layer(middleware::from_fn_with_state(app.clone(), admit))
        .layer(middleware::from_fn_with_state(app.clone(), note_forwarded))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn(|request, next: Next| {
            signalbox_daemon::traces::serve(request, |request| next.run(request))
        }))
        .with_state(app)
}

/// The endpoints that every kind of subject has.
fn of_subject() -> Router<App> {
    Router::new()
        .route("/", get(totals::totals))
        .route("/history", get(history::history))
        .route("/latency", get(latency::group))
        .route("/stream", get(stream::stream))
}

async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    app.door.admit(request, |request| next.run(request)).await
}

/// Counts requests that nginx's admin listener forwarded. nginx marks them with a header and does not log them. A stream is
/// counted when it ends, see [`stream`].
async fn note_forwarded(State(app): State<App>, request: Request, next: Next) -> Response {
    let forwarded = request.headers().contains_key(FORWARDED);
    let response = next.run(request).await;
    let finished =
        response.headers().get(header::CONTENT_TYPE).is_none_or(|kind| kind != "text/event-stream");
    if forwarded && finished {
        app.edge.forwarded();
    }
    response
}

async fn metrics_page(State(app): State<App>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], app.metrics.page()).into_response()
}

async fn openapi_page() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::document()).into_response()
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    let detail = "Internal error. See the sidecar's log.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).into_response()
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_path", rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_query", rejection.body_text())
    }
}
