//! The audit log: who changed what.
//!
//! [`AuditTrail`] writes the records. State machines write theirs there, too.
//!
//! One layer around all routes records every request that changes something, every log-in and log-out, and every refusal
//! of a known caller. It takes the caller from the authentication ([`Notes::caller`]), and the new state from the answer.
//! A handler that knows what was there before adds it ([`Notes::before`]). One that changes many instances adds each
//! ([`Notes::instance`]), and the request has as many records as they need.
//!
//! Each record is appended to the log in the fabric ([`signalbox_access::AuditLog`]), published on the reserved topic
//! `signalbox.audit`, and written to the pacemaker's own log.
//!
//! **No acknowledged change is missing.** The record is in the fabric before the answer is sent. If it cannot be stored, the
//! answer is 503 `audit_unavailable` instead: the change may have been applied, as after any lost answer, and can be
//! repeated. A change needs the fabric as well, so this rarely happens. Refusals are recorded if possible. An error may say that
//! the change is made (`changed`) or will be (`recorded`); then the same holds. Where an answer does not show the new state, the
//! record has what was requested ([`Notes::requested`]).
//!
//! A client that closes its connection prevents neither the change nor its record: both happen in a task of their own.
//!
//! **Data traffic is not recorded**: events, messages, heartbeats and facts, see [`is_data`].
//!
//! **No secrets.** Members of an answer whose names belong to secrets are masked ([`mask`]), and so is the path of the
//! one route that can contain a token.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use axum::{
    body::{Body, HttpBody as _, to_bytes},
    extract::{FromRequestParts, MatchedPath, Request},
    http::{Method, StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use signalbox_access::{AuditLog, Caller, digest};
use signalbox_api::{
    Time,
    audit::{Kind, Record},
};
use signalbox_daemon::serve::Peer;
use signalbox_machines::Change;

use super::{App, Problem};
use crate::own_events::OwnEvents;

/// Of larger answers, and of larger values before a change, only the size and a digest are recorded.
const MAX_VALUE: usize = 16 * 1024;
/// Bytes of instances, before and after the change, in one record.
const MAX_INSTANCES: usize = 16 * 1024;
/// Bytes of refused items that are recorded. A client can cause refusals at will.
const MAX_REFUSED: usize = 1024;
/// How long the fabric may take to store a record.
const PATIENCE: Duration = Duration::from_secs(5);
/// The text in place of a secret.
const MASK: &str = "(hidden)";

/// Members of answers that contain secrets, or may contain them.
const SECRETS: [&str; 13] = [
    "token",
    "secret",
    "secrets",
    "password",
    "authorization",
    "key",
    "private_key",
    "uuid",
    "value",
    "set",
    "add",
    "callback",
    // Of labels, and of a search for them.
    "metadata",
];

/// Requests that transport data: method, and route.
const DATA: [(Method, &str); 23] = [
    (Method::POST, "/topics/{name}"),
    (Method::POST, "/topics/{name}/events"),
    (Method::POST, "/messages"),
    (Method::POST, "/messages/pull"),
    (Method::POST, "/objects/{object}/events"),
    (Method::POST, "/queues/{name}/ack"),
    (Method::POST, "/queues/{name}/extend"),
    (Method::POST, "/queues/{name}/nack"),
    (Method::POST, "/queues/{name}/peek"),
    (Method::POST, "/queues/{name}/pull"),
    (Method::POST, "/queues/{name}/reject"),
    (Method::POST, "/instances/{id}/heartbeat"),
    (Method::POST, "/instances/{id}/errors"),
    (Method::PATCH, "/state-machines/{machine}/labels"),
    (Method::POST, "/state-machines/{machine}/labels"),
    (Method::PATCH, "/state-machines/{machine}/labels/{label}"),
    (Method::POST, "/state-machines/{machine}/labels/{label}"),
    (Method::DELETE, "/state-machines/{machine}/labels/{label}"),
    (Method::POST, "/state-machines/{machine}/labels/{label}/simulate"),
    (Method::POST, "/state-machines/{machine}/plan"),
    (Method::POST, "/subscriber/test"),
    // Recorded as log-in and log-out by their handlers.
    (Method::POST, "/dashboard/login"),
    (Method::POST, "/dashboard/logout"),
];

/// Whether a request transports data and changes no configuration.
pub(crate) fn is_data(method: &Method, route: &str) -> bool {
    DATA.iter().any(|(data, path)| data == method && *path == route)
}

/// Whether a request may change something that the log records.
pub(crate) fn is_change(request: &Request) -> bool {
    let route = request.extensions().get::<MatchedPath>();
    route.is_some_and(|route| !request.method().is_safe() && !is_data(request.method(), route.as_str()))
}

#[derive(Debug, Default)]
struct Noted {
    who: Option<String>,
    person: Option<String>,
    kind: Option<Kind>,
    before: Option<Value>,
    after: Option<Value>,
    /// What the request asked for.
    requested: Option<Value>,
    /// Instances that the request changes, before and after.
    instances: Vec<[Option<Value>; 2]>,
    /// Whether something was changed, although the request may have failed after that.
    has_changed: bool,
    /// Items of the request that were refused, each with its error.
    refused: Vec<Value>,
}

/// Data about a request for its record. An extension of every request, and an extractor.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

impl Notes {
    fn with(&self, note: impl FnOnce(&mut Noted)) {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The caller was authenticated.
    pub fn caller(&self, caller: &Caller) {
        self.with(|noted| {
            noted.who = Some(caller.name.clone());
            noted.person = caller.person().map(str::to_owned);
        });
    }

    /// The request is a log-in or log-out, whatever its method.
    pub fn kind(&self, kind: Kind) {
        self.with(|noted| noted.kind = Some(kind));
    }

    /// The value before the change.
    pub(crate) fn before(&self, value: Value) {
        self.with(|noted| noted.before = Some(value));
    }

    /// The value after the change, if the answer does not show it.
    pub(crate) fn after(&self, value: Value) {
        self.with(|noted| noted.after = Some(value));
    }

    /// What the request asks for, as it was understood. It is recorded if the answer does not show the value after the change.
    pub(crate) fn requested(&self, value: Value) {
        self.with(|noted| noted.requested = Some(value));
    }

    /// An instance that the request changes, before and after.
    pub(crate) fn instance(&self, before: Option<Value>, after: Option<Value>) {
        self.with(|noted| noted.instances.push([before, after]));
    }

    /// Something was changed, whatever becomes of the rest of the request.
    pub(crate) fn has_changed(&self) {
        self.with(|noted| noted.has_changed = true);
    }

    /// An item of the request was refused, although the request is not.
    pub(crate) fn refused(&self, item: Value) {
        self.with(|noted| noted.refused.push(item));
    }
}

impl<S: Sync> FromRequestParts<S> for Notes {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// The address of the client, an extension of every request.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub(crate) IpAddr);

impl<S: Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of(parts))
    }
}

