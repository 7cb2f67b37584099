//! Errors as `application/problem+json` (RFC 9457).
//!
//! `code` is the stable part that programs compare; `detail` says what to do. Nothing of Redis or of Rust reaches it.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value};

/// An error answer.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub(crate) struct Problem {
    /// The entry of the error reference, relative to the listener: `/docs/errors#` and the code.
    #[serde(rename = "type")]
    #[schema(example = "/docs/errors#invalid_address")]
    kind: String,
    /// The status in words.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// The stable name of the error.
    #[schema(example = "invalid_address")]
    code: &'static str,
    /// What is wrong and what to do.
    detail: String,
    /// Members that belong to this code.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    extra: Map<String, Value>,
    #[serde(skip)]
    retry_after_seconds: Option<u32>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("/docs/errors#{code}"),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            code,
            detail: detail.into(),
            extra: Map::new(),
            retry_after_seconds: None,
        }
    }

    /// 422: the request was understood and is wrong.
    pub(crate) fn unprocessable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
    }

    /// 404.
    pub(crate) fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    /// 403.
    pub(crate) fn forbidden(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, detail)
    }

    /// 503, with the time after which trying again makes sense.
    pub(crate) fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail);
        problem.retry_after_seconds = Some(1);
        problem
    }

    /// Says after how many seconds trying again makes sense.
    #[must_use]
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Adds a member.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    /// 400: the request is wrong, where the original of an API says 400 and not 422.
    pub(crate) fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (self.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"signalbox\""));
        }
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
