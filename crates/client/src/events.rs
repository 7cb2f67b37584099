//! Topics and subscribers: events published, pushed, and watched.

use serde_json::json;
use signalbox_api::events::{DeliveryLog, Dropped, EventChoice, Redriven, Replay, Retried};

pub use signalbox_api::events::{
    ClientToken, DeadLetter, DeadLetters, DeliveryAttempt, DeliveryResult, NewEvent, Numbers, Published,
    SubscriberNumbers, Subscription, Tested, Topic,
};

use crate::{Client, Error, Stream, segment, with_query};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Events<'a>(pub(crate) &'a Client);

/// Which events are watched: those that match every given field.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Of this topic.
    pub topic: Option<String>,
    /// Of this environment.
    pub environment: Option<String>,
    /// Of this object.
    pub object: Option<String>,
    /// Where this regular expression matches all of `environment:type:topic`.
    pub pattern: Option<String>,
    /// Continue after this message of an earlier stream.
    pub last_event_id: Option<String>,
}

impl Events<'_> {
    /// Publishes events on a topic, in their order.
    ///
    /// # Errors
    /// As every call; what is wrong with one event is in its [`Published`].
    pub async fn publish(&self, topic: &str, events: &[NewEvent]) -> Result<Vec<Published>, Error> {
        self.0.post(&format!("/topics/{}/events", segment(topic)), Some(&json!(events))).await
    }

    /// All topics.
    pub async fn topics(&self) -> Result<Vec<Topic>, Error> {
        self.0.get("/topics").await
    }

    /// All clients of the bus with tokens. Only root lists them.
    pub async fn clients(&self) -> Result<Vec<ClientToken>, Error> {
        self.0.get("/api_tokens").await
    }

    /// All subscriptions.
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>, Error> {
        self.0.get("/subscriptions").await
    }

    /// All numbers of the bus.
    pub async fn numbers(&self) -> Result<Numbers, Error> {
        self.0.get("/bus/metrics").await
    }

    /// Up to `most` dead letters of a subscriber, oldest first.
    pub async fn all_dead(&self, subscriber: &str, most: usize) -> Result<Vec<DeadLetter>, Error> {
        let split = |page: DeadLetters| (page.dead, page.cursor);
        self.0.first("/subscriber/dead", &[("subscriber", Some(subscriber))], most, split).await
    }

    /// Delivers all dead letters of a subscriber again; how many.
    pub async fn redrive(&self, subscriber: &str) -> Result<u64, Error> {
        let answer: Redriven = self.0.post(&of("/subscriber/dead/redrive", subscriber), None).await?;
        Ok(answer.redriven)
    }

    /// Drops all dead letters of a subscriber; how many.
    pub async fn drop_dead(&self, subscriber: &str) -> Result<u64, Error> {
        let answer: Dropped = self.0.delete(&of("/subscriber/dead", subscriber)).await?;
        Ok(answer.dropped)
    }

    /// Sends a subscriber a test delivery.
    pub async fn test(&self, subscriber: &str) -> Result<Tested, Error> {
        self.0.post(&of("/subscriber/test", subscriber), None).await
    }

    /// The last attempts to deliver to a subscriber, newest first.
    pub async fn deliveries(&self, subscriber: &str) -> Result<Vec<DeliveryAttempt>, Error> {
        let log: DeliveryLog = self.0.get(&of("/subscriber/deliveries", subscriber)).await?;
        Ok(log.deliveries)
    }

    /// Ends a subscriber's pauses after failures; how many lanes paused.
    pub async fn retry(&self, subscriber: &str) -> Result<u64, Error> {
        let answer: Retried = self.0.post(&of("/subscriber/retry", subscriber), None).await?;
        Ok(answer.retried)
    }

    /// Skips an event that waits for a subscriber.
    pub async fn skip(&self, subscriber: &str, id: u64) -> Result<(), Error> {
        self.0.post(&of("/subscriber/skip", subscriber), Some(&json!(EventChoice { id }))).await
    }

    /// Delivers one event to a subscriber again.
    pub async fn resend(&self, subscriber: &str, id: u64) -> Result<(), Error> {
        self.0.post(&of("/subscriber/resend", subscriber), Some(&json!(EventChoice { id }))).await
    }

    /// Changes settings of a subscription: those that are members of `change`, as in the API.
    pub async fn alter(&self, subscriber: &str, change: &serde_json::Value) -> Result<(), Error> {
        self.0.call("PATCH", &of("/subscription", subscriber), Some(change)).await.map(drop)
    }

    /// Delivers the events of a period again, in unix milliseconds, at `rate` events per second.
    pub async fn replay(&self, subscriber: &str, from: u64, to: u64, rate: Option<u64>) -> Result<(), Error> {
        let body = json!(Replay { from, to, rate });
        let _begun: Replay = self.0.post(&of("/subscriber/replay", subscriber), Some(&body)).await?;
        Ok(())
    }

    /// Watches events as they are accepted.
    pub async fn watch(&self, filter: &Filter) -> Result<Stream, Error> {
        let path = with_query(
            "/events",
            &[
                ("topic", filter.topic.as_deref()),
                ("environment", filter.environment.as_deref()),
                ("object", filter.object.as_deref()),
                ("pattern", filter.pattern.as_deref()),
                ("last_event_id", filter.last_event_id.as_deref()),
            ],
        );
        Stream::open(self.0, &path, &[]).await
    }
}

fn of(path: &str, subscriber: &str) -> String {
    with_query(path, &[("subscriber", Some(subscriber))])
}
