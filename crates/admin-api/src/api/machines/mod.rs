//! Machines and labels over HTTP.

mod bulk;
mod confined;
mod definitions;
mod flow;
mod labels;
mod look;
mod params;
mod problems;
mod secrets;
mod tasks;
mod views;

use axum::{
    body::Bytes,
    extract::DefaultBodyLimit,
    http::{HeaderMap, header},
};
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use params::is_machine_name;
pub use tasks::end_lost_tasks;
pub(crate) use tasks::end_tasks_of;

use crate::http::{App, Problem, auth::Permission, body::check_readable};
use signalbox_access::Scope;
use signalbox_api::machines::Facts;

/// The largest body: a thousand updates of eight kilobytes, about.
const MAX_BYTES: usize = 8 << 20;
/// Characters of an idempotency key.
const MAX_KEY: usize = 255;

/// Update metadata: create, update and delete labels.
#[derive(Debug)]
pub(crate) enum TellFacts {}
impl Permission for TellFacts {
    const ANY_OF: &'static [Scope] = &[Scope::Facts, Scope::Machines];
}

/// Define machines, and retry failed actions.
#[derive(Debug)]
pub(crate) enum ManageMachines {}
impl Permission for ManageMachines {
    const ANY_OF: &'static [Scope] = &[Scope::Machines];
}

/// Read machines and labels.
#[derive(Debug)]
pub(crate) enum ReadMachines {}
impl Permission for ReadMachines {
    const ANY_OF: &'static [Scope] = &[Scope::Read, Scope::Facts, Scope::Machines];
}

/// The routes of this module.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(labels::routes())
        .merge(bulk::routes())
        .merge(look::routes())
        .merge(definitions::routes())
        .merge(secrets::routes())
        .merge(tasks::routes())
        .merge(flow::routes())
        .layer(DefaultBodyLimit::max(MAX_BYTES))
}

/// Whether null removes a member, from the body's content type.
fn removes(headers: &HeaderMap) -> Result<bool, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let patch = kind.eq_ignore_ascii_case("application/merge-patch+json");
    if !patch && !kind.eq_ignore_ascii_case("application/json") {
        let detail = "send the body with `Content-Type: application/json`, or application/merge-patch+json";
        let status = axum::http::StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Problem::new(status, "unsupported_media_type", detail));
    }
    Ok(patch)
}

/// Parses `{"metadata": {…}}`, and whether null removes a member.
fn facts(headers: &HeaderMap, body: &Bytes) -> Result<(Value, bool), Problem> {
    let patch = removes(headers)?;
    let bad = |error: serde_json::Error| match error.classify() {
        serde_json::error::Category::Data => Problem::unprocessable("invalid_metadata", error.to_string()),
        _ => Problem::bad_request("malformed_json", format!("the body is not valid JSON: {error}")),
    };
    check_readable(body)?;
    let facts: Facts = serde_json::from_slice(body).map_err(bad)?;
    if !facts.metadata.is_object() {
        return Err(Problem::unprocessable("invalid_metadata", "`metadata` must be an object"));
    }
    Ok((facts.metadata, patch))
}

/// The idempotency key of a request.
fn key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key
        .to_str()
        .ok()
        .filter(|key| (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()));
    let detail = format!("the Idempotency-Key must be 1 to {MAX_KEY} visible ASCII characters");
    key.map(Some).ok_or_else(|| Problem::unprocessable("invalid_idempotency_key", detail))
}

/// Parses `5s`, `500ms` or `5`: how long an answer may wait for the label to settle.
fn patience(text: Option<&str>) -> Result<Option<std::time::Duration>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let (number, unit_ms) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1),
        (None, Some(number)) => (number, 1000),
        (None, None) => (text, 1000),
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let ms = digits.then(|| number.parse::<u64>().ok()?.checked_mul(unit_ms)).flatten();
    let ms = ms.filter(|ms| *ms <= 60_000);
    let detail = "`wait` must be a duration such as 5s, 500ms or 5, up to 60s";
    ms.map(|ms| Some(std::time::Duration::from_millis(ms)))
        .ok_or_else(|| Problem::unprocessable("invalid_wait", detail))
}
