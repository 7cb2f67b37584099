//! Errors as `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An error answer. Programs compare `code`, which is stable; `detail` describes the problem and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The entry of the error reference, relative to the listener: `/docs/errors#` and the code.
    #[serde(rename = "type", default)]
    #[cfg_attr(feature = "schema", schema(example = "/docs/errors#invalid_address"))]
    pub kind: String,
    /// The status in words.
    #[serde(default)]
    pub title: Cow<'static, str>,
    /// The HTTP status.
    pub status: u16,
    /// The stable name of the error.
    #[cfg_attr(feature = "schema", schema(example = "invalid_address"))]
    pub code: Cow<'static, str>,
    /// The problem and its remedy.
    #[serde(default)]
    pub detail: String,
    /// Members that belong to this code.
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub more: Map<String, Value>,
}

impl Problem {
    /// The answer with the status `status`, whose standard phrase is `title`.
    pub fn new(status: u16, title: &'static str, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("/docs/errors#{code}"),
            title: title.into(),
            status,
            code: code.into(),
            detail: detail.into(),
            more: Map::new(),
        }
    }
}
