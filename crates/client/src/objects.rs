//! Objects with a backend: one order for each, and one call at a time.

use serde_json::json;
use signalbox_api::objects::{ObjectList, Skip};

pub use signalbox_api::objects::{Backend, DeadEvent, ObjectState, OnFailure, Queued};

use crate::{Client, Error, segment};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Objects<'a>(pub(crate) &'a Client);

impl Objects<'_> {
    /// Up to `most` parked objects.
    pub async fn parked(&self, most: usize) -> Result<Vec<ObjectState>, Error> {
        self.0.first("/objects", &[], most, |page: ObjectList| (page.objects, page.next)).await
    }

    /// One object.
    ///
    /// # Errors
    /// `unknown_object`.
    pub async fn show(&self, object: &str) -> Result<ObjectState, Error> {
        self.0.get(&path(object, "")).await
    }

    /// Retries a parked object.
    ///
    /// # Errors
    /// `nothing_to_decide` if there is nothing to retry.
    pub async fn unpark(&self, object: &str) -> Result<(), Error> {
        self.0.post(&path(object, "/unpark"), None).await
    }

    /// Drops the event at the head.
    ///
    /// # Errors
    /// `another_event` if another event is at the head by now.
    pub async fn skip(&self, object: &str, id: u64) -> Result<(), Error> {
        self.0.post(&path(object, "/skip"), Some(&json!(Skip { id }))).await
    }

    /// All backends.
    pub async fn backends(&self) -> Result<Vec<Backend>, Error> {
        self.0.get("/backends").await
    }

    /// The dead letters of a backend.
    pub async fn dead(&self, backend: &str) -> Result<Vec<DeadEvent>, Error> {
        self.0.get(&format!("/backends/{}/dead", segment(backend))).await
    }
}

fn path(object: &str, rest: &str) -> String {
    format!("/objects/{}{rest}", segment(object))
}
