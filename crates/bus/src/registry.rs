//! Topics, their claims, subscriptions and API tokens. Pure: no Redis, no clock.

use signalbox_egress::Secret;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    Backend, Error, Options,
    store::{Command, CommandTarget as Target},
};
use signalbox_queues::Definition;

/// The prefix of Signalbox's own topics.
pub const RESERVED: &str = "signalbox.";

/// The topic of the audit log, without [`RESERVED`]. Its events go to subscribers and streams that may read the audit log,
/// and into no queue.
pub const AUDIT: &str = "audit";

/// The topics of Signalbox's own events, without [`RESERVED`].
const OWN_TOPICS: [&str; 24] = [
    AUDIT,
    "certificate.expires",
    "certificate.failed",
    "certificate.issued",
    "certificates",
    "host.altered",
    "host.removed",
    "instance.altered",
    "instance.drained",
    "instance.draining",
    "instance.healthy",
    "instance.lease_expired",
    "instance.registered",
    "instance.removed",
    "instance.resumed",
    "instance.unhealthy",
    "labels",
    "routers",
    "subscriber.autodropped",
    "subscriber.disabled",
    "subscriber.paced",
    "subscriber.topic_deleted",
    "table.resynced",
    "test",
];

/// The maximum number of valid tokens of one client.
const MAX_SECRETS: usize = 4;

/// The client that Signalbox's own events are published by. No token can have this name: they have no dots.
pub(super) const OWN_CLIENT: &str = "signalbox.";

/// Ended subscriptions, kept for shards that were unavailable when they ended.
const RETIRED: usize = 1_000;

/// The treatment of a batch whose attempts are exhausted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExhausted {
    /// It becomes a dead letter, a gap is reported to the subscriber, and its lane continues.
    #[default]
    Dead,
    /// It is retried without a limit; its lane waits.
    Block,
}

/// The settings of `POST /subscription`.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// All topics it wants from now on; others are unsubscribed.
    pub topics: BTreeSet<String>,
    /// Where to deliver.
    pub callback: String,
    /// The user name of deliveries.
    pub uuid: Option<String>,
    /// How long to wait for a batch to fill, in milliseconds: 0…3,600,000, 500 when absent.
    pub timeout_ms: Option<u64>,
    /// Events in a batch: 1…10,000, 100 when absent.
    pub max_events: Option<u64>,
    /// Lanes: 1…64, `bus.concurrency` when absent.
    pub concurrency: Option<u64>,
    /// The treatment of an exhausted batch.
    pub on_exhausted: Option<OnExhausted>,
    /// The environments that the client's token is confined to.
    pub environments: Option<BTreeSet<String>>,
}

/// A client's subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// The client.
    pub token: String,
    /// Where to deliver.
    pub callback: String,
    /// The user name of deliveries. A credential: only for its owner and root.
    #[serde(default)]
    pub uuid: String,
    /// How long to wait for a batch to fill.
    pub timeout_ms: u64,
    /// Events in a batch.
    pub max_events: u64,
    /// Lanes.
    pub concurrency: u64,
    /// Names the present set of lanes; a change of `concurrency` makes a higher one.
    pub generation: u64,
    /// The treatment of an exhausted batch.
    #[serde(default)]
    pub on_exhausted: OnExhausted,
    /// Signing secrets, newest first; each signs until it is retired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// User name and secrets, encrypted. In memory only if they cannot be decrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sealed: Option<String>,
    /// Why deliveries are stopped (the callback answered 410). Subscribing again starts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
    /// Whether deliveries are paused. Events wait in the meantime.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Attempts after which a batch is exhausted; `bus.max_attempts` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Age at which a batch is exhausted; `bus.max_age_seconds` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<u64>,
    /// Seconds before each retry, of which the last repeats; increasing pauses when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry_seconds: Vec<u32>,
    /// The subscribed topics.
    pub topics: BTreeSet<String>,
    /// The environments that the client's token is confined to: events of others are not delivered. `None` delivers all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environments: Option<BTreeSet<String>>,
}