impl ClientAddress {
    /// The client of a request that passed [`record`].
    pub fn of(parts: &Parts) -> Self {
        parts.extensions.get().copied().unwrap_or(Self(IpAddr::from([0, 0, 0, 0])))
    }
}

/// Records a request, if it belongs in the audit log.
pub(crate) async fn record(
    app: &App,
    mut request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    let address = app.door.client(request.extensions().get::<Peer>(), request.headers());
    let notes = Notes::default();
    request.extensions_mut().insert(ClientAddress(address));
    request.extensions_mut().insert(notes.clone());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let Some(route) = route else { return next(request).await };
    let method = request.method().clone();
    let target = request.uri().path().to_owned();
    let request_id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);

    let response = next(request).await;

    let noted = std::mem::take(&mut *notes.0.lock().unwrap_or_else(PoisonError::into_inner));
    let status = response.status();
    let changes = !method.is_safe() && !is_data(&method, &route);
    let is_refusal = status == StatusCode::FORBIDDEN && noted.who.is_some();
    if noted.kind.is_none() && !is_refusal && !(changes && noted.who.is_some()) {
        return response;
    }
    let (response, answer, says_made) = peek(response).await;
    let is_made = status.as_u16() < 400 || says_made || noted.has_changed;
    let kind = match noted.kind {
        Some(kind) => kind,
        None if is_refusal => Kind::Refused,
        None if is_made || status.is_server_error() => Kind::Change,
        None => return response,
    };
    let target = if may_contain_token(&route) { route.clone() } else { target };
    let mut record = Record {
        at: Time::from_ms(app.tokens.now_ms()),
        kind,
        who: noted.who,
        label: None,
        person: noted.person,
        address: Some(address.to_string()),
        request_id,
        method: method.as_str().to_owned(),
        route,
        target,
        status: status.as_u16(),
        code: None,
        part: None,
        // What a refused call did not change is not recorded, because a client can cause refusals at will.
        before: noted.before.filter(|_| kind != Kind::Refused).map(limited),
        after: noted.after.map(limited),
    };
    if let Some(refusal) = refusal(&record, noted.refused) {
        app.audit.write(refusal).await;
        if kind == Kind::Change && status.is_success() && noted.instances.is_empty() && record.after.is_none()
        {
            return response;
        }
    }
    match answer {
        Some(Value::Object(answer)) if kind == Kind::Refused => {
            record.code = answer.get("code").and_then(Value::as_str).map(str::to_owned);
        }
        Some(answer) if kind == Kind::Change && status.is_success() => {
            record.after.get_or_insert(answer);
        }
        _ if kind == Kind::Change && record.after.is_none() => {
            record.after = noted.requested.map(|value| json!({"requested": limited(value)}));
        }
        _ => {}
    }
    let records = parts(record, noted.instances);
    if status.is_server_error() && !is_made {
        // The fabric may be unavailable, and nothing was acknowledged.
        let trail = app.audit.clone();
        tokio::spawn(async move { trail.write_all(records).await });
        return response;
    }
    match (app.audit.write_all(records).await, kind) {
        (true, _) | (false, Kind::Refused) => response,
        (false, _) => {
            let detail = "The request cannot be recorded in the audit log at the moment. The change may have been applied; \
                repeat the request.";
            Problem::unavailable("audit_unavailable", detail).into_response()
        }
    }
}

