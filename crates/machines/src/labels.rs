//! Requests of clients that change labels: create, update, delete, retry.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use signalbox_machine::merge;

use crate::{
    Error, Version,
    answer::{Answer, KeyedRequest},
    evaluator::{Happened, RETRY},
    feeds::FeedAnswers,
    label_store::{Edit, LabelStore, Note},
    log::{Entry, shortened},
    record::{Record, Status},
    runner::Runner,
};

/// Maximum length of a name, bytes.
const MAX_NAME_BYTES: usize = 256;

/// An update of a label's metadata by a client.
#[derive(Debug, Clone, Copy)]
pub struct Update<'a> {
    /// The metadata to merge: a JSON object.
    pub metadata: &'a Value,
    /// Whether `null` removes a key (JSON Merge Patch).
    pub patch: bool,
    /// The idempotency key: a repeat with the same key changes nothing.
    pub key: Option<&'a str>,
}

/// An event that an input takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputEvent<'a> {
    pub(crate) topic: &'a str,
    pub(crate) id: u64,
    /// The origin of the version that governs the event.
    pub(crate) origin: &'a str,
    /// The number of the input among those of the version.
    pub(crate) input: u32,
    /// The metadata to merge, if the input takes any from the event.
    pub(crate) metadata: Option<&'a Value>,
    /// Whether a missing label is created.
    pub(crate) create: bool,
}

/// Whether a text can be the name of a label: 1 to 256 bytes without control characters, and not `.` or `..`.
pub fn is_label_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && !name.chars().any(char::is_control)
        && !matches!(name, "." | "..")
}

/// Changes labels for clients. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Labels {
    store: Arc<LabelStore>,
    runner: Arc<Runner>,
    /// The client, for the log.
    by: Arc<str>,
    /// The idempotency key of a request: a repeat with the same key changes nothing.
    key: Option<Arc<str>>,
    /// The revision that the label must have.
    revision: Option<u64>,
}

impl Labels {
    pub(crate) fn new(store: Arc<LabelStore>, runner: Arc<Runner>) -> Self {
        Self { store, runner, by: Arc::from("a client"), key: None, revision: None }
    }

    /// For this client, which the log of a label names.
    #[must_use]
    pub fn by(&self, client: &str) -> Self {
        Self { by: client.into(), ..self.clone() }
    }

    /// For one request with this idempotency key, which changes only a label of this revision.
    #[must_use]
    pub fn once(self, key: Option<&str>, revision: Option<u64>) -> Self {
        Self { key: key.map(Arc::from), revision, ..self }
    }

    /// [`Error::OtherRevision`] unless the label has the revision that the request expects.
    fn check_revision(&self, before: &Record) -> Result<(), Error> {
        match self.revision {
            Some(expected) if expected != before.revision => Err(Error::OtherRevision(before.revision)),
            _ => Ok(()),
        }
    }

    /// Creates a label. With `recreate`, also one whose name was deleted.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Deleted`], [`Error::BadMetadata`], [`Error::Conflict`], or a failure of the fabric.
    pub async fn create(
        &self,
        machine: &str,
        label: &str,
        metadata: &Value,
        recreate: bool,
        key: Option<&str>,
    ) -> Result<Answer, Error> {
        merge::check(metadata)?;
        let sent = serde_json::to_vec(metadata).unwrap_or_default();
        let request = key.map(|key| KeyedRequest::new((&self.by, key), "create", &sent));
        self.keyed((machine, label), request, |before, _, now_ms| {
            let incarnation = match before {
                None => 1,
                Some(before) if before.status != Status::Deleted => return Err(Error::Exists),
                Some(before) if recreate => before.incarnation + 1,
                Some(_) => return Err(Error::Deleted),
            };
            let mut record = Record::new(incarnation);
            record.origin = request.map_or(now_ms, KeyedRequest::origin);
            record.metadata = metadata.clone();
            // Numbers continue for a name that was used before, so that no visit number repeats.
            record.visit = before.map_or(0, |before| before.visit);
            record.taken = before.map(|before| before.taken.clone()).unwrap_or_default();
            record.seen = before.map(|before| before.seen.clone()).unwrap_or_default();
            record.history = before.map(|before| before.history.clone()).unwrap_or_default();
            Ok(Edit::write(record, Some(Happened::Created)))
        })
        .await
        .map(|(_, answer)| answer)
    }

