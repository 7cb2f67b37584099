//! The metrics of the route table in this process, in Prometheus text format.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The labels of a metric with their values.
type Words<const N: usize> = [(&'static str, &'static str); N];

/// The metrics of the route table. Cheap to clone; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    changes: Family<Words<1>, Counter>,
    expired: Family<Words<1>, Counter>,
    waits: Family<Words<1>, Counter>,
    reconciliations: Family<Words<1>, Counter>,
    reseeds: Counter,
    announced: Family<Words<1>, Counter>,
    checks: Family<Words<1>, Counter>,
    outstanding: Gauge,
    foreign: Gauge,
    silent: Gauge,
    certificates: Gauge,
    certificates_expired: Gauge,
    /// It has one member at most, and none while there is nothing to report.
    certificate_days: Family<Words<0>, Gauge<f64, AtomicU64>>,
}

impl Metrics {
    /// Adds them to `registry`, which brings the prefix of their names.
    #[rustfmt::skip]
    pub fn register(&self, registry: &mut Registry) {
        registry.register("route_changes", "Operations on the route table, by kind", self.changes.clone());
        registry.register("instances_expired", "Instances removed because their lease or drain time ended, by reason", self.expired.clone());
        registry.register("router_waits", "Requests that waited for the routers, by outcome", self.waits.clone());
        registry.register("reconciliations", "Passes of the reconciler, by outcome", self.reconciliations.clone());
        registry.register("table_reseeds", "Times the route table was rebuilt from the desired state", self.reseeds.clone());
        registry.register("route_events", "Events about the route table that were published, by kind", self.announced.clone());
        registry.register("health_checks", "Active health checks of instances, by outcome", self.checks.clone());
        registry.register("changes_outstanding", "Changes not yet confirmed in the route table, at most 1000, as seen by this pacemaker's reconciler", self.outstanding.clone());
        registry.register("table_foreign", "1 while the route table belongs to another installation", self.foreign.clone());
        registry.register("routers_silent", "Routers that reported in the last minute but not in the last ten seconds, as seen by the reconciler", self.silent.clone());
        registry.register("certificates", "Certificates in the route table, as seen by the pacemaker that announces their expiry", self.certificates.clone());
        registry.register("certificates_expired", "Certificates in the route table that have expired", self.certificates_expired.clone());
        registry.register("certificate_first_end_days", "Days until the first certificate expires, negative after that; absent without certificates. Updated hourly and at each change", self.certificate_days.clone());
    }

    /// Counts an operation on the route table.
    pub fn count_change(&self, kind: &'static str) {
        self.changes.get_or_create(&[("kind", kind)]).inc();
    }

    pub(crate) fn expired(&self, kind: &'static str) {
        self.expired.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts a request that waited for the routers.
    pub fn waited(&self, outcome: &'static str) {
        self.waits.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn reconciled(&self, ok: bool) {
        let outcome = if ok { "ok" } else { "failed" };
        self.reconciliations.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn reseeded(&self) {
        self.reseeds.inc();
    }

    pub(crate) fn announced(&self, kind: &'static str) {
        self.announced.get_or_create(&[("kind", kind)]).inc();
    }

    pub(crate) fn checked(&self, passed: bool) {
        let outcome = if passed { "passed" } else { "failed" };
        self.checks.get_or_create(&[("outcome", outcome)]).inc();
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
            // Neither infinity nor NaN: alert rules compare the value, and not every scraper reads those.
            None => self.certificate_days.clear(),
        }
    }

    pub(crate) fn table_foreign(&self, foreign: bool) {
        self.foreign.set(i64::from(foreign));
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode_registry;

    use super::*;

    #[test]
    fn the_first_expiry_is_reported_only_while_there_are_certificates() {
        let metrics = Metrics::default();
        let reported = || {
            let (mut registry, mut text) = (Registry::default(), String::new());
            metrics.register(&mut registry);
            encode_registry(&mut text, &registry).unwrap();
            let line = text.lines().find(|line| line.starts_with("certificate_first_end_days"));
            line.map(|line| line.rsplit(' ').next().unwrap().to_owned())
        };
        assert_eq!(reported(), None);
        metrics.certificates(1, 0, Some(-2.5));
        assert_eq!(reported().as_deref(), Some("-2.5"));
        metrics.certificates(0, 0, None);
        assert_eq!(reported(), None, "the last one was removed");
    }
}