/// A change of some settings of a subscription. What is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alteration {
    /// Where to deliver from now on, waiting events included.
    pub callback: Option<String>,
    /// The user name of deliveries.
    pub uuid: Option<String>,
    /// Attempts after which a batch is exhausted; `Some(None)` for the configured number.
    pub max_attempts: Option<Option<u32>>,
    /// Age at which a batch is exhausted; `Some(None)` for the configured one.
    pub max_age_seconds: Option<Option<u64>>,
    /// Seconds before each retry; empty for the default.
    pub retry_seconds: Option<Vec<u32>>,
    /// Whether deliveries are paused.
    pub paused: Option<bool>,
    /// Whether an operator disabled the subscription. Subscribing again does not enable it.
    pub disabled: Option<bool>,
}

/// Why a subscription is disabled that an operator disabled.
const DISABLED_BY_OPERATOR: &str = "an operator disabled it";

impl Subscription {
    /// Whether its credentials are encrypted with a key that this process does not have. Nothing is delivered to it then.
    pub fn is_locked(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether events of this environment are delivered.
    pub fn takes(&self, environment: &str) -> bool {
        self.environments.as_ref().is_none_or(|own| own.contains(environment))
    }
}

/// A client with a token of the bus.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    /// The client's name.
    pub name: String,
    /// The permissions of the token.
    pub scopes: BTreeSet<String>,
    /// SHA-256 of each of its tokens in hexadecimal → when the token ends, in unix milliseconds; `None` if it does not.
    pub secrets: BTreeMap<String, Option<u64>>,
    /// The token itself, if the system is configured to list tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<String>,
    /// The same, encrypted. In memory only if it cannot be decrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sealed: Option<String>,
}

impl ApiToken {
    /// A client with its first token, which ends at `end_ms` (unix milliseconds), or does not. `listed` is the token itself,
    /// if it is to be stored.
    pub fn new(
        name: String,
        scopes: BTreeSet<String>,
        digest: String,
        end_ms: Option<u64>,
        listed: Option<String>,
    ) -> Self {
        Self { name, scopes, secrets: BTreeMap::from([(digest, end_ms)]), listed, sealed: None }
    }

    /// Whether the token of this digest is valid.
    pub fn is_valid(&self, digest: &str, now_ms: u64) -> bool {
        self.secrets.get(digest).is_some_and(|end| end.is_none_or(|end| now_ms < end))
    }

    /// The digests of the tokens that are valid.
    pub fn valid(&self, now_ms: u64) -> impl Iterator<Item = &str> {
        self.secrets.keys().map(String::as_str).filter(move |digest| self.is_valid(digest, now_ms))
    }
}

/// All of it, as of one stamp.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// Topic → the client that claimed it.
    pub topics: BTreeMap<String, Option<String>>,
    /// Client → its subscription.
    pub subscriptions: BTreeMap<String, Subscription>,
    /// Client → its tokens. The identity of a client is the SHA-256 of its first token, and stays when tokens change.
    pub api_tokens: BTreeMap<String, ApiToken>,
    /// Name → what takes the events of some objects in place of the bus.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backends: BTreeMap<String, Backend>,
    /// Client → the generation of a subscription of it that ended.
    #[serde(default)]
    pub(super) retired: BTreeMap<String, u64>,
    /// Name → queue.
    #[serde(default)]
    pub queues: BTreeMap<String, Definition>,
    /// Queues that were deleted and are not cleared away yet.
    #[serde(default)]
    pub(super) retired_queues: BTreeSet<String>,
}

/// Whether applications may publish to a topic of this name.
pub fn is_topic_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Whether this is the topic of the audit log.
pub fn is_audit_topic(name: &str) -> bool {
    name.strip_prefix(RESERVED) == Some(AUDIT)
}

/// Whether Signalbox publishes events of this topic.
pub(crate) fn is_own_topic(name: &str) -> bool {
    name.strip_prefix(RESERVED).is_some_and(|rest| OWN_TOPICS.contains(&rest))
}

/// Whether the name is of the form of Signalbox's own topics.
pub fn is_reserved_topic(name: &str) -> bool {
    name.len() <= 64 && name.strip_prefix(RESERVED).is_some_and(|rest| rest.split('.').all(is_topic_name))
}

fn in_range(
    field: &'static str,
    value: Option<u64>,
    default: u64,
    least: u64,
    most: u64,
) -> Result<u64, Error> {
    let value = value.unwrap_or(default);
    if (least..=most).contains(&value) { Ok(value) } else { Err(Error::OutOfRange { field, least, most }) }
}

