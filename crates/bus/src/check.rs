//! Consistency of lanes, jobs and gauges, checked on a running system.
//!
//! One script reads all lanes of a subscriber, so the data is of one moment. A suspected violation is checked again
//! before it is reported.

use std::time::Duration;

use signalbox_api::health::Finding;
use tokio::time::sleep;

use super::{Error, Handle};

/// Maximum number of batches of one subscriber whose events are counted, and of events whose segments of the log are counted.
/// Beyond that only the lanes are checked.
const MOST: u64 = 2_000;
/// Segments of the log that are checked for one subscriber, besides those that its events need.
const SEGMENTS: usize = 1_000;
/// Between the first look and the second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

impl Handle {
    /// Lists the consistency violations, none if all is well. `name` is the subscriber's token.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        let registry = self.registry();
        let mut findings = Vec::new();
        for store in &self.core.stores {
            let needed = store.needed(SEGMENTS).await?;
            for token in registry.subscriptions.keys() {
                let segments = needed.get(token).map_or(&[][..], Vec::as_slice);
                let first = store.audit(token, MOST, segments).await?;
                if first.is_empty() {
                    continue;
                }
                sleep(BETWEEN_LOOKS).await;
                let second = store.audit(token, MOST, segments).await?;
                let confirmed = second.into_iter().filter(|(predicate, place, _)| {
                    first.iter().any(|(before, at, _)| (before, at) == (predicate, place))
                });
                findings.extend(confirmed.map(|(predicate, _, what)| Finding {
                    subsystem: "bus".to_owned(),
                    predicate,
                    shard: store.shard().index(),
                    name: token.clone(),
                    what,
                }));
            }
        }
        Ok(findings)
    }
}
