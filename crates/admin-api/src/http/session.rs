//! Browsers: sessions that a log-in has opened, and persons that an authenticating proxy names.
//!
//! A session is a cookie with a random secret; its token is stored in the fabric (see
//! [`signalbox_access::Sessions`]). Every request looks up the session and its token, so the end of either takes effect on
//! every pacemaker, with a delay of a second at most.
//!
//! A cookie is sent with requests that its owner did not intend. So in addition to `SameSite=Strict`, a request that
//! changes something needs the header [`CSRF_HEADER`] with a value that only pages of this session contain: another site can
//! neither read it nor send a header of its own without permission, which is never given. The same applies to requests
//! for which a proxy vouches, because the proxy recognizes its user by a cookie, too.
//!
//! Over HTTPS the cookie is `Secure`, and its name begins with `__Host-`, so that neither a page without TLS nor another
//! subdomain can set it.
//!
//! **Authenticating proxy.** A proxy that has authenticated a person adds a secret and the person's name to each request.
//! The other headers are used only with the secret, so no other client can send them. The configuration maps people and their groups to tokens.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use signalbox_access::{self as access, digest};
use signalbox_daemon::RootToken;
use subtle::ConstantTimeEq as _;

use super::Problem;

/// How long a browser stays logged in.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// The maximum length of the name of a person.
const MAX_PERSON: usize = 128;
/// The header that proves that a page of the session sent the request.
pub(crate) static CSRF_HEADER: HeaderName = HeaderName::from_static("x-signalbox-csrf");
/// The header with the secret of an authenticating proxy.
pub(crate) static PROXY_SECRET: HeaderName = HeaderName::from_static("x-signalbox-proxy-secret");
static FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The section `[login]` of the configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Options {
    pub https: bool,
    proxy_user_header: Header,
    proxy_roles_header: Header,
    proxy_tokens: Vec<Mapping>,
}

/// The name of a header.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
struct Header(HeaderName);

impl TryFrom<String> for Header {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("`{text}` is not a valid name of a header"))
    }
}

/// Whom an authenticating proxy may name, and the token whose scopes apply. People and groups are separate name spaces: people often
/// choose their names, and none of these names may be that of a group.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Mapping {
    who: Who,
    token: String,
}

/// A person or a group of people.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    User(String),
    Group(String),
    Everybody,
}

impl TryFrom<String> for Mapping {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let form = "`user:NAME=TOKEN-NAME`, `group:NAME=TOKEN-NAME` or `*=TOKEN-NAME`";
        // The name of a token contains no `=`.
        let (who, token) = match text.rsplit_once('=') {
            Some((who, token)) if !who.trim().is_empty() && !token.trim().is_empty() => {
                (who.trim(), token.trim())
            }
            _ => return Err(format!("`{text}` must have the form {form}")),
        };
        if token == "root" {
            return Err("the root token cannot be given to a person or a group".to_owned());
        }
        let named = |name: &str, kind: fn(String) -> Who| match name.trim() {
            "" => Err(format!("`{text}` must have the form {form}")),
            name if name.contains(',') => {
                Err(format!("`{text}`: a name cannot contain a comma, which separates the names of groups"))
            }
            name => Ok(kind(name.to_owned())),
        };
        let who = match who.split_once(':') {
            _ if who == "*" => Who::Everybody,
            Some(("user", name)) => named(name, Who::User)?,
            Some(("group", name)) => named(name, Who::Group)?,
            _ => {
                return Err(format!(
                    "`{text}` does not say whether `{who}` is a person or a group; write `user:{who}={token}` or `group:{who}={token}`"
                ));
            }
        };
        Ok(Self { who, token: token.to_owned() })
    }
}

impl Mapping {
    /// Whether it is for this person with these groups.
    fn fits(&self, person: &str, groups: &[&str]) -> bool {
        match &self.who {
            Who::Everybody => true,
            Who::User(name) => name == person,
            Who::Group(name) => groups.contains(&&**name),
        }
    }
}

/// Opens and reads sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sessions {
    store: access::Sessions,
    options: Options,
    proxy_secret: Option<RootToken>,
}

/// Whom a browser acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// The SHA-256 of the token with which the session was opened.
    Token(String),
    /// A person whom a proxy has authenticated, and the name of the token whose scopes apply.
    Person {
        /// The person's name.
        name: String,
        /// The name of the token whose scopes the person has.
        token: String,
    },
}

/// A browser that is logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// For whom the browser acts.
    pub holder: Holder,
    /// The value that a request must send to change something.
    pub csrf: String,
}

impl Session {
    /// For a client that sends its token with each request.
    pub(crate) fn of_token(digest: String) -> Self {
        Self { holder: Holder::Token(digest), csrf: String::new() }
    }

    /// Whether the browser can end it.
    pub fn can_log_out(&self) -> bool {
        matches!(self.holder, Holder::Token(_))
    }
}