/// Changes. Each leaves the registry as it was when it fails.
impl Registry {
    /// How a client is called towards others.
    pub fn name_of(&self, client: &str) -> String {
        match self.api_tokens.get(client) {
            Some(token) => token.name.clone(),
            None if client == OWN_CLIENT => "signalbox".to_owned(),
            // Actions of a state machine publish under its name.
            None if client.starts_with("machine:") => client.to_owned(),
            None => client.strip_prefix('@').unwrap_or("(deleted)").to_owned(),
        }
    }

    /// Makes `client` the publisher of a topic that has no publisher yet.
    ///
    /// # Errors
    /// [`Error::Forbidden`] when it is another client's, [`Error::TooMany`] when there are too many topics in all or of this
    /// client.
    pub(super) fn claim(&mut self, topic: &str, client: &str, limits: &Options) -> Result<(), Error> {
        let topics = self.topics.len();
        let own = self.topics.values().filter(|publisher| publisher.as_deref() == Some(client)).count();
        match self.topics.get_mut(topic) {
            Some(Some(publisher)) if publisher != client => Err(Error::Forbidden),
            Some(Some(_)) => Ok(()),
            _ if own >= limits.topics_per_client => Err(Error::TooMany("topics of one client")),
            Some(claim) => {
                *claim = Some(client.to_owned());
                Ok(())
            }
            None if topics >= limits.topics => Err(Error::TooMany("topics")),
            None => {
                self.topics.insert(topic.to_owned(), Some(client.to_owned()));
                Ok(())
            }
        }
    }

    /// Creates or replaces the client's subscription. `generation` is higher than every one before.
    pub(super) fn subscribe(
        &mut self,
        client: &str,
        wanted: Wanted,
        generation: u64,
        limits: &Options,
    ) -> Result<(), Error> {
        for topic in &wanted.topics {
            if !is_topic_name(topic) && !is_reserved_topic(topic) {
                return Err(Error::BadTopic(topic.clone()));
            }
        }
        let timeout_ms = in_range("timeout", wanted.timeout_ms, 500, 0, 3_600_000)?;
        let max_events = in_range("max", wanted.max_events, 100, 1, 10_000)?;
        let concurrency = in_range("concurrency", wanted.concurrency, limits.concurrency, 1, 64)?;
        let before = self.subscriptions.get(client);
        if before.is_none() && self.subscriptions.len() >= limits.subscriptions {
            return Err(Error::TooMany("subscriptions"));
        }
        let created = wanted.topics.iter().filter(|topic| !self.topics.contains_key(*topic)).count();
        if self.topics.len() + created > limits.topics {
            return Err(Error::TooMany("topics"));
        }
        let sealed = before.and_then(|before| before.sealed.clone());
        let subscription = Subscription {
            token: client.to_owned(),
            callback: wanted.callback,
            uuid: if sealed.is_some() { String::new() } else { wanted.uuid.unwrap_or_default() },
            sealed,
            timeout_ms,
            max_events,
            concurrency,
            generation: before
                .filter(|before| before.concurrency == concurrency)
                .map_or(generation, |before| before.generation),
            on_exhausted: wanted.on_exhausted.unwrap_or_default(),
            secrets: before.map(|before| before.secrets.clone()).unwrap_or_default(),
            disabled: before
                .and_then(|before| before.disabled.clone())
                .filter(|reason| reason == DISABLED_BY_OPERATOR),
            paused: before.is_some_and(|before| before.paused),
            max_attempts: before.and_then(|before| before.max_attempts),
            max_age_seconds: before.and_then(|before| before.max_age_seconds),
            retry_seconds: before.map(|before| before.retry_seconds.clone()).unwrap_or_default(),
            topics: wanted.topics,
            environments: wanted.environments,
        };
        for topic in &subscription.topics {
            self.topics.entry(topic.clone()).or_default();
        }
        self.subscriptions.insert(client.to_owned(), subscription);
        Ok(())
    }

    /// Replaces the signing secrets of the client's subscription. Those that could not be decrypted are lost.
    pub(super) fn set_secrets(&mut self, client: &str, secrets: &[Secret]) -> Result<(), Error> {
        let one = self.subscriptions.get_mut(client).ok_or(Error::NoSuchSubscription)?;
        one.secrets = secrets.to_vec();
        one.sealed = None;
        Ok(())
    }

