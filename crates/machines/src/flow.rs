//! How labels flow through a machine: transitions, time in states, and how many of the labels that entered a state reach
//! another.
//!
//! A process counts the transitions that it commits, and adds its counts to hashes in the first shard every few
//! seconds, one hash per machine and hour. What a process has counted and not added yet is lost if it is killed: these
//! are statistics, unlike the transitions themselves.
//!
//! An entry into a state is counted in the hour in which it happened, with the version of the definition. When the
//! label later reaches another state, this is counted in the hour of the entry, not of the arrival. So the share of
//! entries that reach a state is exact, as far as the label's last twenty transitions show it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use signalbox_api::{
    Time,
    machines::{EdgeFlow, Flow as Report, Funnel, StateFlow, VersionFunnel},
};

use crate::{
    Error, clock::Clock, definitions::Definitions, metrics::Metrics, record::Row, store::FlowCounts,
};

/// Hours that are kept.
pub const KEPT_HOURS: u64 = 8 * 24;
const HOUR_MS: u64 = 3_600_000;
/// Counts that a process holds at most. More are counted under no state until they have been added.
const MAX_HELD: usize = 100_000;
/// Counts that one call adds.
pub(super) const PART: usize = 500;

/// Something that is counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Counted {
    /// Entries into a state under a version.
    Entered(u64, Arc<str>),
    /// Transitions from a state to another.
    Moved(Arc<str>, Arc<str>),
    /// Stays in a state whose length is in this range.
    Stayed(Arc<str>, u32),
    /// Entries into the first state under a version after which the label reached the second.
    Reached(u64, Arc<str>, Arc<str>),
}

impl Counted {
    /// The field of the hash. Names of states contain no space.
    fn field(&self) -> String {
        match self {
            Self::Entered(version, state) => format!("e {version} {state}"),
            Self::Moved(from, to) => format!("m {from} {to}"),
            Self::Stayed(state, range) => format!("t {state} {range}"),
            Self::Reached(version, from, to) => format!("r {version} {from} {to}"),
        }
    }

    fn parse(field: &str) -> Option<Self> {
        let mut words = field.split(' ');
        let kind = words.next()?;
        let mut word = || words.next();
        Some(match kind {
            "e" => Self::Entered(word()?.parse().ok()?, word()?.into()),
            "m" => Self::Moved(word()?.into(), word()?.into()),
            "t" => Self::Stayed(word()?.into(), word()?.parse().ok()?),
            "r" => Self::Reached(word()?.parse().ok()?, word()?.into(), word()?.into()),
            _ => return None,
        })
    }
}

/// Ranges per doubling of the length of a stay: a length is known with an error of less than 10%.
const RANGES: f64 = 4.0;

/// The range of a length.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "small and positive"
)]
fn range(ms: u64) -> u32 {
    ((ms as f64 + 1.0).log2() * RANGES) as u32
}

/// The middle of a range, seconds.
fn middle(range: u32) -> f64 {
    (((f64::from(range) + 0.5) / RANGES).exp2() - 1.0) / 1000.0
}

/// The length below which this part of the stays is, seconds. `None` without stays.
fn quantile(stays: &BTreeMap<u32, u64>, part: f64) -> Option<f64> {
    let all: u64 = stays.values().sum();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a count"
    )]
    let wanted = (all as f64 * part).ceil().max(1.0) as u64;
    let mut passed = 0;
    stays.iter().find_map(|(range, count)| {
        passed += count;
        (passed >= wanted).then(|| middle(*range))
    })
}

type Counts = HashMap<(Arc<str>, u64), HashMap<Counted, u64>>;

/// Counts the transitions of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    counts: Arc<Mutex<Counts>>,
    store: FlowCounts,
    metrics: Metrics,
}

impl Flow {
    pub(crate) fn new(store: FlowCounts, metrics: Metrics) -> Self {
        Self { counts: Arc::default(), store, metrics }
    }

    /// Counts the newest `rows` rows of a label's history.
    pub(crate) fn count(&self, machine: &str, history: &[Row], rows: usize) {
        let machine: Arc<str> = machine.into();
        let mut counts = self.counts.lock();
        for place in history.len().saturating_sub(rows)..history.len() {
            count_row(&mut counts, &machine, history, place);
            let (before, row) = (place.checked_sub(1).and_then(|place| history.get(place)), &history[place]);
            if let Some(to) = &row.to {
                let stayed = before
                    .filter(|_| row.from.is_some())
                    .map(|before| row.at_ms.saturating_sub(before.at_ms));
                self.metrics.entered(&machine, to, row.from.as_deref().zip(stayed));
            }
        }
    }

