//! The metrics of streams.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Metrics of the streams of this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics {
    pub(super) open: Gauge,
    pub(super) sent: Counter,
    ended: Family<Reason, Counter>,
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("signalbox_live_streams", "Streams of events that are open", self.open.clone());
        registry.register("signalbox_live_events", "Events sent to watchers", self.sent.clone());
        registry.register(
            "signalbox_live_ended",
            "Streams that this side ended, by reason",
            self.ended.clone(),
        );
    }

    pub(super) fn ended(&self, reason: &'static str) {
        self.ended.get_or_create(&Reason { reason }).inc();
    }
}
