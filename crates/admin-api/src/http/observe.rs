//! One metric and one log line for each request.

use axum::{body::HttpBody as _, extract::Request, http::Method, response::Response};
use signalbox_daemon::holding::holding;
use tokio::time::Instant;

use super::{metrics::Metrics, problem::Limited, slots::InProgress};

/// Counts a request and logs it, and holds its places until the response is sent. The path is logged without its query,
/// which may contain secrets.
pub(crate) async fn observe(
    metrics: &Metrics,
    mut request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    let started = Instant::now();
    let method = name_of(request.method());
    let path = request.uri().path().to_owned();
    let request_id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let place = InProgress::default();
    request.extensions_mut().insert(place.clone());
    let response = next(request).await;
    let status = response.status().as_u16();
    let elapsed = started.elapsed();
    metrics.answered(method, status, elapsed.as_secs_f64());
    if let Some(Limited(code)) = response.extensions().get() {
        metrics.limited(code);
    }
    tracing::debug!(
        method,
        path,
        status,
        elapsed_ms = elapsed.as_secs_f64() * 1000.0,
        request_id,
        "request answered"
    );
    // A small response is written immediately. One without a token shares its bytes with others, or is small.
    match response.body().size_hint().exact() {
        Some(bytes) if place.responds(bytes) => holding(response, place).await,
        _ => response,
    }
}

/// A method as a label; whatever a client makes up is one of them.
fn name_of(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