impl Sessions {
    /// The sessions in `store`. Without a secret, no proxy may name a person.
    pub fn new(store: access::Sessions, options: Options, proxy_secret: Option<RootToken>) -> Self {
        Self { store, options, proxy_secret }
    }

    /// The configuration.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Whether the browser uses HTTPS: always, by configuration, or as the proxy in front reports.
    pub(crate) fn is_secure(&self, headers: &HeaderMap) -> bool {
        self.options.https || headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https")
    }

    /// The `Set-Cookie` of a new session for the holder of the token with this digest.
    pub async fn open(&self, token: &str, headers: &HeaderMap) -> Result<HeaderValue, Problem> {
        let secret = self.store.open(token, LIFETIME).await?;
        self.set_cookie(&secret, LIFETIME.as_secs(), headers).await
    }

    /// Ends the session of a request. Returns the `Set-Cookie` that removes the cookie.
    pub async fn close(&self, headers: &HeaderMap) -> Result<HeaderValue, Problem> {
        if let Some(secret) = self.cookie(headers).await? {
            self.store.end(&secret).await?;
        }
        self.set_cookie("", 0, headers).await
    }

    async fn set_cookie(
        &self,
        value: &str,
        seconds: u64,
        headers: &HeaderMap,
    ) -> Result<HeaderValue, Problem> {
        let secure = if self.is_secure(headers) { "; Secure" } else { "" };
        let name = self.name(headers).await?;
        let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::try_from(cookie).map_err(|_| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "invalid session cookie")
        })
    }

    /// The name of the cookie.
    async fn name(&self, headers: &HeaderMap) -> Result<String, Problem> {
        let prefix = if self.is_secure(headers) { "__Host-" } else { "" };
        Ok(format!("{prefix}signalbox_{}", self.store.system().await?))
    }

    /// The secret in the cookie of a request.
    async fn cookie(&self, headers: &HeaderMap) -> Result<Option<String>, Problem> {
        let cookies = || headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        // Requests of programs have no cookie, and must not wait for the name of it.
        if !cookies().any(|value| value.contains("signalbox_")) {
            return Ok(None);
        }
        let wanted = self.name(headers).await?;
        let mut pairs =
            cookies().flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        Ok(pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned()))
    }

    /// For whom the browser that sent a request acts; `None` without a session, or if it has ended.
    pub async fn of(&self, headers: &HeaderMap) -> Result<Option<Session>, Problem> {
        if let Some(session) = self.vouched(headers)? {
            return Ok(Some(session));
        }
        let Some(secret) = self.cookie(headers).await? else { return Ok(None) };
        let Some(token) = self.store.find(&secret).await? else { return Ok(None) };
        Ok(Some(Session { holder: Holder::Token(token), csrf: csrf(&secret) }))
    }

    /// The person for whom an authenticating proxy vouches.
    fn vouched(&self, headers: &HeaderMap) -> Result<Option<Session>, Problem> {
        let Some(brought) = headers.get(&PROXY_SECRET) else { return Ok(None) };
        let Some(secret) = &self.proxy_secret else { return Ok(None) };
        // Digests are compared, so that the length of the secret does not show in the time taken.
        let (brought, wanted) = (Sha256::digest(brought.as_bytes()), Sha256::digest(secret.as_bytes()));
        if !bool::from(brought.as_slice().ct_eq(wanted.as_slice())) {
            tracing::warn!("a request with a wrong proxy secret was treated as unauthenticated");
            return Ok(None);
        }
        let one = |name: &Header| {
            // A second value may come from the client.
            let mut values = headers.get_all(&name.0).iter();
            let value = values.next().and_then(|value| value.to_str().ok()).map(str::trim);
            if values.next().is_some() { None } else { value.filter(|value| !value.is_empty()) }
        };
        // An intermediary may have joined the values of two headers.
        let is_name = |name: &&str| name.len() <= MAX_PERSON && !name.contains(',');
        let Some(person) = one(&self.options.proxy_user_header).filter(is_name) else {
            return Ok(None);
        };
        let groups = one(&self.options.proxy_roles_header).into_iter().flat_map(|list| list.split(','));
        let groups: Vec<&str> = groups.map(str::trim).collect();
        let mapping = self.options.proxy_tokens.iter().find(|mapping| mapping.fits(person, &groups));
        let mapping = mapping.ok_or_else(|| {
            let detail =
                format!("neither `{person}` nor one of its groups is listed in `login.proxy_tokens`");
            Problem::forbidden("unknown_person", detail)
        })?;
        let csrf = csrf(&format!("{}\0{person}", digest(&String::from_utf8_lossy(secret.as_bytes()))));
        let holder = Holder::Person { name: person.to_owned(), token: mapping.token.clone() };
        Ok(Some(Session { holder, csrf }))
    }

    /// As [`Self::of`], for a request that does something. One that changes something must come from a page of the
    /// session.
    pub async fn acting(&self, method: &Method, headers: &HeaderMap) -> Result<Option<Session>, Problem> {
        let Some(session) = self.of(headers).await? else { return Ok(None) };
        if method.is_safe() {
            return Ok(Some(session));
        }
        let brought = headers.get(&CSRF_HEADER).map_or(&b""[..], HeaderValue::as_bytes);
        if bool::from(brought.ct_eq(session.csrf.as_bytes())) {
            return Ok(Some(session));
        }
        let detail =
            "The request did not come from a page of the dashboard. Load the page again and repeat it there.";
        Err(Problem::forbidden("csrf", detail))
    }
}

