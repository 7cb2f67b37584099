//! Checks the consistency of labels on a running system, a page at a time.
//!
//! | predicate | must hold |
//! |---|---|
//! | `M1` | a label is in the index of its state and in no other, and every index entry has its label |
//! | `M2` | a label with the status acting, choosing, errored or looping is in the index of its status, and no other label is |
//! | `M3` | a label with a pending time is in the due set, no later than that time; its machine is worked on no later |
//! | `M4` | every time of day of a label's gate has a sweep; a label with its own time zone is in the index of that zone |
//! | `M5` | the rows of a history follow one another, and the last is the label's current state |
//!
//! First every record is compared with the indexes. Then every index entry is compared with its record, because the
//! first step does not find an entry without a record. A suspected violation is checked twice before it is reported,
//! because labels change during the check.

use std::{
    collections::{HashMap, HashSet},
    str::FromStr,
    time::Duration,
};

use signalbox_machine::State;
use tokio::time::sleep;

use crate::{
    Error,
    clock::Clock,
    commit::places,
    definitions::{Definitions, Family},
    evaluator::{instant, sweep_entry},
    record::{Record, Status},
    store::{self, Due, MACHINES, Records, due_index},
};
use signalbox_bus::Finding;

/// Approximate number of labels and index entries of a page.
const PAGE: u64 = 5_000;
/// Labels that are read together.
const PART: usize = 500;
/// Maximum number of findings of a page: enough to know that something is broken.
const MAX_FINDINGS: usize = 100;
/// The pause before a suspicion is checked again.
const SECOND_CHECK_AFTER: Duration = Duration::from_millis(200);
/// How much later than its own time a label may be due: a label that could not be worked on is postponed for a second.
const MAX_LATENESS_MS: u64 = 60_000;

/// The result of a part of a check.
#[derive(Debug, Default)]
pub struct CheckPage {
    /// The violations.
    pub findings: Vec<Finding>,
    /// Number of labels and index entries that were checked.
    pub checked: u64,
    /// Where the next part begins; `None` at the end.
    pub next: Option<CheckCursor>,
}

/// Where a part of a check begins. The default is the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckCursor {
    shard: usize,
    place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// In the scan of records: the server's cursor.
    Records(u64),
    /// In the index with this number, after this name.
    Index(usize, Option<String>),
}

impl Default for Place {
    fn default() -> Self {
        Self::Records(0)
    }
}

impl std::fmt::Display for CheckCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Records(walk) => write!(f, "{} r {walk}", self.shard),
            Place::Index(number, None) => write!(f, "{} i {number}", self.shard),
            Place::Index(number, Some(after)) => write!(f, "{} i {number} {after}", self.shard),
        }
    }
}

impl FromStr for CheckCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(4, ' ');
        let mut part = || parts.next().ok_or(());
        let shard = part()?.parse().map_err(drop)?;
        let (kind, number) = (part()?, part()?);
        let place = match kind {
            "r" => Place::Records(number.parse().map_err(drop)?),
            "i" => Place::Index(number.parse().map_err(drop)?, part().ok().map(str::to_owned)),
            _ => return Err(()),
        };
        Ok(Self { shard, place })
    }
}

/// A possible inconsistency: predicate, machine, label, description.
type Suspicion = (&'static str, String, String, String);

/// Labels of a machine, and the index in which they were found, if it was an index.
type Found = (String, Vec<String>, Option<Index>);

/// An index that names labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Index {
    State(String),
    Status(Status),
}

/// Checks labels. Reads only.
#[derive(Debug)]
pub struct Checker {
    pub(crate) records: Records,
    pub(crate) definitions: Definitions,
    pub(crate) clock: Clock,
}

impl Checker {
    /// Checks a few thousand labels, from `cursor` on.
    pub async fn check(&self, cursor: CheckCursor) -> Result<CheckPage, Error> {
        self.check_pages(cursor, PAGE).await
    }

    /// Checks about `limit` labels and index entries, from `cursor` on.
    pub(crate) async fn check_pages(&self, cursor: CheckCursor, limit: u64) -> Result<CheckPage, Error> {
        let mut page = CheckPage::default();
        let mut at = cursor;
        while at.shard < self.records.shards().count() {
            let (found, next) = self.part(&at).await?;
            let suspicions = self.inspect(at.shard, &found).await?;
            page.checked += found.iter().map(|(_, labels, _)| labels.len() as u64).sum::<u64>();
            if !suspicions.is_empty() {
                sleep(SECOND_CHECK_AFTER).await;
                let again = self.inspect(at.shard, &only(found, &suspicions)).await?;
                page.findings.extend(confirmed(&suspicions, again, at.shard));
            }
            at = next;
            if page.checked >= limit || page.findings.len() >= MAX_FINDINGS {
                break;
            }
        }
        page.findings.truncate(MAX_FINDINGS);
        page.next = (at.shard < self.records.shards().count()).then_some(at);
        Ok(page)
    }

