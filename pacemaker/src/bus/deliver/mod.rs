//! The seam between the life of a batch (workers, Redis) and the way it reaches its subscriber (HTTP).

mod address;
mod answer;
mod body;
mod signature;
#[cfg(test)]
mod tests;
mod trust;
mod webhook;

use std::{future::Future, sync::Arc, time::Duration};

pub(crate) use body::rendered;
pub(crate) use signature::{key as secret_key, new_secret};
pub(crate) use webhook::Post;
pub use webhook::{Error, Webhooks};

use super::{Event, Gap, Subscription};

/// What one delivery carries.
#[derive(Debug, Clone)]
pub struct BatchContents {
    /// The batch's id: the same at every attempt, so it serves as the webhook's id.
    pub id: String,
    /// When its first event was put into it, in unix milliseconds of the fabric's clock.
    pub created_ms: u64,
    /// How many attempts came before this one.
    pub attempts: u32,
    /// The events in id order (redriven and replayed ones stand where they were asked for). Never empty.
    pub events: Vec<Arc<Event>>,
    /// What the lane lost since its last delivery; to be sent with the first event.
    pub gaps: Vec<Gap>,
}

/// How a delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The subscriber took it (any 2xx).
    Delivered,
    /// It did not; the same batch is tried again later, or split, or given up: [`super::verdict`] decides.
    Failed {
        /// For the dead letter and the log: a status, a timeout, a refused address.
        why: String,
        /// When the subscriber said how long to wait (429, 503), already clamped.
        retry_after: Option<Duration>,
    },
    /// The subscriber is gone for good (410): the subscription is disabled.
    Gone,
}

/// Delivers batches. One implementation speaks HTTP; tests bring their own.
pub trait Deliverer: Send + Sync + 'static {
    /// Tries once to deliver. Must end by itself (time and size are capped in here): a worker waits for it. Dropping
    /// the future abandons the attempt.
    fn deliver(
        &self,
        subscription: Arc<Subscription>,
        batch: Arc<BatchContents>,
    ) -> impl Future<Output = Outcome> + Send;
}