/// The record of the items that a request was refused, if there are any.
fn refusal(record: &Record, refused: Vec<Value>) -> Option<Record> {
    let code = refused.first()?["code"].as_str().map(str::to_owned);
    let all = refused.len();
    let mut bytes = 0;
    let named: Vec<Value> = refused
        .into_iter()
        .take_while(|item| {
            bytes += item.to_string().len();
            bytes <= MAX_REFUSED
        })
        .collect();
    let after = json!({"more": all - named.len(), "refused": named});
    let status = StatusCode::FORBIDDEN.as_u16();
    let before = None;
    Some(Record { kind: Kind::Refused, status, code, before, after: Some(after), ..record.clone() })
}

/// The records of a change of these instances, each with as many of them as fit.
fn parts(record: Record, instances: Vec<[Option<Value>; 2]>) -> Vec<Record> {
    let size = |of: &Option<Value>| of.as_ref().map_or(0, |value| value.to_string().len());
    let mut parts: Vec<[Vec<Value>; 2]> = Vec::new();
    let mut bytes = MAX_INSTANCES;
    for mut one in instances {
        one.iter_mut().flatten().for_each(mask);
        let [before, after] = one;
        let added = size(&before) + size(&after);
        bytes += added;
        if bytes > MAX_INSTANCES {
            parts.push(Default::default());
            bytes = added;
        }
        if let Some([all_before, all_after]) = parts.last_mut() {
            all_before.extend(before);
            all_after.extend(after);
        }
    }
    if parts.is_empty() {
        return vec![record];
    }
    let several = parts.len() > 1;
    let part = |(index, [before, after]): (usize, [Vec<Value>; 2])| {
        let mut part = match index {
            0 => record.clone(),
            _ => Record { before: None, after: None, ..record.clone() },
        };
        part.part = several.then(|| u32::try_from(index + 1).unwrap_or(u32::MAX));
        with_instances(&mut part.before, before);
        with_instances(&mut part.after, after);
        part
    };
    parts.into_iter().enumerate().map(part).collect()
}

