//! Topics: their names, their publishers, and the topics of Signalbox's own events.

use serde_json::json;
use signalbox_api::events::Topic;

use super::{Error, Handle, Options, Registry};

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
