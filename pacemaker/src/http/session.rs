//! Browsers that have logged in.
//!
//! A session is a cookie and nothing is stored: its end, a random number, the digest of the token that it was opened
//! with, and an HMAC over all three. Every request looks the digest up as it would look up the token, so a
//! revoked token ends its sessions with the next request, on every pacemaker. The key is made from the root token, which
//! all pacemakers share; another root token ends all sessions. The cookie does not hold the token itself, and without
//! the HMAC the digest opens nothing.
//!
//! Browsers also send a cookie with requests that other sites caused. So in addition to `SameSite=Strict`, every
//! change needs the header [`CSRF_HEADER`] with a value that only pages of this session contain: another site can
//! neither read it nor send a custom header without a preflight request, which is never allowed.
//!
//! Cookies know no ports. The name of the cookie holds a part of the key, so that two systems on one machine do not log
//! each other out.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use hmac::{Hmac, KeyInit as _, Mac as _};
use rand::RngExt as _;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use super::Problem;

/// How long a browser stays logged in.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// The header that proves that a page of the session asks.
pub(crate) static CSRF_HEADER: HeaderName = HeaderName::from_static("x-signalbox-csrf");
static FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Opens and reads sessions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    key: [u8; 32],
    cookie: String,
    now: fn() -> SystemTime,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("cookie", &self.cookie).finish_non_exhaustive()
    }
}

/// A browser that has logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    /// The SHA-256 of its token, in hexadecimal.
    pub(crate) digest: String,
    /// The CSRF value that requests with changes must have.
    pub(crate) csrf: String,
}

impl Sessions {
    /// `key` is a secret that all pacemakers share.
    pub(crate) fn new(key: [u8; 32], now: fn() -> SystemTime) -> Self {
        let mut sessions = Self { key, cookie: String::new(), now };
        sessions.cookie = format!("signalbox_{}", &sessions.mac("name", "")[..8]);
        sessions
    }

    /// The `Set-Cookie` of a new session for the caller whose token has this digest.
    pub(crate) fn open(&self, digest: &str, secure: bool) -> String {
        let ends = self.now_seconds() + LIFETIME.as_secs();
        let nonce = format!("{:032x}", rand::rng().random::<u128>());
        let value = self.seal(&format!("{ends}.{nonce}.{digest}"));
        self.set_cookie(&value, LIFETIME.as_secs(), secure)
    }

    /// The `Set-Cookie` that ends a session.
    pub(crate) fn close(&self, secure: bool) -> String {
        self.set_cookie("", 0, secure)
    }

    fn set_cookie(&self, value: &str, seconds: u64, secure: bool) -> String {
        let secure = if secure { "; Secure" } else { "" };
        format!("{}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}", self.cookie)
    }

