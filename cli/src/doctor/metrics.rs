//! The metrics page, as far as the checks need it.

use signalbox_diagnosis::{
    Checked,
    machines::Evaluation,
    messages::{Credentials, KeyUse, Parked},
    sidecar::{Counting, Fault},
};

/// Samples with their labels.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Reads a page in the text format of Prometheus. Lines that are not samples are ignored.
    pub(super) fn read(page: &str) -> Self {
        let samples = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(samples.collect())
    }

    /// The sidecar's report.
    pub(super) fn counting(&self) -> Checked<Counting> {
        if self.greatest("signalbox_sidecar_following").is_none() {
            return Checked::Skipped("the metrics page has no sidecar; use the admin listener".to_owned());
        }
        let is_set = |name: &str| self.greatest(name).is_some_and(|value| value > 0.0);
        // Of a late sidecar the lag itself is judged.
        let is_reported =
            |fault: &Fault| *fault != Fault::Late && is_set(&format!("signalbox_sidecar_{}", fault.alarm()));
        Checked::Known(Counting {
            faults: Fault::ALL.into_iter().filter(is_reported).collect(),
            lag_seconds: self.greatest("signalbox_sidecar_lag_seconds").unwrap_or(0.0),
            rotation_failed: is_set("signalbox_sidecar_rotation_failed"),
        })
    }

    /// How the evaluation of labels keeps up.
    pub(super) fn evaluation(&self) -> Checked<Evaluation> {
        let Some(lag_seconds) = self.greatest("signalbox_machines_due_lag_seconds") else {
            return Checked::Skipped("the metrics page has no state machines".to_owned());
        };
        let asked =
            |result: &str| self.sum("signalbox_machines_feeds_total", &format!("result=\"{result}\""));
        Checked::Known(Evaluation { lag_seconds, feeds_failed: asked("failed"), feeds_answered: asked("ok") })
    }

    /// How many objects wait for a decision. The page does not name them.
    pub(super) fn parked(&self) -> Checked<Parked> {
        let name = "signalbox_sequencer_objects";
        if self.greatest(name).is_none() {
            return Checked::Skipped("the metrics page has no objects".to_owned());
        }
        Checked::Known(Parked { count: self.sum(name, "state=\"parked\""), names: Vec::new() })
    }

    /// How credentials of webhooks are stored.
    pub(super) fn credentials(&self) -> Checked<Credentials> {
        let name = "signalbox_bus_credentials";
        if self.greatest(name).is_none() {
            return Checked::Skipped("the metrics page has no credentials".to_owned());
        }
        let count = |state: &str| self.sum(name, &format!("state=\"{state}\""));
        Checked::Known(Credentials { clear: count("clear"), locked: count("locked") })
    }

    /// Clients that use many of their idempotency keys. Others have no sample.
    pub(super) fn idempotency_keys(&self) -> Checked<Vec<KeyUse>> {
        if self.greatest("signalbox_bus_credentials").is_none() {
            return Checked::Skipped("the metrics page has no numbers of the event bus".to_owned());
        }
        let samples = self.all("signalbox_bus_idempotency_keys_used_percent");
        let used = samples.filter_map(|(labels, value)| {
            let client = labels.strip_prefix("client=\"")?.strip_suffix('"')?.to_owned();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage")]
            Some(KeyUse { client, percent: value as u64 })
        });
        Checked::Known(used.collect())
    }

    fn greatest(&self, name: &str) -> Option<f64> {
        self.all(name).map(|(_, value)| value).reduce(f64::max)
    }

    /// The sum of the samples that have `label`.
    fn sum(&self, name: &str, label: &str) -> u64 {
        let samples = self.all(name).filter(|(labels, _)| labels.contains(label));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let sum = samples.map(|(_, value)| value).sum::<f64>() as u64;
        sum
    }

    /// The labels between the braces, and the value, of each sample of a name.
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.iter().filter_map(move |(sample, value)| {
            let rest = sample.strip_prefix(name)?;
            let labels = if rest.is_empty() { "" } else { rest.strip_prefix('{')?.strip_suffix('}')? };
            Some((labels, *value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_their_whole_name() {
        let page = "# TYPE a gauge\na 1\na{x=\"1 2\"} 3\nab 9\nbroken\n";
        let metrics = Metrics::read(page);
        assert_eq!((metrics.greatest("a"), metrics.greatest("b")), (Some(3.0), None));
        assert_eq!(metrics.all("a").collect::<Vec<_>>(), [("", 1.0), ("x=\"1 2\"", 3.0)]);
    }

    #[test]
    fn a_page_becomes_facts() {
        let page = "signalbox_sidecar_following 1\nsignalbox_sidecar_fenced 1\nsignalbox_sidecar_lag_seconds 2.5\n\
            signalbox_sidecar_rotation_failed 0\nsignalbox_machines_due_lag_seconds 61\n\
            signalbox_machines_feeds_total{result=\"ok\",shard=\"1\"} 9\nsignalbox_machines_feeds_total{result=\"failed\"} 1\n\
            signalbox_sequencer_objects{state=\"parked\"} 2\nsignalbox_sequencer_objects{state=\"ready\"} 7\n\
            signalbox_bus_idempotency_keys_used_percent{client=\"shop\"} 93\n\
            signalbox_bus_credentials{state=\"clear\"} 3\nsignalbox_bus_credentials{state=\"locked\"} 0\n";
        let metrics = Metrics::read(page);
        let counting = Counting { faults: vec![Fault::Fenced], lag_seconds: 2.5, rotation_failed: false };
        assert_eq!(metrics.counting(), Checked::Known(counting));
        let evaluation = Evaluation { lag_seconds: 61.0, feeds_failed: 1, feeds_answered: 9 };
        assert_eq!(metrics.evaluation(), Checked::Known(evaluation));
        assert_eq!(metrics.parked(), Checked::Known(Parked { count: 2, names: Vec::new() }));
        assert_eq!(metrics.credentials(), Checked::Known(Credentials { clear: 3, locked: 0 }));
        let used = KeyUse { client: "shop".to_owned(), percent: 93 };
        assert_eq!(metrics.idempotency_keys(), Checked::Known(vec![used]));
    }

    #[test]
    fn missing_metrics_are_skipped() {
        let metrics = Metrics::read("up 1\n");
        assert!(metrics.counting().known().is_none() && metrics.evaluation().known().is_none());
        assert!(metrics.parked().known().is_none() && metrics.credentials().known().is_none());
        assert!(metrics.idempotency_keys().known().is_none());
    }
}
