//! Consistency of queues, checked on a running system.
//!
//! One script reads a part of a queue's shard, so the data is of one moment. A suspected violation is checked again before it
//! is reported.

use std::time::Duration;

use signalbox_api::health::Finding;
use tokio::time::sleep;

use super::{Error, handle::Handle};

/// Tenants that one call checks, and messages in flight or delayed. It limits how long a call blocks Redis. The sums over the
/// messages of a larger queue are not checked.
const PART: usize = 120;
/// The pause before a suspected violation is checked again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

impl Handle {
    /// Lists the consistency violations; none if the queues are consistent.
    pub async fn check(&self, queues: &[String]) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        for (shard, store) in self.inner.stores.iter().enumerate() {
            for queue in queues {
                let mut after = String::new();
                loop {
                    let (next, first) = store.audit(queue, PART, &after).await?;
                    if !first.is_empty() {
                        sleep(BETWEEN_LOOKS).await;
                        let (_, second) = store.audit(queue, PART, &after).await?;
                        let confirmed = second.into_iter().filter(|found| first.contains(found));
                        findings.extend(confirmed.map(|found| finding(shard, queue, found)));
                    }
                    if next.is_empty() {
                        break;
                    }
                    after = next;
                }
            }
        }
        Ok(findings)
    }
}

fn finding(shard: usize, queue: &str, found: (String, String, String)) -> Finding {
    let (predicate, tenant, what) = found;
    let name = match &*tenant {
        "" => queue.to_owned(),
        tenant => format!("{queue}:{tenant}"),
    };
    Finding { subsystem: "queues".to_owned(), predicate, shard, name, what }
}
