//! The interface of the bus for request handlers and other crates: publishing, and the state of the fabric.
//!
//! Its further methods are in the file of what they change: `topics.rs`, `subscriptions.rs`, `clients.rs`, `backend.rs`,
//! `queue_admin.rs`, `dead.rs`, `replay.rs`. Each of them returns [`Error::Store`] if the fabric does not answer, and an
//! `Error::NoSuch…` if what it is about does not exist.

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
    view::{State, View},
};

/// How long the shards may take to answer a ping.
const PULSE: Duration = Duration::from_secs(2);

/// An event on its way to a committer. Its default tenant is the client's name, or its token if it has no name.
fn part(view: &View, client: &str, topic: &Arc<str>, mut event: NewEvent) -> Part {
    let name = view.registry.api_tokens.get(client).map(|token| &*token.name);
    let tenant = event.tenant.take();
    let tenant = tenant.unwrap_or_else(|| name.unwrap_or(client.trim_end_matches('.')).to_owned());
    Part::new(topic, tenant, event)
}

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
    /// Publishes events of one client to one topic; returns one result for each, in order. The default `tenant`
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
        let view = self.core.view();
        // Another client's claim is rejected here, so that it costs no turn of the committer. The topic may have been handed
        // over to this client elsewhere. A claim that this process does not know yet is detected later.
        if view.is_claimed_from(topic, client)
            && !self.core.refresh().await.is_ok_and(|view| !view.is_claimed_from(topic, client))
        {
            return vec![Err(Refusal::Claimed); events.len()];
        }
        let (client, topic): (Arc<str>, Arc<str>) = (client.into(), topic.into());
        let item = |mut event: NewEvent| {
            let key = event.idempotency_key.take();
            let part = part(&view, &client, &topic, event);
            Item::new(&client, part.object().to_owned(), vec![part], None, key.as_deref())
        };
        self.accept(events.into_iter().map(item)).await
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
        let count = events.len() as u64;
        let parts = events.into_iter().map(|(topic, event)| {
            part(&view, client, &topic.into(), NewEvent { object: Some(object.clone()), ..event })
        });
        let parts = parts.collect();
        let item = Item::new(&client.into(), object, parts, state, idempotency_key.as_deref());
        let first = self.accept_one(item).await?;
        Ok((0..count).map(|place| EventId(first.0 + place * ID_STEP)).collect())
    }

    /// Publishes messages of one client to the matching queues and to live streams. Returns one result for each, in
    /// order.
    pub async fn publish_messages(
        &self,
        client: &str,
        messages: Vec<NewMessage>,
    ) -> Vec<Result<EventId, Refusal>> {
        let client: Arc<str> = client.into();
        let item = |mut message: NewMessage| {
            let key = message.idempotency_key.take();
            let part = Part::message(message);
            Item::new(&client, part.object().to_owned(), vec![part], None, key.as_deref())
        };
        self.accept(messages.into_iter().map(item)).await
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
        let parts = events
            .into_iter()
            .map(|event| part(&view, OWN_CLIENT, &topic, NewEvent { object: Some(object.clone()), ..event }));
        let parts = parts.collect();
        let mut item = Item::new(&OWN_CLIENT.into(), object, parts, None, None);
        item.change = Some(change);
        self.accept_one(item).await
    }

    async fn accept_one(&self, item: Item) -> Result<EventId, Refusal> {
        self.accept([item]).await.pop().unwrap_or(Err(Refusal::Unavailable))
    }

    /// Hands items to the committers. Returns the answer to each, in order.
    async fn accept(&self, items: impl IntoIterator<Item = Item>) -> Vec<Result<EventId, Refusal>> {
        let items: Vec<Item> = items.into_iter().collect();
        if items.is_empty() {
            return Vec::new();
        }
        let (gather, answered) = Gather::new(items.len());
        for (place, mut item) in items.into_iter().enumerate() {
            item.ticket = Some(Ticket { gather: Arc::clone(&gather), place });
            self.enqueue(item);
        }
        // The sender is never dropped before all are answered.
        let _ = answered.await;
        gather.take()
    }

    fn enqueue(&self, item: Item) {
        let bytes = item.bytes();
        if !self.core.reserve(bytes) {
            return item.answer(Err(Refusal::Busy));
        }
        let shard = event::shard_of(&item.object, self.core.stores.len());
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
    pub async fn initialize(&self) -> Result<(), Error> {
        self.core.initialize().await.map(drop)
    }

    /// Trusts the fabric with this identity in place of the known one: an operator initialized it through another
    /// process.
    pub async fn adopt(&self, fabric: &str) -> Result<(), Error> {
        self.core.adopt(fabric).await
    }

    /// The registry as the fabric has it now, with what was changed through other pacemakers a moment ago.
    pub async fn fresh_registry(&self) -> Result<Arc<Registry>, Error> {
        let view = self.core.refresh().await?;
        if view.state == State::Uninitialized {
            return Err(Error::Uninitialized);
        }
        Ok(Arc::clone(&view.registry))
    }
}
