//! Objects with a backend: one order for each, and one call at a time.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, Error, More, segment};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Objects<'a>(pub(crate) &'a Client);

/// The status of an object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Object {
    /// Its name.
    pub object: String,
    /// The backend of its queue.
    pub backend: Option<String>,
    /// Events that wait.
    pub queued: u64,
    /// Whether it waits for an operator's decision.
    pub parked: bool,
    /// Failed attempts with the event at the head.
    pub attempts: u64,
    /// Why the last one failed.
    pub last_error: Option<String>,
    /// The event that is sent next, which `skip` drops.
    pub next_id: Option<u64>,
    /// The latest event.
    pub last_id: Option<u64>,
    /// Everything else.
    #[serde(flatten)]
    pub more: More,
}

/// The ordered consumer of the events of objects with a prefix.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Backend {
    /// Its name.
    pub name: String,
    /// The prefix of its objects' names.
    pub prefix: String,
    /// Where events go.
    pub callback: String,
    /// Why deliveries are stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
    /// Objects that wait.
    pub objects: u64,
    /// Events that wait.
    pub events: u64,
    /// Its dead letters.
    pub dead: u64,
    /// Everything else: limits.
    #[serde(flatten)]
    pub more: More,
}

impl Objects<'_> {
    /// One object.
    ///
    /// # Errors
    /// `unknown_object` when nothing is known of it.
    pub async fn show(&self, object: &str) -> Result<Object, Error> {
        self.0.get(&path(object, "")).await
    }

    /// Tries a parked object again.
    ///
    /// # Errors
    /// As every call; a conflict when there is nothing to try again.
    pub async fn unpark(&self, object: &str) -> Result<(), Error> {
        self.0.post(&path(object, "/unpark"), None).await
    }

    /// Skips the event at the head.
    ///
    /// # Errors
    /// When another event is at the head by now.
    pub async fn skip(&self, object: &str, id: u64) -> Result<(), Error> {
        self.0.post(&path(object, "/skip"), Some(&json!({"id": id}))).await
    }

    /// All backends.
    ///
    /// # Errors
    /// As every call.
    pub async fn backends(&self) -> Result<Vec<Backend>, Error> {
        self.0.get("/backends").await
    }

    /// One backend.
    ///
    /// # Errors
    /// When there is none.
    pub async fn backend(&self, name: &str) -> Result<Backend, Error> {
        self.0.get(&format!("/backends/{}", segment(name))).await
    }

    /// The dead letters of a backend.
    ///
    /// # Errors
    /// As every call.
    pub async fn dead(&self, backend: &str) -> Result<Value, Error> {
        self.0.get(&format!("/backends/{}/dead", segment(backend))).await
    }
}

fn path(object: &str, rest: &str) -> String {
    format!("/objects/{}{rest}", segment(object))
}
