//! Deliveries over HTTP.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use signalbox_daemon::traces::{self, Cause};
use signalbox_egress::{Answered, Client, Outcome, Owner, Place, Post};
use tokio::time;

use super::{BatchContents, Deliverer, body};
use crate::{LOCKED, Subscription, metrics::Deliveries};

/// Delivers batches by HTTP. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Webhooks {
    client: Client,
    counted: Deliveries,
}

impl Webhooks {
    /// Delivers with `client` and counts what becomes of each attempt.
    pub fn new(client: Client, counted: Deliveries) -> Self {
        Self { client, counted }
    }

    /// Whether a callback names an address that is never called, so that it is rejected before a delivery fails.
    pub fn forbids(&self, callback: &str) -> bool {
        let Ok(url) = url::Url::parse(callback) else { return true };
        let ip = match url.host() {
            Some(url::Host::Ipv4(ip)) => IpAddr::V4(ip),
            Some(url::Host::Ipv6(ip)) => IpAddr::V6(ip),
            Some(url::Host::Domain(_)) | None => return false,
        };
        !self.client.permits(SocketAddr::new(ip, url.port_or_known_default().unwrap_or_default()))
    }

    /// Makes one delivery attempt.
    pub async fn deliver(&self, subscription: Arc<Subscription>, batch: Arc<BatchContents>) -> Outcome {
        self.attempt(subscription, batch).await.0
    }

    async fn send(
        &self,
        place: Place,
        subscription: &Subscription,
        batch: &BatchContents,
    ) -> (Outcome, Answered) {
        if subscription.is_locked() {
            return (Outcome::Failed { why: LOCKED.to_owned(), retry_after: None }, Answered::default());
        }
        let post = Post {
            name: "deliver to subscriber",
            causes: causes(batch),
            events: batch.events.len(),
            attempt: u64::from(batch.attempts) + 1,
            callback: &subscription.callback,
            uuid: &subscription.uuid,
            secrets: &subscription.secrets,
            id: &batch.id,
            body: body::batch(batch, subscription.tenants.is_some()),
            headers: Vec::new(),
        };
        self.client.post_and_read(place, post).await
    }

    /// Waits for a place among the outgoing calls of the process.
    async fn place(&self, subscription: &Subscription) -> Place {
        // The call reports an address that cannot be used.
        let to = subscription.callback.parse().unwrap_or_default();
        self.client.place(&Owner::of(&subscription.token, "subscriber"), &to).await
    }
}

impl Deliverer for Webhooks {
    fn attempt(
        &self,
        subscription: Arc<Subscription>,
        batch: Arc<BatchContents>,
    ) -> impl Future<Output = (Outcome, Answered)> + Send {
        let webhooks = self.clone();
        // Boxed: the state of a request in flight is large, and every worker would carry it on its stack.
        Box::pin(async move {
            let place = webhooks.place(&subscription).await;
            let started = time::Instant::now();
            let (outcome, answered) = webhooks.send(place, &subscription, &batch).await;
            webhooks.counted.count(&outcome, started.elapsed());
            (outcome, answered)
        })
    }
}

/// The causes of a batch's events, each once.
fn causes(batch: &BatchContents) -> Vec<Cause> {
    let mut causes = Vec::new();
    for cause in batch.events.iter().filter_map(|event| event.cause) {
        if !causes.contains(&cause) && causes.len() < traces::MAX_CAUSES {
            causes.push(cause);
        }
    }
    causes
}
