//! Validation of the input of publishers and subscribers, before any other module handles it. Pure.
//!
//! Routemaster checked one property at a time in the middle of its work: a body that was not an object raised an
//! exception, and a string as timestamp failed after the first subscribers had the event. Here a request is either
//! parsed as a whole or rejected with the name of the invalid member, and all later code relies on the result.

mod backend;
mod callback;
mod event;
mod group;
mod name;
mod subscription;

pub use backend::{backend, backend_name};
pub use event::{event, events, is_reserved_object, reserved_tenant};
pub use group::{group, object_name};
pub use name::{NEW_TOKEN, TOKEN_NAME, is_new_token, is_token};
pub use subscription::{alteration, subscription};

use serde::Deserialize;
use serde_json::Value;

use super::Options;

/// The limits of accepted input.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Plain `http` in addition to `https`.
    pub allow_http: bool,
    /// Bytes of an event's `data`.
    pub data_bytes: usize,
    /// Events in an array.
    pub events: usize,
}

impl Limits {
    /// The limits in `options`.
    pub fn new(options: &Options) -> Self {
        Self {
            allow_http: options.allow_http,
            data_bytes: options.data_bytes,
            events: options.request_events,
        }
    }
}

/// The reason for a rejection: a stable code, and a sentence for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// The stable code of the response.
    pub code: &'static str,
    /// The problem, with the limit or the expected form.
    pub detail: String,
}

impl Flaw {
    /// A rejection.
    pub fn new(code: &'static str, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// Parses an object. serde would accept an array for a struct as well, so the brace is checked first.
pub fn object<'a, T: Deserialize<'a>>(text: &'a str, code: &'static str) -> Result<T, Flaw> {
    if !text.trim_start_matches(JSON_SPACE).starts_with('{') {
        return Err(other_shape(text, Flaw::new(code, "the body must be a JSON object")));
    }
    serde_json::from_str(text).map_err(|error| other_shape(text, Flaw::new(code, without_place(&error))))
}

/// A whole number within a range; `None` for null, which an absent member is, too.
fn number(
    code: &'static str,
    value: &Value,
    member: &str,
    least: u64,
    most: u64,
) -> Result<Option<u64>, Flaw> {
    if value.is_null() {
        return Ok(None);
    }
    let flaw = || Flaw::new(code, format!("`{member}` must be a whole number between {least} and {most}"));
    value.as_u64().filter(|number| (least..=most).contains(number)).map(Some).ok_or_else(flaw)
}

/// The white space of JSON, which is less than Unicode's.
const JSON_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// The text of a body.
pub fn text(body: &[u8]) -> Result<&str, Flaw> {
    std::str::from_utf8(body).map_err(|_| Flaw::new("malformed_json", "the body is not UTF-8"))
}

/// The flaw of a text that is not of the expected shape: no JSON at all, or else `flaw`. serde stops at the first
/// surprise, behind which the text may break off.
fn other_shape(text: &str, flaw: Flaw) -> Flaw {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => flaw,
        Err(error) => malformed(&error),
    }
}

fn malformed(error: &serde_json::Error) -> Flaw {
    Flaw::new("malformed_json", format!("the body is not valid JSON: {error}"))
}

/// serde's message; line and column of a one-line body only distract.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or_default().to_owned()
}

/// An absolute URL of the allowed schemes, with a host, in the characters that RFC 3986 gives to URLs.
fn web_url(text: &str, allow_http: bool) -> Result<url::Url, String> {
    const MAX_CHARACTERS: usize = 1024;
    if text.chars().count() > MAX_CHARACTERS {
        return Err(format!("is longer than {MAX_CHARACTERS} characters"));
    }
    // The parser would correct invalid characters, but the stored and forwarded text is the original.
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte);
    if !text.bytes().all(allowed) {
        return Err("contains characters that a URL must write as %XX".to_owned());
    }
    let url = url::Url::parse(text).map_err(|error| format!("is not a valid URL: {error}"))?;
    let scheme_fits = url.scheme() == "https" || (allow_http && url.scheme() == "http");
    if !scheme_fits {
        let schemes = if allow_http { "https or http" } else { "https, because `bus.allow_http` is not set" };
        return Err(format!("must use {schemes}"));
    }
    // The parser takes `https:/host`, `https:host` and `https:///host` for `https://host`; other programs do not.
    let names_host = text[url.scheme().len()..]
        .strip_prefix("://")
        .is_some_and(|rest| !rest.starts_with(['/', '?', '#', ':']));
    if !names_host || !url.has_host() {
        return Err("must name a host after `://`".to_owned());
    }
    Ok(url)
}
