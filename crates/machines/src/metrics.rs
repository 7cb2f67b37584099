//! Metrics of the machines in the Prometheus text format. Their labels are machines, states and fixed words, never
//! the names of a machine's labels.

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode_registry},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::actions::Outcome;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Result {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    machine: String,
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithStatus {
    machine: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Stuck {
    machine: String,
    reason: &'static str,
}

/// Numbers of the whole fabric at one time.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Machine, state, labels.
    pub(crate) states: Vec<(String, String, u64)>,
    /// Machine, status, labels.
    pub(crate) statuses: Vec<(String, &'static str, u64)>,
    /// Entries that are due and not worked on yet.
    pub(crate) overdue: u64,
    /// How long the oldest of them has been due, seconds.
    pub(crate) lag_seconds: u64,
    /// Labels that nothing will evaluate again: machine, reason, count.
    pub(crate) stuck: Vec<(String, &'static str, u64)>,
}

/// The counters of this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    evaluations: Counter,
    moves: Counter,
    actions: Family<Result, Counter>,
    feeds: Family<Result, Counter>,
    inputs: Family<Result, Counter>,
    sweeps: Counter,
    unreadable: Counter,
}

impl Metrics {
    pub(crate) fn evaluated(&self, count: u64) {
        self.evaluations.inc_by(count);
    }

    pub(crate) fn moved(&self, count: usize) {
        self.moves.inc_by(count as u64);
    }

    pub(crate) fn acted(&self, outcome: &Outcome) {
        self.actions.get_or_create(&Result { result: outcome.word() }).inc();
    }

    pub(crate) fn fed(&self, result: &'static str) {
        self.feeds.get_or_create(&Result { result }).inc();
    }

    pub(crate) fn took(&self, result: &'static str) {
        self.inputs.get_or_create(&Result { result }).inc();
    }

    pub(crate) fn skipped_unreadable(&self) {
        self.unreadable.inc();
    }

    pub(crate) fn swept(&self) {
        self.sweeps.inc();
    }

    /// The text for `/metrics`, without an end mark.
    pub(crate) fn encode(&self, numbers: Option<&Numbers>) -> std::result::Result<String, std::fmt::Error> {
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
        if let Some(numbers) = numbers {
            let states = Family::<InState, Gauge>::default();
            for (machine, state, count) in &numbers.states {
                let place = InState { machine: machine.clone(), state: state.clone() };
                states.get_or_create(&place).set(gauge(*count));
            }
            let statuses = Family::<WithStatus, Gauge>::default();
            for (machine, status, count) in &numbers.statuses {
                let place = WithStatus { machine: machine.clone(), status };
                statuses.get_or_create(&place).set(gauge(*count));
            }
            registry.register("labels", "Labels, by machine and state", states);
            registry.register("busy_labels", "Labels that do not rest, by machine and status", statuses);
            let single = |count: u64| {
                let one = Gauge::<i64>::default();
                one.set(gauge(count));
                one
            };
            registry.register("overdue", "Labels and sweeps that are due", single(numbers.overdue));
            registry.register(
                "due_lag_seconds",
                "How long the oldest of them has been due",
                single(numbers.lag_seconds),
            );
            let stuck = Family::<Stuck, Gauge>::default();
            for (machine, reason, count) in &numbers.stuck {
                let of = Stuck { machine: machine.clone(), reason };
                stuck.get_or_create(&of).set(gauge(*count));
            }
            registry.register(
                "stuck_labels",
                "Labels that nothing will evaluate again, by machine and reason",
                stuck,
            );
        }
        let mut text = String::new();
        encode_registry(&mut text, &registry).map(|()| text)
    }
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
