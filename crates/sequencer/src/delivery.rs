//! The interface between the life of an object's queue (workers, Redis) and the way an event reaches its backend (HTTP).

use std::{future::Future, sync::Arc, time::Instant};

use serde::Serialize;
use signalbox_bus::{Backend, Delivered, Event, Gap, LOCKED};
use signalbox_egress::{Client, Outcome, Owner, Post};

/// One event that is being sent to a backend.
#[derive(Debug, Clone)]
pub struct Call {
    /// The object.
    pub object: String,
    /// The event.
    pub event: Arc<Event>,
    /// The epoch of the lease under which the event is sent. It rises with every lease of the shard. A call
    /// with a lower epoch than the backend has seen before comes from a worker that lost its object without
    /// noticing.
    pub epoch: u64,
    /// The number of earlier attempts.
    pub attempts: u32,
    /// Whether the event was a dead letter that an operator redrove. Such an event is sent after later ones.
    pub redriven: bool,
    /// The gaps of the object since its last event.
    pub gaps: Vec<Gap>,
}

/// Sends events. Production code uses HTTP, and tests use their own implementations.
pub trait Sink: Send + Sync + 'static {
    /// Makes one attempt. It must have its own timeout. Dropping the future abandons the
    /// attempt.
    fn send(&self, backend: &Backend, call: &Call) -> impl Future<Output = Outcome> + Send;
}

/// The body: the event as subscribers of the bus receive it, then its object and the gaps before it.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    event: Delivered<'a>,
    tenant: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    redriven: bool,
    #[serde(skip_serializing_if = "<[Gap]>::is_empty")]
    gap: &'a [Gap],
}

fn body(call: &Call) -> Vec<u8> {
    let event = &*call.event;
    let mut delivered = Delivered::from(event);
    delivered.object = Some(&event.object);
    let body = Body { event: delivered, tenant: &event.tenant, redriven: call.redriven, gap: &call.gaps };
    // Cannot fail: the body consists of strings, numbers, and JSON that was checked when it was accepted.
    serde_json::to_vec(&body).unwrap_or_default()
}

/// Sends events over HTTP, signed like deliveries of the bus.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client,
    counted: super::metrics::Calls,
}

impl Http {
    /// A sink that sends with `client` and counts the outcomes.
    pub fn new(client: Client, counted: super::metrics::Calls) -> Self {
        Self { client, counted }
    }
}

impl Sink for Http {
    async fn send(&self, backend: &Backend, call: &Call) -> Outcome {
        if backend.is_locked() {
            return Outcome::Failed { why: LOCKED.to_owned(), retry_after: None };
        }
        let id = call.event.id.to_string();
        let post = Post {
            name: "call backend",
            causes: call.event.cause.into_iter().collect(),
            events: 1,
            attempt: u64::from(call.attempts) + 1,
            callback: &backend.callback,
            uuid: &backend.uuid,
            secrets: &backend.secrets,
            id: &id,
            body: body(call),
            headers: vec![
                ("x-signalbox-epoch", call.epoch.to_string()),
                ("x-signalbox-attempt", (u64::from(call.attempts) + 1).to_string()),
            ],
        };
        // The call reports an address that cannot be used.
        let to = backend.callback.parse().unwrap_or_default();
        let owner = Owner::alone(&format!("backend {}", backend.prefix));
        let place = self.client.place(&owner, &to).await;
        let started = now();
        let outcome = self.client.post(place, post).await;
        self.counted.count(&outcome, started.elapsed());
        outcome
    }
}

#[allow(clippy::disallowed_methods, reason = "a duration is measured; nothing is decided by it")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use signalbox_bus::EventId;

    use super::*;

    #[test]
    fn the_body_names_the_object_its_numbers_and_its_gaps() {
        let entry = br#"{"id":192,"prev":128,"tprev":64,"last":128,"object":"work:1","topic":"works","type":"update","tenant":"shop","url":"https://a.example/1","timestamp":7,"data":{"a": 1.0e0}}"#;
        let event = Arc::new(Event::from_log(entry).unwrap());
        let gaps = vec![Gap { first: EventId(128), last: EventId(128), count: 1, reason: "dead".to_owned() }];
        let call = Call { object: "work:1".to_owned(), event, epoch: 5, attempts: 0, redriven: false, gaps };
        assert_eq!(
            String::from_utf8(body(&call)).unwrap(),
            concat!(
                r#"{"topic":"works","type":"update","url":"https://a.example/1","t":7,"data":{"a": 1.0e0},"#,
                r#""id":192,"prev":128,"tprev":64,"object":"work:1","tenant":"shop","#,
                r#""gap":[{"first":128,"last":128,"count":1,"reason":"dead"}]}"#
            )
        );
        let call = Call { gaps: Vec::new(), redriven: true, ..call };
        let text = String::from_utf8(body(&call)).unwrap();
        assert!(!text.contains("gap") && text.ends_with(",\"redriven\":true}"), "{text}");
    }
}