/// Adds instances to a value of a record.
fn with_instances(value: &mut Option<Value>, instances: Vec<Value>) {
    if instances.is_empty() {
        return;
    }
    match value.get_or_insert_with(|| json!({})) {
        Value::Object(members) => drop(members.insert("instances".to_owned(), instances.into())),
        other => *other = json!({"instances": instances}),
    }
}

/// The body of a JSON answer; of a long one its size and a digest. And whether it says that a change is made, or will be. The answer
/// stays as it is.
async fn peek(response: Response) -> (Response, Option<Value>, bool) {
    let is_json =
        response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).is_some_and(
            |kind| kind.starts_with("application/json") || kind.starts_with("application/problem+json"),
        );
    if !is_json || response.body().size_hint().exact().is_none() {
        return (response, None, false);
    }
    let (parts, body) = response.into_parts();
    // The length is known, and all of the body is in memory.
    let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let answer: Option<Value> = serde_json::from_slice(&bytes).ok();
    let says_made =
        answer.as_ref().is_some_and(|answer| answer["changed"] == true || answer["recorded"] == true);
    let answer = match bytes.len() > MAX_VALUE {
        true => Some(summary(&String::from_utf8_lossy(&bytes))),
        false => answer,
    };
    (Response::from_parts(parts, Body::from(bytes)), answer, says_made)
}

/// What is recorded of a value that is too large.
fn summary(text: &str) -> Value {
    json!({"bytes": text.len(), "sha256": digest(text)})
}

/// The value, or its summary. A digest of a secret could be guessed, so secrets are masked first.
fn limited(mut value: Value) -> Value {
    mask(&mut value);
    let text = value.to_string();
    if text.len() > MAX_VALUE { summary(&text) } else { value }
}

/// Writes records of the audit log. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AuditTrail {
    log: AuditLog,
    own_events: OwnEvents,
    now: fn() -> SystemTime,
}

impl AuditTrail {
    /// Records are stored in `log`, and published by `own_events`. `now` is the clock for changes of state machines.
    pub fn new(log: AuditLog, own_events: OwnEvents, now: fn() -> SystemTime) -> Self {
        Self { log, own_events, now }
    }

    /// The records.
    pub(crate) fn log(&self) -> &AuditLog {
        &self.log
    }

    /// Stores records as [`Self::write`] does.
    async fn write_all(&self, records: Vec<Record>) -> bool {
        for record in records {
            if !self.write(record).await {
                return false;
            }
        }
        true
    }

    /// Stores a record everywhere, without secrets. Returns whether it is in the log of the fabric.
    async fn write(&self, mut record: Record) -> bool {
        record.before.iter_mut().chain(&mut record.after).for_each(mask);
        tracing::info!(
            kind = record.kind.as_str(),
            who = record.who,
            label = record.label,
            person = record.person,
            address = record.address,
            request_id = record.request_id,
            method = record.method,
            target = record.target,
            status = record.status,
            code = record.code,
            "audit"
        );
        let Ok(text) = serde_json::to_string(&record) else { return false };
        // A token can have many machines, so all of them count as one caller.
        let caller = if record.label.is_some() { Some("machine:") } else { record.who.as_deref() };
        let appended = self.log.append(&text, caller, record.kind == Kind::Refused, record.at.ms());
        match tokio::time::timeout(PATIENCE, appended).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "audit record not stored");
                return false;
            }
            Err(_) => {
                tracing::error!("audit record not stored in time");
                return false;
            }
        }
        self.own_events.audited(&record);
        true
    }
}

impl signalbox_machines::Audit for AuditTrail {
    fn record(&self, change: Change) -> BoxFuture<'_, bool> {
        let Change { who, label, call: (method, route), target, refused, before, after } = change;
        let since = (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let status = if refused.is_some() { StatusCode::FORBIDDEN } else { StatusCode::OK };
        Box::pin(self.write(Record {
            at: Time::from_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            kind: if refused.is_some() { Kind::Refused } else { Kind::Change },
            who: Some(who),
            label: Some(label),
            person: None,
            address: None,
            request_id: None,
            method: method.to_owned(),
            route: route.to_owned(),
            target,
            status: status.as_u16(),
            code: refused.map(str::to_owned),
            part: None,
            before: before.map(limited),
            after: after.map(limited),
        }))
    }
}

