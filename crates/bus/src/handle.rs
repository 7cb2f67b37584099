//! The interface of the bus for request handlers and other crates.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{json, value::RawValue};
use tokio::sync::mpsc::error::TrySendError;

use super::{
    Alteration, ApiToken, Change, Credentials, Error, Event, EventId, NewEvent, NewMessage, Refusal,
    Registry, Subscription, Wanted, attempts,
    commit::{Gather, Item, Part, Ticket},
    core::Core,
    dead,
    event::{self, ID_STEP},
    housekeeping,
    registry::{OWN_CLIENT, RESERVED, is_own_topic, is_topic_name},
    replay,
    verdict::FULL_HEALTH,
    view::State,
};
use signalbox_api::events::DeliveryAttempt;
use signalbox_egress::Secret;

/// The environment of a client's events that name none.
fn name_of<'a>(client: &'a str, registry: &'a Registry) -> &'a str {
    registry.api_tokens.get(client).map_or(client.trim_end_matches('.'), |token| &token.name)
}

/// How long the shards may take to answer a ping.
const PULSE: Duration = Duration::from_secs(2);
/// Tokens in all.
const API_TOKENS: usize = 10_000;

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
    /// Its subscription.
    pub subscription: Arc<Subscription>,
    /// Its counters: delivered and waiting events.
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

/// One event that could not be delivered.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The event.
    pub event: Arc<Event>,
    /// When it became a dead letter, unix milliseconds.
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
    /// The cursor of the next part; `None` after the last part.
    pub cursor: Option<String>,
}

/// Events of one object that are to be accepted together.
#[derive(Debug)]
pub struct NewGroup {
    /// The object of all of them.
    pub object: String,
    /// The object's new state as JSON, if it changes.
    pub state: Option<Box<RawValue>>,
    /// The main event and its sub-events, each with its topic; at least one. Their own `object` and
    /// and `idempotency_key` are ignored.
    pub events: Vec<(String, NewEvent)>,
    /// A repeat under the same key, client and object returns the first group's ids.
    pub idempotency_key: Option<String>,
}

/// The bus, for everybody who publishes, subscribes or asks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(super) core: Arc<Core>,
}