    /// The labels at a place, and the next place.
    async fn part(&self, at: &CheckCursor) -> Result<(Vec<Found>, CheckCursor), Error> {
        let shard = at.shard;
        let to = |place| CheckCursor { shard, place };
        match &at.place {
            Place::Records(walk) => {
                let (next, labels) = self.records.walk(shard, *walk, PART).await?;
                let mut by_machine: HashMap<String, Vec<String>> = HashMap::new();
                for (machine, label) in labels {
                    by_machine.entry(machine).or_default().push(label);
                }
                let found = by_machine.into_iter().map(|(machine, labels)| (machine, labels, None)).collect();
                Ok((found, to(if next == 0 { Place::Index(0, None) } else { Place::Records(next) })))
            }
            Place::Index(number, after) => {
                let Some((machine, index)) = self.indexes(shard).await?.into_iter().nth(*number) else {
                    return Ok((Vec::new(), CheckCursor { shard: shard + 1, place: Place::default() }));
                };
                let named = match &index {
                    Index::State(state) => store::Index::State(state),
                    Index::Status(status) => store::Index::Status(status.as_str()),
                };
                let names = self.records.names(shard, &machine, named, after.as_deref(), PART).await?;
                let next = match names.last() {
                    Some(last) if names.len() == PART => Place::Index(*number, Some(last.clone())),
                    _ => Place::Index(number + 1, None),
                };
                Ok((vec![(machine, names, Some(index))], to(next)))
            }
        }
    }

    /// Every index of a shard that names labels, in the order of machines and states.
    async fn indexes(&self, shard: usize) -> Result<Vec<(String, Index)>, Error> {
        let mut indexes = Vec::new();
        for machine in self.definitions.names().await? {
            let family = match self.definitions.family(&machine, shard).await {
                Ok(family) => family,
                // The definition has not reached this shard yet.
                Err(Error::NoSuchMachine | Error::NoSuchVersion) => continue,
                Err(error) => return Err(error),
            };
            let states = family.states().into_iter().map(|state| Index::State(state.to_owned()));
            let statuses = Status::ALL.iter().copied().filter(|status| status.has_index()).map(Index::Status);
            indexes.extend(states.chain(statuses).map(|index| (machine.clone(), index)));
        }
        Ok(indexes)
    }

    async fn inspect(&self, shard: usize, found: &[Found]) -> Result<Vec<Suspicion>, Error> {
        let mut suspicions = Vec::new();
        for (machine, labels, index) in found {
            let records = self.records.many(shard, machine, labels).await?;
            let family = self.definitions.family(machine, shard).await.ok();
            let mut wanted = Wanted {
                machine,
                family: family.as_ref(),
                now_ms: self.clock.now_ms().await?,
                entries: Vec::new(),
                first: None,
            };
            for (label, bytes) in labels.iter().zip(records) {
                let record = bytes.map(|bytes| Record::read(&bytes));
                let mut suspect = |predicate, what: String| {
                    suspicions.push((predicate, machine.clone(), label.clone(), what));
                };
                match (record, index) {
                    (Some(Err(_)), _) => suspect("M1", "its record cannot be read".to_owned()),
                    (None, Some(index)) => suspect(
                        index.predicate(),
                        format!("{} names it, but the label does not exist", index.describe()),
                    ),
                    // The label was removed, or its tombstone expired.
                    (None, None) => {}
                    (Some(Ok(record)), Some(index)) => {
                        if !index.fits(&record) {
                            let is = format!("it is in {} and {}", record.state, record.status.as_str());
                            suspect(index.predicate(), format!("{} names it, but {is}", index.describe()));
                        }
                    }
                    (Some(Ok(record)), None) => {
                        if let Some(gap) = gap(&record) {
                            suspect("M5", gap);
                        }
                        wanted.add(label, &record);
                    }
                }
            }
            let entries = wanted.all();
            let places: Vec<(&str, &str)> =
                entries.iter().map(|entry| (&*entry.key, &*entry.member)).collect();
            let scores = self.records.scores(shard, &places).await?;
            for (entry, score) in entries.into_iter().zip(scores) {
                if let Some(what) = entry.missing(score) {
                    suspicions.push((entry.predicate, machine.clone(), entry.label, what));
                }
            }
        }
        Ok(suspicions)
    }
}

