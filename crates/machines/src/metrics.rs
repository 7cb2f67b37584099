//! Metrics of the machines in the Prometheus text format. Their labels are machines, states and fixed words, never
//! the names of a machine's labels.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::encode_registry,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use signalbox_api::machines::PassedLimit;

use crate::actions::Outcome;

/// The labels of a metric with their values.
type Words<const N: usize> = [(&'static str, &'static str); N];
/// The labels of a metric with values that are names.
type Names<const N: usize> = [(&'static str, String); N];

/// The labels of a machine's metric that has another label, too.
fn of(machine: &str, label: &'static str, value: &str) -> Names<2> {
    [("machine", machine.to_owned()), (label, value.to_owned())]
}

/// The names of a machine and of one of its states.
type MachineState = (Arc<str>, Arc<str>);

/// The limits of the histogram of times in states, seconds.
const STAYS: [f64; 12] =
    [0.1, 1.0, 10.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0];
/// States that have metrics of their own in a process; the others share one.
const MAX_SERIES: usize = 1_000;

/// Numbers of machines: machine, the other label, number.
type Rows = Vec<(String, String, u64)>;

/// Numbers of the whole fabric at one time.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Labels by state.
    pub(crate) states: Rows,
    /// Labels by status.
    pub(crate) statuses: Rows,
    /// Entries that are due and not worked on yet.
    pub(crate) overdue: u64,
    /// How long the oldest of them has been due, seconds.
    pub(crate) lag_seconds: u64,
    /// How long the oldest label has been in states with an alert by age, seconds.
    pub(crate) ages: Rows,
    /// Limits that are exceeded, each with its machine.
    pub(crate) alerts: Vec<(String, PassedLimit)>,
    /// Labels that wait for the limit of an address.
    pub(crate) limits: Rows,
    /// Labels that nothing will evaluate again, by reason.
    pub(crate) stuck: Rows,
}

/// The counters of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) evaluations: Counter,
    pub(crate) moves: Counter,
    actions: Family<Words<1>, Counter>,
    feeds: Family<Words<1>, Counter>,
    inputs: Family<Words<1>, Counter>,
    pub(crate) sweeps: Counter,
    pub(crate) unreadable: Counter,
    entries: Family<Names<2>, Counter>,
    stays: Family<Names<2>, Histogram, fn() -> Histogram>,
    /// The machines and states that have metrics of their own.
    series: Arc<Mutex<HashSet<MachineState>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            evaluations: Counter::default(),
            moves: Counter::default(),
            actions: Family::default(),
            feeds: Family::default(),
            inputs: Family::default(),
            sweeps: Counter::default(),
            unreadable: Counter::default(),
            entries: Family::default(),
            stays: Family::new_with_constructor(|| Histogram::new(STAYS)),
            series: Arc::default(),
        }
    }
}

impl Metrics {
    /// Counts an entry into a state, and the time in the state before.
    pub(crate) fn entered(&self, machine: &Arc<str>, state: &Arc<str>, before: Option<(&str, u64)>) {
        self.entries.get_or_create(&self.place(machine, state)).inc();
        if let Some((before, ms)) = before {
            #[allow(clippy::cast_precision_loss, reason = "a time")]
            self.stays.get_or_create(&self.place(machine, &before.into())).observe(ms as f64 / 1000.0);
        }
    }

    /// The labels of a metric: a fixed number of states have their own.
    fn place(&self, machine: &Arc<str>, state: &Arc<str>) -> Names<2> {
        let mut series = self.series.lock();
        let place = (Arc::clone(machine), Arc::clone(state));
        if series.contains(&place) || (series.len() < MAX_SERIES && series.insert(place)) {
            return of(machine, "state", state);
        }
        of("other", "state", "other")
    }

    pub(crate) fn acted(&self, outcome: &Outcome) {
        self.actions.get_or_create(&[("result", outcome.word())]).inc();
    }

    pub(crate) fn fed(&self, result: &'static str) {
        self.feeds.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn took(&self, result: &'static str) {
        self.inputs.get_or_create(&[("result", result)]).inc();
    }

    /// The text for `/metrics`, without an end mark.
    pub(crate) fn encode(&self, numbers: Option<&Numbers>) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("signalbox_machines");
        registry.register("evaluations", "Conditions evaluated", self.evaluations.clone());
        registry.register("moves", "Committed moves of labels", self.moves.clone());
        registry.register("actions", "Attempts of actions, by outcome", self.actions.clone());
        registry.register("feeds", "Requests to feeds, by result", self.feeds.clone());
        registry.register("inputs", "Events taken by inputs, by result", self.inputs.clone());
        registry.register(
            "sweeps",
            "Sweeps: times of day at which the labels of a gate were evaluated",
            self.sweeps.clone(),
        );
        registry.register(
            "unreadable",
            "Labels skipped because their record cannot be read",
            self.unreadable.clone(),
        );
        registry.register("entries", "Entries of labels into states", self.entries.clone());
        registry.register(
            "state_duration_seconds",
            "Time that labels stayed in states that they left",
            self.stays.clone(),
        );
        if let Some(numbers) = numbers {
            numbers.register(&mut registry);
        }
        let mut text = String::new();
        encode_registry(&mut text, &registry).map(|()| text)
    }
}

impl Numbers {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "oldest_label_seconds",
            "How long the oldest label has been in a state that has an alert by age",
            gauges("state", &self.ages),
        );
        let alerts = Family::<Names<3>, Gauge>::default();
        for (machine, PassedLimit { state, limit, .. }) in &self.alerts {
            let labels = [("machine", machine.clone()), ("state", state.clone()), ("limit", limit.clone())];
            alerts.get_or_create(&labels).set(1);
        }
        let waiting = gauges("target", &self.limits);
        registry.register("limited_labels", "Labels that wait for the limit of an address", waiting);
        registry.register("passed_limits", "Limits of states that are exceeded: 1 each", alerts);
        registry.register("labels", "Labels, by machine and state", gauges("state", &self.states));
        let statuses = gauges("status", &self.statuses);
        registry.register("busy_labels", "Labels that do not rest, by machine and status", statuses);
        registry.register("overdue", "Labels and sweeps that are due", gauge(self.overdue));
        let help = "How long the oldest of them has been due";
        registry.register("due_lag_seconds", help, gauge(self.lag_seconds));
        let help = "Labels that nothing will evaluate again, by machine and reason";
        registry.register("stuck_labels", help, gauges("reason", &self.stuck));
    }
}

fn gauges(label: &'static str, rows: &Rows) -> Family<Names<2>, Gauge> {
    let family = Family::<Names<2>, Gauge>::default();
    for (machine, value, number) in rows {
        family.get_or_create(&of(machine, label, value)).set(signed(*number));
    }
    family
}

fn gauge(number: u64) -> Gauge {
    let gauge = Gauge::<i64>::default();
    gauge.set(signed(number));
    gauge
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
