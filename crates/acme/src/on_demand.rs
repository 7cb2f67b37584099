//! Names for which a client asked without a host and a certificate.
//!
//! Any client can invent names, so a certificate is ordered only after the operator's check URL answered 200. The URL is asked
//! once for a name in ten minutes, within a time limit and a budget of all pacemakers. One half of that budget is divided between
//! clients: each may use as much of it as is left, so one client alone uses half of it, the next one a quarter, and so on. The
//! other half is for the first name of each client, and becomes available over the hour. So clients that invent names would need
//! another address for each name to use up all of it.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use parking_lot::Mutex;
use signalbox_egress::Owner;
use signalbox_route_table::Hostname;
use signalbox_routing::LIVE_MS;
use tokio::{
    task::JoinSet,
    time::{Duration, Instant},
};

use crate::{Parts, http::OWNER, record::Record};

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
/// Maximum number of calls of the check URL at a time.
const MAX_CHECKS: usize = 16;

/// Names for which the check URL was called recently, and for which clients.
#[derive(Debug, Default)]
pub(crate) struct Asked(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Until when a name is remembered.
    names: HashMap<String, Instant>,
    /// When the present hour began, and its calls.
    hour: Option<Instant>,
    /// Calls of the half that clients share, and of the one for the first name of each.
    shared: u64,
    first: u64,
    by_client: HashMap<String, u64>,
}

