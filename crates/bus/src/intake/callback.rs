//! Where deliveries go and under which user name: the same for subscriptions and backends.

use serde_json::Value;

use super::{Limits, web_url};

/// Characters of a user name.
const MAX_USER_BYTES: usize = 256;

/// A callback, or what is wrong with it.
pub(super) fn url(value: &Value, limits: Limits) -> Result<String, String> {
    let callback = value.as_str().ok_or("must be a URL")?;
    let url = web_url(callback, limits.allow_http)?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user name or password; deliveries carry `uuid` as user name".to_owned());
    }
    if url.fragment().is_some() {
        return Err("must not have a fragment, which is never sent".to_owned());
    }
    Ok(callback.to_owned())
}

/// The user name of deliveries: characters that are valid in an `Authorization` header.
pub(super) fn user(value: &Value) -> Result<Option<String>, String> {
    let fits = |uuid: &str| {
        (1..=MAX_USER_BYTES).contains(&uuid.len())
            && uuid.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
    };
    match value {
        Value::Null => Ok(None),
        Value::String(uuid) if fits(uuid) => Ok(Some(uuid.clone())),
        _ => Err(format!("must be 1 to {MAX_USER_BYTES} visible ASCII characters")),
    }
}
