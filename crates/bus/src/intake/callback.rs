//! The URL and the user name of deliveries. The rules are the same for subscriptions and backends.

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
    // The parser decodes `%2a` in a host; the client that delivers does not.
    let authority = callback.split(['/', '?']).nth(2).unwrap_or_default();
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if !authority.bytes().all(is_host) {
        return Err("must name a host of letters, digits, `-`, `.` and `_`, or an IP address".to_owned());
    }
    Ok(callback.to_owned())
}

/// A callback that may name the user before its host, as Routemaster's clients write it: `https://user@host/`. Returns
/// the callback without the user, and the user.
pub(super) fn url_with_user(value: &Value, limits: Limits) -> Result<(String, Option<String>), String> {
    let callback = value.as_str().ok_or("must be a URL")?;
    let mut bare = web_url(callback, limits.allow_http)?;
    let user = bare.username().to_owned();
    // Deliveries have the password `x`, as in Routemaster. An encoded name would not be sent as it was meant.
    let is_plain = matches!(bare.password(), None | Some("x")) && !user.contains('%');
    if user.is_empty() || !is_plain || bare.set_username("").is_err() || bare.set_password(None).is_err() {
        return Ok((url(value, limits)?, None));
    }
    Ok((url(&Value::String(bare.into()), limits)?, Some(user)))
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
