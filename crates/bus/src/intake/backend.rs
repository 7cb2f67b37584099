//! Backends as operators define them.

use serde::Deserialize;
use serde_json::Value;

use super::{Flaw, Limits, callback, event::MAX_NAME_CHARACTERS, is_reserved_object, number, object, text};
use crate::{OnFailure, WantedBackend};

const CODE: &str = "invalid_backend";

/// The members of a backend. Each as it came, so that a mistake can be named.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Submitted {
    prefix: Value,
    callback: Value,
    uuid: Value,
    secret: Value,
    on_failure: Value,
    max_attempts: Value,
    workers: Value,
}

/// Whether a name can be a backend's.
pub fn backend_name(name: &str) -> Result<(), Flaw> {
    let of_a_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    if (1..=64).contains(&name.len()) && name.bytes().all(of_a_name) {
        return Ok(());
    }
    Err(Flaw::new(CODE, "the name of a backend must match [a-z0-9_-]{1,64}"))
}

/// Reads the body of `PUT /backends/{name}`.
pub fn backend(name: &str, body: &[u8], limits: Limits) -> Result<WantedBackend, Flaw> {
    backend_name(name)?;
    let submitted: Submitted = object(text(body)?, CODE)?;
    let bad = |member: &str, what: &str| Flaw::new(CODE, format!("`{member}` {what}"));
    let prefix = submitted.prefix.as_str().ok_or_else(|| bad("prefix", "must be a string"))?;
    if prefix.is_empty()
        || prefix.chars().count() > MAX_NAME_CHARACTERS
        || prefix.chars().any(char::is_control)
    {
        return Err(bad("prefix", &format!("must be 1 to {MAX_NAME_CHARACTERS} printable characters")));
    }
    if is_reserved_object(prefix) {
        return Err(bad("prefix", "must not begin with `machine:` or `signalbox:`"));
    }
    let secret = match &submitted.secret {
        Value::Null => None,
        Value::String(secret) if signalbox_egress::secret_key(secret).is_some() => Some(secret.clone()),
        _ => return Err(bad("secret", "must be `whsec_` and 24 to 64 bytes in base64")),
    };
    let attempts = number(CODE, &submitted.max_attempts, "max_attempts", 1, 1_000_000)?;
    Ok(WantedBackend {
        prefix: prefix.to_owned(),
        callback: callback::url(&submitted.callback, limits).map_err(|what| bad("callback", &what))?,
        uuid: callback::user(&submitted.uuid).map_err(|what| bad("uuid", &what))?.unwrap_or_default(),
        secret,
        on_failure: match &submitted.on_failure {
            Value::Null => OnFailure::default(),
            value => value
                .as_str()
                .and_then(OnFailure::from_word)
                .ok_or_else(|| bad("on_failure", "must be \"block\", \"skip\" or \"park\""))?,
        },
        max_attempts: attempts.and_then(|attempts| u32::try_from(attempts).ok()).unwrap_or(10),
        workers: number(CODE, &submitted.workers, "workers", 1, 64)?.unwrap_or(4),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMITS: Limits = Limits { allow_http: false, data_bytes: 64, events: 3 };

    fn with(member: &str, value: Value) -> Value {
        let mut body = json!({"prefix": "work:", "callback": "https://a.example/"});
        body[member] = value;
        body
    }

    #[test]
    fn missing_fields_have_defaults_and_invalid_ones_are_named() {
        let read = |body: &Value| backend("search", body.to_string().as_bytes(), LIMITS);
        let least = read(&with("uuid", Value::Null)).unwrap();
        assert_eq!((least.max_attempts, least.workers, least.on_failure), (10, 4, OnFailure::Block));
        assert_eq!(read(&with("on_failure", json!("park"))).unwrap().on_failure, OnFailure::Park);
        for (member, value) in [
            ("prefix", Value::Null),
            ("prefix", json!("")),
            ("prefix", json!("a\u{0}")),
            ("prefix", json!("machine:")),
            ("prefix", json!("signalbox:x")),
            ("prefix", json!("x".repeat(1025))),
            ("callback", json!("http://a.example/")),
            ("callback", Value::Null),
            ("uuid", json!("é")),
            ("secret", json!("short")),
            ("on_failure", json!("dead")),
            ("max_attempts", json!(0)),
            ("max_attempts", json!("3")),
            ("workers", json!(65)),
        ] {
            let flaw = read(&with(member, value.clone())).unwrap_err();
            assert!(flaw.detail.contains(&format!("`{member}`")), "{value}: {flaw:?}");
        }
        assert!(read(&with("x", json!(1))).unwrap_err().detail.contains("unknown field"));
        for bad in ["", "A", "a:b", "a|b", "a@b", "a/b", &"x".repeat(65)] {
            assert!(backend_name(bad).is_err(), "{bad}");
        }
    }
}
