//! Overviews of a machine: its labels by state, what is due next, how its feeds answer; and the metrics.

use std::{collections::BTreeMap, sync::Arc};

use signalbox_api::machines::{LimitUse, PassedLimit};
use signalbox_machine::{Machine, State};

use crate::{
    Error, Version,
    clock::Clock,
    definitions::Definitions,
    feeds::{Feeds, Health},
    metrics::{Metrics, Numbers},
    record::Status,
    store::{Due, DueSet, Index, Permits, Records},
};

/// Maximum number of entries of the due sets of a machine that are read, over all shards.
const MAX_DUE: usize = 1_000;

/// The labels of a machine.
#[derive(Debug)]
pub struct Counts {
    /// The active version.
    pub version: Version,
    /// Number of labels by state.
    pub labels: BTreeMap<String, u64>,
    /// Number of labels that stay on an earlier version, by version.
    pub kept: BTreeMap<u64, u64>,
    /// Number of labels that do not rest, by status.
    pub busy: BTreeMap<String, u64>,
    /// Number of labels that wait where no trigger fires again, by gate.
    pub stuck: BTreeMap<String, u64>,
    /// Limits of the definition that are passed.
    pub alerts: Vec<PassedLimit>,
    /// The limits of addresses, and how much they are used.
    pub limits: Vec<LimitUse>,
}

/// A time at which something is evaluated without an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    /// Unix milliseconds.
    pub at_ms: u64,
    /// The labels to evaluate.
    pub what: Waking,
}

/// The scope of a [`Wake`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waking {
    /// A label: an interval, or an action or feed that is tried again.
    Label(String),
    /// The labels at a gate, at a time of day.
    Gate {
        /// The name of the gate.
        gate: String,
        /// `HH:MM:SS`, or the text of another schedule.
        time: String,
        /// The time zone.
        zone: String,
        /// Maximum number of labels that are evaluated: some labels at the gate may have another zone.
        labels: u64,
    },
}

/// Sweeps by time, gate, time of day and zone, with the numbers of labels at the gate and of those with that zone.
type Sweeps = BTreeMap<(u64, String, String, String), [u64; 2]>;

/// Reads numbers of machines.
#[derive(Debug)]
pub struct Overview {
    pub(crate) definitions: Definitions,
    pub(crate) records: Records,
    pub(crate) due: DueSet,
    pub(crate) permits: Permits,
    pub(crate) feeds: Arc<Feeds>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
}

impl Overview {
    /// A machine, with the numbers of its labels by state, by status if they do not rest, and by gate if they are stuck.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], or a failure of the fabric.
    pub async fn counts(&self, machine: &str) -> Result<Counts, Error> {
        let version = self.definitions.current(machine).await?;
        let labels = self.labels(&version.machine).await?;
        let kept = self.definitions.kept(machine, version.number).await?;
        let ages = self.ages(&version.machine).await?;
        let alerts = alerts(&version.machine, &labels, &ages);
        let busy = self.count_statuses(machine).await?.into_iter().collect();
        let stuck = self.stuck(&version.machine).await?;
        let limits = self.limits(&version.machine).await?;
        Ok(Counts { version, labels, kept, busy, stuck, alerts, limits })
    }

    /// How much the limits of a machine's addresses are used.
    async fn limits(&self, machine: &Machine) -> Result<Vec<LimitUse>, Error> {
        let mut limits = Vec::new();
        for limit in machine.limits() {
            let (name, target) = (machine.name(), limit.target.to_string());
            let waiting = self.permits.count_waiting(name, &target, None).await?;
            let now_ms = self.clock.now_ms().await?;
            let in_progress = self.permits.count_taken(name, &target, now_ms).await?;
            limits.push(LimitUse { target, waiting, in_progress });
        }
        Ok(limits)
    }

    /// The number of labels by state, with states of earlier versions only if they contain labels.
    async fn labels(&self, machine: &Machine) -> Result<BTreeMap<String, u64>, Error> {
        let states = self.definitions.states(machine.name()).await?;
        let counts = self.records.count_states(machine.name(), &states).await?;
        let all = states.into_iter().zip(counts);
        Ok(all.filter(|(state, count)| *count > 0 || machine.state(state).is_some()).collect())
    }

    /// The number of labels that do not rest, by status.
    async fn count_statuses(&self, machine: &str) -> Result<Vec<(String, u64)>, Error> {
        let statuses = Status::ALL.iter().filter(|status| status.has_index()).map(|status| status.as_str());
        let indexes: Vec<Index<'_>> = statuses.clone().map(Index::Status).collect();
        let counts = self.records.count(machine, &indexes).await?;
        Ok(statuses.map(str::to_owned).zip(counts).collect())
    }

