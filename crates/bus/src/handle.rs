//! The interface of the bus for request handlers and other crates: publishing, and the state of the fabric.
//!
//! Its further methods are in the file of what they change: `topics.rs`, `subscriptions.rs`, `clients.rs`, `backend.rs`,
//! `queue_admin.rs`, `dead.rs`, `replay.rs`.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;
use tokio::sync::mpsc::error::TrySendError;

use super::{
    Change, Credentials, Error, EventId, NewEvent, NewMessage, RESERVED, Refusal, Registry,
    commit::{Gather, Item, Part, Ticket},
    core::Core,
    event::{self, ID_STEP},
    is_topic_name,
    topics::{OWN_CLIENT, is_own_topic},
    view::State,
};

/// The environment of a client's events that name none.
fn name_of<'a>(client: &'a str, registry: &'a Registry) -> &'a str {
    registry.api_tokens.get(client).map_or(client.trim_end_matches('.'), |token| &token.name)
}

/// How long the shards may take to answer a ping.
const PULSE: Duration = Duration::from_secs(2);

/// Events of one object that are to be accepted together.
#[derive(Debug)]
pub struct NewGroup {
    /// The object of all of them.
    pub object: String,
    /// The object's new state as JSON, if it changes.
    pub state: Option<Box<RawValue>>,
    /// The main event and its sub-events, each with its topic; at least one. Their own `object` and
    /// `idempotency_key` are ignored.
    pub events: Vec<(String, NewEvent)>,
    /// A repeat under the same key, client and object returns the first group's ids.
    pub idempotency_key: Option<String>,
}

/// The bus, for code that publishes, subscribes or asks. Cheap to clone.
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
        // Another client's claim is rejected here, so that it costs no turn of the committer. The topic may have been handed
        // over to this client elsewhere. A claim that this process does not know yet is detected later.
        if view.is_claimed_from(topic, client)
            && !self.core.refresh().await.is_ok_and(|view| !view.is_claimed_from(topic, client))
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

    /// The registry as the fabric has it now, with what was changed through other pacemakers a moment ago.
    ///
    /// # Errors
    /// When the fabric does not answer, or has no registry.
    pub async fn fresh_registry(&self) -> Result<Arc<Registry>, Error> {
        let view = self.core.refresh().await?;
        if view.state == State::Uninitialized {
            return Err(Error::Uninitialized);
        }
        Ok(Arc::clone(&view.registry))
    }
}
