//! The numbers of the bus, read from all shards.

use std::collections::BTreeMap;

use super::{Credentials, Error, Handle, Registry, verdict::FULL_HEALTH};

/// The numbers of one subscriber.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscriberGauges {
    /// Events delivered in all.
    pub sent: u64,
    /// Events that wait or are on their way.
    pub queued: u64,
    /// Batches that wait or are on their way.
    pub batches: u64,
    /// When the oldest of them was created, unix milliseconds.
    pub oldest_ms: Option<u64>,
    /// Dead letters, in events.
    pub dead: u64,
    /// Attempts to deliver that failed, in all.
    pub failed: u64,
    /// 0…100.
    pub health: u8,
    /// The latest attempt to deliver, unix milliseconds.
    pub last_attempted_ms: Option<u64>,
}

/// All numbers of the bus.
#[derive(Debug, Clone, Default)]
pub struct Gauges {
    /// By subscriber.
    pub subscribers: BTreeMap<String, SubscriberGauges>,
    /// Events accepted in all, by topic.
    pub topics: BTreeMap<String, u64>,
    /// Telemetry counters, summed over the shards.
    pub counters: BTreeMap<String, u64>,
    /// Jobs waiting to be taken.
    pub jobs_instant: u64,
    /// Jobs waiting for their time.
    pub jobs_scheduled: u64,
    /// Jobs being worked on.
    pub jobs_pending: u64,
    /// Bytes of events in the log.
    pub log_bytes: u64,
    /// How credentials of deliveries are stored.
    pub credentials: Credentials,
}

impl Handle {
    /// All numbers.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn gauges(&self) -> Result<Gauges, Error> {
        let view = self.core.view();
        let topics = self.events_by_topic(&view.registry).await?;
        Ok(Gauges { topics, credentials: view.credentials, ..self.gauges_of(&view.registry).await? })
    }

    pub(super) async fn gauges_of(&self, registry: &Registry) -> Result<Gauges, Error> {
        let mut gauges = Gauges::default();
        for store in &self.core.stores {
            let numbers = store.numbers().await?;
            gauges.jobs_instant += numbers.instant;
            gauges.jobs_scheduled += numbers.scheduled;
            gauges.jobs_pending += numbers.pending;
            gauges.log_bytes += numbers.log_bytes;
            for (name, count) in numbers.counters {
                *gauges.counters.entry(name).or_default() += count;
            }
            for token in registry.subscriptions.keys() {
                let first = !gauges.subscribers.contains_key(token);
                let moved = store.movements(token).await?;
                let oldest = store.oldest(token).await?;
                let one = gauges.subscribers.entry(token.clone()).or_default();
                one.queued += numbers.events.get(token).copied().unwrap_or_default();
                one.batches += numbers.batches.get(token).copied().unwrap_or_default();
                one.sent += moved.sent;
                one.dead += moved.dead;
                one.failed += moved.failed;
                let health = moved.health.unwrap_or(FULL_HEALTH);
                // As healthy as where it is worst.
                one.health = if first { health } else { one.health.min(health) };
                one.last_attempted_ms = one.last_attempted_ms.max(moved.last_attempted_ms);
                one.oldest_ms = [one.oldest_ms, oldest].into_iter().flatten().min();
            }
        }
        Ok(gauges)
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
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn overdue_jobs(&self) -> Result<u64, Error> {
        let mut overdue = 0;
        for store in &self.core.stores {
            overdue += store.overdue().await?;
        }
        Ok(overdue)
    }
}