    /// Updates a label's metadata, and evaluates its gate.
    ///
    /// # Errors
    /// [`Error::NoSuchLabel`], [`Error::Gone`], [`Error::BadMetadata`], [`Error::Conflict`], [`Error::OtherRevision`], or a
    /// failure of the fabric.
    pub async fn update(&self, machine: &str, label: &str, update: &Update<'_>) -> Result<Answer, Error> {
        let kind = if update.patch { "patch" } else { "merge" };
        let sent = || serde_json::to_vec(update.metadata).unwrap_or_default();
        let request = update.key.map(|key| KeyedRequest::new((&self.by, key), kind, &sent()));
        Ok(self.update_keyed((machine, label), update.metadata, update.patch, request).await?.1)
    }

    /// Updates a label's metadata. Returns whether the label was changed.
    async fn update_keyed(
        &self,
        place: (&str, &str),
        metadata: &Value,
        patch: bool,
        request: Option<KeyedRequest>,
    ) -> Result<(bool, Answer), Error> {
        if !metadata.is_object() {
            return Err(merge::TooMuch::NoObject.into());
        }
        self.keyed(place, request, |before, _, _| {
            let mut record = match before {
                Some(before) if before.status == Status::Deleted => return Err(Error::Gone),
                Some(before) => before.clone(),
                None => return Err(Error::NoSuchLabel),
            };
            self.check_revision(&record)?;
            if patch {
                merge::patch(&mut record.metadata, metadata);
            } else {
                merge::merge(&mut record.metadata, metadata);
            }
            merge::check(&record.metadata)?;
            Ok(Edit::write(record, Some(Happened::Facts(metadata))).noted(Note::by(&self.by)))
        })
        .await
    }

    /// Updates a label by an event, once: the label stores which event it took last.
    pub(crate) async fn take(&self, machine: &str, label: &str, event: InputEvent<'_>) -> Result<(), Error> {
        if event.metadata.is_some_and(|metadata| !metadata.is_object()) {
            return Err(merge::TooMuch::NoObject.into());
        }
        let taken = (event.id, event.input);
        let changed = self.keyed((machine, label), None, |before, version, _| {
            if *version.active().origin != *event.origin {
                // The event was published for a machine that was deleted.
                return Err(Error::NoSuchVersion);
            }
            let (mut record, happened) = match before {
                Some(before) if before.status == Status::Deleted => return Err(Error::Gone),
                Some(before) if before.has_taken(taken) => return Ok(Edit::Leave),
                Some(before) => (before.clone(), Happened::Topic(event.topic, event.metadata)),
                None if event.create => {
                    let new = Record { origin: event.id, ..Record::new(1) };
                    (new, Happened::CreatedBy(event.topic, event.metadata))
                }
                None => return Err(Error::NoSuchLabel),
            };
            if let Some(metadata) = event.metadata {
                merge::merge(&mut record.metadata, metadata);
                merge::check(&record.metadata)?;
            }
            record.take(taken);
            Ok(Edit::write(record, Some(happened)).noted(Note::by(&format!("topic {}", event.topic))))
        });
        changed.await.map(drop)
    }