impl Asked {
    /// Names with their clients, in the order in which the URL is called for them. Those for which it was called recently are left
    /// out.
    fn in_turn<'r>(&self, requested: Vec<(Hostname, &'r str)>) -> Vec<(Hostname, &'r str)> {
        let (state, now) = (self.0.lock(), Instant::now());
        let is_new =
            |(name, _): &(Hostname, &str)| state.names.get(name.as_str()).is_none_or(|until| *until <= now);
        let requested = requested.into_iter().filter(is_new).collect();
        in_turn(requested, |client| state.by_client.get(client).copied().unwrap_or(0))
    }

    /// Whether the URL may be called for a name of a client now. If so, the name is remembered and the call is counted.
    fn take(&self, name: &str, client: &str, limit: u64, now: Instant) -> bool {
        let mut state = self.0.lock();
        let State { names, hour, shared, first, by_client } = &mut *state;
        if names.get(name).is_some_and(|until| *until > now) {
            return false;
        }
        if names.len() >= MAX_REMEMBERED {
            names.retain(|_, until| *until > now);
        }
        let began = hour.filter(|began| now < *began + HOUR).unwrap_or(now);
        if *hour != Some(began) {
            (*hour, *shared, *first) = (Some(began), 0, 0);
            by_client.clear();
        }
        let own = by_client.get(client).copied().unwrap_or(0);
        let shares = own < limit.div_ceil(2).saturating_sub(*shared);
        let is_first = own == 0 && *first < available(limit / 2, now - began);
        if !shares && !is_first {
            // Logged once an hour.
            if own != SHARE_SPENT && own > 0 && by_client.len() < MAX_REMEMBERED {
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
        *if shares { shared } else { first } += 1;
        by_client.insert(client.to_owned(), own + 1);
        true
    }
}

/// The second name of a client follows the first names of all others, and so on.
fn in_turn<'r>(
    mut requested: Vec<(Hostname, &'r str)>,
    calls: impl Fn(&str) -> u64,
) -> Vec<(Hostname, &'r str)> {
    let mut turns: HashMap<&'r str, u64> = HashMap::new();
    requested.sort_by_cached_key(|(_, client)| {
        let turn = turns.entry(client).or_insert_with(|| calls(client));
        *turn = turn.saturating_add(1);
        *turn
    });
    requested
}

/// How much of an hourly amount is available after a part of the hour; at least one at its beginning.
fn available(hourly: u64, after: Duration) -> u64 {
    let part = u128::from(hourly) * after.as_millis() / HOUR.as_millis();
    hourly.min(1 + u64::try_from(part).unwrap_or(u64::MAX))
}

/// A name and its client, as routers report them. A client is an opaque word. Names without one share one client.
fn parse(requested: &str) -> Option<(Hostname, &str)> {
    let (name, client) = requested.split_once(' ').unwrap_or((requested, ""));
    Some((Hostname::parse(name).ok()?, client))
}

/// Calls the check URL for names that routers report as requested, in `checks`: a URL that is slow for one name delays others
/// only if many are slow.
pub(crate) async fn requested(parts: &Arc<Parts>, checks: &mut JoinSet<()>) {
    if parts.options.check_url.is_empty() {
        return;
    }
    let routers = match parts.table.routers(LIVE_MS).await {
        Ok(routers) => routers,
        Err(error) => return tracing::debug!(%error, "requested names not read"),
    };
    let requested: Vec<String> = routers.into_iter().flat_map(|router| router.requested_names).collect();
    for (hostname, client) in parts.asked.in_turn(requested.iter().filter_map(|one| parse(one)).collect()) {
        let name = hostname.as_str();
        let possible = name.contains('.') && !name.starts_with('*') && name.parse::<IpAddr>().is_err();
        while checks.try_join_next().is_some() {}
        if checks.len() >= MAX_CHECKS {
            // Routers report the names again, and those of clients with fewer calls are first then.
            return;
        }
        if possible && parts.asked.take(name, client, parts.options.checks_per_hour, Instant::now()) {
            let (parts, name) = (Arc::clone(parts), name.to_owned());
            checks.spawn(async move { ask(&parts, &name).await });
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
    match parts.store.spend(parts.options.checks_per_hour).await {
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
    match parts.store.want(&names, &record).await {
        Ok(_) => parts.nudge.notify_one(),
        Err(error) => tracing::debug!(server_name = name, %error, "allowed name not stored"),
    }
}

/// Whether the operator's check URL allows a certificate for the name.
async fn is_allowed(parts: &Parts, name: &str) -> bool {
    let Ok(mut url) = url::Url::parse(&parts.options.check_url) else { return false };
    url.query_pairs_mut().append_pair("domain", name);
    let Ok(request) = Request::get(url.as_str()).body(Full::new(Bytes::new())) else { return false };
    let place = parts.client.place(&Owner::alone(OWNER), request.uri()).await;
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
        assert_eq!([calls("one", now), calls("two", now), calls("three", now)], [25, 13, 6]);
        assert!(asked.take("legitimate.test", "four", 100, now));
        assert!(!asked.take("one-99.test", "one", 100, now), "not remembered, because it was not asked");
        assert_eq!(calls("one", now + HOUR), 25);
    }

    #[test]
    fn any_number_of_clients_that_invent_names_leaves_calls_for_the_first_names_of_others() {
        let (asked, now) = (Asked::default(), Instant::now());
        let take = |name: &str, client: &str, now| asked.take(name, client, 100, now);
        for client in 0..7 {
            (0..100).for_each(|n| _ = take(&format!("{client}-{n}.test"), &format!("noisy-{client}"), now));
        }
        assert!(!take("a.test", "quiet", now));
        // A call for a first name becomes available every 72 s.
        let mut calls = 0;
        for minute in 1..60 {
            let now = now + Duration::from_secs(60 * minute);
            (0..7).for_each(|n| assert!(!take(&format!("{minute}-{n}.test"), &format!("noisy-{n}"), now)));
            calls += usize::from(take(&format!("{minute}.quiet.test"), &format!("quiet-{minute}"), now));
        }
        assert_eq!(calls, 49);
    }

    #[test]
    fn names_of_a_client_that_requests_many_do_not_delay_those_of_others() {
        let requested: Vec<String> = (0..100).map(|n| format!("{n}.test noisy")).collect();
        let quiet = ["a.test quiet", "b.test quiet", "c.test other"].map(str::to_owned);
        let all: Vec<String> = [requested, quiet.to_vec()].concat();
        let read = || all.iter().filter_map(|one| parse(one)).collect::<Vec<_>>();
        let names = |turns: Vec<(Hostname, &str)>| {
            turns.into_iter().take(5).map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(in_turn(read(), |_| 0)), ["0.test", "a.test", "c.test", "1.test", "b.test"]);
        // All places are taken for a name of the noisy client: it is the last from then on.
        let asked = Asked::default();
        (0..20).for_each(|n| _ = asked.take(&format!("{n}.test"), "noisy", 1_000, Instant::now()));
        assert_eq!(names(asked.in_turn(read())), ["a.test", "c.test", "b.test", "20.test", "21.test"]);
    }

    #[test]
    fn a_requested_name_is_followed_by_its_client() {
        assert_eq!(
            parse("a.test 0a1b").map(|(name, client)| (name.to_string(), client)),
            Some(("a.test".into(), "0a1b"))
        );
        let without_client = parse("a.test");
        assert_eq!(
            without_client.map(|(name, client)| (name.to_string(), client)),
            Some(("a.test".into(), ""))
        );
        assert_eq!(parse("a..test x"), None);
    }
}
