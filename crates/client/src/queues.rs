//! Queues: events pulled, fairly between environments.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, Error, More, segment, with_query};

/// The calls of this room.
#[derive(Debug, Clone, Copy)]
pub struct Queues<'a>(pub(crate) &'a Client);

/// A queue to be made or changed; what is absent has its default.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NewQueue {
    /// A regular expression over `environment:type:topic`.
    pub pattern: String,
    /// How long a pulled message is its consumer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<f64>,
    /// Attempts before a message is a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Messages of one environment that may be with consumers at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_limit: Option<u64>,
    /// How long a message waits before it is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_seconds: Option<u64>,
    /// Messages in a turn, by environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
}

/// A queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// A regular expression over `environment:type:topic`.
    pub pattern: String,
    /// How many messages are where.
    pub messages: Messages,
    /// Everything else: its limits.
    #[serde(flatten)]
    pub more: More,
}

/// How many messages are where.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Messages {
    /// Ready to be pulled.
    pub waiting: u64,
    /// With consumers.
    pub in_flight: u64,
    /// Not before a moment.
    pub delayed: u64,
    /// Given up.
    pub dead: u64,
}

/// The messages of one environment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facet {
    /// The environment.
    pub environment: String,
    /// Messages in a turn; 0 is paused.
    pub weight: u32,
    /// Ready to be pulled.
    pub waiting: u64,
    /// With consumers.
    pub in_flight: u64,
    /// Not before a moment.
    pub delayed: u64,
    /// How long ago the message that comes next was accepted.
    pub oldest_age_ms: Option<u64>,
    /// The mean time from acceptance to the first pull of the latest messages.
    pub dwell_ms: Option<u64>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// A message as it was pulled.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pulled {
    /// What acknowledging it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<String>,
    /// The message itself and what is known of it.
    #[serde(flatten)]
    pub message: More,
}

#[derive(Deserialize)]
struct QueueList {
    queues: Vec<Queue>,
}

#[derive(Deserialize)]
struct FacetPage {
    facets: Vec<Facet>,
    next: Option<String>,
}

impl Queues<'_> {
    /// All queues.
    ///
    /// # Errors
    /// As every call.
    pub async fn list(&self) -> Result<Vec<Queue>, Error> {
        let list: QueueList = self.0.get("/queues").await?;
        Ok(list.queues)
    }

    /// One queue.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn show(&self, name: &str) -> Result<Queue, Error> {
        self.0.get(&path(name, "")).await
    }

    /// Makes a queue, or changes it.
    ///
    /// # Errors
    /// As every call.
    pub async fn put(&self, name: &str, queue: &NewQueue) -> Result<Queue, Error> {
        self.0.put(&path(name, ""), &json!(queue)).await
    }

    /// Removes a queue and its messages.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        self.0.delete(&path(name, "")).await
    }

    /// All environments that have messages, or had some.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn facets(&self, name: &str) -> Result<Vec<Facet>, Error> {
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let page: FacetPage =
                self.0.get(&with_query(&path(name, "/facets"), &[("cursor", cursor.as_deref())])).await?;
            all.extend(page.facets);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Pulls up to `max` messages, waiting for the first one at most `wait`. With `auto_ack` they are done at once.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn pull(
        &self,
        name: &str,
        max: usize,
        wait: Duration,
        auto_ack: bool,
    ) -> Result<Vec<Pulled>, Error> {
        let body = json!({"max": max, "wait_seconds": wait.as_secs_f64(), "auto_ack": auto_ack});
        let answer: Value = self.0.post(&path(name, "/pull"), Some(&body)).await?;
        self.messages(name, &answer)
    }

    /// Looks at the messages that come next, and leaves them where they are.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn peek(
        &self,
        name: &str,
        environment: Option<&str>,
        max: usize,
    ) -> Result<Vec<Pulled>, Error> {
        let mut body = json!({"max": max});
        if let Some(environment) = environment {
            body["environment"] = environment.into();
        }
        let answer: Value = self.0.post(&path(name, "/peek"), Some(&body)).await?;
        self.messages(name, &answer)
    }

    /// Says that messages are done.
    ///
    /// # Errors
    /// As every call; what became of each receipt stands in the answer.
    pub async fn ack(&self, name: &str, receipts: &[String]) -> Result<Value, Error> {
        self.0.post(&path(name, "/ack"), Some(&json!({"receipts": receipts}))).await
    }

    /// Drops messages: those of an environment, or all; how many.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn purge(&self, name: &str, environment: Option<&str>) -> Result<u64, Error> {
        let body = environment.map_or(json!({}), |environment| json!({"environment": environment}));
        count(&self.0.post(&path(name, "/purge"), Some(&body)).await?)
    }

    /// A page of dead letters, and the cursor of the next.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn dead(&self, name: &str, cursor: Option<&str>) -> Result<Value, Error> {
        self.0.get(&with_query(&path(name, "/dead"), &[("cursor", cursor)])).await
    }

    /// Puts all dead letters back; how many.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn redrive(&self, name: &str) -> Result<u64, Error> {
        count(&self.0.post(&path(name, "/dead/redrive"), None).await?)
    }

    /// Drops all dead letters; how many.
    ///
    /// # Errors
    /// `unknown_queue` when there is none.
    pub async fn drop_dead(&self, name: &str) -> Result<u64, Error> {
        count(&self.0.delete(&path(name, "/dead")).await?)
    }

    fn messages(&self, name: &str, answer: &Value) -> Result<Vec<Pulled>, Error> {
        serde_json::from_value(answer["messages"].clone())
            .map_err(|source| Error::Unreadable { url: self.0.transport.address(&path(name, "")), source })
    }
}

fn path(name: &str, rest: &str) -> String {
    format!("/queues/{}{rest}", segment(name))
}

#[expect(clippy::unnecessary_wraps, reason = "it ends calls that may fail")]
fn count(answer: &Value) -> Result<u64, Error> {
    Ok(answer["messages"].as_u64().unwrap_or(0))
}
