//! Queues: events pulled, fairly between environments.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_api::queues::{
    Count, Extend, FacetPage, Gaps, MessagePage, Nack, Peek, Peeked, Pulled, Purge, QueueList, Receipts,
};

pub use signalbox_api::queues::{
    DeadLetter, DeadPage, Facet, FacetPatch, FacetSettings, Gap, MessageState, NewQueue, Numbers, Outcome,
    Outcomes, Overflow, Pull, PullFrom, PullSource, Queue, QueuePatch, Redrive, StoredMessage,
};

use crate::{Client, Error, segment, with_query};

/// A message of a queue.
pub type Message = signalbox_api::queues::Message<Value>;

/// The calls about queues.
#[derive(Debug, Clone, Copy)]
pub struct Queues<'a>(pub(crate) &'a Client);

impl Queues<'_> {
    /// All queues.
    pub async fn list(&self) -> Result<Vec<Queue>, Error> {
        let list: QueueList = self.0.get("/queues").await?;
        Ok(list.queues)
    }

    /// One queue.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn show(&self, name: &str) -> Result<Queue, Error> {
        self.0.get(&path(name, "")).await
    }

    /// Creates or replaces a queue.
    pub async fn put(&self, name: &str, queue: &NewQueue) -> Result<Queue, Error> {
        self.0.put(&path(name, ""), &json!(queue)).await
    }

    /// Changes parts of a queue's definition.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn change(&self, name: &str, patch: &QueuePatch) -> Result<Queue, Error> {
        self.0.patch(&path(name, ""), &json!(patch)).await
    }

    /// Changes the weight, the pause or the limits of one environment.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn change_facet(
        &self,
        name: &str,
        environment: &str,
        patch: &FacetPatch,
    ) -> Result<Facet, Error> {
        self.0.patch(&path(name, &format!("/facets/{}", segment(environment))), &json!(patch)).await
    }

    /// Removes a queue and its messages.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        self.0.delete(&path(name, "")).await
    }

    /// All environments that have messages, or had some.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn facets(&self, name: &str) -> Result<Vec<Facet>, Error> {
        self.0.all(&path(name, "/facets"), &[], |page: FacetPage| (page.facets, page.next)).await
    }

    /// Pulls up to `max` messages, waiting for the first one at most `wait`. With `auto_ack` they are acknowledged immediately.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn pull(
        &self,
        name: &str,
        max: usize,
        wait: Duration,
        auto_ack: bool,
    ) -> Result<Vec<Message>, Error> {
        let wait_seconds = Some(wait.as_secs_f64());
        self.pull_with(name, &Pull { max: Some(max), wait_seconds, auto_ack, ..Pull::default() }).await
    }

    /// Pulls messages, with all parameters of the call.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn pull_with(&self, name: &str, pull: &Pull) -> Result<Vec<Message>, Error> {
        let pulled: Pulled<Value> = self.0.post(&path(name, "/pull"), Some(&json!(pull))).await?;
        Ok(pulled.messages)
    }

    /// Pulls messages from several queues.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn pull_from(&self, pull: &PullFrom) -> Result<Vec<Message>, Error> {
        let pulled: Pulled<Value> = self.0.post("/messages/pull", Some(&json!(pull))).await?;
        Ok(pulled.messages)
    }

    /// Reads the next messages without pulling them.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn peek(
        &self,
        name: &str,
        environment: Option<&str>,
        max: usize,
    ) -> Result<Vec<Message>, Error> {
        let body = Peek { environment: environment.map(str::to_owned), max: Some(max) };
        let peeked: Peeked<Value> = self.0.post(&path(name, "/peek"), Some(&json!(body))).await?;
        Ok(peeked.messages)
    }

    /// Up to `most` messages that are delayed or in flight (no other state can be listed).
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn messages(
        &self,
        name: &str,
        state: MessageState,
        environment: Option<&str>,
        most: usize,
    ) -> Result<Vec<StoredMessage<Message>>, Error> {
        let state = json!(state);
        let pairs = [("state", state.as_str()), ("environment", environment)];
        let split = |page: MessagePage<Message>| (page.messages, page.next);
        self.0.first(&path(name, "/messages"), &pairs, most, split).await
    }

    /// One message, wherever in the queue it is.
    ///
    /// # Errors
    /// `unknown_queue`, `unknown_message`.
    pub async fn message(
        &self,
        name: &str,
        id: u64,
        environment: Option<&str>,
    ) -> Result<StoredMessage<Message>, Error> {
        self.0.get(&with_query(&message_path(name, id, ""), &[("environment", environment)])).await
    }

    /// Drops one message, wherever in the queue it is.
    ///
    /// # Errors
    /// `unknown_queue`, `unknown_message`.
    pub async fn drop_message(&self, name: &str, id: u64, environment: Option<&str>) -> Result<(), Error> {
        self.0.delete(&with_query(&message_path(name, id, ""), &[("environment", environment)])).await
    }

    /// Makes a delayed message or a dead letter available now. Returns 0 if it was available already.
    ///
    /// # Errors
    /// `unknown_queue`, `unknown_message`, `message_in_flight`.
    pub async fn redrive_message(
        &self,
        name: &str,
        id: u64,
        environment: Option<&str>,
    ) -> Result<u64, Error> {
        let target = with_query(&message_path(name, id, "/redrive"), &[("environment", environment)]);
        let count: Count = self.0.post(&target, None).await?;
        Ok(count.messages)
    }

    /// Acknowledges messages.
    ///
    /// # Errors
    /// As every call; the answer has the result of each receipt.
    pub async fn ack(&self, name: &str, receipts: &[String]) -> Result<Outcomes, Error> {
        let body = Receipts { receipts: receipts.to_vec() };
        self.0.post(&path(name, "/ack"), Some(&json!(body))).await
    }

    /// Releases messages, to be pulled again after `delay`, or after the backoff of the queue.
    ///
    /// # Errors
    /// As every call; the answer has the result of each receipt.
    pub async fn nack(
        &self,
        name: &str,
        receipts: &[String],
        delay: Option<Duration>,
    ) -> Result<Outcomes, Error> {
        let delay_seconds = delay.map(|delay| delay.as_secs_f64());
        let body = Nack { receipts: receipts.to_vec(), delay_seconds };
        self.0.post(&path(name, "/nack"), Some(&json!(body))).await
    }

    /// Extends the leases of messages: they expire after `lease` from now.
    ///
    /// # Errors
    /// As every call; the answer has the result of each receipt.
    pub async fn extend(&self, name: &str, receipts: &[String], lease: Duration) -> Result<Outcomes, Error> {
        let body = Extend { receipts: receipts.to_vec(), lease_seconds: lease.as_secs_f64() };
        self.0.post(&path(name, "/extend"), Some(&json!(body))).await
    }

    /// Makes dead letters of messages.
    ///
    /// # Errors
    /// As every call; the answer has the result of each receipt.
    pub async fn reject(&self, name: &str, receipts: &[String]) -> Result<Outcomes, Error> {
        let body = Receipts { receipts: receipts.to_vec() };
        self.0.post(&path(name, "/reject"), Some(&json!(body))).await
    }

    /// Messages that were dropped because too many waited, by environment.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn gaps(&self, name: &str) -> Result<Vec<Gap>, Error> {
        let gaps: Gaps = self.0.get(&path(name, "/gaps")).await?;
        Ok(gaps.gaps)
    }

    /// Drops the messages of an environment, or all, and returns how many.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn purge(&self, name: &str, environment: Option<&str>) -> Result<u64, Error> {
        let body = Purge { environment: environment.map(str::to_owned) };
        let count: Count = self.0.post(&path(name, "/purge"), Some(&json!(body))).await?;
        Ok(count.messages)
    }

    /// Up to `most` dead letters, oldest first in each shard.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn dead(&self, name: &str, most: usize) -> Result<Vec<DeadLetter<Message>>, Error> {
        let split = |page: DeadPage<Message>| (page.dead, page.next);
        self.0.first(&path(name, "/dead"), &[], most, split).await
    }

    /// Redrives dead letters, and returns how many.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn redrive(&self, name: &str, which: &Redrive) -> Result<u64, Error> {
        let count: Count = self.0.post(&path(name, "/dead/redrive"), Some(&json!(which))).await?;
        Ok(count.messages)
    }

    /// Drops dead letters: all, those of an environment, or one. Returns how many.
    ///
    /// # Errors
    /// `unknown_queue`.
    pub async fn drop_dead(
        &self,
        name: &str,
        environment: Option<&str>,
        id: Option<u64>,
    ) -> Result<u64, Error> {
        let id = id.map(|id| id.to_string());
        let pairs = [("environment", environment), ("id", id.as_deref())];
        let count: Count = self.0.delete(&with_query(&path(name, "/dead"), &pairs)).await?;
        Ok(count.messages)
    }
}

fn message_path(name: &str, id: u64, rest: &str) -> String {
    path(name, &format!("/messages/{id}{rest}"))
}

fn path(name: &str, rest: &str) -> String {
    format!("/queues/{}{rest}", segment(name))
}
