//! Subscriptions: what a client wants, and the operator's changes of it.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Error, Handle, Limit, Options, Registry, housekeeping, is_reserved_topic, is_topic_name};
use signalbox_api::events::SubscriberNumbers;
use signalbox_egress::Secret;

/// Ended subscriptions, kept for shards that were unavailable when they ended.
const RETIRED: usize = 1_000;

/// Sets of lanes of one subscriber that have batches at the same time. The next change of `concurrency` has to wait until one
/// of them is empty.
const MAX_GENERATIONS: u64 = 4;

/// Why a subscription is disabled that an operator disabled.
const DISABLED_BY_OPERATOR: &str = "an operator disabled it";

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
    /// The tenants that the client's token is confined to.
    pub tenants: Option<BTreeSet<String>>,
}

/// A client's subscription.
#[serde_with::skip_serializing_none]
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
    pub(super) sealed: Option<String>,
    /// Why deliveries are stopped (the callback answered 410). Subscribing again starts them.
    pub disabled: Option<String>,
    /// Whether deliveries are paused. Events wait in the meantime.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Attempts after which a batch is exhausted; `bus.max_attempts` when absent.
    pub max_attempts: Option<u32>,
    /// Age at which a batch is exhausted; `bus.max_age_seconds` when absent.
    pub max_age_seconds: Option<u64>,
    /// Seconds before each retry, of which the last repeats; increasing pauses when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry_seconds: Vec<u32>,
    /// The subscribed topics.
    pub topics: BTreeSet<String>,
    /// The tenants that the client's token is confined to: events of others are not delivered. `None` delivers all.
    // Earlier releases stored them as `environments`.
    #[serde(alias = "environments")]
    pub tenants: Option<BTreeSet<String>>,
    /// The version of the registry in which it was requested or changed last; 0 for an old one.
    #[serde(default, skip_serializing_if = "super::registry::is_zero")]
    pub(super) changed_in: u64,
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

impl Subscription {
    /// Whether its credentials are encrypted with a key that this process does not have. Nothing is delivered to it then.
    pub fn is_locked(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether events of this tenant are delivered.
    pub fn takes(&self, tenant: &str) -> bool {
        self.tenants.as_ref().is_none_or(|own| own.contains(tenant))
    }
}

/// A subscription as `GET /subscriptions` lists it.
#[derive(Debug, Clone)]
pub struct SubscriptionStatus {
    /// Its subscription.
    pub subscription: Arc<Subscription>,
    /// Its counters: delivered and waiting events.
    pub numbers: SubscriberNumbers,
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

impl Registry {
    /// Creates or replaces the client's subscription. `generation` is the version of the registry, which is higher than every one
    /// before. A repeat of the same request is a change as well: the result of an earlier delivery no longer applies.
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
            return Err(Error::TooMany(Limit::Subscriptions));
        }
        let created = wanted.topics.iter().filter(|topic| !self.topics.contains_key(*topic)).count();
        if created > 0 && self.topics_of(client, wanted.topics.iter()) > limits.topics_per_client {
            return Err(Error::TooMany(Limit::TopicsOfClient));
        }
        let left = before.into_iter().flat_map(|before| before.topics.difference(&wanted.topics));
        let unused = self.unused(left, Some(client));
        if self.topics.len() + created > limits.topics + unused.len() {
            return Err(Error::TooMany(Limit::Topics));
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
            tenants: wanted.tenants,
            changed_in: generation,
        };
        self.topics.retain(|topic, _| !unused.contains(topic));
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

    /// Whether the subscription has ended that these lanes of the client belong to.
    pub(super) fn has_ended(&self, client: &str, generation: &str) -> bool {
        let ended = self.retired.get(client);
        ended.is_some_and(|ended| generation.parse::<u64>().is_ok_and(|generation| generation <= *ended))
    }

