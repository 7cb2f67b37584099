//! What must hold of every object with a queue, looked at on a running system.
//!
//! Objects are looked at a part at a time, each in one script, so what is read of one is of one moment. What looks
//! wrong is looked at again before it is told: between the two, work went on.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::sleep;

use super::store::{Store, Suspicion};
use signalbox_bus::Finding;

/// Objects looked at in one call.
const PART: usize = 500;
/// Between the first look and the second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// Findings told of one shard; where there are more, these are enough to know that something is broken.
const MAX_FINDINGS: usize = 100;

/// Looks at one shard.
pub(super) async fn run(
    store: &Store,
    backends: &[&str],
    lease_ms: u64,
) -> Result<Vec<Finding>, signalbox_store::Error> {
    // A lease that ended is swept when somebody wakes at that moment; a pacemaker that starts again takes longer.
    let late_ms = lease_ms.max(1_000);
    let mut suspicions: Vec<Suspicion> = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let (next, _, found) = store.audit(&cursor, PART, late_ms).await?;
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
        again.extend(store.audit_again(part, late_ms).await?);
    }
    let mut confirmed = confirmed(&suspicions, again);
    confirmed.extend(self::confirmed(&sums, store.sums(backends).await?));
    let shard = store.shard().index();
    let finding = |(predicate, name, what)| Finding { predicate, shard, name, what };
    Ok(confirmed.into_iter().take(MAX_FINDINGS).map(finding).collect())
}

/// What was seen twice, in the words of the second time.
fn confirmed(first: &[Suspicion], second: Vec<Suspicion>) -> Vec<Suspicion> {
    let mut seen: BTreeMap<(&str, &str), ()> = BTreeMap::new();
    for (predicate, name, _) in first {
        seen.insert((predicate, name), ());
    }
    second.into_iter().filter(|(predicate, name, _)| seen.contains_key(&(&**predicate, &**name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_seen_twice_is_told() {
        let one = |predicate: &str, name: &str| (predicate.to_owned(), name.to_owned(), "w".to_owned());
        let first = [one("O6", "a"), one("O8", "a"), one("O6", "b")];
        let second = vec![one("O6", "a"), one("O11", "a"), one("O6", "c")];
        assert_eq!(confirmed(&first, second), [one("O6", "a")]);
    }
}
