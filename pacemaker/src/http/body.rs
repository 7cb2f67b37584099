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

/// How deep arrays and objects of a body may be nested.
const MAX_DEPTH: usize = 64;

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
        let bytes = Bytes::from_request(request, app).await.map_err(unreadable)?;
        check_depth(&bytes)?;
        Ok(Self(bytes))
    }
}

impl OptionalFromRequest<App> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Option<Self>, Problem> {
        let json = is_json(request.headers());
        let bytes = Bytes::from_request(request, app).await.map_err(unreadable)?;
        match (bytes.is_empty(), json) {
            (true, _) => Ok(None),
            (false, true) => {
                check_depth(&bytes)?;
                Ok(Some(Self(bytes)))
            }
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
    if super::deadline::is_too_slow(&rejection) {
        let detail = "The body did not arrive in time.";
        return Problem::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", detail);
    }
    Problem::new(StatusCode::BAD_REQUEST, "unreadable_body", "The body ended early.")
}

/// Rejects JSON whose arrays and objects are nested too deeply. Parts of a body are stored and delivered without being parsed, and
/// a receiver that parses them recursively could be made to run out of stack.
///
/// Anything that is not JSON passes: the parser reports it.
pub(crate) fn check_depth(bytes: &[u8]) -> Result<(), Problem> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    let detail =
                        format!("arrays and objects of the body are nested deeper than {MAX_DEPTH} levels");
                    return Err(Problem::bad_request("json_too_deep", detail).with("limit", MAX_DEPTH));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Parses JSON. Text that is not JSON is 400; JSON of another shape is 422.
pub(crate) fn parse<T: Body>(bytes: &[u8]) -> Result<T, Problem> {
    check_depth(bytes)?;
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

    #[test]
    fn nesting_is_bounded_and_brackets_in_strings_are_not_counted() {
        let nested = |depth: usize| format!("{}{}", r#"{"a":["#.repeat(depth / 2), "]}".repeat(depth / 2));
        assert!(check_depth(nested(64).as_bytes()).is_ok());
        let problem = check_depth(nested(66).as_bytes()).unwrap_err();
        assert_eq!((problem.status().as_u16(), &*problem.code()), (400, "json_too_deep"));
        assert!(problem.detail().contains("64"), "{problem:?}");
        let text = format!(r#"{{"a":"\"{}\\","b":[]}}"#, "[".repeat(100));
        assert!(
            serde_json::from_str::<serde_json::Value>(&text).is_ok() && check_depth(text.as_bytes()).is_ok()
        );
        let many = format!("[{}]", vec!["[]"; 100].join(","));
        assert!(check_depth(many.as_bytes()).is_ok(), "siblings are not nested");
    }
}
