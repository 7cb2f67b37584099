//! Errors as `application/problem+json` (RFC 9457).
//!
//! `code` is the stable part that programs compare; `detail` describes the problem and the remedy. It contains nothing
//! internal of Redis or Rust.

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;
use signalbox_api as wire;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// Codes of answers to requests that would exceed a limit. They are counted.
const LIMITS: [&str; 10] = [
    "tenant_limit_reached",
    "idempotency_keys_used_up",
    "label_limit_reached",
    "limit_reached",
    "object_queue_full",
    "queue_limit_reached",
    "token_limit_reached",
    "too_many_attempts",
    "too_many_instances",
    "too_many_streams",
];

/// The code of an answer to a request that would exceed a limit, as an extension of the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limited(pub(crate) &'static str);

/// An error answer, with its headers.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Problem {
    document: Box<wire::Problem>,
    #[serde(skip)]
    retry_after_seconds: Option<u32>,
}

/// Maximum number of bytes of a sentence or a text in a problem. Those that repeat a part of a request could be larger than it.
/// The hundred errors of a definition fit.
const MAX_TEXT: usize = 32 * 1024;

/// The same, in the problem of one of up to a thousand items.
const MAX_TEXT_OF_ITEM: usize = 512;

/// A text, cut if it is longer.
fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        text.push('…');
    }
    text
}

impl Problem {
    /// A problem with a stable code, and a sentence that says what to do.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self {
            document: Box::new(wire::Problem::new(
                status.as_u16(),
                title,
                code,
                cut(detail.into(), MAX_TEXT),
            )),
            retry_after_seconds: None,
        }
    }

    /// 422: the request was understood and is wrong.
    pub fn unprocessable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
    }

    /// 404.
    pub fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    /// 403.
    pub fn forbidden(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, detail)
    }

    /// 503, with the time after which trying again makes sense.
    pub fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail);
        problem.retry_after_seconds = Some(1);
        problem
    }

    /// The problem of one of many items, with shorter texts.
    #[must_use]
    pub(crate) fn of_item(mut self) -> Self {
        let detail = std::mem::take(&mut self.document.detail);
        self.document.detail = cut(detail, MAX_TEXT_OF_ITEM);
        for value in self.document.more.values_mut() {
            if let Value::String(text) = value {
                *text = cut(std::mem::take(text), MAX_TEXT_OF_ITEM);
            }
        }
        self
    }

    /// Sets the number of seconds after which a retry makes sense.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Adds a member.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = match value.into() {
            Value::String(text) => Value::String(cut(text, MAX_TEXT)),
            value => value,
        };
        self.document.more.insert(name.to_owned(), value);
        self
    }

    /// Whether a member is true.
    pub(crate) fn says(&self, name: &str) -> bool {
        self.document.more.get(name) == Some(&Value::Bool(true))
    }

    /// 400: the request is invalid, for routes where Routemaster answers 400 and not 422.
    pub fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// The sentence for people.
    pub fn detail(&self) -> &str {
        &self.document.detail
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The stable code for programs.
    pub fn code(&self) -> Cow<'static, str> {
        self.document.code.clone()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (self.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"signalbox\""));
        }
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(limit) = LIMITS.into_iter().find(|limit| *limit == self.code()) {
            response.extensions_mut().insert(Limited(limit));
        }
        response
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_repeats_a_part_of_a_large_request_only() {
        let long = "ä".repeat(MAX_TEXT);
        let problem = Problem::unprocessable("invalid_body", long.clone()).with("field", long);
        assert!(serde_json::to_vec(&problem).unwrap().len() < 3 * MAX_TEXT);
        assert!(problem.detail().ends_with("ä…"));
        assert!(serde_json::to_vec(&problem.of_item()).unwrap().len() < 3 * MAX_TEXT_OF_ITEM);
    }
}
