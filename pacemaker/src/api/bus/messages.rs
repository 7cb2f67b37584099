//! Messages: published like events, for queues and live streams.

use axum::{
    Json as Answer,
    extract::{DefaultBodyLimit, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Front,
    topics::{ARRAY_BYTES, idempotency_key, published, refused_all},
};
use crate::http::auth::CheckEnvironment as _;
use crate::http::{
    App, Problem,
    auth::{Confined, Environments, PublishEvents},
    body::JsonBytes,
};
use signalbox_access::Caller;
use signalbox_api::events::{MessageId, Published};
use signalbox_bus::{
    Handle, NewMessage, Refusal,
    intake::{self, Flaw, Limits},
};
use signalbox_queues::is_part;

const CODE: &str = "invalid_message";

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(publish)).layer(DefaultBodyLimit::max(ARRAY_BYTES))
}

impl Front {
    /// The bus itself, for subsystems above it.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// The members of a message. Each as it came, so that a mistake can be named.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submitted<'a> {
    #[serde(borrow, default)]
    environment: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
}

/// A member that is present, including `null`, which is a valid payload.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn read(text: &str, limits: Limits) -> Result<NewMessage, Flaw> {
    let submitted: Submitted<'_> = intake::object(text, CODE)?;
    let part = |member: &str, value: Option<&RawValue>| {
        let value = value.ok_or_else(|| Flaw::new(CODE, format!("`{member}` is missing")))?;
        let name: String = serde_json::from_str(value.get())
            .map_err(|_| Flaw::new(CODE, format!("`{member}` must be a string")))?;
        let detail = "must be 1 to 1024 printable characters without `:` and `|`";
        if is_part(&name) { Ok(name) } else { Err(Flaw::new(CODE, format!("`{member}` {detail}"))) }
    };
    let (environment, kind, name) = (
        part("environment", submitted.environment)?,
        part("type", submitted.kind)?,
        part("name", submitted.name)?,
    );
    if submitted.payload.is_some_and(|payload| payload.get().len() > limits.data_bytes) {
        return Err(Flaw::new(CODE, format!("`payload` is larger than {} bytes", limits.data_bytes)));
    }
    let payload = submitted.payload.map(ToOwned::to_owned);
    Ok(NewMessage { environment, kind, name, payload, idempotency_key: None })
}

fn check(text: &str, limits: Limits, caller: &Caller, key: Option<String>) -> Result<NewMessage, Problem> {
    let message = read(text, limits)?;
    caller.check_environment(&message.environment)?;
    Ok(NewMessage { idempotency_key: key, ..message })
}

/// Publish messages
///
/// One message or an array of them: `environment` (the tenant), `type`, `name` (1 to 1,024 printable characters
/// without `:` and `|`) and `payload` (any JSON, stored byte for byte). A message is stored in every queue whose
/// pattern matches `environment:type:name`, and sent to live streams; if neither exists, it is dropped. Messages with
/// the same three names stay in order. With the header `Idempotency-Key` a repeat within ten minutes returns the first
/// message's ID; in an array, each position has its own key.
#[utoipa::path(post, path = "/messages", tag = "queues", request_body = Object, responses(
    (status = 200, description = "Accepted. For an array: a result for each message", body = MessageId),
    (status = 400, description = "invalid_message, too_many_events, invalid_idempotency_key", body = Problem),
    (status = 403, description = "environment_missing", body = Problem),
    (status = 422, description = "idempotency_conflict", body = Problem),
    (status = 503, description = "fabric_full, busy", body = Problem)))]
