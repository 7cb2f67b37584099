//! Which names have automatic HTTPS: a comparison of the hosts with the stored names.
//!
//! It is made when the desired state of the route table changed, by one pacemaker at a time, and once in a while in any case. A
//! host is left out only after it was read again, and unless it has changed since, so a change during the comparison loses
//! nothing. Changes of other hosts delay no removal.

use std::{collections::HashSet, sync::Arc, time::Duration};

use signalbox_lease::Lease;
use signalbox_route_table::{Policy, Tls};
use signalbox_routing::Wanted;
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Parts,
    failure::Failure,
    on_demand,
    record::Record,
    store::{CHUNK, Unwanted},
};

/// The interval between checks for changes.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);
/// The comparison is also made after this time without changes.
const ALWAYS: Duration = Duration::from_secs(600);
/// Comparisons may take at most one part in this many of the time.
const SHARE: u32 = 10;
/// Maximum number of hosts whose unreadable policy is logged.
const MAX_REPORTED: usize = 1_000;

/// Compares hosts with names until `shutdown`, then releases the lease.
pub(crate) async fn run(parts: &Arc<Parts>, mut lease: Lease, shutdown: CancellationToken) {
    let mut checks = JoinSet::new();
    let mut compared: Option<(u64, Instant)> = None;
    let mut pause = INTERVAL;
    while shutdown.run_until_cancelled(time::sleep(pause)).await.is_some() {
        pause = INTERVAL;
        match lease.hold().await {
            Ok(Some(_)) => {}
            Ok(None) => {
                compared = None;
                continue;
            }
            Err(error) => {
                tracing::debug!(%error, "hosts compared later");
                continue;
            }
        }
        on_demand::requested(parts, &mut checks).await;
        let begun = Instant::now();
        match turn(parts, compared).await {
            Ok(Some(revision)) => {
                compared = Some((revision, begun));
                pause = (begun.elapsed() * SHARE).max(INTERVAL);
            }
            Ok(None) => {}
            Err(_) => tracing::debug!("hosts compared later: the fabric does not answer"),
        }
    }
    lease.release().await;
}

async fn turn(parts: &Parts, compared: Option<(u64, Instant)>) -> Result<Option<u64>, Failure> {
    let revision = parts.store.revision().await?;
    if compared.is_some_and(|(last, at)| last == revision && at.elapsed() < ALWAYS) {
        return Ok(None);
    }
    let mut wanted = HashSet::new();
    let mut after: Option<String> = None;
    loop {
        let names = parts.table.hosts_after(after.as_deref(), CHUNK).await.map_err(unavailable)?;
        let Some(last) = names.last() else { break };
        after = Some(last.clone());
        let (automatic, unknown) = with_automatic(parts, names).await?;
        if parts.store.want(&automatic, &Record::default()).await? > 0 {
            parts.nudge.notify_one();
        }
        wanted.extend(automatic);
        wanted.extend(unknown);
    }
    remove_others(parts, &wanted).await?;
    Ok(Some(revision))
}

/// Those hosts that have automatic HTTPS, and those of which that is not known.
async fn with_automatic(parts: &Parts, names: Vec<String>) -> Result<(Vec<String>, Vec<String>), Failure> {
    let policies = parts.table.policies(&names).await.map_err(unavailable)?;
    let (mut automatic, mut unknown) = (Vec::new(), Vec::new());
    for (name, policy) in names.into_iter().zip(policies) {
        match tls_of(parts, &name, policy) {
            Some((tls, _)) if is_automatic(&name, tls, parts.options.covers(&name)) => automatic.push(name),
            Some(_) => {}
            None => unknown.push(name),
        }
    }
    Ok((automatic, unknown))
}

/// What the policy of a host says about HTTPS, and its revision. `None` if the policy cannot be read, because a later Signalbox
/// stored it, or it is damaged: the name stays as it is.
fn tls_of(
    parts: &Parts,
    name: &str,
    policy: Option<Result<Wanted<Policy>, signalbox_routing::Error>>,
) -> Option<(Option<Tls>, Option<u64>)> {
    let Some(policy) = policy else { return Some((None, None)) };
    match policy {
        Ok(wanted) => Some((wanted.value.tls, Some(wanted.revision))),
        Err(error) => {
            let mut unreadable = parts.unreadable.lock();
            if unreadable.len() < MAX_REPORTED && unreadable.insert(name.to_owned()) {
                tracing::error!(hostname = name, %error, "policy not readable; automatic HTTPS of the host left as it is");
            }
            None
        }
    }
}

/// The policy of a host decides; without a policy, the configuration decides.
fn is_automatic(name: &str, tls: Option<Tls>, covered: bool) -> bool {
    let possible = name != "*" && name.parse::<std::net::IpAddr>().is_err();
    possible && tls.map_or(covered, |tls| tls == Tls::Auto)
}

