//! HTTP: what all rooms share, and the one place where their routes come together.
//!
//! Each room's `api.rs` belongs to this layer: it speaks HTTP and calls its room; nothing else of a room may. Shared
//! here: errors ([`Problem`]), who is asking ([`auth`]), what a request carries ([`body`]), health, metrics and the
//! OpenAPI document, which is made from the handlers.

pub(crate) mod auth;
pub(crate) mod body;
mod check;
mod health;
mod observe;
mod openapi;
mod problem;
pub(crate) mod session;
#[cfg(test)]
mod tests;

use std::{ops::Deref, sync::Arc};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
};
use tokio_util::sync::CancellationToken;
use tower_http::{catch_panic::CatchPanicLayer, timeout::RequestBodyTimeoutLayer};
use utoipa_axum::router::OpenApiRouter;

pub(crate) use openapi::document;
pub(crate) use problem::Problem;

use crate::{
    bus,
    certificates::{self, Certificates},
    dashboard::{self, Dashboard},
    live, machines,
    metrics::Metrics,
    presence::{self, Presence},
    queues,
    routing::{self, Registry, Routers},
    sequencer,
    tokens::{self, Caller, Tokens},
};

/// How long a body may take to arrive.
const BODY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// What handlers work with. Every request clones it several times over, so it is one counter and not one for each part.
#[derive(Debug, Clone)]
pub(crate) struct App(Arc<Parts>);

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The handles themselves.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) tokens: Tokens,
    pub(crate) registry: Registry,
    pub(crate) certificates: Certificates,
    pub(crate) routers: Routers,
    pub(crate) bus: bus::api::Front,
    pub(crate) sequencer: sequencer::api::Front,
    pub(crate) live: live::Hub,
    pub(crate) queues: queues::Handle,
    pub(crate) dashboard: Dashboard,
    /// Of browsers that have logged in.
    pub(crate) sessions: session::Sessions,
    pub(crate) machines: machines::Engine,
    pub(crate) presence: Presence,
    pub(crate) metrics: Metrics,
    /// Cancelled when requests that wait must come to an end.
    pub(crate) shutdown: CancellationToken,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Who presents `token`. Tokens of the event bus come first: they are in memory, and most requests carry one.
    pub(crate) async fn authenticate(&self, token: &str) -> Result<Option<Caller>, Problem> {
        if let Some(caller) = self.bus.known(token) {
            return Ok(Some(caller));
        }
        if let Some(caller) = self.tokens.authenticate(token).await? {
            return Ok(Some(caller));
        }
        self.bus.look_up(token).await
    }

    /// Who presented the token with this digest when logging in, unless it has been revoked since.
    pub(crate) async fn remember(&self, digest: &str) -> Result<Option<Caller>, Problem> {
        if let Some(caller) = self.tokens.of_digest(digest).await? {
            return Ok(Some(caller));
        }
        Ok(self.bus.of_digest(digest))
    }
}

/// Every route with its description.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::head())
        .merge(health::routes())
        .merge(check::routes())
        .merge(presence::api::routes())
        .merge(tokens::api::routes())
        .merge(routing::api::routes())
        .merge(certificates::api::routes())
        .merge(bus::api::routes())
        .merge(sequencer::api::routes())
        .merge(live::routes())
        .merge(queues::api::routes())
        .merge(machines::api::routes())
        .merge(dashboard::routes())
}

/// The whole API.
pub(crate) fn router(app: App) -> Router {
    let (router, document) = routes().split_for_parts();
    let document = openapi::Document::new(&document);
    router
        .merge(openapi::routes(document))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(body::LIMIT_BYTES))
        .layer(RequestBodyTimeoutLayer::new(BODY_TIMEOUT))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::map_response(protect))
        .layer(middleware::from_fn(signalbox_daemon::traces::serve))
        .layer(middleware::from_fn_with_state(app.metrics.clone(), observe::observe))
        .with_state(app)
}

async fn not_found() -> Problem {
    Problem::not_found("no_such_route", "there is nothing here; /openapi.json lists what there is")
}

async fn method_not_allowed() -> Problem {
    let detail = "this path takes other methods; /openapi.json lists them";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a handler panicked");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log").into_response()
}

/// Nothing here is to be sniffed, framed or, as answers hang on a token, cached by anything between.
async fn protect(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The serial that a change has in the table, on answers without a body too.
pub(crate) static SERIAL_HEADER: HeaderName = HeaderName::from_static("x-signalbox-serial");