impl Handle {
    pub(super) fn from_core(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Publishes events of one client to one topic; returns one result for each, in order. The default `environment`
    /// of an event is the client's name, or its token if it has no name.
    pub async fn publish(
        &self,
        client: &str,
        topic: &str,
        events: Vec<NewEvent>,
    ) -> Vec<Result<EventId, Refusal>> {
        if !is_topic_name(topic) {
            return vec![Err(Refusal::BadTopic); events.len()];
        }
        self.publish_as(client, topic, events).await
    }

    /// Publishes Signalbox's own events; `topic` without its prefix (`subscriber.disabled`).
    pub async fn announce(&self, topic: &str, events: Vec<NewEvent>) -> Vec<Result<EventId, Refusal>> {
        let topic = format!("{RESERVED}{topic}");
        if !is_own_topic(&topic) {
            tracing::error!(topic, "own topic not declared");
            return vec![Err(Refusal::BadTopic); events.len()];
        }
        self.publish_as(OWN_CLIENT, &topic, events).await
    }

    async fn publish_as(
        &self,
        client: &str,
        topic: &str,
        events: Vec<NewEvent>,
    ) -> Vec<Result<EventId, Refusal>> {
        let count = events.len();
        if count == 0 {
            return Vec::new();
        }
        let view = self.core.view();
        // Known claims are rejected from memory; a claim that this process does not know yet is detected later.
        if let Some(Some(publisher)) = view.registry.topics.get(topic)
            && publisher != client
        {
            return vec![Err(Refusal::Claimed); count];
        }
        let name = name_of(client, &view.registry);
        let (client, topic): (Arc<str>, Arc<str>) = (client.into(), topic.into());
        let (gather, answered) = Gather::new(count);
        for (place, mut event) in events.into_iter().enumerate() {
            let ticket = Ticket { gather: Arc::clone(&gather), place };
            let environment = event.environment.take().unwrap_or_else(|| name.to_owned());
            let key = event.idempotency_key.take();
            let parts = vec![Part::new(&topic, environment, event)];
            self.enqueue(Item::new(&client, parts, None, key.as_deref(), ticket));
        }
        // The sender is never dropped before all are answered.
        let _ = answered.await;
        gather.take()
    }

    /// Publishes events of one object together, with its new state: all are accepted, in this order, or none. The ids
    /// of the events; those of the first time for a repeat under the group's key.
    ///
    /// The reason for the rejection; nothing was done then, unless the error is that the outcome is unknown.
    pub async fn publish_group(&self, client: &str, group: NewGroup) -> Result<Vec<EventId>, Refusal> {
        let NewGroup { object, state, events, idempotency_key } = group;
        if events.is_empty() || events.iter().any(|(topic, _)| !is_topic_name(topic)) {
            return Err(Refusal::BadTopic);
        }
        let view = self.core.view();
        let name = name_of(client, &view.registry);
        let mut parts = Vec::with_capacity(events.len());
        for (topic, mut event) in events {
            event.object = Some(object.clone());
            let environment = event.environment.take().unwrap_or_else(|| name.to_owned());
            parts.push(Part::new(&topic.into(), environment, event));
        }
        let (gather, answered) = Gather::new(1);
        let ticket = Ticket { gather: Arc::clone(&gather), place: 0 };
        let count = parts.len() as u64;
        self.enqueue(Item::new(&client.into(), parts, state, idempotency_key.as_deref(), ticket));
        // The sender is never dropped before all are answered.
        let _ = answered.await;
        let first = gather.take().pop().unwrap_or(Err(Refusal::Unavailable))?;
        Ok((0..count).map(|place| EventId(first.0 + place * ID_STEP)).collect())
    }

    /// Publishes messages of one client to the matching queues and to live streams. Returns one result for each, in
    /// order.
    pub async fn publish_messages(
        &self,
        client: &str,
        messages: Vec<NewMessage>,
    ) -> Vec<Result<EventId, Refusal>> {
        if messages.is_empty() {
            return Vec::new();
        }
        let client: Arc<str> = client.into();
        let (gather, answered) = Gather::new(messages.len());
        for (place, mut message) in messages.into_iter().enumerate() {
            let ticket = Ticket { gather: Arc::clone(&gather), place };
            let key = message.idempotency_key.take();
            self.enqueue(Item::new(&client, vec![Part::message(message)], None, key.as_deref(), ticket));
        }
        // The sender is never dropped before all are answered.
        let _ = answered.await;
        gather.take()
    }

    /// Changes a label and publishes the events of the change, of the topic `signalbox.labels`, in one atomic step.
    /// Returns the first event's ID; those of further ones follow it by 64. Without events it is 0.
    ///
    /// [`Refusal::Outdated`] when the label is not in the state that the change expects. Nothing was done then, nor
    /// for any other refusal except an unknown outcome.
    pub async fn change(
        &self,
        object: String,
        topic: &str,
        events: Vec<NewEvent>,
        change: Change,
    ) -> Result<EventId, Refusal> {
        let topic: Arc<str> = format!("{RESERVED}{topic}").into();
        let view = self.core.view();
        let name = name_of(OWN_CLIENT, &view.registry);
        let part = |mut event: NewEvent| {
            event.object = Some(object.clone());
            let environment = event.environment.take().unwrap_or_else(|| name.to_owned());
            Part::new(&topic, environment, event)
        };
        let parts = events.into_iter().map(part).collect();
        let (gather, answered) = Gather::new(1);
        let ticket = Ticket { gather: Arc::clone(&gather), place: 0 };
        self.enqueue(Item::changing(&OWN_CLIENT.into(), object, parts, change, ticket));
        // The sender is never dropped before all are answered.
        let _ = answered.await;
        gather.take().pop().unwrap_or(Err(Refusal::Unavailable))
    }

    fn enqueue(&self, item: Item) {
        let bytes = item.bytes();
        if !self.core.reserve(bytes) {
            return item.answer(Err(Refusal::Busy));
        }
        let shard = event::shard_of(item.object(), self.core.stores.len());
        match self.core.committers[shard].try_send(item) {
            Ok(()) => {}
            Err(TrySendError::Full(item)) => {
                self.core.release(bytes);
                item.answer(Err(Refusal::Busy));
            }
            Err(TrySendError::Closed(item)) => {
                self.core.release(bytes);
                item.answer(Err(Refusal::Unavailable));
            }
        }
    }

    /// The registry as this pacemaker knows it; for looking up tokens on the hot path.
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.core.view().registry)
    }

    /// Identity of the fabric, to be remembered outside of it (see [`super::Bus::open`]).
    pub fn fabric(&self) -> String {
        self.core.view().fabric.clone()
    }

    /// How credentials of deliveries are stored, as last read.
    pub fn credentials(&self) -> Credentials {
        self.core.view().credentials
    }

    /// Whether events are accepted: not when the fabric has been replaced by an empty or another one.
    pub fn is_ready(&self) -> bool {
        self.core.view().state == State::Ready
    }

    /// Whether the fabric was read at least once. Before that, no event is accepted, which says nothing about the fabric.
    pub fn was_checked(&self) -> bool {
        self.core.view().checked
    }

    /// Creates or replaces the client's subscription.
    ///
    /// # Errors
    /// When a value is out of range, a topic's name is none, or a limit would be passed.
    pub async fn subscribe(&self, client: &str, wanted: Wanted) -> Result<(), Error> {
        let limits = &self.core.options;
        let existed = self
            .core
            .change(|registry, generation| {
                let existed = registry.subscriptions.contains_key(client);
                registry.subscribe(client, wanted.clone(), generation, limits)?;
                Ok(existed)
            })
            .await?;
        // Its receiver may have recovered, or another one is in its place.
        if existed { self.retry_now(client).await.map(drop) } else { Ok(()) }
    }

    /// Ends the pauses of the client's lanes after failures. Returns how many paused.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none.
    pub async fn retry_now(&self, client: &str) -> Result<u64, Error> {
        self.known(client)?;
        let mut kicked = 0;
        for store in &self.core.stores {
            kicked += store.kick(client).await?;
        }
        Ok(kicked)
    }

    /// Changes some settings of the client's subscription, and ends pauses after failures.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none.
    pub async fn alter(&self, client: &str, change: Alteration) -> Result<(), Error> {
        self.core.change(|registry, _| registry.alter(client, change.clone())).await?;
        self.retry_now(client).await.map(drop)
    }

    /// The client's last `limit` attempts to deliver, newest first.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none.
    pub async fn deliveries(&self, client: &str, limit: usize) -> Result<Vec<DeliveryAttempt>, Error> {
        self.known(client)?;
        attempts::list(&self.core, client, limit).await
    }

    /// Takes an event that waits out of the client's lanes. It becomes a dead letter with a gap.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`], or [`Error::NoSuchEvent`] when it is not among the client's next events.
    pub async fn skip(&self, client: &str, id: EventId) -> Result<(), Error> {
        self.known(client)?;
        let event = self.event(id).await?.ok_or(Error::NoSuchEvent)?;
        let shard = event::shard_of(&event.object, self.core.stores.len());
        let keep = (self.core.options.dead_events, self.core.options.dead_bytes);
        let skipped = self.core.stores[shard].skip(client, id, event::lane_hash(&event.object), keep).await?;
        if skipped { Ok(()) } else { Err(Error::NoSuchEvent) }
    }

    /// Delivers one event to the client again: a dead letter, or an event of its topics that the log still has.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`], or [`Error::NoSuchEvent`].
    pub async fn resend(&self, client: &str, id: EventId) -> Result<(), Error> {
        self.known(client)?;
        dead::resend(&self.core, client, id).await
    }

    /// Ends the client's subscription.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none.
    pub async fn unsubscribe(&self, client: &str) -> Result<(), Error> {
        self.core.change(|registry, _| registry.unsubscribe(client)).await?;
        self.clear_away();
        Ok(())
    }

    /// Ends everything of a client: its subscription, if it has one, and its claims of topics, which `heir` gets.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn end_client(&self, client: &str, heir: &str) -> Result<(), Error> {
        if !self.fresh().await?.has_client(client) {
            return Ok(());
        }
        self.core.change(|registry, _| registry.end_client(client, heir)).await?;
        self.clear_away();
        Ok(())
    }

    /// Takes one topic out of the client's subscription. What is in its batches already is delivered.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`], or [`Error::NoSuchTopic`] when it was not subscribed to.
    pub async fn unsubscribe_topic(&self, client: &str, topic: &str) -> Result<(), Error> {
        self.core.change(|registry, _| registry.unsubscribe_topic(client, topic)).await
    }

    /// Deletes a topic. `by` is the requesting client; `None` for root.
    ///
    /// # Errors
    /// [`Error::NoSuchTopic`], or [`Error::Forbidden`] when it is another client's.
    pub async fn delete_topic(&self, topic: &str, by: Option<&str>) -> Result<(), Error> {
        let subscribed = self.core.change(|registry, _| registry.delete_topic(topic, by)).await?;
        // Their subscriptions no longer name the topic, so events of a new publisher would not reach them.
        for client in subscribed {
            self.core.announce("subscriber.topic_deleted", &client, json!({ "topic": topic }));
        }
        Ok(())
    }

    /// All topics.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn topics(&self) -> Result<Vec<TopicStatus>, Error> {
        let registry = self.fresh().await?;
        let mut events = self.events_by_topic(&registry).await?;
        let status = |(name, publisher): (&String, &Option<String>)| TopicStatus {
            name: name.clone(),
            publisher: publisher.clone(),
            events: events.remove(name).unwrap_or_default(),
        };
        Ok(registry.topics.iter().map(status).collect())
    }

    /// Events accepted in all, by topic.
    async fn events_by_topic(&self, registry: &Registry) -> Result<BTreeMap<String, u64>, Error> {
        let names: Vec<&str> = registry.topics.keys().map(String::as_str).collect();
        let mut events = vec![0; names.len()];
        for store in &self.core.stores {
            for (sum, count) in events.iter_mut().zip(store.topic_counters(&names).await?) {
                *sum += count;
            }
        }
        Ok(names.into_iter().map(str::to_owned).zip(events).collect())
    }

    /// All subscriptions.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionStatus>, Error> {
        let registry = self.fresh().await?;
        let mut gauges = self.gauges_of(&registry).await?;
        Ok(registry
            .subscriptions
            .iter()
            .map(|(token, subscription)| SubscriptionStatus {
                subscription: Arc::new(subscription.clone()),
                gauges: gauges.subscribers.remove(token).unwrap_or_default(),
            })
            .collect())
    }

    /// Replaces the client's signing secrets (the caller decides which, and until when the old ones sign).
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none.
    pub async fn set_secrets(&self, client: &str, secrets: Vec<Secret>) -> Result<(), Error> {
        self.core.change(|registry, _| registry.set_secrets(client, &secrets)).await
    }

    /// Client → its tokens, from the fabric rather than from memory.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn api_tokens(&self) -> Result<BTreeMap<String, ApiToken>, Error> {
        Ok(self.fresh().await?.api_tokens.clone())
    }

    /// The client with the token of this digest, as far as this process knows.
    pub fn client_of(&self, digest: &str, now_ms: u64) -> Option<(String, ApiToken)> {
        let view = self.core.view();
        view.client_of(digest, now_ms).map(|(client, token)| (client.to_owned(), token.clone()))
    }

    /// As [`Self::client_of`], for a token that may have been made elsewhere a moment ago.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn find_api_token(
        &self,
        digest: &str,
        now_ms: u64,
    ) -> Result<Option<(String, ApiToken)>, Error> {
        // Strangers ask this as often as they like, so the registry is only read when there is something in it.
        if !self.core.stores[0].has_api_token(digest).await? {
            return Ok(None);
        }
        self.fresh().await?;
        Ok(self.client_of(digest, now_ms))
    }

    /// Makes a client with a token. The same again changes nothing. `client` is the digest of the token.
    ///
    /// # Errors
    /// [`Error::TokenExists`] when it is another client's.
    pub async fn create_api_token(&self, client: &str, token: ApiToken) -> Result<(), Error> {
        let is_same = |known: &ApiToken| {
            let secrets = token.secrets.keys().all(|digest| known.secrets.contains_key(digest));
            secrets && known.name == token.name && known.scopes == token.scopes
        };
        self.core
            .change(|registry, _| match registry.api_tokens.get(client) {
                Some(known) if !is_same(known) => Err(Error::TokenExists),
                Some(_) => Ok(()),
                None if registry.api_tokens.len() >= API_TOKENS => Err(Error::TooMany("tokens")),
                // A client may have got it by a rotation.
                None if registry
                    .api_tokens
                    .values()
                    .any(|one| token.secrets.keys().any(|digest| one.secrets.contains_key(digest))) =>
                {
                    Err(Error::TokenExists)
                }
                None => {
                    registry.api_tokens.insert(client.to_owned(), token.clone());
                    Ok(())
                }
            })
            .await
    }

    /// Gives a client another token, with the digest `fresh`. The ones before end at `until_ms`. What belongs to the
    /// client stays. `listed` is the token itself, if tokens are listed.
    ///
    /// # Errors
    /// [`Error::NoSuchToken`], [`Error::TokenExists`] when another client has it, [`Error::TooMany`] when the client has
    /// too many valid tokens.
    pub async fn rotate_api_token(
        &self,
        client: &str,
        fresh: &str,
        listed: Option<&str>,
        until_ms: u64,
        now_ms: u64,
    ) -> Result<(), Error> {
        self.core
            .change(|registry, _| registry.rotate_api_token(client, fresh, listed, until_ms, now_ms))
            .await
    }

    /// Makes another client the publisher of a topic. `by` is the client that asks; `None` for root.
    ///
    /// # Errors
    /// [`Error::NoSuchTopic`], or [`Error::Forbidden`] when it is another client's or one of Signalbox's own.
    pub async fn hand_over(&self, topic: &str, to: &str, by: Option<&str>) -> Result<(), Error> {
        self.core.change(|registry, _| registry.hand_over(topic, to, by)).await
    }

    /// Deletes a client's tokens and ends its subscription.
    ///
    /// # Errors
    /// [`Error::NoSuchToken`] when there is none.
    pub async fn delete_api_token(&self, client: &str) -> Result<(), Error> {
        self.core.change(|registry, _| registry.delete_api_token(client)).await?;
        self.clear_away();
        Ok(())
    }

    /// A part of the client's dead letters, oldest first. The cursor names shard and place.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none.
    pub async fn dead_letters(
        &self,
        client: &str,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<DeadLetter>, Error> {
        self.known(client)?;
        dead::list(&self.core, client, cursor, limit).await
    }

    /// Puts all dead letters back into the client's lanes; how many there were.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none.
    pub async fn redrive(&self, client: &str) -> Result<u64, Error> {
        self.known(client)?;
        dead::redrive(&self.core, client).await
    }

    /// Forgets all dead letters; how many there were.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none.
    pub async fn drop_dead(&self, client: &str) -> Result<u64, Error> {
        self.known(client)?;
        let mut dropped = 0;
        for store in &self.core.stores {
            dropped += store.drop_dead(client).await?;
        }
        Ok(dropped)
    }

    /// Sends the client again what the log holds of its topics from `from_ms` until before `to_ms` (and not of the
    /// future), at most `rate` events a second. A replay that is under way is replaced.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`] when there is none, [`Error::OutOfRange`] for a rate or a range that is none.
    pub async fn replay(&self, client: &str, from_ms: u64, to_ms: u64, rate: u64) -> Result<(), Error> {
        self.known(client)?;
        replay::start(&self.core, client, from_ms, to_ms, rate).await
    }

    /// Whether every shard answers.
    ///
    /// # Errors
    /// When one does not.
    pub async fn pulse(&self) -> Result<(), Error> {
        let ping_all = async {
            for store in &self.core.stores {
                store.ping().await?;
            }
            Ok(())
        };
        tokio::time::timeout(PULSE, ping_all).await.unwrap_or(Err(Error::Silent))
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

    /// All numbers.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn gauges(&self) -> Result<Gauges, Error> {
        let view = self.core.view();
        let topics = self.events_by_topic(&view.registry).await?;
        Ok(Gauges { topics, credentials: view.credentials, ..self.gauges_of(&view.registry).await? })
    }

    async fn gauges_of(&self, registry: &Registry) -> Result<Gauges, Error> {
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

    /// Trusts the fabric as it is now, and creates a registry if there is none. Operators call this after they
    /// replaced the fabric on purpose.
    ///
    /// # Errors
    /// When the fabric does not answer, or was laid out for another number of shards.
    pub async fn initialize(&self) -> Result<(), Error> {
        self.core.initialize().await.map(drop)
    }

    /// Trusts the fabric with this identity in place of the known one: an operator initialized it through another
    /// process.
    ///
    /// # Errors
    /// When the fabric does not answer, or was laid out for another number of shards.
    pub async fn adopt(&self, fabric: &str) -> Result<(), Error> {
        self.core.adopt(fabric).await
    }

    async fn fresh(&self) -> Result<Arc<Registry>, Error> {
        let view = self.core.reload(&self.core.view().stamp).await?;
        if view.state == State::Uninitialized {
            return Err(Error::Uninitialized);
        }
        Ok(Arc::clone(&view.registry))
    }

    fn known(&self, client: &str) -> Result<(), Error> {
        if self.core.view().subscription(client).is_some() { Ok(()) } else { Err(Error::NoSuchSubscription) }
    }

    /// Removes lanes in the background; housekeeping completes the removal.
    fn clear_away(&self) {
        let core = Arc::clone(&self.core);
        tokio::spawn(async move {
            for store in &core.stores {
                if let Err(error) = housekeeping::purge(store).await {
                    tracing::debug!(%error, "lanes are cleared away later");
                }
            }
        });
    }
}