    /// Changes some settings of the client's subscription.
    pub(super) fn alter(&mut self, client: &str, change: Alteration) -> Result<(), Error> {
        let one = self.subscriptions.get_mut(client).ok_or(Error::NoSuchSubscription)?;
        if one.is_locked() && change.uuid.is_some() {
            return Err(Error::Locked);
        }
        let Alteration { callback, uuid, max_attempts, max_age_seconds, retry_seconds, paused, disabled } =
            change;
        one.callback = callback.unwrap_or_else(|| std::mem::take(&mut one.callback));
        one.uuid = uuid.unwrap_or_else(|| std::mem::take(&mut one.uuid));
        one.max_attempts = max_attempts.unwrap_or(one.max_attempts);
        one.max_age_seconds = max_age_seconds.unwrap_or(one.max_age_seconds);
        one.retry_seconds = retry_seconds.unwrap_or_else(|| std::mem::take(&mut one.retry_seconds));
        one.paused = paused.unwrap_or(one.paused);
        match disabled {
            Some(true) => one.disabled = Some(DISABLED_BY_OPERATOR.to_owned()),
            Some(false) => one.disabled = None,
            None => {}
        }
        Ok(())
    }

    /// Ends the client's subscription.
    pub(super) fn unsubscribe(&mut self, client: &str) -> Result<(), Error> {
        let ended = self.subscriptions.remove(client).ok_or(Error::NoSuchSubscription)?;
        self.retired.insert(client.to_owned(), ended.generation);
        if self.retired.len() > RETIRED {
            let oldest = self.retired.iter().min_by_key(|(_, generation)| **generation);
            if let Some(client) = oldest.map(|(client, _)| client.clone()) {
                self.retired.remove(&client);
            }
        }
        Ok(())
    }

    /// Whether the client has a subscription or has claimed a topic.
    pub(super) fn has_client(&self, client: &str) -> bool {
        self.subscriptions.contains_key(client)
            || self.topics.values().any(|publisher| publisher.as_deref() == Some(client))
    }

    /// Ends the client's subscription, if it has one, and makes `heir` the publisher of its topics.
    pub(super) fn end_client(&mut self, client: &str, heir: &str) -> Result<(), Error> {
        if self.subscriptions.contains_key(client) {
            self.unsubscribe(client)?;
        }
        for publisher in self.topics.values_mut().filter(|publisher| publisher.as_deref() == Some(client)) {
            *publisher = Some(heir.to_owned());
        }
        Ok(())
    }

    /// Takes a topic out of the client's subscription.
    pub(super) fn unsubscribe_topic(&mut self, client: &str, topic: &str) -> Result<(), Error> {
        let subscription = self.subscriptions.get_mut(client).ok_or(Error::NoSuchSubscription)?;
        if subscription.topics.remove(topic) { Ok(()) } else { Err(Error::NoSuchTopic) }
    }

    /// Deletes a topic and removes it from every subscription. `by` is the requesting client; `None` for root. Returns the
    /// clients that were subscribed to it.
    pub(super) fn delete_topic(&mut self, topic: &str, by: Option<&str>) -> Result<Vec<String>, Error> {
        let publisher = self.topics.get(topic).ok_or(Error::NoSuchTopic)?;
        if by.is_some_and(|client| publisher.as_deref() != Some(client)) {
            return Err(Error::Forbidden);
        }
        self.topics.remove(topic);
        let mut subscribed = Vec::new();
        for subscription in self.subscriptions.values_mut() {
            if subscription.topics.remove(topic) {
                subscribed.push(subscription.token.clone());
            }
        }
        Ok(subscribed)
    }

    /// Makes a queue or replaces its definition; whether it is new. One that stays the same keeps its revision.
    pub(super) fn put_queue(
        &mut self,
        name: &str,
        definition: Definition,
        version: u64,
        most: usize,
    ) -> Result<bool, Error> {
        let queues = self.queues.len();
        match self.queues.get_mut(name) {
            Some(known) => {
                if !known.is_same(&definition) {
                    *known = Definition { revision: version, ..definition };
                }
                Ok(false)
            }
            None if queues >= most => Err(Error::TooMany("queues")),
            None => {
                self.queues.insert(name.to_owned(), Definition { revision: version, ..definition });
                Ok(true)
            }
        }
    }

