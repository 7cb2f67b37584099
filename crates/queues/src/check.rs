//! What must hold of queues, looked at on a running system.
//!
//! A queue's shard is looked at in one script, so what is read of it is of one moment. What looks wrong is looked at
//! again before it is told.

use std::time::Duration;

use tokio::time::sleep;

use super::{Error, handle::Handle};

/// Facets, and messages in flight or delayed, of one queue that are looked at. Of a larger one only a part is.
const MOST: usize = 10_000;
/// Between the first look and the second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// Something that must never be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which predicate does not hold: `F1`, `F2`, `F5`, `F7`.
    pub predicate: String,
    /// The shard.
    pub shard: usize,
    /// The queue, or `queue:environment`.
    pub name: String,
    /// What is wrong.
    pub what: String,
}

impl Handle {
    /// What must never be and is: nothing, when all is well.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn check(&self, queues: &[String]) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        for (shard, store) in self.inner.stores.iter().enumerate() {
            for queue in queues {
                let first = store.audit(queue, MOST).await?;
                if first.is_empty() {
                    continue;
                }
                sleep(BETWEEN_LOOKS).await;
                let second = store.audit(queue, MOST).await?.into_iter();
                findings.extend(second.filter(|found| first.contains(found)).map(
                    |(predicate, environment, what)| {
                        let name = match &*environment {
                            "" => queue.clone(),
                            environment => format!("{queue}:{environment}"),
                        };
                        Finding { predicate, shard, name, what }
                    },
                ));
            }
        }
        Ok(findings)
    }
}
