//! The metrics of automatic HTTPS in this process, in Prometheus text format. Names are never labels.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// The labels of a metric with their values.
type Words<const N: usize> = [(&'static str, &'static str); N];

/// The metrics of automatic HTTPS. Cheap to clone; clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    attempts: Family<Words<1>, Counter>,
}

impl Metrics {
    /// Adds the metrics to `registry`, which adds the prefix to their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "certificate_attempts",
            "Attempts to obtain a certificate over ACME, by outcome: issued, failed",
            self.attempts.clone(),
        );
    }

    /// Counts an attempt.
    pub(crate) fn attempted(&self, issued: bool) {
        let outcome = if issued { "issued" } else { "failed" };
        self.attempts.get_or_create(&[("outcome", outcome)]).inc();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode_registry;

    use super::*;

    #[test]
    fn attempts_are_counted_by_outcome() {
        let (metrics, mut registry) = (Metrics::default(), Registry::with_prefix("signalbox_pacemaker"));
        metrics.register(&mut registry);
        metrics.attempted(true);
        metrics.attempted(false);
        metrics.attempted(false);
        let mut text = String::new();
        encode_registry(&mut text, &registry).unwrap();
        assert!(
            text.contains(r#"signalbox_pacemaker_certificate_attempts_total{outcome="failed"} 2"#),
            "{text}"
        );
    }
}
