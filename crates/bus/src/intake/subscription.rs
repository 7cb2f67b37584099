//! Subscriptions as clients ask for them.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Flaw, Limits, callback, number, object, text};
use crate::{Alteration, OnExhausted, Wanted, is_own_topic, is_reserved_topic, is_topic_name};

const CODE: &str = "invalid_subscription";
/// Limits of the limits of one subscription.
const MAX_ATTEMPTS: u64 = 1_000_000;
const MAX_AGE_SECONDS: u64 = 315_360_000;
/// Pauses in the schedule of one subscription, and the longest.
const MAX_RETRIES: usize = 50;
const MAX_RETRY_SECONDS: u32 = 86_400;
/// Topics of one subscription.
const MAX_TOPICS: usize = 1_000;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Submitted {
    topics: Value,
    callback: Value,
    uuid: Value,
    timeout: Value,
    max: Value,
    concurrency: Value,
    on_exhausted: Value,
}

/// Reads the body of `POST /subscription`.
pub fn subscription(body: &[u8], limits: Limits) -> Result<Wanted, Flaw> {
    let submitted: Submitted = object(text(body)?, CODE)?;
    let bad = |member: &str, what: &str| Flaw::new(CODE, format!("`{member}` {what}"));
    let (callback, user) =
        callback::url_with_user(&submitted.callback, limits).map_err(|what| bad("callback", &what))?;
    Ok(Wanted {
        topics: topics(&submitted.topics)?,
        callback,
        uuid: callback::user(&submitted.uuid).map_err(|what| bad("uuid", &what))?.or(user),
        timeout_ms: number(CODE, &submitted.timeout, "timeout", 0, 3_600_000)?,
        max_events: number(CODE, &submitted.max, "max", 1, 10_000)?,
        concurrency: number(CODE, &submitted.concurrency, "concurrency", 1, 64)?,
        on_exhausted: match &submitted.on_exhausted {
            Value::Null => None,
            Value::String(word) if word == "dead" => Some(OnExhausted::Dead),
            Value::String(word) if word == "block" => Some(OnExhausted::Block),
            _ => return Err(bad("on_exhausted", "must be \"dead\" or \"block\"")),
        },
        tenants: None,
    })
}

/// The members of a change. Each as it came: `null` is not the same as absent.
#[serde_with::apply(Option => #[serde(deserialize_with = "given")])]
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Altered {
    callback: Option<Value>,
    uuid: Option<Value>,
    max_attempts: Option<Value>,
    max_age_seconds: Option<Value>,
    retry_seconds: Option<Value>,
    paused: Option<Value>,
    disabled: Option<Value>,
}

fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Reads the body of `PATCH /subscription`.
pub fn alteration(body: &[u8], limits: Limits) -> Result<Alteration, Flaw> {
    let altered: Altered = object(text(body)?, CODE)?;
    let bad = |member: &str, what: &str| Flaw::new(CODE, format!("`{member}` {what}"));
    let word = |member: &'static str, value: Option<Value>| match value {
        None => Ok(None),
        Some(Value::Bool(word)) => Ok(Some(word)),
        Some(_) => Err(bad(member, "must be true or false")),
    };
    let (callback, user) = match &altered.callback {
        Some(value) => {
            let (url, user) =
                callback::url_with_user(value, limits).map_err(|what| bad("callback", &what))?;
            (Some(url), user)
        }
        None => (None, None),
    };
    let uuid = altered.uuid.as_ref().map(callback::user).transpose().map_err(|what| bad("uuid", &what))?;
    let attempts = altered.max_attempts.as_ref();
    let attempts = attempts.map(|value| number(CODE, value, "max_attempts", 1, MAX_ATTEMPTS)).transpose()?;
    let age = altered.max_age_seconds.as_ref();
    let change = Alteration {
        callback,
        uuid: uuid.flatten().or(user),
        max_attempts: attempts.map(|most| most.and_then(|most| u32::try_from(most).ok())),
        max_age_seconds: age
            .map(|value| number(CODE, value, "max_age_seconds", 1, MAX_AGE_SECONDS))
            .transpose()?,
        retry_seconds: altered.retry_seconds.as_ref().map(schedule).transpose()?,
        paused: word("paused", altered.paused)?,
        disabled: word("disabled", altered.disabled)?,
    };
    if change == Alteration::default() {
        return Err(Flaw::new(CODE, "the body must have at least one member that changes something"));
    }
    Ok(change)
}

