//! Request bodies, parsed so that every mistake has a stable code.

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, OptionalFromRequest, Request, rejection},
    http::{HeaderMap, StatusCode, header},
};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::{App, Problem};

/// The largest body that is read. A thousand instances with two names each are about 200 KB.
pub(crate) const LIMIT_BYTES: usize = 1024 * 1024;

/// A type that stands for a whole body.
pub(crate) trait Body: DeserializeOwned {
    /// How its JSON begins. serde would read a struct from an array as well, by the order of its fields.
    const OPENING: u8 = b'{';
}

impl<T: DeserializeOwned> Body for Vec<T> {
    const OPENING: u8 = b'[';
}

impl Body for serde_json::Map<String, serde_json::Value> {}

/// A JSON body. `Option<Json<T>>` accepts none.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Body> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(not_json());
        }
        let bytes = Bytes::from_request(request, app).await.map_err(unreadable)?;
        parse(&bytes).map(Self)
    }
}

impl<T: Body> OptionalFromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Option<Self>, Problem> {
        let json = is_json(request.headers());
        let bytes = Bytes::from_request(request, app).await.map_err(unreadable)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if !json {
            return Err(not_json());
        }
        parse(&bytes).map(|value| Some(Self(value)))
    }
}

/// The bytes of a JSON body, for subsystems that store them unchanged. Read up to the route's own limit.
#[derive(Debug)]
pub(crate) struct JsonBytes(pub(crate) Bytes);

impl FromRequest<App> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(not_json());
        }
        Bytes::from_request(request, app).await.map(Self).map_err(unreadable)
    }
}

impl OptionalFromRequest<App> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Option<Self>, Problem> {
        let json = is_json(request.headers());
        let bytes = Bytes::from_request(request, app).await.map_err(unreadable)?;
        match (bytes.is_empty(), json) {
            (true, _) => Ok(None),
            (false, true) => Ok(Some(Self(bytes))),
            (false, false) => Err(not_json()),
        }
    }
}

/// The bytes of a body of any type, for routes that check the type themselves.
#[derive(Debug)]
pub(crate) struct RawBytes(pub(crate) Bytes);

impl FromRequest<App> for RawBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        Bytes::from_request(request, app).await.map(Self).map_err(unreadable)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media_type = media_type.split(';').next().unwrap_or("").trim();
    media_type.eq_ignore_ascii_case("application/json")
}

fn not_json() -> Problem {
    let detail = "send the body with `Content-Type: application/json`";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
}

fn unreadable(rejection: rejection::BytesRejection) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = "the body is larger than this route reads; send fewer items at a time";
        return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail);
    }
    Problem::new(StatusCode::BAD_REQUEST, "unreadable_body", "the body ended early or came too slowly")
}

/// Parses JSON. Text that is not JSON is 400; JSON of another shape is 422.
pub(crate) fn parse<T: Body>(bytes: &[u8]) -> Result<T, Problem> {
    let opening = bytes.trim_ascii_start().first().copied();
    if T::OPENING == b'{' && opening == Some(b'[') {
        return Err(Problem::unprocessable("invalid_body", "an object is expected, not an array"));
    }
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => {
            // serde has no kinds for its data errors; a test holds these prefixes against the library.
            let message = error.to_string();
            let code = if message.starts_with("unknown field") {
                "unknown_field"
            } else if message.starts_with("missing field") {
                "missing_field"
            } else {
                "invalid_body"
            };
            let field =
                (code != "invalid_body").then(|| message.split('`').nth(1).map(str::to_owned)).flatten();
            let problem = Problem::unprocessable(code, message);
            match field {
                Some(field) => problem.with("field", field),
                None => problem,
            }
        }
        _ => Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed_json",
            format!("the body is not valid JSON: {error}"),
        ),
    })
}

/// The query string. Parameters that a route does not know are errors, as fields of a body are.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(Problem))]
pub(crate) struct Query<T>(pub(crate) T);

impl From<rejection::QueryRejection> for Problem {
    fn from(rejection: rejection::QueryRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_query", rejection.body_text())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[allow(dead_code)]
        name: String,
    }

    impl Body for Sample {}

    #[test]
    fn each_kind_of_mistake_has_its_code() {
        for (body, code) in [
            ("{", "malformed_json"),
            ("", "malformed_json"),
            ("\u{1}", "malformed_json"),
            (r#"{"name":"a","x":1}"#, "unknown_field"),
            ("{}", "missing_field"),
            (r#"{"name":1}"#, "invalid_body"),
            (r#"{"name":"a","name":"b"}"#, "invalid_body"),
            (r#"["a"]"#, "invalid_body"),
            ("\n [1", "invalid_body"),
        ] {
            let problem = parse::<Sample>(body.as_bytes()).unwrap_err();
            assert_eq!(problem.code(), code, "{body}");
        }
        assert_eq!(parse::<Sample>(b"{\"name\":\"\xff\"}").unwrap_err().code(), "malformed_json");
    }
}
