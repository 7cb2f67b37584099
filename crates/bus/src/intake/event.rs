//! Events as publishers send them.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{Flaw, Limits, object, other_shape, text, web_url};
use crate::{Kind, NewEvent, is_reserved_tenant};

pub(super) const CODE: &str = "invalid_event";
/// The latest timestamp: the integers that every JSON reader keeps exactly, 285,000 years.
const MAX_TIMESTAMP_MS: u64 = (1 << 53) - 1;
/// Characters of a tenant or object.
pub(super) const MAX_NAME_CHARACTERS: usize = 1024;
/// Objects of other subsystems. A publisher who could write into their order could forge it.
const RESERVED_OBJECTS: [&str; 2] = ["machine:", "signalbox:"];

/// The members of an event. Each as it came, so that a mistake can be named.
#[serde_with::apply(Option => #[serde(borrow, default, deserialize_with = "present")])]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Submitted<'a> {
    #[serde(rename = "type")]
    pub(super) kind: Option<&'a RawValue>,
    pub(super) url: Option<&'a RawValue>,
    pub(super) timestamp: Option<&'a RawValue>,
    pub(super) data: Option<&'a RawValue>,
    #[serde(alias = "environment")]
    pub(super) tenant: Option<&'a RawValue>,
    pub(super) object: Option<&'a RawValue>,
}

/// A member that is present, including `null`, which is valid data.
pub(super) fn present<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Reads the body of `POST /topics/{name}`.
pub fn event(body: &[u8], limits: Limits) -> Result<NewEvent, Flaw> {
    check(object(text(body)?, CODE)?, limits, None)
}

/// Reads the body of `POST /topics/{name}/events`: one result for each item, or a flaw of the whole.
pub fn events(body: &[u8], limits: Limits) -> Result<Vec<Result<NewEvent, Flaw>>, Flaw> {
    let body = text(body)?;
    let items: Vec<&RawValue> = serde_json::from_str(body)
        .map_err(|_| other_shape(body, Flaw::new(CODE, "the body must be an array of events")))?;
    if items.is_empty() || items.len() > limits.events {
        let detail = format!("send between 1 and {} events at a time, not {}", limits.events, items.len());
        let code = if items.is_empty() { CODE } else { "too_many_events" };
        return Err(Flaw::new(code, detail));
    }
    let read =
        |item: &&RawValue| object(item.get(), CODE).and_then(|submitted| check(submitted, limits, None));
    Ok(items.iter().map(read).collect())
}

/// Checks an event. One without a url has `default_url`, if there is one.
pub(super) fn check(
    submitted: Submitted<'_>,
    limits: Limits,
    default_url: Option<&str>,
) -> Result<NewEvent, Flaw> {
    let bad = |member: &str, what: &str| Flaw::new(CODE, format!("`{member}` {what}"));
    let string = |member: &'static str, value: &RawValue| {
        serde_json::from_str::<String>(value.get()).map_err(|_| bad(member, "must be a string"))
    };
    let kind = submitted.kind.ok_or_else(|| bad("type", "is missing"))?;
    let kind = serde_json::from_str::<Kind>(kind.get())
        .map_err(|_| bad("type", "must be \"create\", \"update\", \"delete\" or \"noop\""))?;
    let url = match (submitted.url, default_url) {
        (None, Some(default)) => default.to_owned(),
        (given, _) => {
            let url = string("url", given.ok_or_else(|| bad("url", "is missing"))?)?;
            let parsed = web_url(&url, limits.allow_http).map_err(|why| bad("url", &why))?;
            if parsed.query().is_some() {
                return Err(bad("url", "must not have a query string"));
            }
            url
        }
    };
    let timestamp_ms = match submitted.timestamp.map(RawValue::get) {
        None | Some("null") => None,
        Some(number) => Some(
            whole_number(number)
                .filter(|ms| *ms <= MAX_TIMESTAMP_MS)
                .ok_or_else(|| bad("timestamp", "must be whole milliseconds since 1970, or null"))?,
        ),
    };
    if submitted.data.is_some_and(|data| data.get().len() > limits.data_bytes) {
        return Err(bad("data", &format!("is larger than {} bytes", limits.data_bytes)));
    }
    let tenant = submitted.tenant.map(|value| string("tenant", value)).transpose()?;
    if tenant.as_deref().is_some_and(|name| !is_name(name) || name.contains([':', '|'])) {
        let what = format!("must be 1 to {MAX_NAME_CHARACTERS} printable characters without `:` and `|`");
        return Err(bad("tenant", &what));
    }
    if let Some(flaw) = tenant.as_deref().and_then(reserved_tenant) {
        return Err(flaw);
    }
    let object = submitted.object.map(|value| string("object", value)).transpose()?;
    if object.as_deref().is_some_and(|name| !is_name(name)) {
        return Err(bad("object", &format!("must be 1 to {MAX_NAME_CHARACTERS} printable characters")));
    }
    if object.as_deref().is_some_and(is_reserved_object) {
        return Err(bad("object", "must not begin with `machine:` or `signalbox:`"));
    }
    Ok(NewEvent {
        kind,
        url,
        timestamp_ms,
        data: submitted.data.map(ToOwned::to_owned),
        tenant,
        object,
        idempotency_key: None,
    })
}