/// Whether the path of a route can contain a token.
fn may_contain_token(route: &str) -> bool {
    route.starts_with("/api_tokens/")
}

/// Masks members whose names belong to secrets, at every depth.
fn mask(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if SECRETS.contains(&name.as_str()) && !member.is_null() {
                    *member = MASK.into();
                } else {
                    mask(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> Record {
        serde_json::from_value(json!({"at_ms": 1, "kind": "change", "method": "PUT", "route": "/instances",
            "target": "/instances", "status": 200, "before": {"rules": null}}))
        .unwrap()
    }

    #[test]
    fn a_change_of_many_instances_has_as_many_records_as_they_need() {
        let one = |number: usize| json!({"id": format!("{number:04}"), "name": "x".repeat(1000)});
        let all = (0..100).map(|number| [Some(one(number)), None]).collect();
        let records = parts(change(), all);
        assert!(records.len() > 6, "{}", records.len());
        assert_eq!(records[0].before.as_ref().unwrap().get("rules"), Some(&Value::Null));
        let mut ids = Vec::new();
        for (index, record) in records.iter().enumerate() {
            assert_eq!((record.part, &record.after), (Some(index as u32 + 1), &None));
            let instances = record.before.as_ref().unwrap()["instances"].as_array().unwrap();
            ids.extend(instances.iter().map(|one| one["id"].as_str().unwrap().to_owned()));
            assert!(serde_json::to_string(record).unwrap().len() < 2 * MAX_INSTANCES);
        }
        assert_eq!(ids, (0..100).map(|number| format!("{number:04}")).collect::<Vec<_>>());
        let records = parts(change(), vec![[None, Some(one(1))]]);
        assert_eq!((records.len(), records[0].part), (1, None));
        assert_eq!(records[0].after.as_ref().unwrap()["instances"][0]["id"], "0001");
        assert_eq!(parts(change(), Vec::new()), [change()]);
    }

    #[test]
    fn refused_items_are_named_as_far_as_they_fit() {
        assert_eq!(refusal(&change(), Vec::new()), None);
        let items = (0..1000).map(|number| json!({"id": number, "code": "host_not_allowed"})).collect();
        let refused = refusal(&change(), items).unwrap();
        assert_eq!((refused.kind, refused.status), (Kind::Refused, 403));
        assert_eq!(refused.code.as_deref(), Some("host_not_allowed"));
        let after = refused.after.unwrap();
        let named = after["refused"].as_array().unwrap().len();
        assert!(named > 10 && after["more"] == 1000 - named, "{after}");
    }

    #[tokio::test]
    async fn of_a_long_answer_the_record_has_a_digest() {
        let answer = |bytes: usize| axum::Json(json!({"text": "x".repeat(bytes)})).into_response();
        let (_, short, _) = peek(answer(10)).await;
        assert_eq!(short.unwrap()["text"], "xxxxxxxxxx");
        let (response, long, _) = peek(answer(20_000)).await;
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let sha256 = digest(std::str::from_utf8(&body).unwrap());
        assert_eq!(long.unwrap(), json!({"bytes": body.len(), "sha256": sha256}));
    }

    #[test]
    fn secrets_are_masked_at_every_depth() {
        let mut value = json!({
            "name": "a", "token": "x", "hosts": ["h"],
            "nested": [{"secrets": ["y"], "headers": {"request": {"set": {"authorization": "z"}}}}],
            "uuid": null,
        });
        mask(&mut value);
        let wanted = json!({
            "name": "a", "token": MASK, "hosts": ["h"],
            "nested": [{"secrets": MASK, "headers": {"request": {"set": MASK}}}],
            "uuid": null,
        });
        assert_eq!(value, wanted);
    }

    /// A new route is recorded unless it is listed, and a listed one exists.
    #[test]
    fn routes_without_a_record_are_routes_of_the_api() {
        let document: Value =
            serde_json::from_str(&crate::router::document(utoipa::openapi::OpenApi::default())).unwrap();
        for (method, route) in DATA {
            let known = !document["paths"][route][method.as_str().to_ascii_lowercase()].is_null();
            assert!(known || route.starts_with("/dashboard/"), "{method} {route} is not a route");
        }
    }
}
