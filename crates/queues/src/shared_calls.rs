//! Pulls and acknowledgements of several consumers in one call of a script.
//!
//! Consumers of a queue often pull and acknowledge at the same time. With ten messages for each of sixteen consumers, a
//! message costs the fabric about half of what it costs in calls of their own.

use std::{collections::HashSet, sync::Arc};

use signalbox_store::{Combiner, SharedResult};

use super::{
    Error, Settled,
    pull::PULL_PART,
    settle::SETTLE_PART,
    store::{Consumer, Held, PullCall, PullReply, Pulled, Store},
};

/// Maximum number of messages that a shared call delivers, so that other calls of the fabric do not wait
/// long.
const SHARED_PULL: usize = PULL_PART;
/// Maximum number of receipts that a shared call acknowledges.
const SHARED_ACK: usize = SETTLE_PART;

/// Pulls with the same key can share a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PullKey {
    pub shard: usize,
    pub queue: String,
    /// The revision of the queue's definition that this process knows.
    pub revision: u64,
    pub auto_ack: bool,
    /// The duration of the leases; that of the queue if absent.
    pub lease_ms: Option<u64>,
}

#[derive(Debug)]
struct Pull {
    consumer: Consumer,
    most_bytes: usize,
}

/// Acknowledgements with the same shard and queue can share a call.
type Acks = Combiner<(usize, String), Vec<Held>, SharedResult<Vec<Option<Settled>>>>;

/// The calls that consumers of this process share.
#[derive(Debug)]
pub(super) struct SharedCalls {
    pulls: Arc<Combiner<PullKey, Pull, SharedResult<PullReply>>>,
    acks: Arc<Acks>,
}

impl Default for SharedCalls {
    fn default() -> Self {
        Self { pulls: Combiner::new(cut_pulls), acks: Combiner::new(cut_acks) }
    }
}

impl SharedCalls {
    /// Pulls from the shard of `store`. If others got every message that the call could deliver, a consumer
    /// gets none, and [`Pulled::again`] is set.
    pub(super) async fn pull(
        &self,
        store: &Arc<Store>,
        key: PullKey,
        consumer: Consumer,
        most_bytes: usize,
    ) -> Result<PullReply, Error> {
        let (store, of) = (Arc::clone(store), key.clone());
        let run = move |pulls| {
            let (store, key) = (Arc::clone(&store), of.clone());
            async move { pull_together(&store, &key, pulls).await }
        };
        let reply = self.pulls.call(key, Pull { consumer, most_bytes }, run).await;
        reply.ok_or(Error::Ending)?.map_err(Error::Store)
    }

    /// Removes messages of the shard of `store`. Returns the result of each.
    pub(super) async fn ack(
        &self,
        store: &Arc<Store>,
        shard: usize,
        queue: &str,
        held: Vec<Held>,
    ) -> Result<Vec<Option<Settled>>, Error> {
        let (store, of) = (Arc::clone(store), queue.to_owned());
        let run = move |acks| {
            let (store, queue) = (Arc::clone(&store), of.clone());
            async move { ack_together(&store, &queue, acks).await }
        };
        self.acks.call((shard, queue.to_owned()), held, run).await.ok_or(Error::Ending)?.map_err(Error::Store)
    }
}

fn cut_pulls(pulls: &[Pull]) -> usize {
    let mut messages = 0;
    let fits = |pull: &&Pull| {
        messages += pull.consumer.most;
        messages <= SHARED_PULL
    };
    pulls.iter().take_while(fits).count()
}

/// A message is settled once per call. A second receipt of the message waits for the next call, which finds
/// it acknowledged.
fn cut_acks(acks: &[Vec<Held>]) -> usize {
    let mut ids = HashSet::new();
    let mut receipts = 0;
    let fits = |held: &&Vec<Held>| {
        // A receipt that occurs twice in one request does not divide it.
        let is_known = held.iter().any(|(id, _)| ids.contains(id));
        ids.extend(held.iter().map(|(id, _)| *id));
        receipts += held.len();
        !is_known && receipts <= SHARED_ACK
    };
    acks.iter().take_while(fits).count()
}

