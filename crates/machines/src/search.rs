//! Finds labels by state, status, age, error and metadata.
//!
//! A search walks the smallest index that covers the filter (an indexed value, a status, suspended labels, a state), reads
//! the records of a page together, and compares the rest. So a search by an indexed value costs as much as it finds; one by
//! another value reads the labels of its states, a bounded number at a time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use signalbox_machine::definition::Path;
use signalbox_store::{PAGE_BYTES, Pace};

use crate::{
    Error,
    clock::Clock,
    commit::SUSPENDED,
    definitions::Definitions,
    evaluator::index_digest,
    label_store::LabelStore,
    record::{Record, Status},
    store::{Index, Records},
};

/// Labels that are read together.
const PAGE: usize = 500;
/// Labels that are examined for one page of results.
const MAX_CHECKED: usize = 10_000;
/// Bytes of labels that are examined for one page of results.
const MAX_CHECKED_BYTES: usize = PAGE_BYTES;
/// Labels that are examined to count or to sort.
const MAX_SCANNED: usize = 100_000;
/// Labels that can be sorted by age.
const MAX_SORTED: usize = 10_000;

/// Which labels are meant: those for which everything that is given holds.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Filter {
    /// In this state.
    pub state: Option<String>,
    /// With this status.
    pub status: Option<Status>,
    /// Suspended, or not.
    pub suspended: Option<bool>,
    /// Whose last failure contains this text.
    pub error: Option<String>,
    /// In their state for at least so many seconds.
    pub older_than_seconds: Option<u64>,
    /// In their state for less than so many seconds.
    pub younger_than_seconds: Option<u64>,
    /// With these values of metadata, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
}

impl Filter {
    /// Whether a label matches; `values` are those of [`Self::values`].
    fn matches(&self, record: &Record, values: &[(Path, Value)], now_ms: u64) -> bool {
        let age_seconds = now_ms.saturating_sub(record.entered_ms) / 1000;
        self.state.as_ref().is_none_or(|state| **state == *record.state)
            && self.status.is_none_or(|status| status == record.status)
            && self.suspended.is_none_or(|suspended| suspended == record.suspended)
            && self.error.as_ref().is_none_or(|text| {
                record.work.error.as_ref().is_some_and(|error| error.contains(text.as_str()))
            })
            && self.older_than_seconds.is_none_or(|seconds| age_seconds >= seconds)
            && self.younger_than_seconds.is_none_or(|seconds| age_seconds < seconds)
            && values.iter().all(|(path, value)| signalbox_condition::same(path.of(&record.metadata), value))
    }

    /// The paths and values of metadata.
    fn values(&self) -> Result<Vec<(Path, Value)>, Error> {
        let value = |(path, value): (&String, &Value)| match Path::parse(path) {
            Ok(path) => Ok((path, value.clone())),
            Err(why) => Err(Error::BadFilter(format!("{path:?} is not a path of metadata: {why}"))),
        };
        self.metadata.iter().map(value).collect()
    }
}

/// Labels that were found.
#[derive(Debug, Default)]
pub struct Found {
    /// The labels.
    pub labels: Vec<(String, Record)>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
    /// Number of labels that were examined.
    pub checked: u64,
}

/// How many labels match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// Their number.
    pub count: u64,
    /// Whether that is all; otherwise there may be more.
    pub exact: bool,
}

/// An index that contains every label that matches.
enum Source {
    Value(u64),
    Status(&'static str),
    States(Vec<String>),
}

impl Source {
    fn indexes(&self) -> Vec<Index<'_>> {
        match self {
            Self::Value(digest) => vec![Index::Value(*digest)],
            Self::Status(status) => vec![Index::Status(status)],
            Self::States(states) => states.iter().map(|state| Index::State(state)).collect(),
        }
    }
}

/// Finds labels. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Search {
    pub(crate) records: Records,
    pub(crate) labels: Arc<LabelStore>,
    pub(crate) definitions: Definitions,
    pub(crate) clock: Clock,
}