    /// Ends the client's subscription. Returns whether it had one.
    pub(super) fn end_subscription(&mut self, client: &str) -> bool {
        let Some(ended) = self.subscriptions.remove(client) else { return false };
        self.remove_unused(&ended.topics);
        self.retired.insert(client.to_owned(), ended.generation);
        if self.retired.len() > RETIRED {
            let oldest = self.retired.iter().min_by_key(|(_, generation)| **generation);
            if let Some(client) = oldest.map(|(client, _)| client.clone()) {
                self.retired.remove(&client);
            }
        }
        true
    }
}

impl Handle {
    /// Creates or replaces the client's subscription.
    pub async fn subscribe(&self, client: &str, wanted: Wanted) -> Result<(), Error> {
        let limits = &self.core.options;
        let lanes = wanted.concurrency.unwrap_or(limits.concurrency);
        let before = self.core.view().subscription(client).map(|before| before.concurrency);
        if before != Some(lanes) {
            for store in &self.core.stores {
                if store.generations(client).await? < MAX_GENERATIONS {
                    continue;
                }
                if before.is_some() {
                    return Err(Error::TooMany(Limit::Generations(MAX_GENERATIONS)));
                }
                // They belong to subscriptions that ended.
                housekeeping::purge_all(store, client).await?;
            }
        }
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

    /// Changes some settings of the client's subscription, and ends pauses after failures.
    pub async fn alter(&self, client: &str, change: Alteration) -> Result<(), Error> {
        self.core.change(|registry, _| registry.alter(client, change.clone())).await?;
        self.retry_now(client).await.map(drop)
    }

    /// Ends the pauses of the client's lanes after failures. Returns how many paused. Those in flight do not pause after
    /// this attempt, because its receiver may be another one by now.
    pub async fn retry_now(&self, client: &str) -> Result<u64, Error> {
        self.known(client).await?;
        let timeout_ms = self.core.view().subscription(client).map_or(0, |one| one.timeout_ms);
        let mut kicked = 0;
        for store in &self.core.stores {
            kicked += store.kick(client, timeout_ms).await?;
        }
        Ok(kicked)
    }

    /// Replaces the client's signing secrets (the caller decides which, and until when the old ones sign), and ends pauses after
    /// failures.
    pub async fn set_secrets(&self, client: &str, secrets: Vec<Secret>) -> Result<(), Error> {
        self.core.change(|registry, _| registry.set_secrets(client, &secrets)).await?;
        // The receiver may have rejected the old signature.
        self.retry_now(client).await.map(drop)
    }

    /// Ends the client's subscription.
    pub async fn unsubscribe(&self, client: &str) -> Result<(), Error> {
        let end = |registry: &mut Registry, _| {
            if registry.end_subscription(client) { Ok(()) } else { Err(Error::NoSuchSubscription) }
        };
        self.core.change(end).await?;
        self.clear_away();
        Ok(())
    }

    /// Takes one topic out of the client's subscription. What is in its batches already is delivered.
    pub async fn unsubscribe_topic(&self, client: &str, topic: &str) -> Result<(), Error> {
        self.core
            .change(|registry, _| {
                let one = registry.subscriptions.get_mut(client).ok_or(Error::NoSuchSubscription)?;
                if !one.topics.remove(topic) {
                    return Err(Error::NoSuchTopic);
                }
                registry.remove_unused(&BTreeSet::from([topic.to_owned()]));
                Ok(())
            })
            .await
    }

    /// All subscriptions.
    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionStatus>, Error> {
        let registry = self.fresh_registry().await?;
        let mut numbers = self.numbers_by(&registry, str::to_owned).await?;
        Ok(registry
            .subscriptions
            .iter()
            .map(|(token, subscription)| SubscriptionStatus {
                subscription: Arc::new(subscription.clone()),
                numbers: numbers.subscribers.remove(token).unwrap_or_default(),
            })
            .collect())
    }

    /// Fails if the client has no subscription. One that this process does not know may have been made elsewhere.
    pub(super) async fn known(&self, client: &str) -> Result<(), Error> {
        let is_known = self.core.view().subscription(client).is_some()
            || self.fresh_registry().await?.subscriptions.contains_key(client);
        if is_known { Ok(()) } else { Err(Error::NoSuchSubscription) }
    }

    /// Removes lanes in the background; housekeeping completes the removal.
    pub(super) fn clear_away(&self) {
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