    /// The queue that is to be changed. `expected` is its revision, if only that one may be changed; 0 for no queue.
    pub(super) fn queue_to_change(
        &self,
        name: &str,
        expected: Option<u64>,
    ) -> Result<Option<&Definition>, Error> {
        if self.retired_queues.contains(name) {
            return Err(Error::QueueEnding);
        }
        let known = self.queues.get(name);
        let revision = known.map_or(0, |known| known.revision);
        match expected {
            Some(expected) if expected != revision => Err(Error::QueueChanged(revision)),
            _ => Ok(known),
        }
    }

    /// Deletes a queue. Its name is free again when [`Self::queue_ended`] reports that its data was removed.
    pub(super) fn delete_queue(&mut self, name: &str) -> Result<(), Error> {
        self.queues.remove(name).ok_or(Error::NoSuchQueue)?;
        self.retired_queues.insert(name.to_owned());
        Ok(())
    }

    /// Nothing is left of a queue that was deleted.
    pub(super) fn queue_ended(&mut self, name: &str) {
        self.retired_queues.remove(name);
    }

    /// Makes another client the publisher of a topic. `by` is the client that asks; `None` for root.
    pub(super) fn hand_over(&mut self, topic: &str, to: &str, by: Option<&str>) -> Result<(), Error> {
        let publisher = self.topics.get_mut(topic).ok_or(Error::NoSuchTopic)?;
        if is_reserved_topic(topic) || by.is_some_and(|client| publisher.as_deref() != Some(client)) {
            return Err(Error::Forbidden);
        }
        *publisher = Some(to.to_owned());
        Ok(())
    }

    /// Gives a client another token. The ones before end at `until_ms`.
    pub(super) fn rotate_api_token(
        &mut self,
        client: &str,
        fresh: &str,
        listed: Option<&str>,
        until_ms: u64,
        now_ms: u64,
    ) -> Result<(), Error> {
        if self.api_tokens.values().any(|one| one.secrets.contains_key(fresh)) {
            return Err(Error::TokenExists);
        }
        let token = self.api_tokens.get_mut(client).ok_or(Error::NoSuchToken)?;
        token.secrets.retain(|_, end| end.is_none_or(|end| now_ms < end));
        for end in token.secrets.values_mut() {
            *end = Some(end.map_or(until_ms, |end| end.min(until_ms)));
        }
        token.secrets.retain(|_, end| end.is_none_or(|end| now_ms < end));
        if token.secrets.len() >= MAX_SECRETS {
            return Err(Error::TooMany("tokens of the client"));
        }
        token.secrets.insert(fresh.to_owned(), None);
        token.listed = listed.map(str::to_owned);
        token.sealed = None;
        Ok(())
    }

    /// Deletes a client's tokens and ends its subscription. Topics it published to stay claimed until root deletes them.
    pub(super) fn delete_api_token(&mut self, token: &str) -> Result<(), Error> {
        self.api_tokens.remove(token).ok_or(Error::NoSuchToken)?;
        if self.subscriptions.contains_key(token) {
            self.unsubscribe(token)?;
        }
        Ok(())
    }
}

