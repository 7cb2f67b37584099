//! Errors as `application/problem+json` (RFC 9457): a stable `code` for programs, a `detail` that says what to do.

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
    code: &'static str,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into() }
    }

    /// 422: understood, and wrong.
    pub(super) fn unprocessable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> &'static str {
        self.code
    }
}

impl From<signalbox_store::Error> for Problem {
    /// Which Redis, and why, is for the log.
    fn from(error: signalbox_store::Error) -> Self {
        tracing::warn!(%error, source = ?std::error::Error::source(&error), "statistics could not be read");
        match error.kind() {
            signalbox_store::Kind::Broken => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "statistics_unreadable",
                "The statistics hold something unexpected; the sidecar's log says what.",
            ),
            _ => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "statistics_unavailable",
                "The statistics do not answer. Nothing is lost, requests are counted when they are back; try again.",
            ),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
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
