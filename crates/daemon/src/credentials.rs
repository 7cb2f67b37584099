//! The token of a request.

use axum::http::{HeaderMap, header};
use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Longer tokens are ignored.
const MAX_LENGTH: usize = 1024;

/// The token that a request presents: `Authorization: Bearer T`, or Basic with the token as the user name. Browsers and
/// Routemaster clients use Basic.
pub fn presented(headers: &HeaderMap) -> Option<String> {
    let (scheme, credentials) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let credentials = credentials.trim();
    let token = if scheme.eq_ignore_ascii_case("bearer") {
        credentials.to_owned()
    } else if scheme.eq_ignore_ascii_case("basic") {
        let decoded = String::from_utf8(STANDARD.decode(credentials).ok()?).ok()?;
        // Tokens may contain colons, and the password is ignored: split at the last colon.
        decoded.rsplit_once(':').map_or(decoded.clone(), |(user, _)| user.to_owned())
    } else {
        return None;
    };
    (!token.is_empty() && token.len() <= MAX_LENGTH).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: &str) -> Option<String> {
        presented(&[(header::AUTHORIZATION, value.parse().unwrap())].into_iter().collect())
    }

    #[test]
    fn a_token_is_read_from_bearer_or_from_the_basic_user_name() {
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(token(&format!("Basic {}", STANDARD.encode("a:b:x"))).as_deref(), Some("a:b"));
        assert_eq!(token(&format!("Basic {}", STANDARD.encode("abc:"))).as_deref(), Some("abc"));
        assert_eq!(token(&format!("Basic {}", STANDARD.encode("abc"))).as_deref(), Some("abc"));
        for bad in ["Bearer ", "Bearer", "Digest abc", "Basic !!!", "Basic Og=="] {
            assert_eq!(token(bad), None, "{bad}");
        }
        assert_eq!(presented(&HeaderMap::new()), None);
    }
}
