//! Signatures of deliveries, as Standard Webhooks 1.0 has them, and the secrets behind them.
//!
//! The signed text is `webhook-id.webhook-timestamp.body`, with HMAC-SHA256. While a secret is being replaced, a delivery
//! has a signature with each of the two, and a receiver can verify it with either.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::Secret;

/// The prefix of a secret.
const PREFIX: &str = "whsec_";
/// The number of bytes in a new secret. The specification requires 24 to 64.
const SECRET_BYTES: usize = 32;

/// Creates a secret from random bytes.
pub fn new_secret(random: [u8; SECRET_BYTES]) -> String {
    format!("{PREFIX}{}", STANDARD.encode(random))
}

/// The key in a secret: `whsec_` and 24 to 64 bytes in base64. `None` if the secret is invalid.
pub fn key(secret: &str) -> Option<Vec<u8>> {
    let key = STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
    (24..=64).contains(&key.len()).then_some(key)
}

/// The value of `webhook-signature`: one signature for each secret that has not expired. `None` if there is
/// no such secret.
pub(super) fn sign(secrets: &[Secret], id: &str, now_ms: u64, body: &[u8]) -> Option<String> {
    let seconds = now_ms / 1000;
    let mut value = String::new();
    for secret in secrets.iter().filter(|secret| secret.until_ms.is_none_or(|until| until > now_ms)) {
        let Some(mut mac) = key(&secret.secret).and_then(|key| Hmac::<Sha256>::new_from_slice(&key).ok())
        else {
            continue;
        };
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        if !value.is_empty() {
            value.push(' ');
        }
        value.push_str("v1,");
        STANDARD.encode_string(mac.finalize().into_bytes(), &mut value);
    }
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use standardwebhooks::Webhook;

    use super::*;

    fn secret(fill: u8, until_ms: Option<u64>) -> Secret {
        Secret { secret: new_secret([fill; SECRET_BYTES]), until_ms }
    }

    /// The reference implementation reads the system clock.
    #[allow(clippy::disallowed_methods, reason = "its clock cannot be passed in")]
    fn real_ms() -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(now.as_millis()).unwrap()
    }

    /// Verifies as a receiver would, with the reference implementation.
    fn verified(by: &Secret, signature: &str, id: &str, now_ms: u64, body: &[u8]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", HeaderValue::from_str(id).unwrap());
        headers.insert("webhook-timestamp", HeaderValue::from(now_ms / 1000));
        headers.insert("webhook-signature", HeaderValue::from_str(signature).unwrap());
        Webhook::new(&by.secret).unwrap().verify(body, &headers).is_ok()
    }

    #[test]
    fn the_reference_implementation_accepts_the_signature_and_nothing_else() {
        let (ours, others, now) = (secret(1, None), secret(2, None), real_ms());
        let signature = sign(std::slice::from_ref(&ours), "batch", now, b"[{}]").unwrap();
        assert!(verified(&ours, &signature, "batch", now, b"[{}]"));
        assert!(!verified(&others, &signature, "batch", now, b"[{}]"));
        assert!(!verified(&ours, &signature, "other", now, b"[{}]"));
        assert!(!verified(&ours, &signature, "batch", now + 1000, b"[{}]"));
        assert!(!verified(&ours, &signature, "batch", now, b"[{} ]"));
    }

    #[test]
    fn signatures_equal_those_of_the_reference_implementation() {
        let ours = secret(7, None);
        let theirs = Webhook::new(&ours.secret).unwrap().sign("id", 1_700_000_000, b"body").unwrap();
        assert_eq!(sign(&[ours], "id", 1_700_000_000_999, b"body"), Some(theirs));
    }

    #[test]
    fn during_rotation_both_secrets_sign_and_afterwards_only_the_new_one() {
        let now = real_ms();
        let secrets = [secret(2, None), secret(1, Some(now))];
        let (new, old) = (&secrets[0], &secrets[1]);
        let during = sign(&secrets, "id", now - 1, b"x").unwrap();
        assert!(verified(new, &during, "id", now - 1, b"x") && verified(old, &during, "id", now - 1, b"x"));
        let after = sign(&secrets, "id", now, b"x").unwrap();
        assert!(verified(new, &after, "id", now, b"x") && !verified(old, &after, "id", now, b"x"));
        assert_eq!(sign(&secrets[1..], "id", now, b"x"), None);
    }

    #[test]
    fn a_secret_has_its_prefix_and_a_sensible_length() {
        assert_eq!(key(&new_secret([9; SECRET_BYTES])), Some(vec![9; SECRET_BYTES]));
        let short = format!("{PREFIX}{}", STANDARD.encode([0; 23]));
        let long = format!("{PREFIX}{}", STANDARD.encode([0; 65]));
        for bad in ["", "whsec_", "whsec_!!", "AAAA", &short, &long] {
            assert_eq!(key(bad), None, "{bad}");
        }
    }
}
