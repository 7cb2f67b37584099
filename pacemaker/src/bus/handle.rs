//! The one door to the bus.

use std::{collections::BTreeMap, sync::Arc};

use super::{ApiToken, Error, Event, EventId, NewEvent, Refusal, Registry, Secret, Subscription, Wanted};

/// A topic as `GET /topics` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicStatus {
    /// Its name.
    pub name: String,
    /// The client (token) that claimed it.
    pub publisher: Option<String>,
    /// Events accepted in all.
    pub events: u64,
}

/// A subscription as `GET /subscriptions` lists it.
#[derive(Debug, Clone)]
pub struct SubscriptionStatus {
    /// What was asked for.
    pub subscription: Arc<Subscription>,
    /// What it has received and what waits for it.
    pub gauges: SubscriberGauges,
}

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
}

/// One event that could not be delivered.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The event.
    pub event: Arc<Event>,
    /// When it was given up, unix milliseconds.
    pub died_ms: u64,
    /// Attempts made with the batch it was in.
    pub attempts: u32,
    /// The last failure.
    pub reason: String,
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// What to ask with for the next part; nothing when this is the last.
    pub cursor: Option<String>,
}

/// The bus, for everybody who publishes, subscribes or asks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {}

/// Signatures for the HTTP side; bodies follow with the store.
#[allow(clippy::unused_async, missing_docs, clippy::todo, unused_variables)]
impl Handle {
    /// Publishes events of one client to one topic. One result for each, in order.
    pub async fn publish(
        &self,
        client: &str,
        topic: &str,
        events: Vec<NewEvent>,
    ) -> Vec<Result<EventId, Refusal>> {
        todo!()
    }
    /// Publishes Signalbox' own events; `topic` without its prefix (`subscriber.disabled`).
    pub async fn announce(&self, topic: &str, events: Vec<NewEvent>) -> Vec<Result<EventId, Refusal>> {
        todo!()
    }
    /// The registry as this pacemaker knows it; for looking up tokens on the hot path.
    pub fn registry(&self) -> Arc<Registry> {
        todo!()
    }
    /// Creates or replaces the client's subscription.
    pub async fn subscribe(&self, client: &str, wanted: Wanted) -> Result<(), Error> {
        todo!()
    }
    /// Ends the client's subscription. [`Error::NoSuchSubscription`] when there is none.
    pub async fn unsubscribe(&self, client: &str) -> Result<(), Error> {
        todo!()
    }
    /// Takes one topic out of the client's subscription.
    pub async fn unsubscribe_topic(&self, client: &str, topic: &str) -> Result<(), Error> {
        todo!()
    }
    /// Deletes a topic. `by` is the client that asks; nobody for root.
    pub async fn delete_topic(&self, topic: &str, by: Option<&str>) -> Result<(), Error> {
        todo!()
    }
    pub async fn topics(&self) -> Result<Vec<TopicStatus>, Error> {
        todo!()
    }
    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionStatus>, Error> {
        todo!()
    }
    /// Replaces the client's signing secrets (the caller decides which, and until when the old ones sign).
    pub async fn set_secrets(&self, client: &str, secrets: Vec<Secret>) -> Result<(), Error> {
        todo!()
    }
    /// Token → client, from the fabric rather than from memory.
    pub async fn api_tokens(&self) -> Result<BTreeMap<String, ApiToken>, Error> {
        todo!()
    }
    pub async fn create_api_token(&self, token: &str, client: ApiToken) -> Result<(), Error> {
        todo!()
    }
    /// Deletes a token and ends its subscription.
    pub async fn delete_api_token(&self, token: &str) -> Result<(), Error> {
        todo!()
    }
    /// A part of the client's dead letters, oldest first.
    pub async fn dead_letters(
        &self,
        client: &str,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<DeadLetter>, Error> {
        todo!()
    }
    /// Puts all dead letters back into the client's lanes; how many there were.
    pub async fn redrive(&self, client: &str) -> Result<u64, Error> {
        todo!()
    }
    /// Forgets all dead letters; how many there were.
    pub async fn drop_dead(&self, client: &str) -> Result<u64, Error> {
        todo!()
    }
    /// Sends the client again what the log holds of its topics from `from_ms` until before `to_ms`, at most `rate`
    /// events a second. A replay that is under way is replaced.
    pub async fn replay(&self, client: &str, from_ms: u64, to_ms: u64, rate: u64) -> Result<(), Error> {
        todo!()
    }
    /// Whether every shard answers.
    pub async fn pulse(&self) -> Result<(), Error> {
        todo!()
    }
    /// How many jobs should have been taken already.
    pub async fn overdue_jobs(&self) -> Result<u64, Error> {
        todo!()
    }
    pub async fn gauges(&self) -> Result<Gauges, Error> {
        todo!()
    }
    /// Lays the registry out anew on a fabric that is empty, or accepts the one it finds there.
    pub async fn initialise(&self) -> Result<(), Error> {
        todo!()
    }
}
