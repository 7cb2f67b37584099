//! Messages: published like events, for queues and live streams.

use axum::{
    Json as Answer,
    extract::{DefaultBodyLimit, State},
    http::HeaderMap,
};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Front, problems,
    topics::{ARRAY_BYTES, Idempotency, idempotency_key, in_order, published},
};
use crate::http::auth::CheckTenant as _;
use crate::http::{
    App, Problem,
    auth::{Confined, PublishEvents, Tenants},
    body::JsonBytes,
};
use signalbox_access::Caller;
use signalbox_api::{
    Time,
    events::{MessageId, Published, PublishedMessages},
};
use signalbox_bus::{
    Delay, Handle, NewMessage, Refusal,
    intake::{self, Flaw, Limits},
};
use signalbox_queues::{is_part, thousandths};

const CODE: &str = "invalid_message";

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(publish)).layer(DefaultBodyLimit::max(ARRAY_BYTES))
}

impl Front {
    /// The bus itself, for subsystems above it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// The members of a message. Each as it came, so that a mistake can be named.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submitted<'a> {
    #[serde(borrow, default, alias = "environment")]
    tenant: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(borrow, default)]
    delay_seconds: Option<&'a RawValue>,
    #[serde(borrow, default)]
    deliver_at: Option<&'a RawValue>,
}

/// The maximum delay of a message: 30 days.
const MAX_DELAY_SECONDS: u64 = 30 * 24 * 3600;

/// When a message may be delivered.
fn delay(submitted: &Submitted<'_>, now_ms: u64) -> Result<Option<Delay>, Flaw> {
    let bad = |what: String| Err(Flaw::new(CODE, what));
    match (submitted.delay_seconds, submitted.deliver_at) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => bad("send `delay_seconds` or `deliver_at`, not both".into()),
        (Some(seconds), None) => {
            #[allow(clippy::cast_precision_loss, reason = "30 days")]
            let most = MAX_DELAY_SECONDS as f64;
            match serde_json::from_str(seconds.get()).ok().and_then(|value| thousandths(value, 0.0, most)) {
                Some(ms) => Ok(Some(Delay::After(ms))),
                None => bad(format!("`delay_seconds` must be a number between 0 and {MAX_DELAY_SECONDS}")),
            }
        }
        (None, Some(at)) => match serde_json::from_str::<Time>(at.get()).map(Time::ms) {
            Ok(at) if at <= now_ms + MAX_DELAY_SECONDS * 1000 => Ok(Some(Delay::At(at))),
            _ => {
                bad("`deliver_at` must be a time such as 2026-01-31T18:30:00Z, at most 30 days from now"
                    .into())
            }
        },
    }
}

/// A member that is present, including `null`, which is a valid payload.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn read(text: &str, limits: Limits, now_ms: u64) -> Result<NewMessage, Flaw> {
    let submitted: Submitted<'_> = intake::object(text, CODE)?;
    let delay = delay(&submitted, now_ms)?;
    let part = |member: &str, value: Option<&RawValue>| {
        let value = value.ok_or_else(|| Flaw::new(CODE, format!("`{member}` is missing")))?;
        let name: String = serde_json::from_str(value.get())
            .map_err(|_| Flaw::new(CODE, format!("`{member}` must be a string")))?;
        let detail = "must be 1 to 1024 printable characters without `:` and `|`";
        if is_part(&name) { Ok(name) } else { Err(Flaw::new(CODE, format!("`{member}` {detail}"))) }
    };
    let (tenant, kind, name) =
        (part("tenant", submitted.tenant)?, part("type", submitted.kind)?, part("name", submitted.name)?);
    if submitted.payload.is_some_and(|payload| payload.get().len() > limits.data_bytes) {
        return Err(Flaw::new(CODE, format!("`payload` is larger than {} bytes", limits.data_bytes)));
    }
    let payload = submitted.payload.map(ToOwned::to_owned);
    if let Some(flaw) = intake::reserved_tenant(&tenant) {
        return Err(Flaw::new(CODE, flaw.detail));
    }
    Ok(NewMessage { tenant, kind, name, payload, idempotency_key: None, delay })
}

/// The rules for every message of a request.
#[derive(Clone, Copy)]
struct Checks<'a> {
    limits: Limits,
    caller: &'a Caller,
    /// The time of the fabric, if a message may name the time of its delivery.
    now_ms: u64,
}

fn check(text: &str, checks: Checks<'_>, key: Option<String>) -> Result<NewMessage, Problem> {
    let Checks { limits, caller, now_ms } = checks;
    let message = read(text, limits, now_ms)?;
    caller.check_tenant(&message.tenant)?;
    Ok(NewMessage { idempotency_key: key, ..message })
}

/// Publish messages
///
/// One message or an array of them: `tenant`, `type`, `name` (1 to 1,024 printable characters
/// without `:` and `|`) and `payload` (any JSON, stored byte for byte). A message is stored in every queue whose
/// pattern matches `tenant:type:topic` (its `name` is the topic), and sent to live streams; if neither exists, it is dropped. Messages with
/// the same three names stay in order. With `delay_seconds` (up to 30 days) or `deliver_at` (a time) queues
/// deliver the message at that time or later; live streams show it immediately. With the header `Idempotency-Key` a repeat within ten minutes returns the first
/// message's ID; in an array, each position has its own key.
#[utoipa::path(post, path = "/messages", params(Idempotency), request_body = Object,
    responses((status = 200, description = "Accepted. For an array: a result for each message", body = PublishedMessages),
    (status = "default", description = "400 invalid_message, too_many_events, invalid_idempotency_key | \
        403 tenant_missing | 422 idempotency_conflict | 429 queue_limit_reached, tenant_limit_reached, \
        idempotency_keys_used_up | \
        503 fabric_full, fabric_read_only, busy")))]