    /// The next evaluations of a machine, ordered by time.
    pub async fn wakes(&self, machine: &str) -> Result<Vec<Wake>, Error> {
        let limit = (MAX_DUE / self.due.shards()).max(1);
        let mut labels: Vec<Wake> = Vec::new();
        // A sweep is in the due set of every shard, and there are two of one zone: one for the labels that name the zone
        // themselves, and one for all at the gate, which include them.
        let mut gates = Sweeps::new();
        for shard in 0..self.due.shards() {
            for (member, at_ms) in self.due.upcoming(shard, machine, limit).await? {
                match Due::parse(&member) {
                    Some(Due::Label { label, .. }) => {
                        labels.push(Wake { at_ms, what: Waking::Label(label) });
                    }
                    Some(Due::Sweep { gate, time, zone, own, .. }) => {
                        let index = if own { Index::Zone(&gate, &zone) } else { Index::State(&gate) };
                        let count = self.records.count_here(shard, machine, index).await?;
                        gates.entry((at_ms, gate, time, zone)).or_default()[usize::from(own)] += count;
                    }
                    _ => {}
                }
            }
        }
        let gate =
            |((at_ms, gate, time, zone), [all, own]): ((u64, String, String, String), [u64; 2])| Wake {
                at_ms,
                what: Waking::Gate { gate, time: time.replace('_', " "), zone, labels: all.max(own) },
            };
        labels.extend(gates.into_iter().map(gate));
        labels.sort_by_key(|wake| wake.at_ms);
        Ok(labels)
    }

    /// How the feeds of a machine have answered this process, by name.
    pub fn feed_health(&self, machine: &str) -> BTreeMap<String, Health> {
        self.feeds.health(machine)
    }

    /// The time of the fabric's clock, Unix milliseconds.
    pub async fn now_ms(&self) -> Result<u64, Error> {
        Ok(self.clock.now_ms().await?)
    }

    /// The metrics as text, without an end mark. If the fabric does not answer, only the counters of this process.
    ///
    /// # Errors
    /// If the text cannot be written.
    pub async fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        let numbers = self.numbers().await;
        let numbers = numbers.inspect_err(|error| tracing::debug!(%error, "numbers of machines unavailable"));
        self.metrics.encode(numbers.ok().as_ref())
    }

    async fn numbers(&self) -> Result<Numbers, Error> {
        let mut numbers = Numbers::default();
        for machine in self.definitions.names().await? {
            let Ok(version) = self.definitions.of(&machine, 0).await else { continue };
            let labels = self.labels(&version.machine).await?;
            let ages = self.ages(&version.machine).await?;
            for alert in alerts(&version.machine, &labels, &ages) {
                numbers.alerts.push((machine.clone(), alert));
            }
            numbers.ages.extend(ages.into_iter().map(|(state, age)| (machine.clone(), state, age)));
            let named = labels.into_iter().map(|(state, count)| (machine.clone(), state, count));
            numbers.states.extend(named);
            for (status, count) in self.count_statuses(&machine).await? {
                if status == Status::Errored.as_str() {
                    numbers.stuck.push((machine.clone(), "errored".to_owned(), count));
                }
                numbers.statuses.push((machine.clone(), status, count));
            }
            let stuck = self.stuck(&version.machine).await?;
            numbers.stuck.push((machine.clone(), "no_trigger".to_owned(), stuck.values().sum()));
            for limit in self.limits(&version.machine).await? {
                numbers.limits.push((machine.clone(), limit.target, limit.waiting));
            }
        }
        let now_ms = self.clock.now_ms().await?;
        for shard in 0..self.due.shards() {
            let (count, oldest) = self.due.overdue(shard, now_ms).await?;
            numbers.overdue += count;
            let lag_ms = oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest));
            numbers.lag_seconds = numbers.lag_seconds.max(lag_ms / 1000);
        }
        Ok(numbers)
    }

    /// How long the oldest label has been in each state with an alert by age, seconds.
    async fn ages(&self, machine: &Machine) -> Result<BTreeMap<String, u64>, Error> {
        let mut ages = BTreeMap::new();
        for state in machine.states() {
            if state.alert().is_none_or(|alert| alert.age.is_none()) {
                continue;
            }
            let oldest = self.records.oldest_in(machine.name(), state.name()).await?;
            let now_ms = self.clock.now_ms().await?;
            let age = oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest) / 1000);
            ages.insert(state.name().to_owned(), age);
        }
        Ok(ages)
    }

    /// The number of labels at gates that are evaluated on entry only, by gate. Found by the definition and the lengths of
    /// indexes, without reading a label.
    async fn stuck(&self, machine: &Machine) -> Result<BTreeMap<String, u64>, Error> {
        let entry_only = |state: &&State| state.gate().is_some_and(|gate| !gate.looks_again());
        let gates: Vec<&str> = machine.states().iter().filter(entry_only).map(State::name).collect();
        let counts = self.records.count_at_rest(machine.name(), &gates).await?;
        let named = gates.iter().map(|gate| (*gate).to_owned()).zip(counts);
        Ok(named.filter(|(_, count)| *count > 0).collect())
    }
}

/// The limits of a definition that are passed.
fn alerts(
    machine: &Machine,
    labels: &BTreeMap<String, u64>,
    ages: &BTreeMap<String, u64>,
) -> Vec<PassedLimit> {
    let mut found = Vec::new();
    for state in machine.states() {
        let Some(alert) = state.alert() else { continue };
        let of = |counts: &BTreeMap<String, u64>| counts.get(state.name()).copied().unwrap_or(0);
        let limits =
            [("labels", of(labels), alert.labels), ("age", of(ages), alert.age.map(|age| age.as_secs()))];
        for (limit, value, most) in limits {
            if let Some(most) = most.filter(|most| value > *most) {
                let (state, limit) = (state.name().to_owned(), limit.to_owned());
                found.push(PassedLimit { state, limit, value, most });
            }
        }
    }
    found
}