/// The flaw of an event or message in a tenant that is not for clients.
pub fn reserved_tenant(name: &str) -> Option<Flaw> {
    let detail = "`tenant` must not be `signalbox` or begin with `machine.`: name another one";
    is_reserved_tenant(name).then(|| Flaw::new(CODE, detail))
}

/// A JSON number without a fraction, however it is written: Routemaster's own examples send `1795374054000.0`.
fn whole_number(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let number = text.parse::<f64>().ok()?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "checked"
    )]
    let whole =
        (number.fract() == 0.0 && (0.0..=MAX_TIMESTAMP_MS as f64).contains(&number)).then_some(number as u64);
    whole
}

/// Whether the object is another subsystem's.
pub fn is_reserved_object(name: &str) -> bool {
    RESERVED_OBJECTS.iter().any(|prefix| name.starts_with(prefix))
}

pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().count() <= MAX_NAME_CHARACTERS && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const LIMITS: Limits = Limits { allow_http: false, data_bytes: 64, events: 3 };

    fn read(body: &Value) -> Result<NewEvent, Flaw> {
        event(body.to_string().as_bytes(), LIMITS)
    }

    /// A good event with one member replaced.
    fn with(member: &str, value: Value) -> Value {
        let mut body = json!({"type": "update", "url": "https://a.example/1"});
        body[member] = value;
        body
    }

    #[test]
    fn the_least_and_the_most_that_an_event_has() {
        let least = read(&json!({"type": "noop", "url": "https://a.example/1"})).unwrap();
        assert_eq!((least.kind, least.timestamp_ms), (Kind::Noop, None));
        assert!(least.data.is_none() && least.tenant.is_none() && least.object.is_none());
        let most = r#" { "type":"create", "url":"https://a.example/", "timestamp": 1700000000000,
            "data": { "b":1e2 , "b":[ ] }, "tenant":"shop", "object":"order:7" } "#;
        let most = event(most.as_bytes(), LIMITS).unwrap();
        assert_eq!(most.timestamp_ms, Some(1_700_000_000_000));
        assert_eq!(most.data.unwrap().get(), r#"{ "b":1e2 , "b":[ ] }"#);
        assert_eq!((most.tenant.as_deref(), most.object.as_deref()), (Some("shop"), Some("order:7")));
    }

    #[test]
    fn null_is_a_value_of_data_and_no_timestamp() {
        assert_eq!(read(&with("data", Value::Null)).unwrap().data.unwrap().get(), "null");
        assert_eq!(read(&with("timestamp", Value::Null)).unwrap().timestamp_ms, None);
    }

    #[test]
    fn fault_of_routemaster_a_body_that_is_not_an_object_is_rejected() {
        for body in ["[]", "1", "\"x\"", "null", "true", "[\"update\",\"https://a.example/\"]"] {
            assert_eq!(event(body.as_bytes(), LIMITS).unwrap_err().code, "invalid_event", "{body}");
        }
        for body in ["", "{", "{}x", "nul", "\u{feff}{}", "\u{a0}{}"] {
            assert_eq!(event(body.as_bytes(), LIMITS).unwrap_err().code, "malformed_json", "{body:?}");
        }
        assert_eq!(event(b"{\"type\":\"\xff\"}", LIMITS).unwrap_err().code, "malformed_json");
    }

    #[test]
    fn fault_of_routemaster_a_timestamp_that_is_not_a_number_is_rejected_before_any_delivery() {
        for bad in [
            json!("1700000000000"),
            json!(1.5),
            json!(1e30),
            json!(-1),
            json!([]),
            json!({}),
            json!(true),
            json!(1_u64 << 53),
            json!(u64::MAX),
        ] {
            let flaw = read(&with("timestamp", bad.clone())).unwrap_err();
            assert!(flaw.detail.contains("`timestamp`"), "{bad}: {flaw:?}");
        }
        for (written, ms) in
            [("1795374054000.0", 1_795_374_054_000), ("1.7e12", 1_700_000_000_000), ("0.0", 0)]
        {
            let body = format!(r#"{{"type":"noop","url":"https://a.example/1","timestamp":{written}}}"#);
            assert_eq!(event(body.as_bytes(), LIMITS).unwrap().timestamp_ms, Some(ms), "{written}");
        }
        for good in [0, 1_700_000_000_000, 4_102_444_800_000, MAX_TIMESTAMP_MS] {
            assert_eq!(read(&with("timestamp", json!(good))).unwrap().timestamp_ms, Some(good));
        }
    }

    #[test]
    fn every_member_that_is_wrong_is_named() {
        for (member, value) in [
            ("type", json!("changed")),
            ("type", json!("Update")),
            ("type", json!(1)),
            ("type", Value::Null),
            ("url", json!(1)),
            ("url", json!("")),
            ("url", json!("a.example/1")),
            ("url", json!("/1")),
            ("url", json!("http://a.example/1")),
            ("url", json!("ftp://a.example/1")),
            ("url", json!("https:a.example")),
            ("url", json!("https:/a.example")),
            ("url", json!("https://")),
            ("url", json!("https:///x")),
            ("url", json!("https://a.example/?")),
            ("url", json!("https://a.example/?q=1")),
            ("url", json!("https://a.example/ b")),
            ("url", json!("https://a.example/\n")),
            ("url", json!("https://a.example/é")),
            ("url", json!("https://a.example:99999/")),
            ("url", json!(format!("https://a.example/{}", "x".repeat(1024)))),
            ("url", json!("javascript:alert(1)")),
            ("data", json!("x".repeat(63))),
            ("tenant", json!("a:b")),
            ("tenant", json!("a|b")),
            ("tenant", json!("")),
            ("tenant", json!(1)),
            ("tenant", json!("a\nb")),
            ("tenant", json!("signalbox")),
            ("tenant", json!("machine.m")),
            ("object", json!("")),
            ("object", json!(7)),
            ("object", json!("machine:x")),
            ("object", json!("signalbox:x")),
            ("object", json!("x".repeat(1025))),
        ] {
            let flaw = read(&with(member, value.clone())).unwrap_err();
            assert_eq!(flaw.code, "invalid_event");
            assert!(flaw.detail.contains(&format!("`{member}`")), "{value}: {flaw:?}");
        }
        for (body, word) in [
            (json!({"url": "https://a.example/"}), "`type`"),
            (json!({"type": "update"}), "`url`"),
            (with("typ", json!(1)), "unknown field `typ`"),
        ] {
            assert!(read(&body).unwrap_err().detail.contains(word), "{body}");
        }
        let twice = br#"{"type":"update","type":"noop","url":"https://a.example/"}"#;
        assert!(event(twice, LIMITS).unwrap_err().detail.contains("duplicate"));
    }

    #[test]
    fn sizes_are_accepted_up_to_the_limit_itself() {
        assert!(read(&with("data", json!("x".repeat(62)))).is_ok());
        let url = format!("https://a.example/{}", "x".repeat(1024 - "https://a.example/".len()));
        assert_eq!(url.len(), 1024);
        assert!(read(&with("url", json!(url))).is_ok());
    }

    #[test]
    fn plain_http_is_an_option() {
        let body = with("url", json!("http://localhost:8080/1")).to_string();
        assert!(event(body.as_bytes(), Limits { allow_http: true, ..LIMITS }).is_ok());
        assert!(event(body.as_bytes(), LIMITS).is_err());
    }

    #[test]
    fn in_an_array_each_event_is_judged_alone() {
        let body = json!([{"type": "update", "url": "https://a.example/1"}, 7, {"type": "x"}]).to_string();
        let read = events(body.as_bytes(), LIMITS).unwrap();
        assert!(read[0].is_ok() && read[1].is_err() && read[2].is_err());
        for (body, code) in [
            ("{}", "invalid_event"),
            ("[]", "invalid_event"),
            ("[1,2,3,4]", "too_many_events"),
            ("[", "malformed_json"),
            ("{", "malformed_json"),
            ("", "malformed_json"),
        ] {
            assert_eq!(events(body.as_bytes(), LIMITS).unwrap_err().code, code, "{body}");
        }
    }

    #[test]
    fn deep_nesting_is_only_bytes() {
        let limits = Limits { data_bytes: 1 << 20, ..LIMITS };
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let body = format!(r#"{{"type":"noop","url":"https://a.example/","data":{deep}}}"#);
        assert_eq!(event(body.as_bytes(), limits).unwrap().data.unwrap().get().len(), 200_000);
    }

    proptest! {
        #[test]
        fn no_bytes_at_all_make_it_panic(body: Vec<u8>) {
            let _ = event(&body, LIMITS);
            let _ = events(&body, LIMITS);
        }

        #[test]
        fn no_json_at_all_makes_it_panic(member in "type|url|timestamp|data|tenant|object|x", text in ".{0,40}",
            number: f64, which in 0..4)
        {
            let value = match which { 0 => json!(text), 1 => json!(number), 2 => json!([text]), _ => json!({text: number}) };
            let _ = read(&with(&member, value));
        }

        #[test]
        fn accepted_events_satisfy_all_limits(
            url in "https?://[a-z.]{0,9}(:[0-9]{1,5})?/?[ -~]{0,12}", tenant in ".{0,6}", object in ".{0,9}",
            timestamp: u64,
        ) {
            let body = json!({"type": "update", "url": url, "tenant": tenant, "object": object,
                "timestamp": timestamp});
            if let Ok(event) = read(&body) {
                prop_assert!(event.url.starts_with("https://") && !event.url.contains('?') && !event.url.contains(' '));
                prop_assert!(!tenant.is_empty() && !tenant.contains([':', '|']));
                prop_assert!(!object.is_empty() && !object.chars().any(char::is_control));
                prop_assert!(timestamp < 1 << 53);
            }
        }

        #[test]
        fn data_comes_out_as_it_went_in(numbers in proptest::collection::vec(any::<f64>(), 0..2), space in " {0,3}") {
            let data = format!("{{\"n\":{space}{}}}", json!(numbers));
            prop_assume!(data.len() <= LIMITS.data_bytes);
            let body = format!("{{\"type\":\"noop\",\"data\":{data},\"url\":\"https://a.example/\"}}");
            let event = event(body.as_bytes(), LIMITS).unwrap();
            let kept = event.data.unwrap();
            prop_assert_eq!(kept.get(), data.as_str());
        }
    }
}
