//! The metrics of streams.

use prometheus_client::{
    encoding::text::encode_registry,
    metrics::{counter::Counter, family::Family, gauge::ConstGauge},
    registry::Registry,
};

/// The labels of a metric with their values.
type Words<const N: usize> = [(&'static str, &'static str); N];

/// Metrics of the streams of this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics {
    pub(super) sent: Counter,
    ended: Family<Words<1>, Counter>,
}

impl Metrics {
    /// Encodes all metrics, with the number of open streams.
    pub(super) fn encode(&self, open: usize) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::default();
        let open = ConstGauge::new(i64::try_from(open).unwrap_or(i64::MAX));
        registry.register("signalbox_live_streams", "Streams of events that are open", open);
        registry.register("signalbox_live_events", "Events sent to watchers", self.sent.clone());
        registry.register(
            "signalbox_live_ended",
            "Streams that this side ended, by reason",
            self.ended.clone(),
        );
        let mut text = String::new();
        encode_registry(&mut text, &registry).map(|()| text)
    }

    pub(super) fn ended(&self, reason: &'static str) {
        self.ended.get_or_create(&[("reason", reason)]).inc();
    }
}
