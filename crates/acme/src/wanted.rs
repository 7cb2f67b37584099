//! Which names have automatic HTTPS: a comparison of the hosts with the stored names.
//!
//! It is made when the desired state of the route table changed, by one pacemaker at a time, and once in a while in any case. A
//! host is left out only after it was read again, and unless it has changed since, so a change during the comparison loses
//! nothing. Changes of other hosts delay no removal.

use std::{collections::HashSet, sync::Arc, time::Duration};

use signalbox_lease::Lease;
use signalbox_route_table::{Policy, Tls};
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
        let these = with_automatic(parts, names).await?;
        if parts.store.want(&these, &Record::default()).await? > 0 {
            parts.nudge.notify_one();
        }
        wanted.extend(these);
    }
    remove_others(parts, &wanted).await?;
    Ok(Some(revision))
}

/// Those hosts that have automatic HTTPS.
async fn with_automatic(parts: &Parts, names: Vec<String>) -> Result<Vec<String>, Failure> {
    let policies = parts.table.policies(&names).await.map_err(unavailable)?;
    let both = names.into_iter().zip(policies);
    let automatic = |(name, policy): &(String, Option<_>)| {
        let policy: &Option<signalbox_routing::Wanted<Policy>> = policy;
        is_automatic(name, policy.as_ref().and_then(|wanted| wanted.value.tls), parts.options.covers(name))
    };
    Ok(both.filter(automatic).map(|(name, _)| name).collect())
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
            let tls = policy.as_ref().and_then(|wanted| wanted.value.tls);
            if host.is_none() || !is_automatic(&name, tls, parts.options.covers(&name)) {
                let policy = policy.map(|policy| policy.revision);
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
    use super::*;

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
