//! Reads labels, and changes them with compare-and-set.
//!
//! Every change has the same steps: read, let the [`Evaluator`] decide, write. If the label or the definition has
//! changed in the meantime, nothing is written and the steps start again (`labels.lua` compares the record's header and
//! the version of the definition). The caller starts the consequences of a change ([`crate::runner`]).

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rand::RngExt as _;
use signalbox_bus::Refusal;
use signalbox_store::Pace;
use tokio::time::{Instant, sleep};

use crate::{
    Error, Version,
    answer::{Answer, KeyedRequest},
    clock::Clock,
    commit::Committer,
    definitions::Definitions,
    effort::aside,
    evaluator::{Evaluator, Happened, Turn},
    fair::{FairPlaces, Payer},
    feeds::FeedAnswers,
    flow::Flow,
    log::{Activity, Entry, Line},
    metrics::Metrics,
    population::Population,
    record::{Record, Status},
    store::{Index, Records},
    sweep_entries::SweepEntries,
};

/// How often a change may lose its compare-and-set. In each of those rounds another change was written.
const MAX_ROUNDS: usize = 200;
/// Records that are read together, if they are small.
const MAX_TOGETHER: usize = 500;
/// Rounds after which a lost compare-and-set is repeated after a random pause.
const ROUNDS_WITHOUT_JITTER: usize = 2;
/// Maximum of that pause, ms.
const MAX_JITTER_MS: u64 = 20;
/// Maximum number of unreadable labels that are logged.
const MAX_LOGGED: usize = 1_000;
/// The initial and the maximum polling interval for a label that a client waits for.
const FIRST_POLL: Duration = Duration::from_millis(20);
const MAX_POLL: Duration = Duration::from_millis(250);

/// The change that an edit makes to a label.
#[allow(clippy::large_enum_variant, reason = "one at a time, on its way from a closure to its caller")]
pub(crate) enum Edit<'a> {
    /// Nothing.
    Leave,
    /// Write `record` after it was evaluated for `happened`. The newest `rows` of its rows are new.
    Write { record: Record, happened: Option<Happened<'a>>, rows: usize, note: Note },
}

/// What the log of a label says about a change, apart from moves.
#[derive(Debug, Default)]
pub(crate) struct Note {
    /// Where a change of the metadata comes from: a client, a topic or a state. Empty: the label's state.
    pub(crate) by: String,
    /// The line of the change itself.
    pub(crate) entry: Option<Entry>,
}

impl Note {
    /// A change of the metadata from there.
    pub(crate) fn by(by: &str) -> Self {
        Self { by: by.to_owned(), entry: None }
    }

    /// The lines for the log. The metadata of a creation and of a deletion is not logged.
    fn lines(self, before: Option<&Record>, after: &Record, now_ms: u64) -> Vec<Line> {
        let Some(before) = before.filter(|_| after.status != Status::Deleted) else {
            let visit = after.visit;
            return self.entry.into_iter().map(|entry| Line { at_ms: now_ms, visit, entry }).collect();
        };
        let by = if self.by.is_empty() { &*before.state } else { &self.by };
        let changed = || Entry::change(by, &before.metadata, &after.metadata);
        let changed = if before.incarnation == after.incarnation { changed() } else { None };
        let entries = self.entry.into_iter().chain(changed);
        entries.map(|entry| Line { at_ms: now_ms, visit: before.visit, entry }).collect()
    }
}

impl<'a> Edit<'a> {
    /// Evaluates the stored record for an occurrence, without another change.
    pub(crate) fn evaluate(record: &Record, happened: Happened<'a>) -> Self {
        Self::write(record.clone(), Some(happened))
    }

    /// Writes a record after it was evaluated, without rows of its own.
    pub(crate) fn write(record: Record, happened: Option<Happened<'a>>) -> Self {
        Self::Write { record, happened, rows: 0, note: Note::default() }
    }

    /// With this in the log.
    pub(crate) fn noted(mut self, new: Note) -> Self {
        if let Self::Write { note, .. } = &mut self {
            *note = new;
        }
        self
    }
}

