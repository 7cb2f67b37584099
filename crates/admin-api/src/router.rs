//! What all requests pass before they reach a handler.

use std::panic::AssertUnwindSafe;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures_util::FutureExt as _;
use signalbox_daemon::traces;
use tracing::Instrument as _;
use utoipa::openapi::OpenApi;

use crate::{
    api,
    app::App,
    http::{Problem, audit, body, deadline, observe, unread},
    openapi,
};

static OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
static PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");
/// Pages use none of the features that a browser asks its user for.
const NO_PERMISSIONS: &str =
    "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()";

/// The OpenAPI document of all routes: those of the API, and those that `pages` describes.
pub fn document(pages: OpenApi) -> String {
    let (_, mut document) = api::routes().split_for_parts();
    document.merge(pages);
    openapi::Document::new(&document, &api::bus::OTHER_SPELLINGS).into_text()
}

/// The API and other pages with their description, behind the same limits and checks.
pub fn router(app: App, pages: Router, description: OpenApi) -> Router {
    let (routes, mut document) = api::routes().split_for_parts();
    document.merge(description);
    let document = openapi::Document::new(&document, &api::bus::OTHER_SPELLINGS);
    routes
        .merge(openapi::routes(document))
        .with_state(app.clone())
        .merge(pages)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer((middleware::from_fn_with_state(app, pass), DefaultBodyLimit::max(body::LIMIT_BYTES)))
}

/// What every request passes, from the last step to the first. One layer has all of it: for each request, a layer of axum
/// clones everything inside of it, and nine layers took a fifth of the pacemaker's time for a small publish.
async fn pass(State(app): State<App>, request: Request, next: Next) -> Response {
    let answer = async |request: Request| {
        if !audit::is_change(&request) {
            return handle(app.clone(), request, next).await;
        }
        // The server drops a request whose client closes its connection. A change is made and recorded nevertheless.
        let handled = tokio::spawn(handle(app.clone(), request, next).in_current_span());
        handled.await.unwrap_or_else(|_| panicked())
    };
    let answer = async |request| protect(&app, answer(request).await);
    let answer = async |request| traces::serve(request, answer).await;
    observe::observe(&app.metrics, request, answer).await
}

async fn handle(app: App, request: Request, next: Next) -> Response {
    let answer = async |request| app.door.admit(request, |request| next.run(request)).await;
    let answer = async |request| unread::drain(&app.limits.drains, request, answer).await;
    let answer = async |request| deadline::limit(request, answer).await;
    let answer = audit::record(&app, request, answer);
    AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| panicked())
}

async fn not_found() -> Problem {
    Problem::not_found("unknown_route", "no such route; /openapi.json lists all routes")
}

async fn method_not_allowed() -> Problem {
    let detail = "method not allowed; /openapi.json lists the methods of this path";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

fn panicked() -> Response {
    tracing::error!("a handler panicked");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log").into_response()
}

/// Nothing here is to be sniffed, framed or, as answers hang on a token, cached by anything between.
fn protect(app: &App, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(OPENER_POLICY.clone(), HeaderValue::from_static("same-origin"));
    headers.insert(PERMISSIONS_POLICY.clone(), HeaderValue::from_static(NO_PERMISSIONS));
    if app.sessions.options().https {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
