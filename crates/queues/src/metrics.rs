//! The metrics of queues, in Prometheus text format.
//!
//! This process counts its own work; the content of queues is read from the fabric at each scrape, so every pacemaker
//! reports the same numbers of it. The only label without a fixed set of values is the queue's name, and the number of
//! queues is bounded. Tenants are never labels: `GET /queues/{name}/tenants` lists them.

use std::fmt;

use prometheus_client::{
    encoding::text::encode_registry,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::QueueNumbers;

/// The labels of a metric with values that are names.
type Names<const N: usize> = [(&'static str, String); N];

/// The labels of a queue's metric that has another label, too.
fn of(queue: &str, label: &'static str, value: &str) -> Names<2> {
    [("queue", queue.to_owned()), (label, value.to_owned())]
}

const PREFIX: &str = "signalbox_queues";

/// The possible results of a receipt, and of a pull.
const RESULTS: [&str; 10] = [
    "messages",
    "empty",
    "acked",
    "acked_before",
    "back",
    "delayed",
    "dead",
    "extended",
    "refused",
    "auto_acked",
];

/// All counters of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    pulls: Family<Names<2>, Counter>,
    messages: Family<Names<2>, Counter>,
    dwell: Family<Names<2>, Histogram, fn() -> Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        // From a millisecond to more than an hour.
        let dwell: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 23));
        Self {
            pulls: Family::default(),
            messages: Family::default(),
            dwell: Family::new_with_constructor(dwell),
        }
    }
}

impl Metrics {
    /// Counts a pull that returned this many messages.
    pub(super) fn pulled(&self, queue: &str, messages: usize, auto_ack: bool) {
        let result = if messages == 0 { "empty" } else { "messages" };
        self.pulls.get_or_create(&of(queue, "result", result)).inc();
        if auto_ack {
            self.settled(queue, "auto_acked", messages as u64);
        }
    }

    /// Counts settled messages by their result.
    pub(super) fn settled(&self, queue: &str, result: &'static str, messages: u64) {
        if messages > 0 {
            self.messages.get_or_create(&of(queue, "result", result)).inc_by(messages);
        }
    }

    /// Counts how long a message had waited when it was delivered for the first time.
    pub(super) fn dwelt(&self, queue: &str, noisy: bool, seconds: f64) {
        let tenant = if noisy { "noisy" } else { "quiet" };
        self.dwell.get_or_create(&of(queue, "tenant", tenant)).observe(seconds);
    }

    /// Removes the metrics of a deleted queue.
    pub(super) fn forget(&self, queue: &str) {
        for result in RESULTS {
            self.pulls.remove(&of(queue, "result", result));
            self.messages.remove(&of(queue, "result", result));
        }
        for tenant in ["noisy", "quiet"] {
            self.dwell.remove(&of(queue, "tenant", tenant));
        }
    }

    /// Encodes all metrics. `numbers` are the fabric's statistics, if it answers.
    pub(super) fn encode(
        &self,
        waiting_pulls: usize,
        numbers: Option<&[(String, QueueNumbers)]>,
    ) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register("pulls", "Pulls answered, by whether they got messages", self.pulls.clone());
        registry.register("settled_messages", "Receipts settled, by result", self.messages.clone());
        registry.register(
            "dwell_seconds",
            "Time from acceptance to the first pull. A tenant is noisy while more of its messages wait than noisy_backlog",
            self.dwell.clone(),
        );
        let waiting = i64::try_from(waiting_pulls).unwrap_or(i64::MAX);
        registry.register("waiting_pulls", "Pulls that wait for a message", ConstGauge::new(waiting));
        if let Some(numbers) = numbers {
            register_fabric(&mut registry, numbers);
        }
        let mut text = String::new();
        encode_registry(&mut text, &registry).map(|()| text)
    }
}

/// Registers the current values of the fabric's counters.
fn register_fabric(registry: &mut Registry, numbers: &[(String, QueueNumbers)]) {
    let (held, tenants) = (Family::<Names<2>, Gauge>::default(), Family::<Names<1>, Gauge>::default());
    let moved = Family::<Names<2>, Counter>::default();
    for (queue, numbers) in numbers {
        let gauge = |state, count: u64| {
            held.get_or_create(&of(queue, "state", state)).set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        gauge("waiting", numbers.waiting);
        gauge("in_flight", numbers.in_flight);
        gauge("delayed", numbers.delayed);
        gauge("dead", numbers.dead);
        let count = i64::try_from(numbers.tenants).unwrap_or(i64::MAX);
        tenants.get_or_create(&[("queue", queue.clone())]).set(count);
        for (state, count) in numbers.clone().totals() {
            moved.get_or_create(&of(queue, "state", state)).inc_by(*count);
        }
    }
    registry.register("messages", "Messages in the queue, by state", held);
    registry.register("tenants", "Tenants with messages in the queue", tenants);
    registry.register("moved_messages", "Messages in total, by outcome", moved);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_prefix_and_a_queue_that_is_gone_is_forgotten() {
        let metrics = Metrics::default();
        metrics.pulled("mail", 2, false);
        metrics.settled("mail", "acked", 2);
        metrics.dwelt("mail", true, 0.5);
        let numbers = QueueNumbers { waiting: 7, acked: 3, ..QueueNumbers::default() };
        let text = metrics.encode(1, Some(&[("mail".to_owned(), numbers)])).unwrap();
        for line in [
            r#"signalbox_queues_pulls_total{queue="mail",result="messages"} 1"#,
            r#"signalbox_queues_settled_messages_total{queue="mail",result="acked"} 2"#,
            r#"signalbox_queues_dwell_seconds_count{queue="mail",tenant="noisy"} 1"#,
            r#"signalbox_queues_messages{queue="mail",state="waiting"} 7"#,
            r#"signalbox_queues_moved_messages_total{queue="mail",state="acked"} 3"#,
            "signalbox_queues_waiting_pulls 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        metrics.forget("mail");
        assert!(!metrics.encode(0, None).unwrap().contains("mail"));
    }
}