/// The value that pages of a session contain. It does not reveal the session's secret.
fn csrf(secret: &str) -> String {
    digest(&format!("signalbox/csrf/{secret}"))
}

/// Rejects a change that a browser reports as requested by another site. Programs send neither header. A browser that has
/// stored credentials for Basic authentication sends them for every site, and an old browser only sends `Origin`.
pub fn check_site(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    if method.is_safe() {
        return Ok(());
    }
    let same = match headers.get(&FETCH_SITE) {
        Some(site) => site == "none" || site == "same-origin",
        None => headers.get(header::ORIGIN).is_none_or(|origin| is_own_origin(origin, headers)),
    };
    if same {
        Ok(())
    } else {
        Err(Problem::forbidden("cross_site", "A page of another site sent the request."))
    }
}

/// Whether the host and port of an origin are those that the request was sent to.
fn is_own_origin(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let host = headers.get("x-forwarded-host").or_else(|| headers.get(header::HOST));
    let (Ok(origin), Some(Ok(host))) = (origin.to_str(), host.map(HeaderValue::to_str)) else { return false };
    origin.split_once("://").is_some_and(|(scheme, authority)| {
        let default = if scheme == "https" { ":443" } else { ":80" };
        let plain = |text: &str| text.strip_suffix(default).unwrap_or(text).to_ascii_lowercase();
        plain(authority) == plain(host)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn a_person_or_a_group_gets_a_token_and_never_root() {
        let read = |text: &str| Mapping::try_from(text.to_owned());
        let group = read("group:cn=admins; o=x=ops").unwrap();
        assert_eq!((group.who, &*group.token), (Who::Group("cn=admins; o=x".to_owned()), "ops"));
        assert_eq!(read("user: alice = auditor").unwrap().who, Who::User("alice".to_owned()));
        assert_eq!(read("*=viewer").unwrap().who, Who::Everybody);
        for bad in ["user:a=root", "*=root", "user:a", "=b", "user:=b", "group: =b", "user:a=", "", "="] {
            read(bad).unwrap_err();
        }
        let old = read("operators=ops").unwrap_err();
        assert!(old.contains("write `user:operators=ops` or `group:operators=ops`"), "{old}");
        // A proxy joins the names of groups with commas.
        assert!(read("group:x,operators=ops").unwrap_err().contains("comma"));
        assert!(read("other:a=b").unwrap_err().contains("person or a group"));
    }

    #[test]
    fn a_person_named_like_a_group_is_not_in_it() {
        let mapping = |text: &str| Mapping::try_from(text.to_owned()).unwrap();
        let (group, user) = (mapping("group:operators=ops"), mapping("user:alice=viewer"));
        assert!(group.fits("ann", &["staff", "operators"]) && !group.fits("operators", &["staff"]));
        assert!(user.fits("alice", &[]) && !user.fits("bob", &["alice"]));
        assert!(!mapping("user:*=viewer").fits("bob", &["staff"]), "`*` is a name here");
    }

    #[test]
    fn another_sites_change_is_rejected_and_a_programs_is_not() {
        for site in ["cross-site", "same-site", "what"] {
            let from = headers(&[("sec-fetch-site", site)]);
            assert_eq!(check_site(&Method::POST, &from).unwrap_err().code(), "cross_site");
            assert!(check_site(&Method::GET, &from).is_ok());
        }
        assert!(check_site(&Method::POST, &headers(&[("sec-fetch-site", "same-origin")])).is_ok());
        assert!(check_site(&Method::POST, &HeaderMap::new()).is_ok());
    }

    #[test]
    fn an_origin_is_compared_with_the_host() {
        let check = |origin: &str, host: &str| {
            check_site(&Method::POST, &headers(&[("origin", origin), ("host", host)])).is_ok()
        };
        assert!(check("https://Admin.example", "admin.example"));
        assert!(check("https://admin.example", "admin.example:443"));
        assert!(check("http://127.0.0.1:8081", "127.0.0.1:8081"));
        for (origin, host) in [
            ("https://evil.example", "admin.example"),
            ("http://127.0.0.1:9000", "127.0.0.1:8081"),
            ("null", "admin.example"),
            ("https://admin.example.evil.example", "admin.example"),
        ] {
            assert!(!check(origin, host), "{origin} {host}");
        }
    }
}
