//! Consistency of queues, checked on a running system.
//!
//! One script reads a queue's shard, so the data is of one moment. A suspected violation is checked again before it is
//! reported.

use std::time::Duration;

use signalbox_api::health::Finding;
use tokio::time::sleep;

use super::{Error, handle::Handle};

/// Maximum number of facets, and of messages in flight or delayed, that are checked per queue. Larger queues
/// are checked only in part.
const MAX_ITEMS: usize = 10_000;
/// The pause before a suspected violation is checked again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

impl Handle {
    /// Lists the consistency violations; none if the queues are consistent.
    pub async fn check(&self, queues: &[String]) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        for (shard, store) in self.inner.stores.iter().enumerate() {
            for queue in queues {
                let first = store.audit(queue, MAX_ITEMS).await?;
                if first.is_empty() {
                    continue;
                }
                sleep(BETWEEN_LOOKS).await;
                let second = store.audit(queue, MAX_ITEMS).await?.into_iter();
                findings.extend(second.filter(|found| first.contains(found)).map(
                    |(predicate, environment, what)| {
                        let name = match &*environment {
                            "" => queue.clone(),
                            environment => format!("{queue}:{environment}"),
                        };
                        Finding { subsystem: "queues".to_owned(), predicate, shard, name, what }
                    },
                ));
            }
        }
        Ok(findings)
    }
}
