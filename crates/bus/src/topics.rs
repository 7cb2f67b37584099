//! Topics: their names, their publishers, and the topics of Signalbox's own events.

use std::collections::BTreeSet;

use serde_json::json;
use signalbox_api::events::Topic;

use super::{Error, Handle, Limit, Options, Registry};

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

/// The client that Signalbox's own events are published by. No token can have this name: they have no dots.
pub(super) const OWN_CLIENT: &str = "signalbox.";

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

impl Registry {
    /// How many topics count for a client: those that it publishes to, and those of `subscribed` that have no publisher, which
    /// exist only because of subscriptions.
    pub(super) fn topics_of<'a>(&self, client: &str, subscribed: impl Iterator<Item = &'a String>) -> usize {
        let own = self.topics.values().filter(|publisher| publisher.as_deref() == Some(client)).count();
        own + subscribed.filter(|topic| self.topics.get(*topic).is_none_or(Option::is_none)).count()
    }

    /// Those of `topics` that have no publisher, and no subscriber apart from `client`. Nothing was published to them.
    pub(super) fn unused<'a>(
        &self,
        topics: impl Iterator<Item = &'a String>,
        client: Option<&str>,
    ) -> BTreeSet<String> {
        let is_unclaimed = |topic: &&String| self.topics.get(*topic).is_some_and(Option::is_none);
        let mut unused: BTreeSet<String> = topics.filter(is_unclaimed).cloned().collect();
        for (_, one) in self.subscriptions.iter().filter(|(token, _)| Some(&***token) != client) {
            if unused.is_empty() {
                break;
            }
            unused.retain(|topic| !one.topics.contains(topic));
        }
        unused
    }

    /// Removes those of `topics` that no client publishes or subscribes to, so that they do not use up the limit of topics.
    pub(super) fn remove_unused(&mut self, topics: &BTreeSet<String>) {
        for topic in self.unused(topics.iter(), None) {
            self.topics.remove(&topic);
        }
    }

    /// Makes `client` the publisher of a topic that has no publisher yet.
    ///
    /// # Errors
    /// [`Error::Forbidden`] when it is another client's, [`Error::TooMany`] when there are too many topics in all or of this
    /// client.
    pub(super) fn claim(&mut self, topic: &str, client: &str, limits: &Options) -> Result<(), Error> {
        let topics = self.topics.len();
        let subscribed = self.subscriptions.get(client).map(|one| &one.topics);
        let own = self.topics_of(client, subscribed.into_iter().flatten().filter(|one| *one != topic));
        match self.topics.get_mut(topic) {
            Some(Some(publisher)) if publisher != client => Err(Error::Forbidden),
            Some(Some(_)) => Ok(()),
            _ if own >= limits.topics_per_client => Err(Error::TooMany(Limit::TopicsOfClient)),
            Some(claim) => {
                *claim = Some(client.to_owned());
                Ok(())
            }
            None if topics >= limits.topics => Err(Error::TooMany(Limit::Topics)),
            None => {
                self.topics.insert(topic.to_owned(), Some(client.to_owned()));
                Ok(())
            }
        }
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
}

impl Handle {
    /// All topics, with the names of their publishers.
    pub async fn topics(&self) -> Result<Vec<Topic>, Error> {
        let registry = self.fresh_registry().await?;
        let mut events = self.events_by_topic(&registry).await?;
        let topic = |(name, publisher): (&String, &Option<String>)| Topic {
            name: name.clone(),
            publisher: publisher.as_ref().map(|client| registry.name_of(client)),
            events: events.remove(name).unwrap_or_default(),
        };
        Ok(registry.topics.iter().map(topic).collect())
    }

    /// Deletes a topic. `by` is the requesting client; `None` for root.
    pub async fn delete_topic(&self, topic: &str, by: Option<&str>) -> Result<(), Error> {
        let subscribed = self.core.change(|registry, _| registry.delete_topic(topic, by)).await?;
        // Their subscriptions no longer name the topic, so events of a new publisher would not reach them.
        for client in subscribed {
            self.core.announce("subscriber.topic_deleted", &client, json!({ "topic": topic }));
        }
        Ok(())
    }

    /// Makes another client the publisher of a topic. `by` is the client that asks; `None` for root.
    pub async fn hand_over(&self, topic: &str, to: &str, by: Option<&str>) -> Result<(), Error> {
        self.core
            .change(|registry, _| {
                let publisher = registry.topics.get_mut(topic).ok_or(Error::NoSuchTopic)?;
                if is_reserved_topic(topic) || by.is_some_and(|client| publisher.as_deref() != Some(client)) {
                    return Err(Error::Forbidden);
                }
                *publisher = Some(to.to_owned());
                Ok(())
            })
            .await
    }
}