async fn publish(
    caller: Confined<PublishEvents, Environments>,
    State(app): State<App>,
    headers: HeaderMap,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    let text = intake::text(&body)?;
    if !text.trim_start().starts_with('[') {
        let message = check(text, app.bus.limits, &caller, key.map(str::to_owned))
            .inspect_err(|_| app.bus.metrics.invalid())?;
        app.count_events(&caller, 1)?;
        let results = app.bus.handle.publish_messages(&caller.bus_client(), vec![message]).await;
        let result = results.into_iter().next().unwrap_or(Err(Refusal::Unavailable));
        app.bus.metrics.published(&result);
        return Ok(Answer(MessageId { id: result?.0 }).into_response());
    }
    Ok(Answer(publish_many(&app, &caller, key, text).await?).into_response())
}

async fn publish_many(
    app: &App,
    caller: &Caller,
    key: Option<&str>,
    text: &str,
) -> Result<Vec<Published>, Problem> {
    let bus = &app.bus;
    let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| {
        Problem::bad_request("malformed_json", format!("the body is not valid JSON: {error}"))
    })?;
    if items.is_empty() || items.len() > bus.limits.events {
        let detail =
            format!("send between 1 and {} messages at a time, not {}", bus.limits.events, items.len());
        let code = if items.is_empty() { "invalid_message" } else { "too_many_events" };
        return Err(Problem::bad_request(code, detail));
    }
    app.count_events(caller, items.len())?;
    let (mut good, mut bad) = (Vec::with_capacity(items.len()), Vec::new());
    for (place, item) in items.into_iter().enumerate() {
        match check(item.get(), bus.limits, caller, key.map(|key| format!("{key}/{place}"))) {
            Ok(message) => good.push(message),
            Err(problem) => {
                bus.metrics.invalid();
                bad.push((place, published(Err(problem))));
            }
        }
    }
    let results = bus.handle.publish_messages(&caller.bus_client(), good).await;
    results.iter().for_each(|result| bus.metrics.published(result));
    if bad.is_empty()
        && let Some(refusal) = refused_all(&results)
    {
        return Err(refusal.into());
    }
    let mut answer: Vec<Published> =
        results.into_iter().map(|result| published(result.map_err(Problem::from))).collect();
    // In rising order, so each place is right when its turn comes.
    for (place, result) in bad {
        answer.insert(place.min(answer.len()), result);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { allow_http: false, data_bytes: 16, events: 3 };

    #[test]
    fn a_message_has_three_names_and_its_payload_is_kept_verbatim() {
        let text =
            r#" {"environment":"facets","type":"email event","name":"opened","payload": { "a":1.0 } } "#;
        let message = read(text, LIMITS).unwrap();
        assert_eq!(
            (&*message.environment, &*message.kind, &*message.name),
            ("facets", "email event", "opened")
        );
        assert_eq!(message.payload.unwrap().get(), r#"{ "a":1.0 }"#);
        let null = read(r#"{"environment":"5","type":"t","name":"n","payload":null}"#, LIMITS).unwrap();
        assert_eq!(null.payload.unwrap().get(), "null");
        assert!(read(r#"{"environment":"5","type":"t","name":"n"}"#, LIMITS).unwrap().payload.is_none());
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, word) in [
            (r#"{"type":"t","name":"n"}"#, "environment"),
            (r#"{"environment":5,"type":"t","name":"n"}"#, "environment"),
            (r#"{"environment":"a:b","type":"t","name":"n"}"#, "environment"),
            (r#"{"environment":"a","type":"t|u","name":"n"}"#, "type"),
            (r#"{"environment":"a","type":"t","name":""}"#, "name"),
            (r#"{"environment":"a","type":"t","name":"x\u0000"}"#, "name"),
            (r#"{"environment":"a","type":"t","name":"n","payload":"12345678901234567"}"#, "payload"),
            (r#"{"environment":"a","type":"t","name":"n","data":1}"#, "data"),
            ("[]", "object"),
            ("7", "object"),
        ] {
            let flaw = read(text, LIMITS).unwrap_err();
            assert_eq!(flaw.code, CODE, "{text}");
            assert!(flaw.detail.contains(word), "{text}: {}", flaw.detail);
        }
        assert_eq!(read("{", LIMITS).unwrap_err().code, "malformed_json");
    }
}