/// The pauses before the retries; none for the default.
fn schedule(value: &Value) -> Result<Vec<u32>, Flaw> {
    let flaw = || {
        let what =
            format!("must be null, or 1 to {MAX_RETRIES} whole numbers between 1 and {MAX_RETRY_SECONDS}");
        Flaw::new(CODE, format!("`retry_seconds` {what}"))
    };
    let items = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) if (1..=MAX_RETRIES).contains(&items.len()) => items,
        _ => return Err(flaw()),
    };
    let seconds = |item: &Value| item.as_u64().and_then(|seconds| u32::try_from(seconds).ok());
    let in_range = |seconds: &u32| (1..=MAX_RETRY_SECONDS).contains(seconds);
    items.iter().map(|item| seconds(item).filter(in_range).ok_or_else(flaw)).collect()
}

fn topics(value: &Value) -> Result<BTreeSet<String>, Flaw> {
    let bad = |what: String| Flaw::new(CODE, format!("`topics` {what}"));
    let items = value.as_array().ok_or_else(|| bad("must be an array of topic names".to_owned()))?;
    if items.is_empty() || items.len() > MAX_TOPICS {
        return Err(bad(format!(
            "must contain between 1 and {MAX_TOPICS} names; to end the subscription, use DELETE"
        )));
    }
    items
        .iter()
        .map(|item| match item.as_str() {
            Some(topic) if is_topic_name(topic) || is_own_topic(topic) => Ok(topic.to_owned()),
            Some(topic) if is_reserved_topic(topic) => {
                Err(bad(format!("contains {topic:?}, which is not one of Signalbox's own topics")))
            }
            Some(topic) => Err(bad(format!("contains {topic:?}, which does not match [a-z_]{{1,64}}"))),
            None => Err(bad("must hold strings".to_owned())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const LIMITS: Limits = Limits { allow_http: false, data_bytes: 64, events: 3 };

    fn read(body: &Value) -> Result<Wanted, Flaw> {
        subscription(body.to_string().as_bytes(), LIMITS)
    }

    fn with(member: &str, value: Value) -> Value {
        let mut body = json!({"topics": ["orders"], "callback": "https://a.example/events"});
        body[member] = value;
        body
    }

    #[test]
    fn missing_fields_have_defaults() {
        let wanted =
            read(&with("topics", json!(["orders", "_x", "orders", "signalbox.instance.registered"])))
                .unwrap();
        assert_eq!(wanted.topics.len(), 3);
        assert_eq!(
            (wanted.timeout_ms, wanted.max_events, wanted.concurrency, wanted.uuid),
            (None, None, None, None)
        );
        let nulls =
            read(&json!({"topics": ["a"], "callback": "https://a.example", "timeout": null, "max": null,
            "uuid": null, "concurrency": null, "on_exhausted": null}));
        assert!(nulls.is_ok());
    }

    /// As the command of Routemaster's client asks for it.
    #[test]
    fn a_user_in_the_callback_becomes_the_user_of_deliveries() {
        for (callback, uuid, expected) in [
            ("https://me@a.example/events?a=b", Value::Null, "me"),
            ("https://me:x@a.example/events?a=b", Value::Null, "me"),
            ("https://me@a.example/events?a=b", json!("other"), "other"),
        ] {
            let body = json!({"topics": ["orders"], "callback": callback, "uuid": uuid});
            let wanted = read(&body).unwrap();
            assert_eq!(wanted.callback, "https://a.example/events?a=b");
            assert_eq!(wanted.uuid.as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_topic_that_signalbox_does_not_publish_is_rejected() {
        let flaw = read(&with("topics", json!(["signalbox.instance.registred"]))).unwrap_err();
        assert!(flaw.detail.contains("signalbox.instance.registred"), "{flaw:?}");
    }

    #[test]
    fn a_change_names_its_fields_and_null_resets_a_field() {
        let change = |body: &str| alteration(body.as_bytes(), LIMITS);
        let all = r#"{"callback":"https://me@b.example/","max_attempts":3,"max_age_seconds":60,
            "retry_seconds":[1,86400],"paused":true,"disabled":false}"#;
        let expected = Alteration {
            callback: Some("https://b.example/".to_owned()),
            uuid: Some("me".to_owned()),
            max_attempts: Some(Some(3)),
            max_age_seconds: Some(Some(60)),
            retry_seconds: Some(vec![1, 86_400]),
            paused: Some(true),
            disabled: Some(false),
        };
        assert_eq!(change(all).unwrap(), expected);
        let reset = change(r#"{"max_attempts":null,"max_age_seconds":null,"retry_seconds":null}"#).unwrap();
        assert_eq!((reset.max_attempts, reset.max_age_seconds), (Some(None), Some(None)));
        assert_eq!(reset.retry_seconds, Some(Vec::new()));
        for bad in [
            r#"{"callback":null}"#,
            r#"{"max_attempts":0}"#,
            r#"{"max_age_seconds":"1"}"#,
            r#"{"retry_seconds":[]}"#,
            r#"{"retry_seconds":[0]}"#,
            r#"{"retry_seconds":[86401]}"#,
            r#"{"retry_seconds":5}"#,
            r#"{"paused":1}"#,
            r#"{"disabled":null}"#,
            r#"{"topics":[]}"#,
            "{}",
            "[]",
        ] {
            assert_eq!(change(bad).unwrap_err().code, "invalid_subscription", "{bad}");
        }
    }

    #[test]
    fn limits_hold_at_both_ends() {
        for (member, good, bad) in [
            ("timeout", [0_i64, 3_600_000], [-1_i64, 3_600_001]),
            ("max", [1, 10_000], [0, 10_001]),
            ("concurrency", [1, 64], [0, 65]),
        ] {
            for value in good {
                assert!(read(&with(member, json!(value))).is_ok(), "{member} {value}");
            }
            for value in bad {
                assert!(
                    read(&with(member, json!(value))).unwrap_err().detail.contains(&format!("`{member}`"))
                );
            }
        }
    }

    #[test]
    fn every_member_that_is_wrong_is_named() {
        for (member, value) in [
            ("topics", Value::Null),
            ("topics", json!([])),
            ("topics", json!("orders")),
            ("topics", json!([1])),
            ("topics", json!(["Orders"])),
            ("topics", json!(["orders\n"])),
            ("topics", json!([""])),
            ("topics", json!({"orders": 1})),
            ("callback", Value::Null),
            ("callback", json!("http://a.example/")),
            ("callback", json!("a.example")),
            ("callback", json!("https://u:p@a.example/")),
            ("callback", json!("https://u%20v@a.example/")),
            ("callback", json!("https://:p@a.example/")),
            ("callback", json!("https://a.example/#x")),
            ("callback", json!(1)),
            ("uuid", json!("")),
            ("uuid", json!("a\r\nX: y")),
            ("uuid", json!("é")),
            ("uuid", json!(1)),
            ("uuid", json!("x".repeat(257))),
            ("timeout", json!("500")),
            ("timeout", json!(0.5)),
            ("max", json!([])),
            ("concurrency", json!(1e3)),
            ("on_exhausted", json!("park")),
            ("on_exhausted", json!(true)),
        ] {
            let flaw = read(&with(member, value.clone())).unwrap_err();
            assert_eq!(flaw.code, "invalid_subscription");
            assert!(flaw.detail.contains(&format!("`{member}`")), "{value}: {flaw:?}");
        }
        assert!(read(&with("topic", json!([]))).unwrap_err().detail.contains("unknown field `topic`"));
        for body in ["[]", "null", "7"] {
            assert_eq!(
                subscription(body.as_bytes(), LIMITS).unwrap_err().code,
                "invalid_subscription",
                "{body}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_at_all_make_it_panic(body: Vec<u8>) {
            let _ = subscription(&body, LIMITS);
        }

        #[test]
        fn accepted_callbacks_can_be_used(callback in "https://[!-~]{1,20}", uuid in ".{0,12}") {
            let body = json!({"topics": ["a"], "callback": callback, "uuid": uuid});
            if let Ok(wanted) = read(&body) {
                let uri: http::Uri = wanted.callback.parse().unwrap();
                prop_assert!(uri.host().is_some());
                let authorization = format!("Basic {}:x", wanted.uuid.unwrap());
                prop_assert!(http::HeaderValue::from_str(&authorization).is_ok());
            }
        }
    }
}
