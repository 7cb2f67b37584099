//! The number of requests in flight at instances, as routers report it once per second.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{LIVE_MS, Store, Wanted};
use signalbox_route_table::{Hostname, Policy, Spec};

/// The number of requests that all live routers have in flight at each instance. `None` if it is unknown: the policy of
/// one of its hosts does not count requests or cannot be read, no router reports, or Redis is unavailable. Errors are not returned, because
/// callers show the other facts of an instance without this one.
pub async fn in_flight(store: &Store, instances: &[&Spec]) -> Vec<Option<u64>> {
    let unknown = || vec![None; instances.len()];
    let names: BTreeSet<&Hostname> = instances.iter().flat_map(|spec| &spec.hostnames).collect();
    let names: Vec<&Hostname> = names.into_iter().collect();
    let texts: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let Ok(policies) = store.wanted_each::<Policy>(&texts).await else { return unknown() };
    let counts = |wanted: &Wanted<Policy>| wanted.value.counts_in_flight();
    let policed = names.into_iter().zip(&policies);
    let policed = policed.filter(|(_, wanted)| matches!(wanted, Some(Ok(wanted)) if counts(wanted)));
    let counted: HashSet<&Hostname> = policed.map(|(name, _)| name).collect();
    if counted.is_empty() {
        return unknown();
    }
    let Ok(routers) = store.routers(LIVE_MS).await else { return unknown() };
    if routers.is_empty() {
        return unknown();
    }
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (address, count) in routers.iter().flat_map(|router| &router.in_flight) {
        *sums.entry(address).or_default() += count;
    }
    let of = |spec: &&Spec| {
        let whole = spec.hostnames.iter().all(|hostname| counted.contains(hostname));
        whole.then(|| sums.get(spec.address.to_string().as_str()).copied().unwrap_or(0))
    };
    instances.iter().map(of).collect()
}
