//! What must hold of queues, looked at on a running system.
//!
//! A queue's shard is looked at in one script, so what is read of it is of one moment. What looks wrong is looked at
//! again before it is told.

use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;

use super::{Error, handle::Handle};

/// Facets, and messages in flight or delayed, of one queue that are looked at. Of a larger one only a part is.
const MAX_ITEMS: usize = 10_000;
/// Between the first look and the second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Finding {
    /// Which predicate does not hold.
    #[schema(example = "O6")]
    pub predicate: String,
    /// The shard.
    pub shard: usize,
    /// The object, subscriber, queue or label that it was found in. A facet of a queue is `queue:environment`.
    #[schema(example = "work:1")]
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
                        Finding { predicate, shard, name, what }
                    },
                ));
            }
        }
        Ok(findings)
    }
}
