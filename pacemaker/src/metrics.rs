//! The pacemaker's own metrics, in Prometheus' text format at `/metrics`.
//!
//! No label here is open-ended: hosts, instances and tokens are never labels.

use std::sync::{Arc, atomic::AtomicU64};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, text::encode_registry},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use signalbox_daemon::traces::Counts;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    method: &'static str,
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// The labels of a family with one member at most, which is there while there is something to say.
type Sole = [(&'static str, &'static str); 0];

#[derive(Debug)]
struct Spans(Counts);

impl Collector for Spans {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for (name, help, value) in [
            ("spans_sent", "Spans that the collector of traces took", self.0.sent()),
            ("spans_lost", "Spans that it did not take, or not fast enough", self.0.lost()),
        ] {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

/// All metrics. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    requests: Family<Answer, Counter>,
    request_seconds: Histogram,
    changes: Family<Kind, Counter>,
    expired: Family<Kind, Counter>,
    waits: Family<Outcome, Counter>,
    reconciliations: Family<Outcome, Counter>,
    reseeds: Counter,
    announced: Family<Kind, Counter>,
    checks: Family<Outcome, Counter>,
    outstanding: Gauge,
    foreign: Gauge,
    silent: Gauge,
    certificates: Gauge,
    certificates_expired: Gauge,
    certificate_days: Family<Sole, Gauge<f64, AtomicU64>>,
}

impl Metrics {
    /// Of a process without traces.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::with_spans(Counts::default())
    }

    pub(crate) fn with_spans(spans: Counts) -> Self {
        let requests = Family::<Answer, Counter>::default();
        let request_seconds = Histogram::new(exponential_buckets(0.000_5, 2.0, 18));
        let changes = Family::<Kind, Counter>::default();
        let expired = Family::<Kind, Counter>::default();
        let waits = Family::<Outcome, Counter>::default();
        let reconciliations = Family::<Outcome, Counter>::default();
        let announced = Family::<Kind, Counter>::default();
        let checks = Family::<Outcome, Counter>::default();
        let (reseeds, outstanding, foreign) = (Counter::default(), Gauge::default(), Gauge::default());
        let silent = Gauge::default();
        let (certificates, certificates_expired) = (Gauge::default(), Gauge::default());
        let certificate_days = Family::<Sole, Gauge<f64, AtomicU64>>::default();
        let mut registry = Registry::with_prefix("signalbox_pacemaker");
        registry.register_collector(Box::new(Spans(spans)));
        registry.register(
            "http_requests",
            "Requests answered, by method and class of status",
            requests.clone(),
        );
        registry.register(
            "http_request_duration_seconds",
            "Time to answer, waiting for routers included",
            request_seconds.clone(),
        );
        registry.register(
            "route_changes",
            "Operations on the route table, by what they did",
            changes.clone(),
        );
        registry.register("instances_expired", "Instances taken out, by what had ended", expired.clone());
        registry.register("router_waits", "Requests that waited for the routers, by outcome", waits.clone());
        registry.register("reconciliations", "Passes of the reconciler, by outcome", reconciliations.clone());
        registry.register("table_reseeds", "Times the route table was made anew", reseeds.clone());
        registry.register(
            "route_events",
            "Events about the route table that were published, by kind",
            announced.clone(),
        );
        registry.register("health_checks", "Active health checks of instances, by outcome", checks.clone());
        registry.register(
            "changes_outstanding",
            "Changes not known to stand in the table, up to a thousand, as this pacemaker's reconciler saw them",
            outstanding.clone(),
        );
        registry.register("table_foreign", "1 while the table is another installation's", foreign.clone());
        registry.register(
            "routers_silent",
            "Routers that reported in the last minute and not in the last ten seconds, as the reconciler saw them",
            silent.clone(),
        );
        registry.register(
            "certificates",
            "Certificates in the route table, as the pacemaker that tells of their ends saw them",
            certificates.clone(),
        );
        registry.register(
            "certificates_expired",
            "Those of them that have ended",
            certificates_expired.clone(),
        );
        registry.register(
            "certificate_first_end_days",
            "Days until the first of them ends, negative when it has; not there without any. Looked at once an hour and when one changes",
            certificate_days.clone(),
        );
        Self {
            registry: Arc::new(registry),
            requests,
            request_seconds,
            changes,
            expired,
            waits,
            reconciliations,
            reseeds,
            announced,
            checks,
            outstanding,
            foreign,
            silent,
            certificates,
            certificates_expired,
            certificate_days,
        }
    }

    /// The text for `/metrics`. Without an end mark, because the admin listener puts several parts' one after another.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry).map(|()| text)
    }

    pub(crate) fn answered(&self, method: &'static str, status: u16, seconds: f64) {
        let class = match status / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        self.requests.get_or_create(&Answer { method, class }).inc();
        self.request_seconds.observe(seconds);
    }

    pub(crate) fn count_change(&self, kind: &'static str) {
        self.changes.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn expired(&self, kind: &'static str) {
        self.expired.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn waited(&self, outcome: &'static str) {
        self.waits.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn reconciled(&self, ok: bool) {
        let outcome = if ok { "ok" } else { "failed" };
        self.reconciliations.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn reseeded(&self) {
        self.reseeds.inc();
    }

    pub(crate) fn announced(&self, kind: &'static str) {
        self.announced.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn checked(&self, passed: bool) {
        let outcome = if passed { "passed" } else { "failed" };
        self.checks.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn outstanding(&self, count: usize) {
        self.outstanding.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn silent_routers(&self, count: usize) {
        self.silent.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn certificates(&self, count: usize, expired: usize, first_end_days: Option<f64>) {
        self.certificates.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.certificates_expired.set(i64::try_from(expired).unwrap_or(i64::MAX));
        match first_end_days {
            Some(days) => {
                self.certificate_days.get_or_create(&[]).set(days);
            }
            // Neither infinity nor NaN: alarms compare, and not every scraper reads those.
            None => self.certificate_days.clear(),
        }
    }

    pub(crate) fn table_foreign(&self, foreign: bool) {
        self.foreign.set(i64::from(foreign));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_prefix_and_the_unit() {
        let metrics = Metrics::new();
        metrics.answered("GET", 204, 0.001);
        metrics.count_change("registered");
        let text = metrics.encode().unwrap();
        assert!(
            text.contains(r#"signalbox_pacemaker_http_requests_total{method="GET",class="2xx"} 1"#),
            "{text}"
        );
        assert!(text.contains(r#"signalbox_pacemaker_route_changes_total{kind="registered"} 1"#), "{text}");
        assert!(!text.contains("# EOF"));
    }

    #[test]
    fn the_first_end_of_certificates_is_there_while_there_is_one() {
        let metrics = Metrics::new();
        let said = || {
            let text = metrics.encode().unwrap();
            let line =
                text.lines().find(|line| line.starts_with("signalbox_pacemaker_certificate_first_end_days"));
            line.map(|line| line.rsplit(' ').next().unwrap().to_owned())
        };
        assert_eq!(said(), None);
        metrics.certificates(1, 0, Some(-2.5));
        assert_eq!(said().as_deref(), Some("-2.5"));
        metrics.certificates(0, 0, None);
        assert_eq!(said(), None, "the last one was taken away");
    }
}
