//! The metrics of the bus, in Prometheus text format.
//!
//! This process counts its own work: requests it accepted, deliveries it made. The fabric counts what the bus holds,
//! and each scrape reads these counts. Every pacemaker reports the same values for them, so aggregate them with `max`,
//! not with `sum`. The only labels without a fixed set of values are the names of subscribers and topics, and the
//! numbers of both are bounded.

use std::{fmt, time::Duration};

use prometheus_client::{
    encoding::text::encode_registry,
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::{Credentials, Refusal};
use signalbox_api::events::{Jobs, Numbers, SubscriberNumbers};
use signalbox_egress::Outcome;

/// The labels of a metric with their values.
type Words<const N: usize> = [(&'static str, &'static str); N];
/// The labels of a metric with values that are names.
type Names<const N: usize> = [(&'static str, String); N];

const PREFIX: &str = "signalbox_bus";

/// Deliveries of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Deliveries {
    results: Family<Words<1>, Counter>,
    seconds: Histogram,
}

impl Default for Deliveries {
    fn default() -> Self {
        Self { results: Family::default(), seconds: Histogram::new(exponential_buckets(0.000_5, 2.0, 16)) }
    }
}

impl Deliveries {
    /// Counts one attempt.
    pub fn count(&self, outcome: &Outcome, elapsed: Duration) {
        let result = match outcome {
            Outcome::Delivered => "delivered",
            Outcome::Failed { .. } => "failed",
            Outcome::Gone => "gone",
        };
        self.results.get_or_create(&[("result", result)]).inc();
        self.seconds.observe(elapsed.as_secs_f64());
    }
}

/// All counts of this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// The outcomes of deliveries.
    pub deliveries: Deliveries,
    published: Family<Words<1>, Counter>,
}

impl Metrics {
    /// Counts one event of a publisher.
    pub fn published<T>(&self, result: &Result<T, Refusal>) {
        let result = match result {
            Ok(_) => "accepted",
            Err(Refusal::Claimed) => "claimed",
            Err(Refusal::BadTopic) => "invalid_topic",
            Err(Refusal::Conflict) => "conflict",
            Err(Refusal::TooManyTopics) => "too_many_topics",
            Err(Refusal::Busy) => "busy",
            Err(Refusal::QueueFull) => "queue_full",
            Err(Refusal::WaitingFull) => "waiting_full",
            Err(Refusal::TenantFull { .. } | Refusal::MemoryShort) => "tenant_full",
            Err(Refusal::KeysUsedUp { .. }) => "keys_used_up",
            Err(Refusal::Outdated) => "outdated",
            Err(Refusal::Full) => "full",
            Err(Refusal::ReadOnly) => "read_only",
            Err(Refusal::Unavailable) => "unavailable",
            Err(Refusal::Uninitialized) => "uninitialized",
        };
        self.published.get_or_create(&[("result", result)]).inc();
    }

    /// Counts one invalid event.
    pub fn invalid(&self) {
        self.published.get_or_create(&[("result", "invalid")]).inc();
    }

    /// The text of all metrics. Without those of the fabric, when it does not answer, only those of this process.
    pub fn encode(&self, fabric: Option<(&Numbers, Credentials)>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register(
            "published_events",
            "Events that publishers sent, by result",
            self.published.clone(),
        );
        registry.register(
            "deliveries",
            "Attempts to deliver a batch, by result",
            self.deliveries.results.clone(),
        );
        registry.register(
            "delivery_duration_seconds",
            "Time of an attempt to deliver a batch",
            self.deliveries.seconds.clone(),
        );
        if let Some((numbers, credentials)) = fabric {
            register_fabric(&mut registry, numbers, credentials);
        }
        let mut text = String::new();
        encode_registry(&mut text, &registry).map(|()| text)
    }
}

fn gauge_of(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A metric with the label `state`.
fn by_state<const N: usize>(counts: [(&'static str, u64); N]) -> Family<Words<1>, Gauge> {
    let family = Family::<Words<1>, Gauge>::default();
    for (state, count) in counts {
        family.get_or_create(&[("state", state)]).set(gauge_of(count));
    }
    family
}

/// The fabric's counters, as of now.
fn register_fabric(registry: &mut Registry, all: &Numbers, credentials: Credentials) {
    let by_subscriber = |read: fn(&SubscriberNumbers) -> Option<u64>| {
        let family = Family::<Names<1>, Gauge>::default();
        for (name, numbers) in &all.subscribers {
            if let Some(value) = read(numbers) {
                let label = [("subscriber", name.clone())];
                family.get_or_create(&label).set(gauge_of(value));
            }
        }
        family
    };
    let (sent, failed) = (Family::<Names<1>, Counter>::default(), Family::<Names<1>, Counter>::default());
    for (name, numbers) in &all.subscribers {
        let label = [("subscriber", name.clone())];
        sent.get_or_create(&label).inc_by(numbers.sent);
        failed.get_or_create(&label).inc_by(numbers.failed);
    }
    registry.register("subscriber_sent_events", "Events delivered to the subscriber", sent);
    registry.register("subscriber_failed_attempts", "Failed attempts to deliver to the subscriber", failed);
    let accepted = Family::<Names<1>, Counter>::default();
    for (name, events) in &all.topics {
        accepted.get_or_create(&[("topic", name.clone())]).inc_by(*events);
    }
    registry.register("topic_events", "Events accepted of the topic", accepted);
    let mut gauge = |name: &str, help: &str, read| registry.register(name, help, by_subscriber(read));
    gauge("subscriber_queued_events", "Events that wait for the subscriber or are on their way", |n| {
        Some(n.events)
    });
    gauge("subscriber_queued_batches", "Batches that wait for the subscriber or are on their way", |n| {
        Some(n.batches)
    });
    gauge("subscriber_dead_events", "Dead letters of the subscriber", |n| Some(n.dead));
    gauge("subscriber_health_points", "Health of the subscriber, 0 to 100", |n| Some(u64::from(n.health)));
    gauge(
        "subscriber_oldest_batch_timestamp_seconds",
        "When the subscriber's oldest batch was created; absent when there is none",
        |n| n.oldest_at.map(|at| at.ms() / 1000),
    );
    gauge(
        "subscriber_last_attempt_timestamp_seconds",
        "When a delivery to the subscriber was last attempted; absent before the first",
        |n| n.last_attempted_at.map(|at| at.ms() / 1000),
    );

    let Jobs { instant, scheduled, pending, waiting } = all.jobs;
    let jobs = by_state([
        ("instant", instant),
        ("scheduled", scheduled),
        ("pending", pending),
        ("waiting", waiting),
    ]);
    registry.register("jobs", "Delivery jobs, by state", jobs);
    let used = Family::<Names<1>, Gauge>::default();
    for (name, percent) in &all.idempotency_keys {
        used.get_or_create(&[("client", name.clone())]).set(gauge_of(*percent));
    }
    let help = "Percentage of its idempotency keys that a client uses, of clients that use more than half";
    registry.register("idempotency_keys_used_percent", help, used);
    registry.register("log_bytes", "Bytes of events in the log", ConstGauge::new(gauge_of(all.log_bytes)));
    let Credentials { clear, encrypted, locked, .. } = credentials;
    registry.register(
        "credentials",
        "Subscriptions, backends and listed tokens with credentials, by how these are stored",
        by_state([("clear", clear), ("encrypted", encrypted), ("locked", locked)]),
    );
    // It exists before the first loss: an alert compares it with its earlier value.
    let mut counters = all.counters.clone();
    counters.entry("events.lost".to_owned()).or_default();
    for (name, count) in &counters {
        let help = format!("The fabric's telemetry counter {name}");
        registry.register(metric_name(name), help, ConstCounter::new(*count));
    }
}

/// A telemetry counter's name as a metric's: `events.delivered` is `events_delivered`.
fn metric_name(counter: &str) -> String {
    counter
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_prefix_and_the_unit() {
        let metrics = Metrics::default();
        metrics.published::<()>(&Err(Refusal::Claimed));
        metrics.deliveries.count(&Outcome::Gone, Duration::from_millis(2));
        let numbers = SubscriberNumbers {
            sent: 3,
            failed: 6,
            events: 2,
            oldest_at: Some(signalbox_api::Time::from_ms(5_000)),
            health: 98,
            ..Default::default()
        };
        let numbers = Numbers {
            subscribers: [("billing".to_owned(), numbers)].into(),
            topics: [("orders".to_owned(), 9)].into(),
            counters: [("events.delivered".to_owned(), 7)].into(),
            idempotency_keys: [("shop".to_owned(), 93)].into(),
            jobs: Jobs { scheduled: 4, ..Default::default() },
            ..Default::default()
        };
        let credentials = Credentials { clear: 6, ..Credentials::default() };
        let text = metrics.encode(Some((&numbers, credentials))).unwrap();
        for line in [
            r#"signalbox_bus_published_events_total{result="claimed"} 1"#,
            r#"signalbox_bus_deliveries_total{result="gone"} 1"#,
            r#"signalbox_bus_subscriber_sent_events_total{subscriber="billing"} 3"#,
            r#"signalbox_bus_subscriber_failed_attempts_total{subscriber="billing"} 6"#,
            r#"signalbox_bus_topic_events_total{topic="orders"} 9"#,
            r#"signalbox_bus_subscriber_queued_events{subscriber="billing"} 2"#,
            r#"signalbox_bus_subscriber_health_points{subscriber="billing"} 98"#,
            r#"signalbox_bus_subscriber_oldest_batch_timestamp_seconds{subscriber="billing"} 5"#,
            r#"signalbox_bus_idempotency_keys_used_percent{client="shop"} 93"#,
            r#"signalbox_bus_jobs{state="scheduled"} 4"#,
            r#"signalbox_bus_credentials{state="clear"} 6"#,
            "signalbox_bus_events_delivered_total 7",
            "signalbox_bus_events_lost_total 0",
            "signalbox_bus_delivery_duration_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("last_attempt_timestamp_seconds{"), "{text}");
    }

    #[test]
    fn without_the_fabric_there_are_still_the_counts_of_this_process() {
        let text = Metrics::default().encode(None).unwrap();
        assert!(text.contains("signalbox_bus_delivery_duration_seconds"), "{text}");
        assert!(!text.contains("signalbox_bus_jobs"), "{text}");
    }
}