/// Removes names whose hosts were removed or changed to manual certificates. Their certificates stay until
/// they expire or are deleted.
async fn remove_others(parts: &Parts, wanted: &HashSet<String>) -> Result<(), Failure> {
    let mut after: Option<String> = None;
    loop {
        let names = parts.store.names_after(after.as_deref(), CHUNK).await?;
        let Some(last) = names.last() else { return Ok(()) };
        after = Some(last.clone());
        let names: Vec<String> = names.into_iter().filter(|name| !wanted.contains(name)).collect();
        let records = parts.store.records(&names).await?;
        let both = names.into_iter().zip(records);
        let of_hosts =
            both.filter(|(_, record)| matches!(record, Some(Ok((record, _))) if !record.on_demand));
        let names: Vec<String> = of_hosts.map(|(name, _)| name).collect();
        let hosts = parts.table.host_version_types(&names).await.map_err(unavailable)?;
        let policies = parts.table.policies(&names).await.map_err(unavailable)?;
        let mut gone = Vec::new();
        for ((name, host), policy) in names.into_iter().zip(hosts).zip(policies) {
            let Some((tls, policy)) = tls_of(parts, &name, policy) else { continue };
            if host.is_none() || !is_automatic(&name, tls, parts.options.covers(&name)) {
                gone.push(Unwanted { name, has_host: host.is_some(), policy });
            }
        }
        for name in parts.store.unwant(&gone).await? {
            tracing::info!(server_name = name, "automatic HTTPS ended");
        }
    }
}

fn unavailable(error: signalbox_routing::Error) -> Failure {
    tracing::debug!(%error, "hosts not read");
    Failure::Unavailable
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use signalbox_certificates::Certificates;
    use signalbox_egress::{Budget, Client, OwnAddresses};
    use signalbox_route_table::AddressRules;
    use signalbox_routing::{Registry, Routers};
    use signalbox_store::keys::fabric as key;
    use signalbox_testkit::Servers;

    use super::*;
    use crate::{Acme, Dependencies, Metrics, Options};

    fn acme(servers: &Servers) -> Acme {
        let clock = || SystemTime::UNIX_EPOCH;
        let table = signalbox_routing::Store::new(servers.fabric(), servers.routes(), servers.stats());
        let metrics = signalbox_routing::Metrics::default();
        let registry = Registry::new(table.clone(), AddressRules::default(), Arc::default(), metrics);
        let client = signalbox_egress::Options {
            allow_networks: Vec::new(),
            allow_addresses: Vec::new(),
            allow_http: false,
            own: OwnAddresses::default(),
            ca_file: None,
            connect_timeout: INTERVAL,
            timeout: INTERVAL,
            budget: Budget::default(),
        };
        let shutdown = CancellationToken::new();
        let with = Dependencies {
            fabric: servers.fabric(),
            certificates: Certificates::new(registry, Default::default(), clock),
            routers: Routers::start(table.clone(), shutdown.clone()),
            table,
            client: Client::new(&client, clock).unwrap(),
            clock,
            metrics: Metrics::default(),
            shutdown,
        };
        Acme::new(Options::default(), with)
    }

    /// A later Signalbox stored it.
    #[tokio::test]
    async fn a_policy_that_cannot_be_read_leaves_its_host_as_it_is_and_hides_no_other() {
        let servers = Servers::start().await;
        let parts = acme(&servers).parts;
        let fabric = servers.fabric();
        for (name, tls) in [
            ("auto.test", r#""tls":"auto""#),
            ("manual.test", r#""tls":"manual""#),
            ("later.test", r#""tls":"manual","later":1"#),
            ("other.test", r#""tls":"auto","later":1"#),
        ] {
            let policy = format!(r#"{{"revision":7,"policy":{{{tls}}}}}"#);
            for (hash, value) in [(key::routes_hosts(), "1"), (key::routes_policies(), &*policy)] {
                fabric.command("HSET").key(&hash).arg((name, value)).run().await.unwrap();
            }
            fabric.command("ZADD").key(&key::routes_hosts_index()).arg((0, name)).run().await.unwrap();
        }
        let before = ["later.test".to_owned(), "manual.test".to_owned()];
        parts.store.want(&before, &Record::default()).await.unwrap();
        assert!(matches!(turn(&parts, None).await, Ok(Some(_))));
        assert_eq!(parts.store.names_after(None, 9).await.unwrap(), ["auto.test", "later.test"]);
    }

    #[test]
    fn the_policy_of_a_host_overrides_the_configuration() {
        for (name, tls, covered, expected) in [
            ("a.test", None, false, false),
            ("a.test", None, true, true),
            ("a.test", Some(Tls::Auto), false, true),
            ("a.test", Some(Tls::Manual), true, false),
            ("*", Some(Tls::Auto), true, false),
            ("*.a.test", None, true, true),
            ("127.0.0.1", None, true, false),
        ] {
            assert_eq!(is_automatic(name, tls, covered), expected, "{name} {tls:?} {covered}");
        }
    }
}