/// The labels for which there is a suspicion.
fn only(found: Vec<Found>, suspicions: &[Suspicion]) -> Vec<Found> {
    let named: HashSet<(&str, &str)> =
        suspicions.iter().map(|(_, machine, label, _)| (&**machine, &**label)).collect();
    let keep = |(machine, mut labels, index): Found| {
        labels.retain(|label| named.contains(&(&*machine, &**label)));
        (machine, labels, index)
    };
    found.into_iter().map(keep).collect()
}

/// The suspicions that both checks found, as described by the second one.
fn confirmed(first: &[Suspicion], second: Vec<Suspicion>, shard: usize) -> Vec<Finding> {
    let seen: HashSet<(&str, &str, &str)> =
        first.iter().map(|(predicate, machine, label, _)| (*predicate, &**machine, &**label)).collect();
    let again = second
        .into_iter()
        .filter(|(predicate, machine, label, _)| seen.contains(&(*predicate, &**machine, &**label)));
    again
        .map(|(predicate, machine, label, what)| Finding {
            subsystem: "machines".to_owned(),
            predicate: predicate.to_owned(),
            shard,
            name: format!("{machine}:{label}"),
            what,
        })
        .collect()
}

impl Index {
    fn predicate(&self) -> &'static str {
        match self {
            Self::State(_) => "M1",
            Self::Status(_) => "M2",
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::State(state) => format!("the index of the state {state}"),
            Self::Status(status) => format!("the index of labels that are {}", status.as_str()),
        }
    }

    fn fits(&self, record: &Record) -> bool {
        match self {
            Self::State(state) => *record.state == **state && record.status != Status::Deleted,
            Self::Status(status) => record.status == *status,
        }
    }
}

/// The index entries that labels must have by their records.
struct Wanted<'a> {
    machine: &'a str,
    family: Option<&'a Family>,
    now_ms: u64,
    entries: Vec<Entry>,
    /// When the first of the labels has to be worked on at the latest, and its name.
    first: Option<(u64, String)>,
}

/// One index entry.
struct Entry {
    predicate: &'static str,
    label: String,
    /// The key after `machine:`.
    key: String,
    member: String,
    /// The latest score that is consistent, if there is a limit.
    latest_ms: Option<u64>,
}

impl Wanted<'_> {
    fn add(&mut self, label: &str, record: &Record) {
        if record.status == Status::Deleted {
            return;
        }
        for (key, member, score) in places(self.machine, label, record) {
            let kind = key.strip_prefix(self.machine).and_then(|rest| rest.split(':').nth(1));
            let (predicate, latest_ms) = match kind {
                Some("in" | "by" | "kept") => ("M1", None),
                Some("is") => ("M2", None),
                Some("zone") => ("M4", None),
                Some("limit") => ("M3", None),
                _ => ("M3", Some(score.max(self.now_ms) + MAX_LATENESS_MS)),
            };
            if let Some(latest_ms) = latest_ms
                && self.first.as_ref().is_none_or(|(first_ms, _)| latest_ms < *first_ms)
            {
                self.first = Some((latest_ms, label.to_owned()));
            }
            self.entries.push(Entry { predicate, label: label.to_owned(), key, member, latest_ms });
        }
        let gate = self
            .family
            .and_then(|family| family.of(record).machine.state(&record.state))
            .and_then(State::gate);
        for (_, daily) in gate.into_iter().flat_map(|gate| gate.daily()) {
            let local = daily.zone.of(&record.metadata);
            let sweep = sweep_entry(self.machine, &record.state, daily, &local.zone, local.own, self.now_ms);
            let Some((member, _)) = sweep else { continue };
            let (label, key) = (label.to_owned(), due_index(self.machine));
            self.entries.push(Entry { predicate: "M4", label, key, member, latest_ms: None });
        }
    }

    /// The entries of all labels, and that of the machine among those with something due.
    fn all(mut self) -> Vec<Entry> {
        if let Some((latest_ms, label)) = self.first {
            let (key, member) = (MACHINES.to_owned(), self.machine.to_owned());
            self.entries.push(Entry { predicate: "M3", label, key, member, latest_ms: Some(latest_ms) });
        }
        self.entries
    }
}

