//! Metrics of the HTTP server and of the process, in the text format of Prometheus at `/metrics`.
//!
//! No label is unbounded: hosts, instances and tokens are never labels.

use std::sync::Arc;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text::encode_registry},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use signalbox_daemon::traces::Counts;
use signalbox_egress::Budget;

/// The labels of a metric with their values.
type Words<const N: usize> = [(&'static str, &'static str); N];

#[derive(Debug)]
struct Spans(Counts);

impl Collector for Spans {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for (name, help, value) in [
            ("spans_sent", "Spans that the trace collector accepted", self.0.sent()),
            (
                "spans_lost",
                "Spans that the trace collector rejected or did not accept in time",
                self.0.lost(),
            ),
        ] {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct OutgoingCalls(Budget);

impl Collector for OutgoingCalls {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let calls = self.0.calls();
        let all = Family::<Words<1>, Gauge>::default();
        for (state, count) in
            [("running", calls.running), ("waiting", calls.waiting), ("limit", self.0.limits().calls)]
        {
            all.get_or_create(&[("state", state)]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let help =
            "Outgoing calls that run, those that wait for a place, and how many may run at the same time";
        all.encode(encoder.encode_descriptor("outgoing_calls", help, None, all.metric_type())?)
    }
}

/// The pacemaker's registry of metrics and those of its HTTP server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    requests: Family<Words<2>, Counter>,
    request_seconds: Histogram,
    limited: Family<Words<1>, Counter>,
}

impl Metrics {
    /// Metrics of this process, with those of the subsystems that count themselves.
    pub fn new(
        spans: Counts,
        calls: Budget,
        routing: &signalbox_routing::Metrics,
        acme: &signalbox_acme::Metrics,
    ) -> Self {
        let requests = Family::<Words<2>, Counter>::default();
        let request_seconds = Histogram::new(exponential_buckets(0.000_5, 2.0, 18));
        let mut registry = Registry::with_prefix("signalbox_pacemaker");
        registry.register_collector(Box::new(Spans(spans)));
        registry.register_collector(Box::new(OutgoingCalls(calls)));
        registry.register(
            "http_requests",
            "Requests answered, by method and class of status",
            requests.clone(),
        );
        registry.register(
            "http_request_duration_seconds",
            "Time to answer, including waiting for routers",
            request_seconds.clone(),
        );
        let limited = Family::<Words<1>, Counter>::default();
        registry.register(
            "limited_requests",
            "Requests rejected because of a limit, by error code",
            limited.clone(),
        );
        routing.register(&mut registry);
        acme.register(&mut registry);
        Self { registry: Arc::new(registry), requests, request_seconds, limited }
    }

    /// The text for `/metrics`. Without an end mark, because the admin listener joins those of several programs.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry).map(|()| text)
    }

    /// Counts a request that would have exceeded a limit.
    pub fn limited(&self, code: &'static str) {
        self.limited.get_or_create(&[("code", code)]).inc();
    }

    /// Counts a response.
    pub fn answered(&self, method: &'static str, status: u16, seconds: f64) {
        let class = match status / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        self.requests.get_or_create(&[("method", method), ("class", class)]).inc();
        self.request_seconds.observe(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_prefix_and_the_unit() {
        let routing = signalbox_routing::Metrics::default();
        let metrics =
            Metrics::new(Counts::default(), Budget::default(), &routing, &signalbox_acme::Metrics::default());
        metrics.answered("GET", 204, 0.001);
        metrics.limited("token_limit_reached");
        routing.count_change("registered");
        let text = metrics.encode().unwrap();
        assert!(
            text.contains(r#"signalbox_pacemaker_http_requests_total{method="GET",class="2xx"} 1"#),
            "{text}"
        );
        assert!(text.contains(r#"signalbox_pacemaker_route_changes_total{kind="registered"} 1"#), "{text}");
        assert!(
            text.contains(r#"signalbox_pacemaker_limited_requests_total{code="token_limit_reached"} 1"#),
            "{text}"
        );
        assert!(text.contains(r#"signalbox_pacemaker_outgoing_calls{state="limit"} 1024"#), "{text}");
        assert!(!text.contains("# EOF"));
    }
}