    /// Adds the counts of this process to those in the fabric. Those that cannot be added are kept.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        let held = std::mem::take(&mut *self.counts.lock());
        let mut failed = None;
        for ((machine, hour), counts) in held {
            let mut rest: Vec<(Counted, u64)> = counts.into_iter().collect();
            while failed.is_none() && !rest.is_empty() {
                let part = rest.split_off(rest.len().saturating_sub(PART));
                let fields: Vec<(String, u64)> =
                    part.iter().map(|(counted, count)| (counted.field(), *count)).collect();
                if let Err(error) = self.store.add(&machine, hour, KEPT_HOURS * HOUR_MS, &fields).await {
                    failed = Some(error);
                    rest.extend(part);
                }
            }
            if !rest.is_empty() {
                let mut counts = self.counts.lock();
                let kept = counts.entry((machine, hour)).or_default();
                for (counted, count) in rest {
                    if kept.len() < MAX_HELD || kept.contains_key(&counted) {
                        *kept.entry(counted).or_default() += count;
                    }
                }
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Counts one row of a history.
fn count_row(counts: &mut Counts, machine: &Arc<str>, history: &[Row], place: usize) {
    let row = &history[place];
    let Some(to) = &row.to else { return };
    let mut add = |at_ms: u64, counted: Counted| {
        let of_hour = counts.entry((Arc::clone(machine), at_ms / HOUR_MS)).or_default();
        if of_hour.len() < MAX_HELD || of_hour.contains_key(&counted) {
            *of_hour.entry(counted).or_default() += 1;
        }
    };
    add(row.at_ms, Counted::Entered(row.version, Arc::clone(to)));
    let Some(from) = &row.from else { return };
    add(row.at_ms, Counted::Moved(Arc::clone(from), Arc::clone(to)));
    // Entries of this life of the label since it was last in the state that it has reached now.
    let mut first = true;
    for before in history[..place].iter().rev() {
        let Some(entered) = &before.to else { break };
        if first {
            let stayed_ms = row.at_ms.saturating_sub(before.at_ms);
            add(row.at_ms, Counted::Stayed(Arc::clone(from), range(stayed_ms)));
            first = false;
        }
        if entered == to {
            break;
        }
        add(before.at_ms, Counted::Reached(before.version, Arc::clone(entered), Arc::clone(to)));
        if before.from.is_none() {
            break;
        }
    }
}

/// The sums of counts.
#[derive(Default)]
struct Sums {
    states: BTreeMap<String, StateFlow>,
    /// By state and range.
    stays: BTreeMap<String, BTreeMap<u32, u64>>,
    /// By the states before and after.
    transitions: BTreeMap<(String, String), u64>,
    funnel: BTreeMap<u64, VersionFunnel>,
}

/// Reads what all processes have counted.
#[derive(Debug)]
pub struct FlowReader {
    pub(crate) store: FlowCounts,
    pub(crate) definitions: Definitions,
    pub(crate) clock: Clock,
}

impl FlowReader {
    /// The flow of a machine in the last hours; with a `funnel`, from its first to its second state.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], [`Error::NoSuchState`], or a failure of the fabric.
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub async fn report(
        &self,
        machine: &str,
        hours: u64,
        funnel: Option<(&str, &str)>,
    ) -> Result<Report, Error> {
        let definition = self.definitions.current(machine).await?.machine;
        if let Some((from, to)) = funnel {
            for state in [from, to] {
                definition.state(state).ok_or_else(|| Error::NoSuchState(state.to_owned()))?;
            }
        }
        let until_ms = self.clock.now_ms().await?;
        let last = until_ms / HOUR_MS;
        let first = last.saturating_sub(hours.clamp(1, KEPT_HOURS) - 1);
        let mut sums = Sums::default();
        for state in definition.states() {
            sums.states.insert(state.name().to_owned(), StateFlow::default());
        }
        for hour in first..=last {
            for (field, count) in self.store.of(machine, hour).await? {
                match Counted::parse(&field) {
                    Some(counted) => sums.add(counted, count, funnel),
                    None => tracing::debug!(field, "count of an unknown kind"),
                }
            }
        }
        for (state, stays) in &sums.stays {
            let flow = sums.states.entry(state.clone()).or_default();
            (flow.p50_seconds, flow.p95_seconds) = (quantile(stays, 0.5), quantile(stays, 0.95));
        }
        // States that the definition no longer has come last.
        let place =
            |state: &str| definition.state(state).map_or(usize::MAX, |state| state.index().position());
        let state = |(state, flow)| StateFlow { state, ..flow };
        let mut states: Vec<StateFlow> = sums.states.into_iter().map(state).collect();
        states.sort_by_key(|flow| place(&flow.state));
        let edge = |((from, to), transitions)| EdgeFlow { from, to, transitions };
        let mut edges: Vec<EdgeFlow> = sums.transitions.into_iter().map(edge).collect();
        edges.sort_by_key(|edge| std::cmp::Reverse(edge.transitions));
        let version = |(version, counts)| VersionFunnel { version, ..counts };
        let versions: Vec<VersionFunnel> = sums.funnel.into_iter().map(version).collect();
        let transitions: u64 = edges.iter().map(|edge| edge.transitions).sum();
        let since_ms = first * HOUR_MS;
        Ok(Report {
            since: Time::from_ms(since_ms),
            until: Time::from_ms(until_ms),
            transitions,
            per_second: transitions as f64 * 1000.0 / until_ms.saturating_sub(since_ms).max(1) as f64,
            states,
            edges,
            funnel: funnel.map(|(from, to)| Funnel {
                from: from.to_owned(),
                to: to.to_owned(),
                entered: versions.iter().map(|one| one.entered).sum(),
                reached: versions.iter().map(|one| one.reached).sum(),
                versions,
            }),
        })
    }
}

impl Sums {
    fn add(&mut self, counted: Counted, count: u64, funnel: Option<(&str, &str)>) {
        match counted {
            Counted::Entered(version, state) => {
                if funnel.is_some_and(|(from, _)| *state == *from) {
                    self.funnel.entry(version).or_default().entered += count;
                }
                self.states.entry(state.to_string()).or_default().entered += count;
            }
            Counted::Moved(from, to) => {
                self.states.entry(from.to_string()).or_default().left += count;
                *self.transitions.entry((from.to_string(), to.to_string())).or_default() += count;
            }
            Counted::Stayed(state, range) => {
                *self.stays.entry(state.to_string()).or_default().entry(range).or_default() += count;
            }
            Counted::Reached(version, from, to) => {
                if funnel == Some((&from, &to)) {
                    self.funnel.entry(version).or_default().reached += count;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::Cause;

    fn row(visit: u64, at_ms: u64, from: Option<&str>, to: &str) -> Row {
        let (from, to) = (from.map(Arc::from), Some(Arc::from(to)));
        Row { visit, at_ms, from, to, cause: Cause::Time, trigger: None, version: 1 + visit / 3, event: 0 }
    }

    fn counted(history: &[Row]) -> BTreeMap<String, u64> {
        let mut counts = Counts::default();
        for place in 0..history.len() {
            count_row(&mut counts, &Arc::from("m"), history, place);
        }
        let all = counts.into_iter().flat_map(|((_, hour), counts)| {
            counts.into_iter().map(move |(counted, count)| (format!("{hour} {}", counted.field()), count))
        });
        all.collect()
    }

    #[test]
    fn an_entry_that_reaches_a_state_is_counted_in_the_hour_of_the_entry() {
        let history = [
            row(1, 0, None, "a"),
            row(2, HOUR_MS, Some("a"), "b"),
            row(3, 2 * HOUR_MS, Some("b"), "a"),
            row(4, 3 * HOUR_MS, Some("a"), "c"),
        ];
        let counts = counted(&history);
        let reached: Vec<(&str, u64)> = counts
            .iter()
            .filter(|(field, _)| field.contains(" r "))
            .map(|(field, count)| (&**field, *count))
            .collect();
        assert_eq!(
            reached,
            [("0 r 1 a b", 1), ("0 r 1 a c", 1), ("1 r 1 b a", 1), ("1 r 1 b c", 1), ("2 r 2 a c", 1)]
        );
        assert_eq!(counts["0 e 1 a"], 1);
        assert_eq!(counts["3 m a c"], 1);
        assert_eq!(counts.keys().filter(|field| field.contains(" t ")).count(), 3);
    }

    proptest! {
        #[test]
        fn a_quantile_is_near_the_length_of_the_stay_at_that_place(
            mut lengths in proptest::collection::vec(1_000..1_000_000_000_u64, 1..50), part in 0.01..1.0_f64,
        ) {
            let mut stays = BTreeMap::new();
            for length in &lengths {
                *stays.entry(range(*length)).or_default() += 1;
            }
            lengths.sort_unstable();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let place = (lengths.len() as f64 * part).ceil() as usize - 1;
            #[allow(clippy::cast_precision_loss)]
            let exact = lengths[place] as f64 / 1000.0;
            let found = quantile(&stays, part).unwrap();
            prop_assert!((found / exact - 1.0).abs() < 0.1, "{found} instead of {exact}");
        }

        #[test]
        fn a_count_reads_as_it_is_written(version: u64, range: u32, from in "[a-zA-Z0-9_-]{1,64}", to in "[a-zA-Z0-9_-]{1,64}") {
            let (from, to): (Arc<str>, Arc<str>) = (from.into(), to.into());
            for counted in [
                Counted::Entered(version, Arc::clone(&from)),
                Counted::Moved(Arc::clone(&from), Arc::clone(&to)),
                Counted::Stayed(Arc::clone(&from), range),
                Counted::Reached(version, from, to),
            ] {
                prop_assert_eq!(Counted::parse(&counted.field()), Some(counted));
            }
        }
    }
}
