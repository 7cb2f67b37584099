//! The metrics of streams.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The labels of a metric with their values.
type Words<const N: usize> = [(&'static str, &'static str); N];

/// Metrics of the streams of this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics {
    pub(super) open: Gauge,
    pub(super) sent: Counter,
    ended: Family<Words<1>, Counter>,
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
        self.ended.get_or_create(&[("reason", reason)]).inc();
    }
}
