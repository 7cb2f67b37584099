//! Topics and subscribers: events published, pushed, and watched.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, Error, More, Stream, segment, with_query};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Events<'a>(pub(crate) &'a Client);

/// An event to be published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewEvent {
    /// `create`, `update`, `delete` or `noop`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The URL of the changed resource.
    pub url: String,
    /// The object in whose order the event is delivered; by default the URL's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The tenant that queues keep it apart by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// When it happened, unix milliseconds; now when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// Anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// The result for a published event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Published {
    /// As an HTTP status.
    pub status: u16,
    /// Its id, when it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A topic.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// The publishing client; absent before the first event.
    pub publisher: Option<String>,
    /// Events published on it.
    pub events: u64,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A subscription.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Subscription {
    /// The name of the token that made it.
    pub subscriber: String,
    /// Where events go.
    pub callback: String,
    /// The subscribed topics.
    pub topics: Vec<String>,
    /// 0 to 100.
    pub health: u32,
    /// Why deliveries are stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
    /// Everything else: limits, counts.
    #[serde(flatten)]
    pub more: More,
}

/// All numbers of the bus.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Numbers {
    /// By subscriber.
    pub subscribers: BTreeMap<String, SubscriberNumbers>,
    /// Bytes of events in the log.
    pub log_bytes: u64,
    /// Everything else: jobs, counters.
    #[serde(flatten)]
    pub more: More,
}

/// The numbers of one subscriber.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SubscriberNumbers {
    /// Events delivered in all.
    pub sent: u64,
    /// Events that wait or are on their way.
    pub events: u64,
    /// When the oldest of them was begun, unix milliseconds.
    pub oldest_ms: Option<u64>,
    /// Dead letters, in events.
    pub dead: u64,
    /// 0 to 100.
    pub health: u32,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A page of dead letters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetters {
    /// The letters, oldest first.
    pub dead: Vec<DeadLetter>,
    /// Where the next page begins.
    pub cursor: Option<String>,
}

/// An event that became a dead letter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetter {
    /// As it would have been delivered.
    pub event: Value,
    /// When, in unix milliseconds.
    pub died_at: u64,
    /// Attempts made.
    pub attempts: u32,
    /// The last failure.
    pub reason: String,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// The result of a test delivery.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tested {
    /// Whether it was taken.
    pub delivered: bool,
    /// How long it took.
    pub duration_ms: u64,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Which events are watched: those that fit everything given.
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
    /// Resume after this message of an earlier stream.
    pub last_event_id: Option<String>,
}

impl Events<'_> {
    /// Publishes events on a topic, in their order.
    ///
    /// # Errors
    /// Those of every call; the error of a single event is in its [`Published`].
    pub async fn publish(&self, topic: &str, events: &[NewEvent]) -> Result<Vec<Published>, Error> {
        self.0.post(&format!("/topics/{}/events", segment(topic)), Some(&json!(events))).await
    }

    /// All topics.
    ///
    /// # Errors
    /// As every call.
    pub async fn topics(&self) -> Result<Vec<Topic>, Error> {
        self.0.get("/topics").await
    }

    /// All subscriptions.
    ///
    /// # Errors
    /// As every call.
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>, Error> {
        self.0.get("/subscriptions").await
    }

    /// All numbers of the bus.
    ///
    /// # Errors
    /// As every call.
    pub async fn numbers(&self) -> Result<Numbers, Error> {
        self.0.get("/bus/metrics").await
    }

    /// A page of a subscriber's dead letters.
    ///
    /// # Errors
    /// As every call.
    pub async fn dead(&self, subscriber: &str, cursor: Option<&str>) -> Result<DeadLetters, Error> {
        let pairs = [("subscriber", Some(subscriber)), ("cursor", cursor)];
        self.0.get(&with_query("/subscriber/dead", &pairs)).await
    }

    /// Delivers all dead letters of a subscriber again; how many.
    ///
    /// # Errors
    /// As every call.
    pub async fn redrive(&self, subscriber: &str) -> Result<u64, Error> {
        let answer: Value = self.0.post(&of("/subscriber/dead/redrive", subscriber), None).await?;
        Ok(answer["redriven"].as_u64().unwrap_or(0))
    }

    /// Drops all dead letters of a subscriber; how many.
    ///
    /// # Errors
    /// As every call.
    pub async fn drop_dead(&self, subscriber: &str) -> Result<u64, Error> {
        let answer: Value = self.0.delete(&of("/subscriber/dead", subscriber)).await?;
        Ok(answer["dropped"].as_u64().unwrap_or(0))
    }

    /// Sends a subscriber a delivery on trial.
    ///
    /// # Errors
    /// As every call.
    pub async fn test(&self, subscriber: &str) -> Result<Tested, Error> {
        self.0.post(&of("/subscriber/test", subscriber), None).await
    }

    /// Delivers the events of a time range again, unix milliseconds, at `rate` events per second.
    ///
    /// # Errors
    /// As every call.
    pub async fn replay(&self, subscriber: &str, from: u64, to: u64, rate: Option<u64>) -> Result<(), Error> {
        let mut body = json!({"from": from, "to": to});
        if let Some(rate) = rate {
            body["rate"] = rate.into();
        }
        let _echo: Value = self.0.post(&of("/subscriber/replay", subscriber), Some(&body)).await?;
        Ok(())
    }

    /// Watches events as they are accepted.
    ///
    /// # Errors
    /// As every call.
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
