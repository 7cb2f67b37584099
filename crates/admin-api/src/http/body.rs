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

/// The type of a whole body.
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
        check_readable(&bytes)?;
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
                check_readable(&bytes)?;
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
    if let Some(problem) = super::deadline::too_much(&rejection) {
        return problem;
    }
    if super::deadline::is_too_slow(&rejection) {
        let detail = "The body did not arrive in time.";
        return Problem::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", detail);
    }
    Problem::new(StatusCode::BAD_REQUEST, "unreadable_body", "The body ended early.")
}

/// Why readers of JSON may fail at a text that is valid JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Arrays and objects are nested too deeply: a reader that is recursive could run out of stack.
    TooDeep,
    /// An escape such as `\ud800` is half of a character.
    LoneSurrogate,
    /// A number is beyond what IEEE 754 doubles hold, as `1e999` is.
    NumberTooLarge,
}

impl From<Unreadable> for Problem {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::TooDeep => {
                let detail =
                    format!("arrays and objects of the body are nested deeper than {MAX_DEPTH} levels");
                Self::bad_request("json_too_deep", detail).with("limit", MAX_DEPTH)
            }
            Unreadable::LoneSurrogate => Self::bad_request(
                "json_not_interoperable",
                "a string has an escape \\ud800 to \\udfff that is not part of a pair",
            ),
            Unreadable::NumberTooLarge => Self::bad_request(
                "json_not_interoperable",
                "a number is too large; numbers must be between -1.7976931348623157e308 and 1.7976931348623157e308",
            ),
        }
    }
}

/// Rejects JSON that some readers cannot represent. Parts of a body are stored and delivered without being parsed, and one
/// of them could make a consumer fail at a whole batch. The rules are those of RFC 7493 (I-JSON), and a limit of nesting.
///
/// Anything that is not JSON passes: the parser reports it.
pub(crate) fn check_readable(bytes: &[u8]) -> Result<(), Unreadable> {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = skip_string(bytes, at + 1)?,
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(Unreadable::TooDeep);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' => at = skip_number(bytes, at)? - 1,
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The place of the quote that ends a string.
fn skip_string(bytes: &[u8], mut at: usize) -> Result<usize, Unreadable> {
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return Ok(at),
            b'\\' if bytes.get(at + 1) == Some(&b'u') => match escaped(bytes, at) {
                Some(0xd800..=0xdbff) => {
                    if !matches!(escaped(bytes, at + 6), Some(0xdc00..=0xdfff)) {
                        return Err(Unreadable::LoneSurrogate);
                    }
                    at += 12;
                }
                Some(0xdc00..=0xdfff) => return Err(Unreadable::LoneSurrogate),
                _ => at += 2,
            },
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    Ok(at)
}

/// The number of an escape like `\u00e9` at this place.
fn escaped(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |number, digit| Some(number * 16 + char::from(*digit).to_digit(16)?))
}

/// The place after a number.
fn skip_number(bytes: &[u8], start: usize) -> Result<usize, Unreadable> {
    let rest = bytes.get(start..).unwrap_or_default();
    let length = rest.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E'));
    let number = &rest[..length.unwrap_or(rest.len())];
    // Shorter ones without an exponent are within the range.
    if number.len() > 300 || number.iter().any(|byte| matches!(byte, b'e' | b'E')) {
        let value = str::from_utf8(number).ok().and_then(|text| text.parse::<f64>().ok());
        if value.is_some_and(f64::is_infinite) {
            return Err(Unreadable::NumberTooLarge);
        }
    }
    Ok(start + number.len())
}

/// serde's message in the words of JSON: it names the types of Rust that it expects.
fn in_words(message: &str) -> String {
    let Some((before, expected)) = message.split_once("expected ") else { return message.to_owned() };
    let (kind, place) = match expected.find(" at line ") {
        Some(at) => expected.split_at(at),
        None => (expected, ""),
    };
    let words = match kind {
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "a map" => "an object",
        "a sequence" => "an array",
        kind if kind.starts_with("struct ") => "an object",
        kind => kind,
    };
    format!("{before}expected {words}{place}")
        .replace("map, expected", "object, expected")
        .replace("sequence, expected", "array, expected")
}

