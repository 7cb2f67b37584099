//! Authorization: the root token, or a token with the scope `read` that is not confined.
//!
//! [`statistics_access`] decides, as it does for the feeds of state machines.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::Response,
};
use data_encoding::HEXLOWER;
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use signalbox_api::tokens::{StatisticsAccess, statistics_access};
use signalbox_daemon::{Attempts, presented, serve::Peer};
use signalbox_store::Stats;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::{App, Problem, store};
use crate::config::TokenDigest;

/// How long a revoked token can still be used.
const CACHE_TIME: Duration = Duration::from_secs(2);
/// The maximum size of the cache. If guessed tokens fill it, it is emptied.
const MAX_CACHE_ENTRIES: usize = 1024;

/// Checks tokens. The pacemaker copies them to the statistics Redis, so the sidecar does not call the pacemaker.
#[derive(Debug)]
pub(super) struct Tokens {
    root: Option<[u8; 32]>,
    redis: Stats,
    cache: Mutex<HashMap<[u8; 32], (Instant, Access)>>,
    /// Failed attempts, in milliseconds since `started`.
    attempts: Mutex<Attempts>,
    started: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Unknown,
    Known(StatisticsAccess),
}

impl Access {
    /// That of the root token.
    const READ: Self = Self::Known(StatisticsAccess::Open);
}

/// A token as the pacemaker stores it.
#[derive(Deserialize)]
struct Stored {
    scopes: Vec<String>,
    /// When the token expires, in unix milliseconds.
    expires_ms: Option<u64>,
    /// When this secret ends because a newer one has replaced it, in unix milliseconds.
    until_ms: Option<u64>,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

/// The token of a request, to check it again while a stream is open.
#[derive(Debug, Clone)]
pub(super) struct Credential {
    pub(super) digest: [u8; 32],
    /// Whether it is the root token.
    pub(super) root: bool,
}

impl Tokens {
    pub(super) fn new(root: Option<&TokenDigest>, redis: Stats) -> Self {
        let root = root.map(TokenDigest::bytes);
        Self { root, redis, cache: Mutex::default(), attempts: Mutex::default(), started: Instant::now() }
    }

    fn credential(&self, token: &str) -> Credential {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        Credential { digest, root: self.root.is_some_and(|root| bool::from(root.ct_eq(&digest))) }
    }

    /// Whether a token that was accepted before is still valid. While the statistics Redis does not respond,
    /// it stays valid.
    pub(super) async fn can_still_read(&self, credential: &Credential) -> bool {
        self.access(credential, None).await.map_or(true, |access| access == Access::READ)
    }

    /// If `address` is `None`, the client was accepted before, and its attempts are not limited.
    async fn access(&self, credential: &Credential, address: Option<IpAddr>) -> Result<Access, Problem> {
        let Credential { digest, root } = *credential;
        if root {
            return Ok(Access::READ);
        }
        let now = Instant::now();
        if let Some(access) = self.cached(&digest, now) {
            return Ok(access);
        }
        let name = HEXLOWER.encode(&digest);
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        {
            let attempts = self.attempts.lock();
            if let Some(address) = address.filter(|_| !attempts.was_valid(&name)) {
                attempts.check(address, now_ms).map_err(too_many_attempts)?;
            }
        }
        let stored = store::token(&self.redis, &digest).await?;
        let access = match stored.and_then(|stored| serde_json::from_str::<Stored>(&stored).ok()) {
            // A pacemaker removes what has expired, if one runs. The time is that of the server, which all routers share.
            Some(stored) if stored.ends() => access(&stored, self.redis.now_ms().await?),
            Some(stored) => access(&stored, 0),
            None => Access::Unknown,
        };
        match (access, address) {
            (Access::Unknown, Some(address)) => drop(self.attempts.lock().failed(address, &name, now_ms)),
            (Access::Unknown, None) => {}
            _ => self.attempts.lock().succeeded(&name),
        }
        let mut cache = self.cache.lock();
        if cache.len() >= MAX_CACHE_ENTRIES {
            cache.clear();
        }
        cache.insert(digest, (now, access));
        Ok(access)
    }

