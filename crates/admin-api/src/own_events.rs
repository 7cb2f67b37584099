//! Publishes the events of the route table on the bus. It is here because neither crate depends on the other.

use serde_json::value::to_raw_value;

use signalbox_api::audit::Record;
use signalbox_bus::{AUDIT, Handle, Kind, NewEvent, Refusal};
use signalbox_routing::{Announce, EventKind, RouteEvent};

/// The object of the audit log's events.
pub(crate) const AUDIT_OBJECT: &str = "signalbox:audit";

/// The bus, for Signalbox's own events.
#[derive(Debug, Clone)]
pub struct OwnEvents {
    bus: Handle,
}

impl OwnEvents {
    /// Publishes on `bus`.
    pub fn new(bus: Handle) -> Self {
        Self { bus }
    }
}

impl OwnEvents {
    /// Publishes a record of the audit log, in the background: the record itself is stored.
    pub(crate) fn audited(&self, record: &Record) {
        let event = NewEvent {
            kind: Kind::Create,
            url: "/audit".to_owned(),
            timestamp_ms: Some(record.at.ms()),
            data: to_raw_value(record).ok(),
            tenant: None,
            object: Some(AUDIT_OBJECT.to_owned()),
            idempotency_key: None,
        };
        let bus = self.bus.clone();
        tokio::spawn(async move {
            for refusal in bus.announce(AUDIT, vec![event]).await.into_iter().filter_map(Result::err) {
                tracing::warn!(%refusal, "a record of the audit log was not published");
            }
        });
    }
}

impl Announce for OwnEvents {
    async fn announce(&self, topic: &'static str, events: Vec<RouteEvent>) -> bool {
        let events = events.into_iter().map(new_event).collect();
        self.bus.announce(topic, events).await.into_iter().all(|result| match result {
            Ok(_) => true,
            // Trying again would meet the same answer, and keep everything after it back.
            Err(refusal @ (Refusal::BadTopic | Refusal::Claimed | Refusal::Conflict)) => {
                tracing::error!(topic, %refusal, "own event rejected and skipped");
                true
            }
            Err(refusal) => {
                tracing::debug!(topic, %refusal, "own events are published later");
                false
            }
        })
    }
}

fn new_event(event: RouteEvent) -> NewEvent {
    NewEvent {
        kind: match event.kind {
            EventKind::Create => Kind::Create,
            EventKind::Update => Kind::Update,
            EventKind::Delete => Kind::Delete,
        },
        url: event.url,
        timestamp_ms: event.at_ms,
        data: to_raw_value(&event.data).ok(),
        tenant: None,
        object: Some(event.object),
        idempotency_key: Some(event.key),
    }
}
