//! Groups: events of one object, with its new state, as producers send them.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Flaw, Limits,
    event::{self, MAX_NAME_CHARACTERS, Submitted, is_name, present},
    object, text, web_url,
};
use crate::{NewEvent, NewGroup, is_topic_name};

/// The main event and its sub-events. A group is never cut apart, so this bounds what one call of Redis has to do.
const MAX_EVENTS: usize = 100;
/// Characters of an idempotency key.
const MAX_KEY_BYTES: usize = 255;

/// The body of `POST /objects/{object}/events`.
#[serde_with::apply(Option => #[serde(borrow, default, deserialize_with = "present")])]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubmittedGroup<'a> {
    data: Option<&'a RawValue>,
    events: Option<&'a RawValue>,
    idempotency_key: Option<&'a RawValue>,
}

/// One of its events: as one of a topic, with the topic inside and without an object.
#[serde_with::apply(Option => #[serde(borrow, default, deserialize_with = "present")])]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubmittedPart<'a> {
    topic: Option<&'a RawValue>,
    #[serde(rename = "type")]
    kind: Option<&'a RawValue>,
    url: Option<&'a RawValue>,
    timestamp: Option<&'a RawValue>,
    data: Option<&'a RawValue>,
    #[serde(alias = "environment")]
    tenant: Option<&'a RawValue>,
}

/// Whether a name can be an object's.
pub fn object_name(name: &str) -> Result<(), Flaw> {
    if is_name(name) {
        return Ok(());
    }
    Err(Flaw::new(
        "invalid_object",
        format!("an object's name is 1 to {MAX_NAME_CHARACTERS} printable characters"),
    ))
}

/// Reads a group of the object, whose name was checked.
pub fn group(body: &[u8], object_name: String, limits: Limits) -> Result<NewGroup, Flaw> {
    let submitted: SubmittedGroup<'_> = object(text(body)?, event::CODE)?;
    let bad = |member: &str, what: &str| Flaw::new(event::CODE, format!("`{member}` {what}"));
    if submitted.data.is_some_and(|data| data.get().len() > limits.data_bytes) {
        return Err(bad("data", &format!("is larger than {} bytes", limits.data_bytes)));
    }
    let events = submitted.events.ok_or_else(|| bad("events", "is missing"))?;
    let events: Vec<&RawValue> =
        serde_json::from_str(events.get()).map_err(|_| bad("events", "must be an array of events"))?;
    let most = MAX_EVENTS.min(limits.events);
    if events.is_empty() || events.len() > most {
        let detail = format!("send between 1 and {most} events of an object at a time, not {}", events.len());
        return Err(Flaw::new(if events.is_empty() { event::CODE } else { "too_many_events" }, detail));
    }
    let default_url = default_url(&object_name, limits);
    let part = |(place, part): (usize, &&RawValue)| {
        read_part(part, &default_url, limits)
            .map_err(|flaw| Flaw::new(flaw.code, format!("`events[{place}]`: {}", flaw.detail)))
    };
    let events = events.iter().enumerate().map(part).collect::<Result<_, _>>()?;
    let idempotency_key = submitted.idempotency_key.filter(|key| key.get() != "null").map(key).transpose()?;
    Ok(NewGroup {
        object: object_name,
        state: submitted.data.map(ToOwned::to_owned),
        events,
        idempotency_key,
    })
}

fn read_part(part: &RawValue, default_url: &str, limits: Limits) -> Result<(String, NewEvent), Flaw> {
    let SubmittedPart { topic, kind, url, timestamp, data, tenant } = object(part.get(), event::CODE)?;
    let invalid_topic = || Flaw::new("invalid_topic", "`topic` must be a name of [a-z_]{1,64}");
    let topic: String =
        topic.and_then(|topic| serde_json::from_str(topic.get()).ok()).ok_or_else(invalid_topic)?;
    if !is_topic_name(&topic) {
        return Err(invalid_topic());
    }
    let submitted = Submitted { kind, url, timestamp, data, tenant, object: None };
    Ok((topic, event::check(submitted, limits, Some(default_url))?))
}

