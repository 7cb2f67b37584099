//! Errors as `application/problem+json` (RFC 9457): a stable `code` for programs, a `detail` that describes the remedy.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use signalbox_api as wire;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    document: Box<wire::Problem>,
    retry_after_seconds: Option<u32>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let again = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        let retry_after_seconds = again.then_some(1);
        let title = status.canonical_reason().unwrap_or("Error");
        Self {
            document: Box::new(wire::Problem::new(status.as_u16(), title, code, detail)),
            retry_after_seconds,
        }
    }

    /// Sets the number of seconds after which the client should retry.
    #[must_use]
    pub(super) fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after_seconds: Some(seconds), ..self }
    }

    /// 422: the request is invalid.
    pub(super) fn unprocessable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> &str {
        &self.document.code
    }

    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl PartialSchema for Problem {
    fn schema() -> RefOr<Schema> {
        wire::Problem::schema()
    }
}

impl ToSchema for Problem {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        wire::Problem::schemas(schemas);
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
        let status = self.status();
        let body = serde_json::to_vec(&self.document).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"signalbox\""));
        }
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