/// The commands that keep the keys for single lookups consistent with the snapshot, as Routemaster had them. A pure
/// difference: any change of the registry is projected. User names of deliveries are written only `with_credentials`.
pub(super) fn projection(before: &Registry, after: &Registry, with_credentials: bool) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut write = |name, target, args: Vec<String>| commands.push(Command { name, target, args });
    for (topic, _) in before.topics.iter().filter(|(topic, _)| !after.topics.contains_key(*topic)) {
        write("SREM", Target::Topics, vec![topic.clone()]);
        write("DEL", Target::Topic(topic.clone()), Vec::new());
        write("DEL", Target::SubscribersOf(topic.clone()), Vec::new());
    }
    for (topic, publisher) in &after.topics {
        if !before.topics.contains_key(topic) {
            write("SADD", Target::Topics, vec![topic.clone()]);
        }
        match publisher {
            Some(name) if before.topics.get(topic) != Some(publisher) => {
                write("HSET", Target::Topic(topic.clone()), vec!["publisher".into(), name.clone()]);
            }
            None if matches!(before.topics.get(topic), Some(Some(_))) => {
                write("HDEL", Target::Topic(topic.clone()), vec!["publisher".into()]);
            }
            _ => {}
        }
    }
    for (token, subscription) in &before.subscriptions {
        if !after.subscriptions.contains_key(token) {
            write("SREM", Target::Subscribers, vec![token.clone()]);
            write("DEL", Target::TopicsOf(token.clone()), Vec::new());
            for topic in subscription.topics.iter().filter(|topic| after.topics.contains_key(*topic)) {
                write("SREM", Target::SubscribersOf(topic.clone()), vec![token.clone()]);
            }
        }
    }
    for (token, subscription) in &after.subscriptions {
        let old = before.subscriptions.get(token);
        if old == Some(subscription) {
            continue;
        }
        let none = BTreeSet::new();
        let old_topics = old.map_or(&none, |old| &old.topics);
        for topic in old_topics.difference(&subscription.topics) {
            write("SREM", Target::TopicsOf(token.clone()), vec![topic.clone()]);
            if after.topics.contains_key(topic) {
                write("SREM", Target::SubscribersOf(topic.clone()), vec![token.clone()]);
            }
        }
        for topic in subscription.topics.difference(old_topics) {
            write("SADD", Target::TopicsOf(token.clone()), vec![topic.clone()]);
            write("SADD", Target::SubscribersOf(topic.clone()), vec![token.clone()]);
        }
        if old.is_none() {
            write("SADD", Target::Subscribers, vec![token.clone()]);
        }
        let fields = [
            ("callback", subscription.callback.clone()),
            ("timeout", subscription.timeout_ms.to_string()),
            ("max_events", subscription.max_events.to_string()),
            ("uuid", if with_credentials { subscription.uuid.clone() } else { String::new() }),
        ];
        let fields = fields.into_iter().flat_map(|(field, value)| [field.to_owned(), value]).collect();
        write("HSET", Target::Subscriber(token.clone()), fields);
    }
    if before.api_tokens != after.api_tokens {
        let (old, new) = (secrets(before), secrets(after));
        for (digest, json) in new.iter().filter(|(digest, json)| old.get(*digest) != Some(*json)) {
            write("HSET", Target::ApiTokens, vec![(*digest).to_owned(), json.clone()]);
        }
        for digest in old.keys().filter(|digest| !new.contains_key(*digest)) {
            write("HDEL", Target::ApiTokens, vec![(*digest).to_owned()]);
        }
    }
    let ended =
        after.retired.iter().filter(|(token, generation)| before.retired.get(*token) != Some(*generation));
    for (token, generation) in ended {
        retire(token, *generation, &mut write);
    }
    commands
}

/// Each token by its digest: its client, and the client's name and scopes.
fn secrets(registry: &Registry) -> BTreeMap<&str, String> {
    let mut all = BTreeMap::new();
    for (client, token) in &registry.api_tokens {
        let json =
            serde_json::json!({"client": client, "name": token.name, "scopes": token.scopes}).to_string();
        all.extend(token.secrets.keys().map(|digest| (digest.as_str(), json.clone())));
    }
    all
}

/// The change for a shard other than the first: only the removal of ended subscriptions.
pub(super) fn projection_elsewhere(after: &Registry) -> Vec<Command> {
    let mut commands = Vec::new();
    for (token, generation) in &after.retired {
        // A client that subscribed again has newer lanes; its old generation still has to be removed.
        if !after.subscriptions.contains_key(token) {
            let mut write = |name, target, args: Vec<String>| commands.push(Command { name, target, args });
            retire(token, *generation, &mut write);
        } else {
            let args = vec![token.clone(), generation.to_string()];
            commands.push(Command { name: "HSET", target: Target::Purge, args });
        }
    }
    commands
}

fn retire(token: &str, generation: u64, write: &mut impl FnMut(&'static str, Target, Vec<String>)) {
    let token = token.to_owned();
    write("HSET", Target::Purge, vec![token.clone(), generation.to_string()]);
    write("DEL", Target::Subscriber(token.clone()), Vec::new());
    write("DEL", Target::Dead(token.clone()), Vec::new());
    write("DEL", Target::Attempts(token.clone()), Vec::new());
    write("HDEL", Target::DeadBytes, vec![token.clone()]);
    write("DEL", Target::Replay(token.clone()), Vec::new());
    write("ZREM", Target::Replays, vec![token]);
}
