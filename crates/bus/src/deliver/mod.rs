//! The interface between the workers, which take and settle batches in Redis, and the HTTP calls that deliver them.

mod body;
#[cfg(test)]
mod tests;
mod webhooks;

use std::{future::Future, sync::Arc};

use signalbox_egress::{Answered, Outcome};

pub use body::{Delivered, rendered_for};
pub use webhooks::Webhooks;

use super::{Event, Gap, Subscription};

/// The content of one delivery.
#[derive(Debug, Clone)]
pub struct BatchContents {
    /// The batch's id, which serves as the webhook's id: the same at every attempt, until the batch is halved.
    pub id: String,
    /// When its first event was put into it, in unix milliseconds of the fabric's clock.
    pub created_ms: u64,
    /// How many attempts came before this one.
    pub attempts: u32,
    /// The events in ID order, except that redriven and replayed ones are at the position of their request. Never
    /// empty.
    pub events: Vec<Arc<Event>>,
    /// For each event whether it was redriven, replayed or sent again on request, so that lower IDs may follow higher ones.
    pub redriven: Vec<bool>,
    /// The gaps of the lane since its last delivery; to be sent with the first event.
    pub gaps: Vec<Gap>,
}

/// Delivers batches. One implementation speaks HTTP; tests bring their own.
pub trait Deliverer: Send + Sync + 'static {
    /// Makes one delivery attempt. Returns what the receiver answered, too, if the implementation knows it. It must end without
    /// help (time and size are limited in here), because a worker waits for it. Dropping the future abandons the attempt.
    fn attempt(
        &self,
        subscription: Arc<Subscription>,
        batch: Arc<BatchContents>,
    ) -> impl Future<Output = (Outcome, Answered)> + Send;
}
