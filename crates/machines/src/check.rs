//! What must hold of labels, looked at on a running system, a page at a time.
//!
//! | predicate | must hold |
//! |---|---|
//! | `M1` | a label stands in the index of its state and in no other, and every index entry has its label |
//! | `M2` | a label that acts, chooses, failed or loops stands in the index of its status, and nobody else does |
//! | `M3` | a label with a time of its own stands in the due set, no later than that time |
//! | `M4` | at every time of day at which a label's gate looks, a wave comes; a label's own zone has its index |
//! | `M5` | the rows of a history follow one another, and the last of them is where the label is |
//!
//! First every record is held against the indexes, then every index entry against its record: what stands in only one of
//! the two is found from that side. What looks wrong is looked at again before it is told, because work goes on.

use std::{
    collections::{HashMap, HashSet},
    str::FromStr,
    time::Duration,
};

use signalbox_machine::State;
use tokio::time::sleep;

use super::{
    Engine, Error,
    commit::places,
    definitions::Version,
    judge::{instant, wave},
    record::{Record, Status},
    store::Due,
};
use signalbox_bus::Finding;

/// Labels that are looked at for one answer, about.
const PAGE: u64 = 5_000;
/// Labels that are read together.
const PART: usize = 500;
/// Findings of a page: enough to know that something is broken.
const MOST: usize = 100;
/// Between the first look and the second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// How much later than its record says a label may be looked at: what could not be worked on is put off for a second.
const LATE_MS: u64 = 60_000;

/// What a page came to.
#[derive(Debug, Default)]
pub struct Page {
    pub findings: Vec<Finding>,
    /// Labels and index entries that were looked at.
    pub looked: u64,
    /// From where to go on.
    pub next: Option<Cursor>,
}

/// How far a check came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    shard: usize,
    place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// Among the records: where the server's own walk over its keys is.
    Records(u64),
    /// In the index of that number, behind this name.
    Index(usize, Option<String>),
}

impl Default for Place {
    fn default() -> Self {
        Self::Records(0)
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Records(walk) => write!(f, "{} r {walk}", self.shard),
            Place::Index(number, None) => write!(f, "{} i {number}", self.shard),
            Place::Index(number, Some(after)) => write!(f, "{} i {number} {after}", self.shard),
        }
    }
}

impl FromStr for Cursor {
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

/// Something that may be wrong: predicate, machine, label, what.
type Suspicion = (&'static str, String, String, String);

/// Labels of a machine, and the index in which they were found.
type Found = (String, Vec<String>, Option<Index>);

/// An index that names labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Index {
    State(String),
    Status(Status),
}

impl Engine {
    /// Looks at labels from `cursor` on, a few thousand of them. Reads only.
    pub async fn check(&self, cursor: Cursor) -> Result<Page, Error> {
        self.check_pages(cursor, PAGE).await
    }

    /// The same, of about `most` labels.
    pub(super) async fn check_pages(&self, cursor: Cursor, most: u64) -> Result<Page, Error> {
        let mut page = Page::default();
        let mut at = cursor;
        while at.shard < self.0.store.count() {
            let (found, next) = self.part(&at).await?;
            let suspicions = self.inspect(at.shard, &found).await?;
            page.looked += found.iter().map(|(_, labels, _)| labels.len() as u64).sum::<u64>();
            if !suspicions.is_empty() {
                sleep(BETWEEN_LOOKS).await;
                let again = self.inspect(at.shard, &only(found, &suspicions)).await?;
                page.findings.extend(confirmed(&suspicions, again, at.shard));
            }
            at = next;
            if page.looked >= most || page.findings.len() >= MOST {
                break;
            }
        }
        page.findings.truncate(MOST);
        page.next = (at.shard < self.0.store.count()).then_some(at);
        Ok(page)
    }