    /// The session of a request; nothing without one, or when it has ended.
    pub(crate) fn of(&self, headers: &HeaderMap) -> Option<Session> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == self.cookie)?;
        let (text, mac) = value.rsplit_once('.')?;
        if !bool::from(self.mac("session", text).as_bytes().ct_eq(mac.as_bytes())) {
            return None;
        }
        let mut parts = text.split('.');
        let (ends, nonce, digest) = (parts.next()?, parts.next()?, parts.next()?);
        let ends: u64 = ends.parse().ok()?;
        let csrf = self.mac("csrf", nonce);
        (self.now_seconds() < ends).then(|| Session { digest: digest.to_owned(), csrf })
    }

    /// As [`Self::of`], for a request that does something. One that changes something must come from a page of the
    /// session.
    pub(crate) fn acting(&self, method: &Method, headers: &HeaderMap) -> Result<Option<Session>, Problem> {
        let Some(session) = self.of(headers) else { return Ok(None) };
        if method.is_safe() {
            return Ok(Some(session));
        }
        let brought = headers.get(&CSRF_HEADER).map_or(&b""[..], axum::http::HeaderValue::as_bytes);
        if bool::from(brought.ct_eq(session.csrf.as_bytes())) {
            return Ok(Some(session));
        }
        let detail =
            "this did not come from a page of the dashboard; load the page again and repeat it there";
        Err(Problem::new(StatusCode::FORBIDDEN, "csrf", detail))
    }

    fn seal(&self, text: &str) -> String {
        format!("{text}.{}", self.mac("session", text))
    }

    fn mac(&self, purpose: &str, text: &str) -> String {
        use std::fmt::Write as _;
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key) else {
            unreachable!("every length does")
        };
        mac.update(purpose.as_bytes());
        mac.update(b"\0");
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().iter().fold(String::with_capacity(64), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    fn now_seconds(&self) -> u64 {
        (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
    }
}

/// Rejects a change that another site caused, as the browser reports. Programs do not send the header; a browser that
/// has
/// been given credentials for Basic authentication brings them for every site.
pub(crate) fn check_site(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let site = headers.get(&FETCH_SITE).map_or(&b"none"[..], axum::http::HeaderValue::as_bytes);
    if method.is_safe() || site == b"none" || site == b"same-origin" {
        return Ok(());
    }
    Err(Problem::forbidden("cross_site", "a page of another site asked for this"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn early() -> SystemTime {
        at(1_000_000)
    }

    fn late() -> SystemTime {
        at(1_000_000 + 12 * 3600)
    }

    fn headers(cookie: &str) -> HeaderMap {
        let pair = cookie.split(';').next().unwrap();
        [(header::COOKIE, format!("other=1; {pair}; last=2").parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn a_session_reads_back_until_it_ends() {
        let sessions = Sessions::new([7; 32], early);
        let cookie = sessions.open("abc", false);
        assert!(cookie.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "{cookie}");
        assert!(sessions.open("abc", true).ends_with("; Secure"));
        let session = sessions.of(&headers(&cookie)).unwrap();
        assert_eq!((session.digest.as_str(), session.csrf.len()), ("abc", 64));
        assert_eq!(Sessions::new([7; 32], late).of(&headers(&cookie)), None, "it has ended");
        assert_ne!(sessions.of(&headers(&sessions.open("abc", false))).unwrap().csrf, session.csrf);
        assert_eq!(sessions.of(&headers(&sessions.close(false))), None);
        assert_eq!(sessions.of(&HeaderMap::new()), None);
    }

    #[test]
    fn a_forged_session_is_none() {
        let sessions = Sessions::new([7; 32], early);
        let cookie = sessions.open("abc", false);
        for (from, to) in [("abc", "abd"), ("10", "20"), (".", ""), ("=", "=1")] {
            assert_eq!(sessions.of(&headers(&cookie.replacen(from, to, 1))), None, "{from} for {to}");
        }
        let others = Sessions::new([8; 32], early).open("abc", false);
        assert_eq!(sessions.of(&headers(&others)), None);
        let (_, value) = others.split_once('=').unwrap();
        let (name, _) = cookie.split_once('=').unwrap();
        assert_eq!(sessions.of(&headers(&format!("{name}={value}"))), None, "made with another key");
    }

    #[test]
    fn what_changes_something_brings_the_sessions_own_word() {
        let sessions = Sessions::new([7; 32], early);
        let mut headers = headers(&sessions.open("abc", false));
        assert!(sessions.acting(&Method::GET, &headers).unwrap().is_some());
        assert_eq!(sessions.acting(&Method::POST, &headers).unwrap_err().code(), "csrf");
        headers.insert(CSRF_HEADER.clone(), "0".repeat(64).parse().unwrap());
        assert_eq!(sessions.acting(&Method::DELETE, &headers).unwrap_err().code(), "csrf");
        let csrf = sessions.of(&headers).unwrap().csrf;
        headers.insert(CSRF_HEADER.clone(), csrf.parse().unwrap());
        assert!(sessions.acting(&Method::POST, &headers).unwrap().is_some());
        assert_eq!(sessions.acting(&Method::POST, &HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn another_sites_change_is_refused_and_a_programs_is_not() {
        let from = |site: &'static str| [(FETCH_SITE.clone(), site.parse().unwrap())].into_iter().collect();
        for site in ["cross-site", "same-site", "what"] {
            assert_eq!(check_site(&Method::POST, &from(site)).unwrap_err().code(), "cross_site");
            assert!(check_site(&Method::GET, &from(site)).is_ok());
        }
        assert!(check_site(&Method::POST, &from("same-origin")).is_ok());
        assert!(check_site(&Method::POST, &HeaderMap::new()).is_ok());
    }
}
