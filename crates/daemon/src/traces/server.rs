//! Records requests to a daemon.

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
    response::Response,
};
use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::{Instrument as _, Span, field, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{TARGET, cause};

/// Routes that monitoring polls. Their spans would drown all others.
const UNRECORDED: [&str; 4] = ["/health", "/health/live", "/health/ready", "/metrics"];

/// Answers a request by `next`, and records it as a span of the kind `server`, with the span of the `traceparent` header as its
/// parent. The span's name is the method and the declared route. Values that a client put into the path, the query, a
/// header or the body are not sent to the collector.
pub async fn serve(request: Request, next: impl AsyncFnOnce(Request) -> Response) -> Response {
    if !cause::are_on() {
        return next(request).await;
    }
    let span = span_of(&request);
    let response = next(request).instrument(span.clone()).await;
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    response
}

fn span_of(request: &Request) -> Span {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    if route.is_some_and(|route| UNRECORDED.contains(&route)) {
        return Span::none();
    }
    let method = match *request.method() {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        // Other methods are chosen by clients and would be unbounded.
        _ => "_OTHER",
    };
    let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let span = info_span!(
        target: TARGET,
        "request",
        otel.name = name,
        otel.kind = "server",
        http.request.method = method,
        http.route = route,
        http.response.status_code = field::Empty,
        otel.status_code = field::Empty,
    );
    let parent =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(request.headers()));
    // It fails if the span is not recorded.
    let _ = span.set_parent(parent);
    span
}

struct Headers<'a>(&'a axum::http::HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}