impl Search {
    /// The next labels after `after` by name, at most `limit`. A page may be shorter although there is a next one.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], [`Error::NoSuchState`], [`Error::BadFilter`], or a failure of the fabric.
    pub async fn page(
        &self,
        machine: &str,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Found, Error> {
        let (source, values) = self.source(machine, filter).await?;
        let now_ms = self.clock.now_ms().await?;
        let indexes = source.indexes();
        let (mut found, mut cursor) = (Found::default(), after.map(str::to_owned));
        let (mut bytes, mut pace) = (0, Pace::new(PAGE));
        while found.checked < MAX_CHECKED as u64 && bytes < MAX_CHECKED_BYTES {
            // One more than the page shows whether there is a next one.
            let size = (limit + 1).clamp(100, PAGE).min(pace.count());
            let names = self.records.names_in_any(machine, &indexes, cursor.as_deref(), size).await?;
            let Some(last) = names.last().cloned() else { return Ok(found) };
            let is_last = names.len() < size;
            let read = names.len() as u64;
            let (records, size) = self.labels.records_and_bytes(machine, names).await?;
            pace.read(records.len().max(1), size);
            bytes += size;
            for (place, (name, record)) in records.into_iter().enumerate() {
                if !filter.matches(&record, &values, now_ms) {
                    continue;
                }
                if found.labels.len() == limit {
                    // The next page begins here.
                    found.checked += place as u64;
                    found.next = found.labels.last().map(|(name, _)| name.clone());
                    return Ok(found);
                }
                found.labels.push((name, record));
            }
            found.checked += read;
            if is_last {
                return Ok(found);
            }
            cursor = Some(last);
        }
        found.next = cursor;
        Ok(found)
    }

    /// Like [`Self::page`], ordered by how long the labels have been in their state: the longest first, or last.
    ///
    /// # Errors
    /// [`Error::TooManyMatches`]; otherwise as [`Self::page`].
    pub async fn by_age(
        &self,
        machine: &str,
        filter: &Filter,
        oldest_first: bool,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Found, Error> {
        // Of the records, only the keys of their order are kept: metadata may be large.
        let (mut keys, mut checked, mut cursor) = (Vec::new(), 0, None);
        loop {
            let found = self.page(machine, filter, cursor.as_deref(), PAGE).await?;
            checked += found.checked;
            keys.extend(found.labels.into_iter().map(|(name, record)| {
                let at_ms = record.entered_ms;
                (if oldest_first { at_ms } else { u64::MAX - at_ms }, name)
            }));
            if keys.len() > MAX_SORTED || checked > MAX_SCANNED as u64 {
                return Err(Error::TooManyMatches(MAX_SORTED));
            }
            match found.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        let after = after.and_then(|after| after.split_once(' '));
        let after = after.and_then(|(at, name)| Some((at.parse::<u64>().ok()?, name.to_owned())));
        keys.retain(|key| after.as_ref().is_none_or(|after| key > after));
        keys.sort_unstable();
        let more = keys.len() > limit;
        keys.truncate(limit);
        let next = keys.last().filter(|_| more).map(|(at, name)| format!("{at} {name}"));
        let names: Vec<String> = keys.into_iter().map(|(_, name)| name).collect();
        let (values, now_ms) = (filter.values()?, self.clock.now_ms().await?);
        let mut records: HashMap<String, Record> =
            self.labels.records(machine, names.clone()).await?.into_iter().collect();
        // Those that have changed in the meantime and do not match any more are left out.
        records.retain(|_, record| filter.matches(record, &values, now_ms));
        let labels = names.into_iter().filter_map(|name| records.remove_entry(&name)).collect();
        Ok(Found { labels, next, checked })
    }

    /// How many labels match.
    ///
    /// # Errors
    /// As [`Self::page`].
    pub async fn count(&self, machine: &str, filter: &Filter) -> Result<Total, Error> {
        let (source, _) = self.source(machine, filter).await?;
        if let Some(count) = self.count_index(machine, filter, &source).await? {
            return Ok(Total { count, exact: true });
        }
        let (mut count, mut checked, mut cursor) = (0, 0, None::<String>);
        loop {
            let found = self.page(machine, filter, cursor.as_deref(), PAGE).await?;
            count += found.labels.len() as u64;
            checked += found.checked;
            match found.next {
                None => return Ok(Total { count, exact: true }),
                Some(_) if checked >= MAX_SCANNED as u64 => return Ok(Total { count, exact: false }),
                Some(next) => cursor = Some(next),
            }
        }
    }

    /// The size of the index, if all of its labels match.
    async fn count_index(
        &self,
        machine: &str,
        filter: &Filter,
        source: &Source,
    ) -> Result<Option<u64>, Error> {
        let covered = match source {
            // The source is the index of this value, if there is no other.
            Source::Value(_) if filter.metadata.len() == 1 => {
                Filter { metadata: filter.metadata.clone(), ..Filter::default() }
            }
            Source::Value(_) => return Ok(None),
            Source::Status(SUSPENDED) => Filter { suspended: Some(true), ..Filter::default() },
            Source::Status(_) => Filter { status: filter.status, ..Filter::default() },
            Source::States(_) => Filter { state: filter.state.clone(), ..Filter::default() },
        };
        if covered != *filter {
            return Ok(None);
        }
        let counts = self.records.count(machine, &source.indexes()).await?;
        Ok(Some(counts.into_iter().sum()))
    }

    async fn source(&self, machine: &str, filter: &Filter) -> Result<(Source, Vec<(Path, Value)>), Error> {
        let version = self.definitions.current(machine).await?;
        let machine = &version.machine;
        let values = filter.values()?;
        if let Some(state) = &filter.state
            && machine.state(state).is_none()
            && !self.definitions.states(machine.name()).await?.contains(state)
        {
            return Err(Error::NoSuchState(state.clone()));
        }
        let mut indexed = values.iter().filter(|(path, _)| machine.index().contains(path));
        if let Some(digest) = indexed.find_map(|(path, value)| index_digest(path, value)) {
            return Ok((Source::Value(digest), values));
        }
        let source = match (filter.status.filter(|status| status.has_index()), filter.suspended) {
            (Some(status), _) => Source::Status(status.as_str()),
            (None, Some(true)) => Source::Status(SUSPENDED),
            _ => Source::States(match &filter.state {
                Some(state) => vec![state.clone()],
                None => self.definitions.states(machine.name()).await?,
            }),
        };
        Ok((source, values))
    }
}