    /// The labels at a place, and the place behind them.
    async fn part(&self, at: &Cursor) -> Result<(Vec<Found>, Cursor), Error> {
        let shard = at.shard;
        let to = |place| Cursor { shard, place };
        match &at.place {
            Place::Records(walk) => {
                let (next, labels) = self.0.store.walk(shard, *walk, PART).await?;
                let mut by_machine: HashMap<String, Vec<String>> = HashMap::new();
                for (machine, label) in labels {
                    by_machine.entry(machine).or_default().push(label);
                }
                let found = by_machine.into_iter().map(|(machine, labels)| (machine, labels, None)).collect();
                Ok((found, to(if next == 0 { Place::Index(0, None) } else { Place::Records(next) })))
            }
            Place::Index(number, after) => {
                let Some((machine, index)) = self.indexes(shard).await?.into_iter().nth(*number) else {
                    return Ok((Vec::new(), Cursor { shard: shard + 1, place: Place::default() }));
                };
                let (store, after) = (&self.0.store, after.as_deref());
                let names = match &index {
                    Index::State(state) => store.in_state(shard, &machine, state, after, PART).await?,
                    Index::Status(status) => {
                        store.with_status(shard, &machine, status.as_str(), after, PART).await?
                    }
                };
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
        for machine in self.0.store.machines().await? {
            let version = match self.0.definitions.of(&machine, shard).await {
                Ok(version) => version,
                // It is being brought to this shard.
                Err(Error::NoSuchMachine | Error::NoSuchVersion) => continue,
                Err(error) => return Err(error),
            };
            let states = version.machine.states().iter().map(|state| Index::State(state.name().to_owned()));
            let statuses = Status::ALL.into_iter().filter(|status| status.has_index()).map(Index::Status);
            indexes.extend(states.chain(statuses).map(|index| (machine.clone(), index)));
        }
        Ok(indexes)
    }

    async fn inspect(&self, shard: usize, found: &[Found]) -> Result<Vec<Suspicion>, Error> {
        let mut suspicions = Vec::new();
        for (machine, labels, index) in found {
            let records = self.0.store.labels(shard, machine, labels).await?;
            let version = self.0.definitions.of(machine, shard).await.ok();
            let mut wanted = Wanted {
                machine,
                version: version.as_ref(),
                now_ms: self.0.clock.now_ms().await?,
                entries: Vec::new(),
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
                        format!("{} names it, and there is no such label", index.told()),
                    ),
                    // It went away, or its month as a deleted name is over.
                    (None, None) => {}
                    (Some(Ok(record)), Some(index)) => {
                        if !index.fits(&record) {
                            let is = format!("it is in {} and {}", record.state, record.status.as_str());
                            suspect(index.predicate(), format!("{} names it, and {is}", index.told()));
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
            let Wanted { entries, .. } = wanted;
            let places: Vec<(&str, &str)> =
                entries.iter().map(|entry| (&*entry.key, &*entry.member)).collect();
            let scores = self.0.store.scores(shard, &places).await?;
            for (entry, score) in entries.into_iter().zip(scores) {
                if let Some(what) = entry.missing(score) {
                    suspicions.push((entry.predicate, machine.clone(), entry.label, what));
                }
            }
        }
        Ok(suspicions)
    }
}

/// The labels among those that were found of which something is suspected.
fn only(found: Vec<Found>, suspicions: &[Suspicion]) -> Vec<Found> {
    let named: HashSet<(&str, &str)> =
        suspicions.iter().map(|(_, machine, label, _)| (&**machine, &**label)).collect();
    let keep = |(machine, mut labels, index): Found| {
        labels.retain(|label| named.contains(&(&*machine, &**label)));
        (machine, labels, index)
    };
    found.into_iter().map(keep).collect()
}

/// What was seen twice, in the words of the second time.
fn confirmed(first: &[Suspicion], second: Vec<Suspicion>, shard: usize) -> Vec<Finding> {
    let seen: HashSet<(&str, &str, &str)> =
        first.iter().map(|(predicate, machine, label, _)| (*predicate, &**machine, &**label)).collect();
    let again = second
        .into_iter()
        .filter(|(predicate, machine, label, _)| seen.contains(&(*predicate, &**machine, &**label)));
    again
        .map(|(predicate, machine, label, what)| Finding {
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

    fn told(&self) -> String {
        match self {
            Self::State(state) => format!("the index of the state {state}"),
            Self::Status(status) => format!("the index of what is {}", status.as_str()),
        }
    }

    fn fits(&self, record: &Record) -> bool {
        match self {
            Self::State(state) => *record.state == **state && record.status != Status::Deleted,
            Self::Status(status) => record.status == *status,
        }
    }
}

/// Where labels have to stand by their records.
struct Wanted<'a> {
    machine: &'a str,
    version: Option<&'a Version>,
    now_ms: u64,
    entries: Vec<Entry>,
}

/// One such place.
struct Entry {
    predicate: &'static str,
    label: String,
    /// Behind `machine:`.
    key: String,
    member: String,
    /// No later than this, where that matters.
    latest_ms: Option<u64>,
}

impl Wanted<'_> {
    fn add(&mut self, label: &str, record: &Record) {
        if record.status == Status::Deleted {
            return;
        }
        for ((key, member), score) in places(self.machine, label, record) {
            let kind = key.strip_prefix(self.machine).and_then(|rest| rest.split(':').nth(1));
            let (predicate, latest_ms) = match kind {
                Some("in") => ("M1", None),
                Some("is") => ("M2", None),
                Some("zone") => ("M4", None),
                _ => ("M3", Some(score.max(self.now_ms) + LATE_MS)),
            };
            self.entries.push(Entry { predicate, label: label.to_owned(), key, member, latest_ms });
        }
        let gate =
            self.version.and_then(|version| version.machine.state(&record.state)).and_then(State::gate);
        for (_, daily) in gate.into_iter().flat_map(|gate| gate.daily()) {
            let local = daily.zone.of(&record.metadata);
            let wave = wave(self.machine, &record.state, daily, &local.zone, local.own, self.now_ms);
            let Some((member, _)) = wave else { continue };
            let (label, key) = (label.to_owned(), "due".to_owned());
            self.entries.push(Entry { predicate: "M4", label, key, member, latest_ms: None });
        }
    }
}

impl Entry {
    /// What is wrong if this is how it stands there.
    fn missing(&self, score: Option<u64>) -> Option<String> {
        match (score, self.latest_ms) {
            (Some(score), Some(latest_ms)) if score > latest_ms => {
                Some(format!("the due set has it at {}, which is later than its record says", instant(score)))
            }
            (Some(_), _) => None,
            (None, _) => Some(match Due::parse(&self.member) {
                Some(Due::Wave { time, zone, .. }) => {
                    format!("its gate looks at {time} {zone}, and the due set has no such wave")
                }
                _ if self.key == "due" => {
                    "it has a time of its own, and the due set does not name it".to_owned()
                }
                _ => format!("the index machine:{} does not name it", self.key),
            }),
        }
    }
}

/// What does not follow in a label's history.
fn gap(record: &Record) -> Option<String> {
    let (mut last, mut came_to, mut event) = (None, None::<&str>, 0);
    for row in &record.history {
        let Some(to) = row.to.as_deref() else {
            // The label was deleted, or the outcome of an action came after that.
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
            let cursor = Cursor { shard: 2, place };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for bad in ["", "1", "1 r", "1 r x", "x r 1", "1 y 1"] {
            assert_eq!(bad.parse::<Cursor>(), Err(()), "{bad:?}");
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
        let sound = || {
            let mut record = Record::new(1);
            record.history = vec![row(3, Some("z"), "a", 64), row(4, Some("a"), "b", 128)];
            (record.state, record.visit) = ("b".into(), 4);
            record
        };
        assert_eq!(gap(&sound()), None);
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
            let mut record = sound();
            wrong(&mut record);
            assert!(
                gap(&record).is_some_and(|what| what.contains(expected)),
                "{expected}: {:?}",
                gap(&record)
            );
        }
        // A name that was deleted and came back.
        let mut record = sound();
        record.history.push(Row { to: None, cause: Cause::Deleted, ..row(4, Some("b"), "", 192) });
        record.history.push(row(5, None, "a", 256));
        (record.state, record.visit) = ("a".into(), 5);
        assert_eq!(gap(&record), None);
    }
}