async fn pull_together(store: &Store, key: &PullKey, pulls: Vec<Pull>) -> Vec<SharedResult<PullReply>> {
    // The lowest limit applies, so that any distribution of the messages fits each consumer.
    let most_bytes = pulls.iter().map(|pull| pull.most_bytes).min().unwrap_or_default();
    let consumers: Vec<Consumer> = pulls.into_iter().map(|pull| pull.consumer).collect();
    let call = PullCall {
        queue: &key.queue,
        consumers: &consumers,
        most_bytes,
        auto_ack: key.auto_ack,
        revision: key.revision,
        tenant: None,
        wait_ms: 0,
        lease_ms: key.lease_ms,
    };
    match store.pull(call).await {
        Ok(PullReply::Pulled(pulled)) => {
            divide(pulled, &consumers).into_iter().map(|part| Ok(PullReply::Pulled(part))).collect()
        }
        Ok(reply) => vec![Ok(reply); consumers.len()],
        Err(error) => vec![Err(Arc::new(error)); consumers.len()],
    }
}

/// Divides the result among the consumers in the order in which the script distributed the messages,
/// beginning with the first consumer.
fn divide(pulled: Pulled, consumers: &[Consumer]) -> Vec<Pulled> {
    let Pulled { messages, lost, expired, .. } = pulled;
    let mut messages = messages.into_iter();
    let part = |(place, consumer): (usize, &Consumer)| {
        let own: Vec<_> = messages.by_ref().take(consumer.most).collect();
        let is_first = place == 0;
        Pulled {
            // The call dropped expired messages, or other consumers of the call got the messages.
            again: own.is_empty() && pulled.more && (expired > 0 || !is_first),
            lost: if is_first { lost } else { 0 },
            expired: if is_first { expired } else { 0 },
            messages: own,
            ..pulled
        }
    };
    consumers.iter().enumerate().map(part).collect()
}

async fn ack_together(
    store: &Store,
    queue: &str,
    acks: Vec<Vec<Held>>,
) -> Vec<SharedResult<Vec<Option<Settled>>>> {
    let sizes: Vec<usize> = acks.iter().map(Vec::len).collect();
    match store.ack(queue, &acks.concat()).await {
        Ok(found) => {
            let mut found = found.into_iter();
            sizes.into_iter().map(|size| Ok(found.by_ref().take(size).collect())).collect()
        }
        Err(error) => vec![Err(Arc::new(error)); sizes.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Taken;

    fn consumers(most: &[usize]) -> Vec<Consumer> {
        most.iter().map(|most| Consumer { most: *most, nonce: "n".to_owned() }).collect()
    }

    fn pulled(messages: u64, more: bool, expired: u64) -> Pulled {
        let message = |id| Taken { id, attempt: 1, tenant: String::new(), backlog: 1, body: Vec::new() };
        Pulled { messages: (0..messages).map(message).collect(), more, expired, lost: 2, ..Pulled::default() }
    }

    #[test]
    fn the_first_messages_are_those_of_the_first_consumer() {
        let parts = divide(pulled(5, true, 0), &consumers(&[2, 3, 4]));
        let ids: Vec<Vec<u64>> =
            parts.iter().map(|part| part.messages.iter().map(|message| message.id).collect()).collect();
        assert_eq!(ids, [vec![0, 1], vec![2, 3, 4], vec![]]);
        assert_eq!(parts.iter().map(|part| part.again).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(parts.iter().map(|part| part.lost).collect::<Vec<_>>(), [2, 0, 0]);
    }

    #[test]
    fn a_pull_without_messages_is_repeated_only_if_there_is_more() {
        for (more, expired, again) in [
            (false, 0, [false, false]),
            (false, 9, [false, false]),
            (true, 9, [true, true]),
            (true, 0, [false, true]),
        ] {
            let parts = divide(pulled(0, more, expired), &consumers(&[1, 1]));
            assert_eq!(parts.iter().map(|part| part.again).collect::<Vec<_>>(), again, "{more} {expired}");
        }
    }

    #[test]
    fn a_message_is_acknowledged_once_per_call() {
        let held = |ids: &[u64]| ids.iter().map(|id| (*id, String::new())).collect::<Vec<Held>>();
        let cut = |acks: &[&[u64]]| cut_acks(&acks.iter().map(|ids| held(ids)).collect::<Vec<_>>());
        assert_eq!(cut(&[&[1, 2], &[3], &[4, 2], &[5]]), 2);
        assert_eq!(cut(&[&[1, 1], &[2]]), 2);
        assert_eq!(cut(&[&[1; SHARED_ACK], &[2]]), 1);
    }
}