fn key(key: &RawValue) -> Result<String, Flaw> {
    let is_key = |key: &String| {
        (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    serde_json::from_str(key.get()).ok().filter(is_key).ok_or_else(|| {
        let detail = format!("`idempotency_key` is 1 to {MAX_KEY_BYTES} visible ASCII characters");
        Flaw::new("invalid_idempotency_key", detail)
    })
}

/// The url of an event that names none: the object itself where that is a url, as it is for events that name no object;
/// else a URN of its name.
fn default_url(object: &str, limits: Limits) -> String {
    if web_url(object, limits.allow_http).is_ok_and(|url| url.query().is_none()) {
        return object.to_owned();
    }
    let mut urn = String::from("urn:signalbox:object:");
    for byte in object.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            urn.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(urn, "%{byte:02X}");
        }
    }
    urn
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const LIMITS: Limits = Limits { allow_http: false, data_bytes: 64, events: 1000 };

    fn read(body: &Value) -> Result<NewGroup, Flaw> {
        group(body.to_string().as_bytes(), "work:1".to_owned(), LIMITS)
    }

    fn part() -> Value {
        json!({"topic": "works", "type": "update"})
    }

    #[test]
    fn the_least_and_the_most_of_a_group() {
        let least = read(&json!({"events": [part()]})).unwrap();
        assert!(least.state.is_none() && least.idempotency_key.is_none());
        assert_eq!(least.events[0].1.url, "urn:signalbox:object:work:1");
        let most = read(&json!({"data": {"v": 1}, "idempotency_key": "k", "events": [
            {"topic": "works", "type": "create", "url": "https://a.example/1", "timestamp": 7, "data": 1, "tenant": "e"},
            part(),
        ]}))
        .unwrap();
        assert_eq!(most.state.unwrap().get(), "{\"v\":1}");
        assert_eq!((most.events.len(), most.events[0].1.timestamp_ms), (2, Some(7)));
        assert_eq!(most.idempotency_key.as_deref(), Some("k"));
        assert_eq!(read(&json!({"data": null, "events": [part()]})).unwrap().state.unwrap().get(), "null");
    }

    #[test]
    fn every_mistake_has_its_code_and_names_its_event() {
        let many: Vec<Value> = (0..101).map(|_| part()).collect();
        for (body, code, word) in [
            (json!([]), "invalid_event", "object"),
            (json!({}), "invalid_event", "`events` is missing"),
            (json!({"events": part()}), "invalid_event", "array"),
            (json!({"events": []}), "invalid_event", "between 1 and 100"),
            (json!({"events": many}), "too_many_events", "not 101"),
            (json!({"events": [part(), 7]}), "invalid_event", "events[1]"),
            (json!({"events": [{"type": "update"}]}), "invalid_topic", "events[0]"),
            (json!({"events": [{"topic": "signalbox.x", "type": "update"}]}), "invalid_topic", "topic"),
            (json!({"events": [{"topic": "works"}]}), "invalid_event", "`type` is missing"),
            (
                json!({"events": [{"topic": "works", "type": "noop", "object": "x"}]}),
                "invalid_event",
                "unknown field",
            ),
            (json!({"events": [part()], "data": "x".repeat(65)}), "invalid_event", "`data`"),
            (json!({"events": [part()], "idempotency_key": 7}), "invalid_idempotency_key", "key"),
            (json!({"events": [part()], "idempotency_key": "a b"}), "invalid_idempotency_key", "key"),
            (json!({"events": [part()], "x": 1}), "invalid_event", "unknown field"),
        ] {
            let flaw = read(&body).unwrap_err();
            assert_eq!(flaw.code, code, "{body}: {flaw:?}");
            assert!(flaw.detail.contains(word), "{body}: {flaw:?}");
        }
    }

    #[test]
    fn names_of_objects_are_bounded_and_printable() {
        for good in ["a", "a/b c", "https://a.example/1?x", "é", &"x".repeat(1024), "a|b"] {
            assert!(object_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a\nb", "\u{7f}", "\0", &"x".repeat(1025), &"x".repeat(4096)] {
            assert_eq!(object_name(bad).unwrap_err().code, "invalid_object", "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_default_url_is_a_uri_and_unique_per_object(a in ".{1,20}", b in ".{1,20}") {
            let (one, other) = (default_url(&a, LIMITS), default_url(&b, LIMITS));
            prop_assert!(one.bytes().all(|byte| byte.is_ascii_graphic()), "{one}");
            prop_assert_eq!(a == b, one == other);
        }

        #[test]
        fn no_bytes_at_all_make_it_panic(body: Vec<u8>) {
            let _ = group(&body, "o".to_owned(), LIMITS);
        }
    }
}
