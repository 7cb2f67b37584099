//! The metrics of the sequencer, in Prometheus text format.
//!
//! This process counts what it sent; the fabric's content is read at each scrape, so every pacemaker reports the same
//! numbers of it.

use std::{fmt, time::Duration};

use prometheus_client::{
    encoding::text::encode_registry,
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::handle::{BackendStatus, Numbers};
use signalbox_egress::Outcome;

/// The labels of a metric with their values.
type Words<const N: usize> = [(&'static str, &'static str); N];
/// The labels of a metric with values that are names.
type Names<const N: usize> = [(&'static str, String); N];

const PREFIX: &str = "signalbox_sequencer";

/// Counts the attempts of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Calls {
    results: Family<Words<1>, Counter>,
    seconds: Histogram,
}

impl Default for Calls {
    fn default() -> Self {
        Self { results: Family::default(), seconds: Histogram::new(exponential_buckets(0.000_5, 2.0, 16)) }
    }
}

impl Calls {
    /// Counts one attempt.
    pub fn count(&self, outcome: &Outcome, elapsed: Duration) {
        let result = match outcome {
            Outcome::Delivered => "sent",
            Outcome::Failed { .. } => "failed",
            Outcome::Gone => "gone",
        };
        self.results.get_or_create(&[("result", result)]).inc();
        self.seconds.observe(elapsed.as_secs_f64());
    }

    /// Encodes all metrics. If `numbers` is `None`, because the fabric does not answer, only those of this
    /// process are included.
    pub fn encode(&self, numbers: Option<&Numbers>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register("calls", "Attempts to send an event to a backend, by result", self.results.clone());
        registry.register(
            "call_duration_seconds",
            "Time of an attempt to send an event to a backend",
            self.seconds.clone(),
        );
        if let Some(numbers) = numbers {
            register_fabric(&mut registry, numbers);
        }
        let mut text = String::new();
        encode_registry(&mut text, &registry).map(|()| text)
    }
}

/// Registers the current values of the fabric's counters.
fn register_fabric(registry: &mut Registry, numbers: &Numbers) {
    let by_backend = |value: fn(&BackendStatus) -> u64| {
        let family = Family::<Names<1>, Gauge>::default();
        for one in &numbers.backends {
            let count = i64::try_from(value(one)).unwrap_or(i64::MAX);
            family.get_or_create(&[("backend", one.name.clone())]).set(count);
        }
        family
    };
    registry.register("queued_objects", "Objects with events for a backend", by_backend(|one| one.objects));
    registry.register("queued_events", "Events that wait for a backend", by_backend(|one| one.events));
    registry.register("dead_events", "Dead letters of a backend", by_backend(|one| one.dead));
    let objects = Family::<Words<1>, Gauge>::default();
    for (state, count) in [
        ("ready", numbers.backends.iter().map(|one| one.ready).sum()),
        ("leased", numbers.leased),
        ("retry", numbers.retry),
        ("parked", numbers.parked),
    ] {
        objects.get_or_create(&[("state", state)]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    registry.register("objects", "Objects with a queue, by state", objects);
    for (name, count) in &numbers.counters {
        let help = format!("Events of all pacemakers: {name}");
        registry.register(format!("events_{name}"), help, ConstCounter::new(*count));
    }
}
