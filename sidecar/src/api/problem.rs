//! Errors as `application/problem+json` (RFC 9457): a stable `code` for programs, a `detail` that describes the remedy.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    status: StatusCode,
    pub(super) code: &'static str,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into() }
    }

    /// 422: the request is invalid.
    pub(super) fn unprocessable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
    }
}

impl From<signalbox_store::Error> for Problem {
    /// The answer hides the Redis error, which is logged.
    fn from(error: signalbox_store::Error) -> Self {
        tracing::warn!(%error, source = ?std::error::Error::source(&error), "reading statistics failed");
        match error.kind() {
            signalbox_store::Kind::Broken => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "statistics_unreadable",
                "The statistics Redis contains unexpected data. See the sidecar's log.",
            ),
            _ => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "statistics_unavailable",
                "The statistics Redis does not respond. Requests are counted when it is available again. Try again.",
            ),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            // Relative to the admin listener, which serves the pacemaker's documentation as well.
            "type": format!("/docs/errors#{}", self.code),
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"signalbox\""));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