    /// A change under an idempotency key: the answer is stored in the same commit, and returned to repeats. Returns also whether
    /// the label was changed.
    async fn keyed<'a>(
        &self,
        (machine, label): (&str, &str),
        request: Option<KeyedRequest>,
        edit: impl Fn(Option<&Record>, &Version, u64) -> Result<Edit<'a>, Error>,
    ) -> Result<(bool, Answer), Error> {
        if let Some(request) = request
            && let Some(record) = self.store.read(machine, label).await?
            && let Some(first) = request.answer_in(&record)?
        {
            return Ok((false, first));
        }
        let done = self.store.change_keyed((machine, label), &FeedAnswers::default(), request, edit).await?;
        self.runner.follow(machine, label, &done);
        let record = done.record.ok_or(Error::NoSuchLabel)?;
        if !done.changed
            && let Some(request) = request
            && let Some(first) = request.answer_in(&record)?
        {
            return Ok((false, first));
        }
        Ok((done.changed, Answer::of(record)))
    }

    /// Deletes a label. A missing label is not an error, unless a revision is expected. Returns whether there was one.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], [`Error::Conflict`], [`Error::OtherRevision`], [`Error::TooManyLabels`] if the key of a label
    /// that does not exist cannot be stored, or a failure of the fabric.
    pub async fn delete(&self, machine: &str, label: &str) -> Result<bool, Error> {
        let request = self.request(&Operation::Delete);
        self.delete_once(machine, label, request).await
    }

    async fn delete_once(
        &self,
        machine: &str,
        label: &str,
        request: Option<KeyedRequest>,
    ) -> Result<bool, Error> {
        let done = self
            .store
            .change_keyed((machine, label), &FeedAnswers::default(), request, |before, version, now_ms| {
                let Some(before) = before.filter(|before| before.status != Status::Deleted) else {
                    if self.revision.is_some() {
                        return Err(Error::OtherRevision(before.map_or(0, |before| before.revision)));
                    }
                    // The key is stored even if there never was a label. Otherwise a repeat would delete one that is created
                    // in the meantime.
                    let stored = before.is_none() && request.is_some_and(KeyedRequest::is_always_stored);
                    return Ok(if stored { Edit::write(Record::absent(now_ms), None) } else { Edit::Leave });
                };
                self.check_revision(before)?;
                let record = before.deleted(version.number, now_ms);
                let note = Operation::Delete.logged(&self.by);
                Ok(Edit::Write { record, happened: None, rows: 1, note })
            })
            .await?;
        if let (false, Some(request), Some(record)) = (done.changed, request, &done.record) {
            request.answer_in(record)?;
        }
        // The key of a request that finds no label is stored, too, and deletes nothing.
        Ok(done.changed && done.moved)
    }

    /// Retries the action of an errored label, with a new count of attempts and the same token.
    ///
    /// # Errors
    /// [`Error::NoSuchLabel`], [`Error::Gone`], [`Error::NotErrored`], [`Error::Conflict`], [`Error::OtherRevision`], or a
    /// failure of the fabric.
    pub async fn retry(&self, machine: &str, label: &str) -> Result<Answer, Error> {
        let operated = self.operate(machine, label, &Operation::Retry).await?;
        operated.answer.ok_or(Error::NoSuchLabel)
    }

    /// Applies an operation to a label.
    ///
    /// # Errors
    /// [`Error::NoSuchLabel`], [`Error::Gone`], [`Error::NotErrored`], [`Error::NotActing`], [`Error::NoSuchState`],
    /// [`Error::BadMetadata`], [`Error::Conflict`], [`Error::OtherRevision`], or a failure of the fabric.
    pub async fn operate(
        &self,
        machine: &str,
        label: &str,
        operation: &Operation,
    ) -> Result<Operated, Error> {
        let request = self.request(operation);
        self.operate_keyed(machine, label, operation, request).await
    }

    /// Applies the operation of a task to a label, at most once. The task is stored as a key only if the label changes.
    pub(crate) async fn operate_once(
        &self,
        machine: &str,
        label: &str,
        operation: &Operation,
        task: &str,
    ) -> Result<Operated, Error> {
        self.operate_keyed(machine, label, operation, Some(KeyedRequest::of_task(task))).await
    }

    /// An operation as the request of the client, if it has a key.
    fn request(&self, operation: &Operation) -> Option<KeyedRequest> {
        self.key.as_deref().map(|key| KeyedRequest::of((&self.by, key), operation))
    }

    async fn operate_keyed(
        &self,
        machine: &str,
        label: &str,
        operation: &Operation,
        request: Option<KeyedRequest>,
    ) -> Result<Operated, Error> {
        match operation {
            Operation::Delete => {
                let changed = self.delete_once(machine, label, request).await?;
                return Ok(Operated { changed, answer: None });
            }
            Operation::Set { metadata, patch } => {
                let (changed, answer) =
                    self.update_keyed((machine, label), metadata, *patch, request).await?;
                return Ok(Operated { changed, answer: Some(answer) });
            }
            _ => {}
        }
        let note = operation.note(&self.by);
        let edit = |before: Option<&Record>, version: &Version, _| match before {
            None => Err(Error::NoSuchLabel),
            Some(before) if before.status == Status::Deleted => Err(Error::Gone),
            Some(before) => {
                self.check_revision(before)?;
                Ok(operation.edit(before, version, &note)?.noted(operation.logged(&self.by)))
            }
        };
        let answers = FeedAnswers::default();
        let done = self.store.change_keyed((machine, label), &answers, request, edit).await?;
        self.runner.follow(machine, label, &done);
        let repeated = match (&done.record, request) {
            (Some(record), Some(request)) if !done.changed => request.answer_in(record)?,
            _ => None,
        };
        let answer = repeated.or_else(|| done.record.map(Answer::of));
        Ok(Operated { changed: done.changed, answer })
    }
}