async fn publish(
    caller: Confined<PublishEvents, Tenants>,
    State(app): State<App>,
    headers: HeaderMap,
    JsonBytes(body): JsonBytes,
) -> Result<Answer<PublishedMessages>, Problem> {
    let key = idempotency_key(&headers)?;
    let text = intake::text(&body)?;
    // Only then is the time needed. The name may occur elsewhere, which costs a question and nothing else.
    let now_ms = if text.contains("deliver_at") { app.queues.now_ms().await? } else { 0 };
    let checks = Checks { limits: app.bus.limits, caller: &caller, now_ms };
    if !text.trim_start().starts_with('[') {
        let message =
            check(text, checks, key.map(str::to_owned)).inspect_err(|_| app.bus.metrics.invalid())?;
        app.count_events(&caller, 1)?;
        let tenant = message.tenant.clone();
        let results = app.bus.handle.publish_messages(&caller.bus_client(), vec![message]).await;
        let result = results.into_iter().next().unwrap_or(Err(Refusal::Unavailable));
        app.bus.metrics.published(&result);
        let id = result.map_err(|refusal| problems::refused(refusal, &tenant))?.0;
        return Ok(Answer(PublishedMessages::One(MessageId { id })));
    }
    Ok(Answer(PublishedMessages::Many(publish_many(&app, checks, key, text).await?)))
}

async fn publish_many(
    app: &App,
    checks: Checks<'_>,
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
    app.count_events(checks.caller, items.len())?;
    let (mut good, mut bad) = (Vec::with_capacity(items.len()), Vec::new());
    for (place, item) in items.into_iter().enumerate() {
        match check(item.get(), checks, key.map(|key| format!("{key}/{place}"))) {
            Ok(message) => good.push(message),
            Err(problem) => {
                bus.metrics.invalid();
                bad.push((place, published(Err(problem))));
            }
        }
    }
    let results = bus.handle.publish_messages(&checks.caller.bus_client(), good).await;
    in_order(app, results, bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { allow_http: false, data_bytes: 16, events: 3 };
    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn a_message_has_three_names_and_its_payload_is_kept_verbatim() {
        let text = r#" {"tenant":"tenants","type":"email event","name":"opened","payload": { "a":1.0 } } "#;
        let message = read(text, LIMITS, NOW_MS).unwrap();
        assert_eq!((&*message.tenant, &*message.kind, &*message.name), ("tenants", "email event", "opened"));
        assert_eq!(message.payload.unwrap().get(), r#"{ "a":1.0 }"#);
        let null = read(r#"{"tenant":"5","type":"t","name":"n","payload":null}"#, LIMITS, NOW_MS).unwrap();
        assert_eq!(null.payload.unwrap().get(), "null");
        assert!(read(r#"{"tenant":"5","type":"t","name":"n"}"#, LIMITS, NOW_MS).unwrap().payload.is_none());
    }

    #[test]
    fn a_message_may_be_delayed_for_up_to_30_days() {
        let read = |member: &str| {
            read(&format!(r#"{{"tenant":"5","type":"t","name":"n",{member}}}"#), LIMITS, NOW_MS)
                .map(|message| message.delay)
        };
        assert_eq!(read(r#""delay_seconds":1.5"#), Ok(Some(Delay::After(1500))));
        assert_eq!(read(r#""delay_seconds":2592000"#), Ok(Some(Delay::After(2_592_000_000))));
        assert_eq!(
            read(r#""deliver_at":"2027-02-14T08:00:00.000Z""#),
            Ok(Some(Delay::At(1_802_592_000_000)))
        );
        assert_eq!(read(r#""deliver_at":"1970-01-01T00:00:00Z""#), Ok(Some(Delay::At(0))), "long ago is now");
        for bad in [
            r#""delay_seconds":-1"#,
            r#""delay_seconds":2592001"#,
            r#""delay_seconds":"1""#,
            r#""deliver_at":"2027-02-14T08:00:00.001Z""#,
            r#""deliver_at":1802592000000"#,
            r#""delay_seconds":1,"deliver_at":"1970-01-01T00:00:00Z""#,
        ] {
            assert_eq!(read(bad).unwrap_err().code, CODE, "{bad}");
        }
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, word) in [
            (r#"{"type":"t","name":"n"}"#, "tenant"),
            (r#"{"tenant":5,"type":"t","name":"n"}"#, "tenant"),
            (r#"{"tenant":"machine.m","type":"t","name":"n"}"#, "tenant"),
            (r#"{"tenant":"a:b","type":"t","name":"n"}"#, "tenant"),
            (r#"{"tenant":"a","type":"t|u","name":"n"}"#, "type"),
            (r#"{"tenant":"a","type":"t","name":""}"#, "name"),
            (r#"{"tenant":"a","type":"t","name":"x\u0000"}"#, "name"),
            (r#"{"tenant":"a","type":"t","name":"n","payload":"12345678901234567"}"#, "payload"),
            (r#"{"tenant":"a","type":"t","name":"n","data":1}"#, "data"),
            ("[]", "object"),
            ("7", "object"),
        ] {
            let flaw = read(text, LIMITS, NOW_MS).unwrap_err();
            assert_eq!(flaw.code, CODE, "{text}");
            assert!(flaw.detail.contains(word), "{text}: {}", flaw.detail);
        }
        assert_eq!(read("{", LIMITS, NOW_MS).unwrap_err().code, "malformed_json");
    }
}
