//! The numbers of the bus, read from all shards.

use std::collections::{BTreeMap, btree_map::Entry};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use signalbox_api::{
    Time,
    events::{Numbers, SubscriberNumbers},
};

use super::{
    Error, Handle, Registry,
    housekeeping::{READS, unless_damaged},
    store::Store,
};

/// Adds the numbers of another shard, or of another client with the same name.
fn add(sum: &mut SubscriberNumbers, other: &SubscriberNumbers) {
    sum.sent += other.sent;
    sum.events += other.events;
    sum.batches += other.batches;
    sum.oldest_at = [sum.oldest_at, other.oldest_at].into_iter().flatten().min();
    sum.dead += other.dead;
    sum.failed += other.failed;
    // As healthy as where it is worst.
    sum.health = sum.health.min(other.health);
    sum.last_attempted_at = sum.last_attempted_at.max(other.last_attempted_at);
}

/// What a shard stores about a subscriber; nothing if that is damaged.
async fn of_one(store: &Store, token: String) -> Result<(String, SubscriberNumbers), signalbox_store::Error> {
    let oldest_at = unless_damaged(&token, store.oldest(&token).await)?.flatten().map(Time::from_ms);
    let movements = unless_damaged(&token, store.movements(&token).await)?;
    Ok((token, SubscriberNumbers { oldest_at, ..movements.unwrap_or_default() }))
}

impl Handle {
    /// All numbers. Subscribers with the same name are combined.
    pub async fn numbers(&self) -> Result<Numbers, Error> {
        let registry = self.registry();
        let topics = self.events_by_topic(&registry).await?;
        let numbers = self.numbers_by(&registry, |token| registry.name_of(token)).await?;
        let idempotency_keys = self.idempotency_keys_used().await?;
        Ok(Numbers { topics, idempotency_keys, ..numbers })
    }

    /// Percentage of its idempotency keys that a client uses, by name, of clients that use more than half of them. A client
    /// has the keys of each shard separately; the shard with most of them counts.
    pub async fn idempotency_keys_used(&self) -> Result<BTreeMap<String, u64>, Error> {
        let (mut all, registry, options) = (BTreeMap::new(), self.registry(), &self.core.options);
        for store in &self.core.stores {
            for (client, keys) in store.idempotency_used(options.idempotency_seconds * 1000).await? {
                if keys.saturating_mul(2) <= options.idempotency_keys {
                    continue;
                }
                let percent: &mut u64 = all.entry(registry.name_of(&client)).or_default();
                *percent = (*percent).max(keys.saturating_mul(100) / options.idempotency_keys);
            }
        }
        Ok(all)
    }

    /// The numbers without those of topics. `key` is how a subscriber is listed, of its token.
    pub(super) async fn numbers_by(
        &self,
        registry: &Registry,
        key: impl Fn(&str) -> String,
    ) -> Result<Numbers, Error> {
        let mut all = Numbers::default();
        for store in &self.core.stores {
            let shard = store.numbers().await?;
            all.jobs.instant += shard.jobs.instant;
            all.jobs.scheduled += shard.jobs.scheduled;
            all.jobs.pending += shard.jobs.pending;
            all.jobs.waiting += shard.jobs.waiting;
            all.log_bytes += shard.log_bytes;
            for (name, count) in shard.counters {
                *all.counters.entry(name).or_default() += count;
            }
            let tokens: Vec<String> = registry.subscriptions.keys().cloned().collect();
            let mut read = stream::iter(tokens).map(|token| of_one(store, token)).buffered(READS);
            while let Some((token, numbers)) = read.try_next().await? {
                let numbers = SubscriberNumbers {
                    events: shard.events.get(&token).copied().unwrap_or_default(),
                    batches: shard.batches.get(&token).copied().unwrap_or_default(),
                    ..numbers
                };
                match all.subscribers.entry(key(&token)) {
                    Entry::Vacant(place) => drop(place.insert(numbers)),
                    Entry::Occupied(mut sum) => add(sum.get_mut(), &numbers),
                }
            }
        }
        Ok(all)
    }

    /// Events accepted in all, by topic.
    pub(super) async fn events_by_topic(&self, registry: &Registry) -> Result<BTreeMap<String, u64>, Error> {
        let names: Vec<&str> = registry.topics.keys().map(String::as_str).collect();
        let mut events = vec![0; names.len()];
        for store in &self.core.stores {
            for (sum, count) in events.iter_mut().zip(store.topic_counters(&names).await?) {
                *sum += count;
            }
        }
        Ok(names.into_iter().map(str::to_owned).zip(events).collect())
    }

    /// How many jobs should have been taken already.
    pub async fn overdue_jobs(&self) -> Result<u64, Error> {
        let mut overdue = 0;
        for store in &self.core.stores {
            overdue += store.overdue().await?;
        }
        Ok(overdue)
    }
}