/// An operation of an operator on a label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Retries a failed action, with the same token.
    Retry,
    /// Evaluates the gate now.
    Evaluate,
    /// Continues as if the action were done.
    Skip,
    /// Ends the retries of an action: the label is errored.
    Cancel,
    /// Stops the label: no gate is evaluated, and no attempt begins.
    Suspend,
    /// Ends a suspension.
    Resume,
    /// Moves the label to a state.
    Move {
        /// The name of the state.
        to: String,
    },
    /// Updates the metadata.
    Set {
        /// The metadata to merge.
        metadata: Value,
        /// Whether `null` removes a key (JSON Merge Patch).
        patch: bool,
    },
    /// Deletes the label.
    Delete,
}

/// The result of an operation.
#[derive(Debug)]
pub struct Operated {
    /// Whether the label was changed.
    pub changed: bool,
    /// The label afterwards; `None` if it was deleted.
    pub answer: Option<Answer>,
}

impl Operation {
    /// Its word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Evaluate => "evaluate",
            Self::Skip => "skip",
            Self::Cancel => "cancel",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Move { .. } => "move",
            Self::Set { .. } => "set",
            Self::Delete => "delete",
        }
    }

    /// Its line in the log.
    fn logged(&self, by: &str) -> Note {
        let entry = Entry::Operation { operation: self.word().to_owned(), by: shortened(by) };
        Note { by: by.to_owned(), entry: Some(entry) }
    }

    /// Whether a repetition could act on the state that follows.
    pub(crate) fn moves_on(&self) -> bool {
        matches!(self, Self::Skip | Self::Move { .. } | Self::Cancel)
    }

    /// The description for the history.
    fn note(&self, by: &str) -> String {
        let what = match self {
            Self::Skip => "skipped",
            Self::Cancel => "canceled",
            _ => "moved",
        };
        format!("{what} by {by}")
    }

    fn edit<'a>(&'a self, before: &Record, version: &Version, note: &'a str) -> Result<Edit<'a>, Error> {
        let acts = matches!(before.status, Status::Acting | Status::Errored | Status::Looping)
            && version.machine.state(&before.state).is_some_and(|state| state.action().is_some());
        let with = |happened| Ok(Edit::evaluate(before, happened));
        match self {
            // Between two attempts the next one is made now.
            Self::Retry
                if before.status != Status::Errored
                    && !(before.status == Status::Acting && before.work.held.as_deref() == Some(RETRY)) =>
            {
                Err(Error::NotErrored)
            }
            Self::Retry => with(Happened::Retried),
            Self::Evaluate => with(Happened::Evaluated),
            Self::Skip | Self::Cancel if !acts => Err(Error::NotActing),
            Self::Skip => with(Happened::Skipped(note)),
            Self::Cancel => {
                let mut record = before.clone();
                if record.status != Status::Errored {
                    record.status = Status::Errored;
                    (record.work.again_ms, record.work.held) = (None, None);
                    record.work.error = Some(note.into());
                }
                Ok(Edit::write(record, None))
            }
            Self::Suspend => Ok(Edit::write(Record { suspended: true, ..before.clone() }, None)),
            Self::Resume if !before.suspended => Ok(Edit::Leave),
            Self::Resume => {
                let record = Record { suspended: false, ..before.clone() };
                Ok(Edit::write(record, Some(Happened::Resumption)))
            }
            Self::Move { to } => {
                let active = version.active();
                if active.machine.state(to).is_none() && version.machine.state(to).is_none() {
                    return Err(Error::NoSuchState(to.clone()));
                }
                with(Happened::Moved(to, note))
            }
            Self::Set { .. } | Self::Delete => Ok(Edit::Leave),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable_and_no_path_segments_with_a_meaning() {
        for good in ["a", "a b/c", "é", "...", &"x".repeat(256)] {
            assert!(is_label_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a\n", "\0", &"x".repeat(257)] {
            assert!(!is_label_name(bad), "{bad:?}");
        }
    }
}