impl Entry {
    /// The violation if the entry has this score.
    fn missing(&self, score: Option<u64>) -> Option<String> {
        match (score, self.latest_ms) {
            (Some(score), Some(latest_ms)) if score > latest_ms && self.key == MACHINES => {
                Some(format!("its machine is worked on at {}, which is later than it is due", instant(score)))
            }
            (Some(score), Some(latest_ms)) if score > latest_ms => {
                Some(format!("the due set has it at {}, which is later than in its record", instant(score)))
            }
            (Some(_), _) => None,
            (None, _) => Some(match Due::parse(&self.member) {
                Some(Due::Sweep { time, zone, .. }) => {
                    format!("its gate is evaluated at {time} {zone}, but the due set has no such sweep")
                }
                _ if self.key == MACHINES => "it is due at a time, but nothing of its machine is".to_owned(),
                _ if self.latest_ms.is_some() => {
                    "it has a pending time, but is not in the due set".to_owned()
                }
                _ => format!("it is not in the index machine:{}", self.key),
            }),
        }
    }
}

/// The first inconsistency in a label's history.
fn gap(record: &Record) -> Option<String> {
    let (mut last, mut came_to, mut event) = (None, None::<&str>, 0);
    for row in &record.history {
        let Some(to) = row.to.as_deref() else {
            // The label was deleted, or this is the outcome of an action that ended after the deletion.
            came_to = None;
            continue;
        };
        if let Some(last) = last
            && row.visit != last + 1
        {
            return Some(format!("visit {} follows visit {last} in its history", row.visit));
        }
        if let (Some(came_to), Some(from)) = (came_to, row.from.as_deref())
            && came_to != from
        {
            return Some(format!("visit {} began in {came_to} and leaves {from}", row.visit - 1));
        }
        if row.event <= event {
            return Some(format!("the event of visit {} is {}, after {event}", row.visit, row.event));
        }
        (last, came_to, event) = (Some(row.visit), Some(to), row.event);
    }
    if record.is_absent() {
        return None;
    }
    let Some(last) = last else { return Some("its history is empty".to_owned()) };
    if record.status == Status::Deleted {
        return None;
    }
    if last != record.visit || came_to != Some(&*record.state) {
        let (visit, state) = (record.visit, &record.state);
        return Some(format!(
            "it is in {state} by visit {visit}, and its history ends with visit {last} in {}",
            came_to.unwrap_or("nothing")
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Cause, Row};

    #[test]
    fn a_cursor_reads_as_it_is_written() {
        for place in [Place::Records(7), Place::Index(3, None), Place::Index(3, Some("a b  c".to_owned()))] {
            let cursor = CheckCursor { shard: 2, place };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for bad in ["", "1", "1 r", "1 r x", "x r 1", "1 y 1"] {
            assert_eq!(bad.parse::<CheckCursor>(), Err(()), "{bad:?}");
        }
    }

    #[test]
    fn a_history_has_no_gap() {
        let row = |visit, from: Option<&str>, to: &str, event| Row {
            visit,
            at_ms: 1,
            from: from.map(Into::into),
            to: Some(to.into()),
            cause: Cause::Metadata,
            trigger: None,
            version: 1,
            event,
        };
        let consistent = || {
            let mut record = Record::new(1);
            record.history = vec![row(3, Some("z"), "a", 64), row(4, Some("a"), "b", 128)];
            (record.state, record.visit) = ("b".into(), 4);
            record
        };
        assert_eq!(gap(&consistent()), None);
        for (wrong, expected) in [
            (
                &(|record: &mut Record| record.history[1].visit = 5) as &dyn Fn(&mut Record),
                "visit 5 follows visit 3",
            ),
            (&|record| record.history[1].from = Some("c".into()), "began in a and leaves c"),
            (&|record| record.history[1].event = 64, "the event of visit 4 is 64"),
            (&|record| record.visit = 5, "it is in b by visit 5"),
            (&|record| record.state = "a".into(), "it is in a by visit 4"),
            (&|record| record.history.clear(), "its history is empty"),
        ] {
            let mut record = consistent();
            wrong(&mut record);
            assert!(
                gap(&record).is_some_and(|what| what.contains(expected)),
                "{expected}: {:?}",
                gap(&record)
            );
        }
        // A name that was deleted and created again.
        let mut record = consistent();
        record.history.push(Row { to: None, cause: Cause::Deleted, ..row(4, Some("b"), "", 192) });
        record.history.push(row(5, None, "a", 256));
        (record.state, record.visit) = ("a".into(), 5);
        assert_eq!(gap(&record), None);
    }
}
