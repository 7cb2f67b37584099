//! Preconditions of changes: the revision that a client has read.

use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::Problem;

/// The revision that a request requires: `If-Match` with the `ETag` of an earlier answer, or `If-None-Match: *` for what does not
/// exist, which has the revision 0.
pub(crate) fn expected(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let (matches, none) = (headers.get(header::IF_MATCH), headers.get(header::IF_NONE_MATCH));
    let invalid = || {
        let detail = "send `If-Match` with one `ETag` of an earlier answer, or `If-None-Match: *`";
        Problem::bad_request("invalid_precondition", detail)
    };
    match (matches, none) {
        (None, None) => Ok(None),
        (None, Some(none)) if none.as_bytes() == b"*" => Ok(Some(0)),
        (Some(tag), None) => {
            let tag = tag.to_str().ok().and_then(|tag| tag.trim().strip_prefix('"')?.strip_suffix('"'));
            tag.and_then(|tag| tag.parse().ok()).map(Some).ok_or_else(invalid)
        }
        _ => Err(invalid()),
    }
}

/// The answer with a revision as `ETag`.
pub(crate) fn tagged(status: StatusCode, revision: u64, body: impl IntoResponse) -> Response {
    (status, [(header::ETAG, format!("\"{revision}\""))], body).into_response()
}
