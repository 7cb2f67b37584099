//! Sticky cookies as the edge reads them (`lua/signalbox/balance/sticky.lua`): two keyed digests, of the version type
//! and of the address.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;

/// The key with which routers sign session cookies, derived from the key file.
pub(crate) type Secret = [u8; 32];

const ADDRESS_BYTES: usize = 12;
const TYPE_BYTES: usize = 6;

/// The content of a session cookie. A part is `None` if it no longer exists or was not issued by Signalbox.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Session<'a> {
    pub(super) address: Option<&'a str>,
    pub(super) version_type: Option<&'a str>,
}

/// Reads a cookie. `instances` are the addresses of the host `name` with their version types.
pub(super) fn read<'a>(
    secret: &Secret,
    name: &str,
    instances: &[(&'a str, &'a str)],
    value: &str,
) -> Session<'a> {
    let Some((version_type, address)) = value.split_once('.') else { return Session::default() };
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let token = |kind: &str, text: &str, size: usize| {
        let digest = hmac::sign(&key, format!("{name}\0{kind}\0{text}").as_bytes());
        URL_SAFE_NO_PAD.encode(&digest.as_ref()[..size])
    };
    let of = |one: &&(&str, &str)| token("address", one.0, ADDRESS_BYTES) == address;
    let typed = |one: &&(&str, &str)| token("type", one.1, TYPE_BYTES) == version_type;
    Session {
        address: instances.iter().find(of).map(|one| one.0),
        version_type: instances.iter().find(typed).map(|one| one.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edge_makes_the_same_cookie() {
        // The same value is in lua/spec/choose_spec.lua.
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[b'k'; 32]);
        let secret: Secret = hmac::sign(&key, b"signalbox sticky").as_ref().try_into().unwrap();
        let instances = [("127.0.0.1:9002", "17"), ("127.0.0.1:9001", "17")];
        let read = |name: &str, value: &str| {
            let session = read(&secret, name, &instances, value);
            (session.address, session.version_type)
        };
        let cookie = "xzhq7zxC.QBytucyVlXluOVWy";
        assert_eq!(read("app.test", cookie), (Some("127.0.0.1:9001"), Some("17")));
        assert_eq!(read("other.test", cookie), (None, None));
        assert_eq!(read("app.test", "xzhq7zxC.QBytucyVlXluOVWz"), (None, Some("17")));
        assert_eq!(read("app.test", "127.0.0.1:9001"), (None, None));
    }
}