    fn cached(&self, digest: &[u8; 32], now: Instant) -> Option<Access> {
        let cache = self.cache.lock();
        let (at, access) = cache.get(digest)?;
        (now.duration_since(*at) < CACHE_TIME).then_some(*access)
    }
}

impl Stored {
    fn ends(&self) -> bool {
        self.expires_ms.or(self.until_ms).is_some()
    }
}

fn access(stored: &Stored, now_ms: u64) -> Access {
    if stored.expires_ms.into_iter().chain(stored.until_ms).any(|end| end <= now_ms) {
        return Access::Unknown;
    }
    let given = |name: &str| stored.rest.get(name).is_some_and(|list| !list.is_null());
    Access::Known(statistics_access(stored.scopes.iter().map(String::as_str), given))
}

fn too_many_attempts(seconds: u32) -> Problem {
    let detail = format!("Too many unknown tokens from this address. Try again in {seconds} s.");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", detail).retry_after(seconds)
}

/// Accepts a request if its token can read.
pub(super) async fn require_read(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let Some(token) = presented(request.headers()) else {
        let detail = "Send a token, as `Authorization: Bearer …` or as the user name of Basic.";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "token_missing", detail));
    };
    let credential = app.tokens.credential(&token);
    let client = app.door.client(request.extensions().get::<Peer>(), request.headers());
    match app.tokens.access(&credential, Some(client)).await? {
        Access::READ => {
            let _place = app.places.take(&credential).await?;
            request.extensions_mut().insert(credential);
            Ok(next.run(request).await)
        }
        Access::Known(StatisticsAccess::Confined(list)) => {
            let detail = format!(
                "The token is confined to {list}, and statistics cannot be limited to them. Use a token that is not confined."
            );
            Err(Problem::new(StatusCode::FORBIDDEN, "confined_token", detail))
        }
        Access::Known(StatisticsAccess::WithoutRead) => {
            let detail = "This token does not have the scope `read`.";
            Err(Problem::new(StatusCode::FORBIDDEN, "scope_missing", detail))
        }
        Access::Unknown => {
            let detail = "Unknown token. It may have been revoked. Statistics need a token of `/tokens`.";
            Err(Problem::new(StatusCode::UNAUTHORIZED, "token_unknown", detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_api::tokens::LISTS;

    #[test]
    fn only_the_scope_read_permits_reading_and_only_to_tokens_that_are_not_confined() {
        let access = |text: &str| super::access(&serde_json::from_str(text).unwrap(), 0);
        assert_eq!(access(r#"{"name":"a","scopes":["read"]}"#), Access::READ);
        assert_eq!(access(r#"{"name":"a","scopes":["read"],"hosts":null,"expires":7}"#), Access::READ);
        for list in LISTS {
            let stored = format!(r#"{{"name":"a","scopes":["read"],"{list}":["x"]}}"#);
            assert_eq!(access(&stored), Access::Known(StatisticsAccess::Confined(list)));
        }
        let other = access(r#"{"name":"a","scopes":["routes"]}"#);
        assert_eq!(other, Access::Known(StatisticsAccess::WithoutRead));
    }

    #[test]
    fn a_token_and_a_secret_that_was_replaced_end_without_a_pacemaker() {
        for ends in [r#""expires_ms":7000,"until_ms":9000"#, r#""expires_ms":9000,"until_ms":7000"#] {
            let stored = format!(r#"{{"name":"a","scopes":["read"],{ends}}}"#);
            let stored: Stored = serde_json::from_str(&stored).unwrap();
            let (before, after) = (access(&stored, 6_999), access(&stored, 7_000));
            assert!(stored.ends() && (before, after) == (Access::READ, Access::Unknown), "{ends}");
        }
    }
}
