//! Consistency of every object with a queue, checked on a running system.
//!
//! Objects are checked in parts, each part in one script, so the data of an object is of one moment. A suspected
//! violation is checked again before it is reported, because work continued in the meantime.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::sleep;

use super::store::{Store, Suspicion};
use signalbox_bus::Finding;

/// Maximum number of objects checked in one call.
const PART: usize = 150;
/// The pause before a suspected violation is checked again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// Maximum number of violations that are reported per shard. More of them would add no information.
const MAX_FINDINGS: usize = 100;

/// Checks one shard.
pub(super) async fn run(
    store: &Store,
    backends: &[&str],
    lease_ms: u64,
) -> Result<Vec<Finding>, signalbox_store::Error> {
    // A running fetcher sweeps an expired lease when it expires; a restarting pacemaker takes longer.
    let late_ms = lease_ms.max(1_000);
    let mut suspicions: Vec<Suspicion> = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let (next, found) = store.audit(&cursor, PART, &[], late_ms).await?;
        suspicions.extend(found);
        if next == "0" || suspicions.len() >= MAX_FINDINGS {
            break;
        }
        cursor = next;
    }
    let sums = store.sums(backends).await?;
    if suspicions.is_empty() && sums.is_empty() {
        return Ok(Vec::new());
    }
    sleep(BETWEEN_LOOKS).await;
    let mut objects: Vec<&str> = suspicions.iter().map(|(_, object, _)| &**object).collect();
    objects.dedup();
    let mut again = Vec::new();
    for part in objects.chunks(PART) {
        again.extend(store.audit("-", 0, part, late_ms).await?.1);
    }
    let mut confirmed = confirmed(&suspicions, again);
    confirmed.extend(self::confirmed(&sums, store.sums(backends).await?));
    let shard = store.shard().index();
    let subsystem = || "sequencer".to_owned();
    let finding = |(predicate, name, what)| Finding { subsystem: subsystem(), predicate, shard, name, what };
    Ok(confirmed.into_iter().take(MAX_FINDINGS).map(finding).collect())
}

/// The violations that were found twice, with their second description.
fn confirmed(first: &[Suspicion], second: Vec<Suspicion>) -> Vec<Suspicion> {
    let seen: BTreeSet<(&str, &str)> =
        first.iter().map(|(predicate, name, _)| (&**predicate, &**name)).collect();
    second.into_iter().filter(|(predicate, name, _)| seen.contains(&(&**predicate, &**name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_violations_observed_twice_are_reported() {
        let one = |predicate: &str, name: &str| (predicate.to_owned(), name.to_owned(), "w".to_owned());
        let first = [one("O6", "a"), one("O8", "a"), one("O6", "b")];
        let second = vec![one("O6", "a"), one("O11", "a"), one("O6", "c")];
        assert_eq!(confirmed(&first, second), [one("O6", "a")]);
    }
}