/// Parses JSON. Text that is not JSON is 400; JSON of another shape is 422.
pub(crate) fn parse<T: Body>(bytes: &[u8]) -> Result<T, Problem> {
    check_readable(bytes)?;
    let opening = bytes.trim_ascii_start().first().copied();
    if T::OPENING == b'{' && opening == Some(b'[') {
        return Err(Problem::unprocessable("invalid_body", "the body must be an object, not an array"));
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
            let problem = Problem::unprocessable(code, in_words(&message));
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
pub struct Query<T>(pub T);

/// The fields of a browser's form.
#[derive(Debug, FromRequest)]
#[from_request(via(axum::extract::Form), rejection(Problem))]
pub struct Form<T>(pub T);

impl From<rejection::FormRejection> for Problem {
    fn from(rejection: rejection::FormRejection) -> Self {
        Self::unprocessable("invalid_form", rejection.body_text())
    }
}

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
        assert!(check_readable(nested(64).as_bytes()).is_ok());
        let problem = Problem::from(check_readable(nested(66).as_bytes()).unwrap_err());
        assert_eq!((problem.status().as_u16(), &*problem.code()), (400, "json_too_deep"));
        assert!(problem.detail().contains("64"), "{problem:?}");
        let text = format!(r#"{{"a":"\"{}\\","b":[]}}"#, "[".repeat(100));
        assert!(
            serde_json::from_str::<serde_json::Value>(&text).is_ok()
                && check_readable(text.as_bytes()).is_ok()
        );
        let many = format!("[{}]", vec!["[]"; 100].join(","));
        assert!(check_readable(many.as_bytes()).is_ok(), "siblings are not nested");
    }

    #[test]
    fn strings_and_numbers_that_readers_cannot_represent_are_rejected() {
        for text in [
            r#""\ud800""#,
            r#""\udc00\ud800""#,
            r#"["\ud83d\ud83d"]"#,
            r#"{"\uDBFF":1}"#,
            r#""\ud800\\udc00""#,
            r#""\ud800"#,
        ] {
            assert_eq!(check_readable(text.as_bytes()), Err(Unreadable::LoneSurrogate), "{text}");
        }
        let long = "9".repeat(310);
        for text in ["1e999", "-1E+400", "[1,2e308]", r#"{"a":1.0e309}"#, &long] {
            assert_eq!(check_readable(text.as_bytes()), Err(Unreadable::NumberTooLarge), "{text}");
        }
        let precise = format!("0.{}", "1".repeat(400));
        for text in [
            r#""\ud83d\ude00""#,
            r#""\\ud800""#,
            r#""\u00e9 1e999 [[[""#,
            "1.7976931348623157e308",
            "-1e-999",
            "[0,-1,18446744073709551616]",
            &precise,
            "nul",
            r#""\u12"#,
        ] {
            assert_eq!(check_readable(text.as_bytes()), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_mistake_is_described_in_the_words_of_json() {
        for (message, words) in [
            (
                "invalid type: string \"a\", expected f64 at line 1 column 9",
                "expected a number at line 1 column 9",
            ),
            ("invalid type: integer `-1`, expected u32", "expected a whole number that is not negative"),
            (
                "invalid type: null, expected struct NewQueue at line 1 column 4",
                "expected an object at line 1 column 4",
            ),
            ("invalid type: map, expected a string", "invalid type: object, expected a string"),
            ("duplicate field `a`", "duplicate field `a`"),
        ] {
            assert!(in_words(message).ends_with(words), "{}", in_words(message));
        }
    }

    proptest::proptest! {
        #[test]
        fn every_message_that_serde_reads_is_accepted(value in "[0-9eE.+\\[\\]{}\",:u\\\\d8cf-]{0,30}") {
            // A reader that builds values is as strict: it rejects halves of characters and numbers out of range.
            if let Ok(read) = serde_json::from_str::<serde_json::Value>(&value) {
                proptest::prop_assert_eq!(check_readable(value.as_bytes()), Ok(()), "{}", read);
            }
        }
    }
}