/// The result of a change.
#[derive(Debug)]
pub(crate) struct Done {
    /// The label as it is stored now, if there is a record of it.
    pub(crate) record: Option<Record>,
    pub(crate) version: Version,
    pub(crate) turn: Turn,
    /// Whether anything was written.
    pub(crate) changed: bool,
    /// Whether a row of history was written.
    pub(crate) moved: bool,
}

/// The labels of all machines.
#[derive(Debug)]
pub struct LabelStore {
    pub(crate) records: Records,
    pub(crate) definitions: Definitions,
    pub(crate) committer: Committer,
    pub(crate) sweeps: SweepEntries,
    /// For evaluations of machines whose evaluations take long.
    pub(crate) computing: FairPlaces,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) flow: Flow,
    /// Unreadable labels that were logged.
    pub(crate) logged: Mutex<HashSet<String>>,
    pub(crate) population: Population,
}

impl LabelStore {
    /// The record of a label, also of a deleted one.
    pub(crate) async fn read(&self, machine: &str, label: &str) -> Result<Option<Record>, Error> {
        let bytes = self.records.one(machine, label).await?;
        Ok(bytes.map(|bytes| Record::read(&bytes)).transpose()?)
    }

    /// Changes a label. `edit` computes the change from the stored record, and is called again after a lost
    /// compare-and-set.
    pub(crate) async fn change<'a>(
        &self,
        place: (&str, &str),
        answers: &FeedAnswers,
        edit: impl Fn(Option<&Record>, &Version, u64) -> Result<Edit<'a>, Error>,
    ) -> Result<Done, Error> {
        self.change_keyed(place, answers, None, edit).await
    }

    /// Changes a label, and stores the answer to a request with an idempotency key. A key that the record already
    /// contains changes nothing.
    pub(crate) async fn change_keyed<'a>(
        &self,
        (machine, label): (&str, &str),
        answers: &FeedAnswers,
        request: Option<KeyedRequest>,
        edit: impl Fn(Option<&Record>, &Version, u64) -> Result<Edit<'a>, Error>,
    ) -> Result<Done, Error> {
        let shard = self.records.shards().of(machine, label);
        for round in 0..MAX_ROUNDS {
            // The active version is read first: if another one becomes active, the commit is refused.
            let active = self.definitions.of(machine, shard).await?;
            // Before the record is read, which could change while the evaluation waits for its place.
            let high = active.effort.is_high();
            let place = if high { Some(self.computing.take(&Payer::of(&active)).await) } else { None };
            let before = self.read(machine, label).await?;
            let version = self.definitions.of_label(machine, shard, before.as_ref()).await?;
            let now_ms = self.clock.now_ms().await?;
            let repeated =
                request.is_some_and(|request| before.as_ref().is_some_and(|before| request.is_in(before)));
            let label_before = before.as_ref().filter(|before| !before.is_absent());
            let edit = if repeated { Edit::Leave } else { edit(label_before, &version, now_ms)? };
            let stored = request.is_some_and(KeyedRequest::is_always_stored) && !repeated;
            let edit = match (edit, &before) {
                // Also a deleted label, which a repeat of the request must not delete after it is created again.
                (Edit::Leave, Some(before)) if stored => Edit::write(before.clone(), None),
                (edit, _) => edit,
            };
            let Edit::Write { mut record, happened, rows, note } = edit else {
                return Ok(Done {
                    record: before,
                    version,
                    turn: Turn::default(),
                    changed: false,
                    moved: false,
                });
            };
            let turn = {
                let answers = answers.to(&version.machine, label, &record.metadata);
                let evaluator = Evaluator { version: &version, label, now_ms, feeds: &answers };
                let mut run = |happened| active.effort.noting(|| evaluator.run(&mut record, &happened));
                match (happened, &place) {
                    (None, _) => Turn::default(),
                    (Some(happened), None) => run(happened),
                    (Some(happened), Some(_)) => aside(|| run(happened)),
                }
            };
            drop(place);
            self.metrics.evaluations.inc_by(turn.evaluations);
            // The label may need another feed than before and be the same otherwise.
            let only_asks = turn.needs.is_some() && turn.moves + rows == 0;
            let unchanged = !stored
                && before
                    .as_ref()
                    .is_some_and(|old| *old == record || (only_asks && differs_in_retry_only(old, &record)));
            if unchanged {
                // No commit compares the version, so it is compared here.
                if self.definitions.is_active(shard, machine, version.active().number).await? {
                    return Ok(Done { record: before, version, turn, changed: false, moved: false });
                }
                self.definitions.forget(machine, shard);
                continue;
            }
            let exists = before.as_ref().is_some_and(|before| before.status != Status::Deleted);
            if !exists && (before.is_none() || record.status != Status::Deleted) {
                self.population.admit(machine, now_ms).await?;
            }
            // Revisions continue, also for a name that was used before.
            record.revision = before.as_ref().map_or(0, |before| before.revision);
            if let Some(before) = before.as_ref().filter(|before| before.is_absent()) {
                record.seen.clone_from(&before.seen);
            }
            if let Some(request) = request {
                request.store_in(&mut record);
            }
            self.sweeps.ensure(shard, &version, &turn.sweeps).await?;
            let new_rows = rows + turn.moves;
            let (place, number) = ((machine, label), Some(version.active().number));
            let lines = note.lines(before.as_ref(), &record, now_ms);
            let committed =
                self.committer.commit(place, number, before.as_ref(), &mut record, new_rows, &lines).await;
            match committed {
                Ok(()) => {
                    self.metrics.moves.inc_by(new_rows as u64);
                    self.flow.count(machine, &record.history, new_rows);
                    let active = version.active.as_deref().filter(|_| turn.left).cloned();
                    let version = active.unwrap_or(version);
                    return Ok(Done {
                        record: Some(record),
                        version,
                        turn,
                        changed: true,
                        moved: new_rows > 0,
                    });
                }
                Err(Refusal::Outdated) => {
                    self.definitions.forget(machine, shard);
                    if round > ROUNDS_WITHOUT_JITTER {
                        // Jitter breaks repeated conflicts.
                        let pause_ms = rand::rng().random_range(0..MAX_JITTER_MS);
                        sleep(Duration::from_millis(pause_ms)).await;
                    }
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Err(Error::Contended)
    }

    /// Deletes a label of a machine whose definition is not active any more. Returns whether there was one. A label that a version
    /// after `last` has moved is another machine's of the name, and stays.
    pub(crate) async fn delete_without_definition(
        &self,
        machine: &str,
        label: &str,
        last: u64,
    ) -> Result<bool, Error> {
        for _ in 0..MAX_ROUNDS {
            let Some(before) = self.read(machine, label).await? else { return Ok(false) };
            if before.status == Status::Deleted {
                return Ok(false);
            }
            let version = before.history.last().map_or(0, |row| row.version);
            if version > last {
                return Ok(false);
            }
            let mut record = before.deleted(version, self.clock.now_ms().await?);
            match self.committer.commit((machine, label), None, Some(&before), &mut record, 1, &[]).await {
                Err(Refusal::Outdated) => {}
                other => return Ok(other.map(|()| true)?),
            }
        }
        Err(Error::Contended)
    }

    /// The origin of the version that is active in the label's shard, read from the fabric.
    pub(crate) async fn origin(&self, machine: &str, label: &str) -> Result<Option<Arc<str>>, Error> {
        let shard = self.records.shards().of(machine, label);
        self.definitions.forget(machine, shard);
        match self.definitions.of(machine, shard).await {
            Ok(version) => Ok(Some(version.origin)),
            Err(Error::NoSuchMachine) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets everything that only this process remembers of the fabric, because the fabric may have lost it.
    pub(crate) fn forget_assumptions(&self) {
        self.sweeps.forget();
        self.definitions.forget_all();
    }

    /// The record of a label that is not deleted.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], [`Error::NoSuchLabel`], [`Error::Gone`], or a failure of the fabric.
    pub async fn label(&self, machine: &str, label: &str) -> Result<Record, Error> {
        // An unknown machine is reported before an unknown label.
        self.definitions.of(machine, self.records.shards().of(machine, label)).await?;
        match self.read(machine, label).await? {
            Some(record) if record.status != Status::Deleted => Ok(record),
            Some(record) if !record.is_absent() => Err(Error::Gone),
            _ => Err(Error::NoSuchLabel),
        }
    }

    /// The record of a label, also of a deleted one.
    ///
    /// # Errors
    /// [`Error::NoSuchLabel`], or a failure of the fabric.
    pub async fn label_or_tombstone(&self, machine: &str, label: &str) -> Result<Record, Error> {
        let record = self.read(machine, label).await?.filter(|record| !record.is_absent());
        record.ok_or(Error::NoSuchLabel)
    }

    /// A page of what happened to a label, the newest first; also of a deleted one. `None` if the cursor is not valid.
    ///
    /// # Errors
    /// [`Error::NoSuchLabel`], or a failure of the fabric.
    pub async fn activity(
        &self,
        machine: &str,
        label: &str,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Option<Activity>, Error> {
        let record = self.label_or_tombstone(machine, label).await?;
        let log = self.records.log(machine, label).await?;
        let since_ms = self.clock.now_ms().await?.saturating_sub(self.committer.retention.ms);
        Ok(Activity::page(&log, &record.history, since_ms, cursor, limit))
    }

    /// The records of labels, ordered by name, without deleted and unreadable ones.
    pub async fn records(&self, machine: &str, names: Vec<String>) -> Result<Vec<(String, Record)>, Error> {
        Ok(self.records_and_bytes(machine, names).await?.0)
    }

    /// The same, and how many bytes were read: in parts of about a megabyte, because metadata can be large.
    pub async fn records_and_bytes(
        &self,
        machine: &str,
        names: Vec<String>,
    ) -> Result<(Vec<(String, Record)>, usize), Error> {
        let mut by_shard = vec![Vec::new(); self.records.shards().count()];
        for name in names {
            by_shard[self.records.shards().of(machine, &name)].push(name);
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        for (shard, mut names) in by_shard.into_iter().enumerate() {
            let mut pace = Pace::new(MAX_TOGETHER);
            while !names.is_empty() {
                let rest = names.split_off(names.len().min(pace.count()));
                let records = self.records.many(shard, machine, &names).await?;
                let size = records.iter().flatten().map(Vec::len).sum();
                pace.read(names.len(), size);
                bytes += size;
                let read = |bytes: Option<Vec<u8>>| bytes.and_then(|bytes| Record::read(&bytes).ok());
                let pairs = names.into_iter().zip(records.into_iter().map(read));
                found.extend(pairs.filter_map(|(name, record)| Some((name, record?))));
                names = rest;
            }
        }
        found.retain(|(_, record)| record.status != Status::Deleted);
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok((found, bytes))
    }

    /// The next names after `after`, in order, of labels in any of `states`, or with `status` if that has an index.
    pub async fn list(
        &self,
        machine: &str,
        states: &[&str],
        status: Option<Status>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        let indexes = match status.filter(|status| status.has_index()) {
            Some(status) => vec![Index::Status(status.as_str())],
            None => states.iter().map(|state| Index::State(state)).collect(),
        };
        Ok(self.records.names_in_any(machine, &indexes, after, limit).await?)
    }

    /// Waits until the label rests, at most for `patience`, and returns its state then.
    ///
    /// # Errors
    /// As [`LabelStore::label`].
    pub async fn wait_until_at_rest(
        &self,
        machine: &str,
        label: &str,
        patience: Duration,
    ) -> Result<Answer, Error> {
        let deadline = Instant::now() + patience;
        let mut pause = FIRST_POLL;
        loop {
            let record = self.label(machine, label).await?;
            let rests = match record.status {
                _ if record.suspended => true,
                Status::Waiting => record.work.held.is_none(),
                Status::Acting | Status::Choosing | Status::Looping => false,
                Status::Errored | Status::Ended | Status::Deleted => true,
            };
            if rests || Instant::now() >= deadline {
                return Ok(Answer::of(record));
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_POLL);
        }
    }

    /// Reports that a label was skipped because its record cannot be read. It is counted, and logged once.
    pub fn report_unreadable(&self, machine: &str, label: &str) {
        self.metrics.unreadable.inc();
        let mut logged = self.logged.lock();
        if logged.len() < MAX_LOGGED && logged.insert(format!("{machine} {label}")) {
            tracing::error!(machine, label, "unreadable label skipped");
        }
    }
}

/// Whether two records differ only in when they are evaluated again.
fn differs_in_retry_only(old: &Record, new: &Record) -> bool {
    let mut new = new.clone();
    new.work.again_ms = old.work.again_ms;
    *old == new && old.work.again_ms.is_some()
}
