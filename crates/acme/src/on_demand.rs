//! Names for which a client asked without a host and a certificate.
//!
//! Any client can invent names, so a certificate is ordered only after the operator's check URL answered 200. The URL is asked
//! once for a name in ten minutes, within a time limit and a budget of all pacemakers. A client may use as much of that budget
//! as is left: one client alone uses half of it, the next one a quarter, and so on.

use std::{collections::HashMap, net::IpAddr};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use parking_lot::Mutex;
use signalbox_route_table::Hostname;
use signalbox_routing::LIVE_MS;
use tokio::time::{Duration, Instant};

use crate::{Parts, http::OWNER, record::Record, store::Budget};

/// How long the check URL is not called again for a name.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Maximum number of names that are remembered. The hourly budget is far lower.
const MAX_REMEMBERED: usize = 100_000;
/// The count of a client whose share is spent.
const SHARE_SPENT: u64 = u64::MAX;
/// The time of the shares of clients.
const HOUR: Duration = Duration::from_secs(3600);
/// Maximum size of an answer, whose body is ignored.
const MAX_BYTES: usize = 4096;

/// Names for which the check URL was called recently, and for which clients.
#[derive(Debug, Default)]
pub(crate) struct Asked(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Until when a name is remembered.
    names: HashMap<String, Instant>,
    /// When the present hour began, and its calls.
    hour: Option<Instant>,
    spent: u64,
    by_client: HashMap<String, u64>,
}

impl Asked {
    /// Whether the URL may be called for a name of a client now. If so, the name is remembered and the call is counted.
    fn take(&self, name: &str, client: &str, limit: u64, now: Instant) -> bool {
        let mut state = self.0.lock();
        let State { names, hour, spent, by_client } = &mut *state;
        if names.get(name).is_some_and(|until| *until > now) {
            return false;
        }
        if names.len() >= MAX_REMEMBERED {
            names.retain(|_, until| *until > now);
        }
        if hour.is_none_or(|began| now >= began + HOUR) {
            (*hour, *spent) = (Some(now), 0);
            by_client.clear();
        }
        let own = by_client.get(client).copied().unwrap_or(0);
        if own >= limit.saturating_sub(*spent) {
            // Logged once an hour.
            if own != SHARE_SPENT && by_client.len() < MAX_REMEMBERED {
                by_client.insert(client.to_owned(), SHARE_SPENT);
                tracing::warn!(
                    server_name = name,
                    "check URL not called: the client's share of acme.checks_per_hour is spent"
                );
            }
            return false;
        } else if names.len() >= MAX_REMEMBERED {
            return false;
        }
        names.insert(name.to_owned(), now + REMEMBERED);
        *spent += 1;
        by_client.insert(client.to_owned(), own + 1);
        true
    }
}

/// A name and its client, as routers report them. A client is an opaque word.
fn parse(requested: &str) -> Option<(Hostname, &str)> {
    let (name, client) = requested.split_once(' ')?;
    Some((Hostname::parse(name).ok()?, client))
}

/// Calls the check URL for names that routers report as requested.
pub(crate) async fn requested(parts: &Parts) {
    if parts.options.check_url.is_empty() {
        return;
    }
    let routers = match parts.table.routers(LIVE_MS).await {
        Ok(routers) => routers,
        Err(error) => return tracing::debug!(%error, "requested names not read"),
    };
    for requested in routers.into_iter().flat_map(|router| router.requested_names) {
        let Some((hostname, client)) = parse(&requested) else { continue };
        let name = hostname.as_str();
        let possible = name.contains('.') && !name.starts_with('*') && name.parse::<IpAddr>().is_err();
        if possible && parts.asked.take(name, client, parts.options.checks_per_hour, Instant::now()) {
            ask(parts, name).await;
        }
    }
}

async fn ask(parts: &Parts, name: &str) {
    let names = [name.to_owned()];
    match parts.store.records(&names).await {
        Ok(records) if records.iter().all(Option::is_none) => {}
        Ok(_) => return,
        Err(error) => return tracing::debug!(%error, "name not checked"),
    }
    match parts.store.spend(Budget::Checks, parts.options.checks_per_hour).await {
        Ok(None) => {}
        Ok(Some(_)) => {
            return tracing::warn!(server_name = name, "check URL not called: acme.checks_per_hour is spent");
        }
        Err(error) => return tracing::debug!(%error, "name not checked"),
    }
    if !is_allowed(parts, name).await {
        return;
    }
    let record = Record { on_demand: true, ..Record::default() };
    match parts.store.want(&names, &record, false).await {
        Ok(_) => parts.nudge.notify_one(),
        Err(error) => tracing::debug!(server_name = name, %error, "allowed name not stored"),
    }
}

/// Whether the operator's check URL allows a certificate for the name.
async fn is_allowed(parts: &Parts, name: &str) -> bool {
    let Ok(mut url) = url::Url::parse(&parts.options.check_url) else { return false };
    url.query_pairs_mut().append_pair("domain", name);
    let Ok(request) = Request::get(url.as_str()).body(Full::new(Bytes::new())) else { return false };
    let place = parts.client.place(OWNER, request.uri()).await;
    match parts.client.call(place, "acme.check", request, parts.options.check_timeout, MAX_BYTES).await {
        Ok(called) if called.status == 200 => true,
        Ok(called) => {
            tracing::info!(
                server_name = name,
                status = called.status,
                "check URL rejected the name; no certificate is ordered"
            );
            false
        }
        Err(why) => {
            tracing::warn!(server_name = name, why, "check URL did not answer; no certificate is ordered");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_check_url_is_asked_once_for_a_name() {
        let (asked, now) = (Asked::default(), Instant::now());
        assert!(asked.take("a.test", "x", 100, now) && asked.take("b.test", "x", 100, now));
        assert!(!asked.take("a.test", "x", 100, now + REMEMBERED / 2));
        assert!(asked.take("a.test", "x", 100, now + REMEMBERED * 2));
    }

    #[test]
    fn a_client_that_invents_names_leaves_calls_for_others() {
        let (asked, now) = (Asked::default(), Instant::now());
        let calls = |client: &str, now| {
            (0..1000).filter(|n| asked.take(&format!("{client}-{n}.test"), client, 100, now)).count()
        };
        assert_eq!([calls("one", now), calls("two", now), calls("three", now)], [50, 25, 13]);
        assert!(asked.take("legitimate.test", "four", 100, now));
        assert!(!asked.take("one-99.test", "one", 100, now), "not remembered, because it was not asked");
        assert_eq!(calls("one", now + HOUR), 50);
    }

    #[test]
    fn a_requested_name_is_followed_by_its_client() {
        assert_eq!(
            parse("a.test 0a1b").map(|(name, client)| (name.to_string(), client)),
            Some(("a.test".into(), "0a1b"))
        );
        assert_eq!(parse("a.test"), None);
        assert_eq!(parse("a..test x"), None);
    }
}
