//! Requests of clients that change labels: create, update, delete, retry.

use std::sync::Arc;

use serde_json::Value;
use signalbox_machine::merge;

use crate::{
    Error, Version,
    answer::{Answer, KeyedRequest},
    evaluator::Happened,
    feeds::FeedAnswers,
    label_store::{Edit, LabelStore},
    record::{Cause, Record, Row, Status, Work},
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
    /// The number of the input among those of the machine.
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
}

impl Labels {
    pub(crate) fn new(store: Arc<LabelStore>, runner: Arc<Runner>) -> Self {
        Self { store, runner }
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
        merge::check(metadata).map_err(|error| Error::BadMetadata(error.to_string()))?;
        let sent = serde_json::to_vec(metadata).unwrap_or_default();
        let request = key.map(|key| KeyedRequest::new(key, "create", &sent));
        self.keyed((machine, label), request, |before, _, _| {
            let incarnation = match before {
                None => 1,
                Some(before) if before.status != Status::Deleted => return Err(Error::Exists),
                Some(before) if recreate => before.incarnation + 1,
                Some(_) => return Err(Error::Deleted),
            };
            let mut record = Record::new(incarnation);
            record.metadata = metadata.clone();
            // Numbers continue for a name that was used before, so that no visit number repeats.
            record.visit = before.map_or(0, |before| before.visit);
            record.taken = before.map(|before| before.taken.clone()).unwrap_or_default();
            record.history = before.map(|before| before.history.clone()).unwrap_or_default();
            Ok(Edit::Write { record, happened: Some(Happened::Created), rows: 0 })
        })
        .await
    }

    /// Updates a label's metadata, and evaluates its gate.
    ///
    /// # Errors
    /// [`Error::NoSuchLabel`], [`Error::Gone`], [`Error::BadMetadata`], [`Error::Conflict`], or a failure of the fabric.
    pub async fn update(&self, machine: &str, label: &str, update: &Update<'_>) -> Result<Answer, Error> {
        let metadata = update.metadata;
        let kind = if update.patch { "patch" } else { "merge" };
        let sent = || serde_json::to_vec(metadata).unwrap_or_default();
        let request = update.key.map(|key| KeyedRequest::new(key, kind, &sent()));
        if !metadata.is_object() {
            return Err(Error::BadMetadata("metadata must be an object".to_owned()));
        }
        self.keyed((machine, label), request, |before, _, _| {
            let mut record = match before {
                Some(before) if before.status == Status::Deleted => return Err(Error::Gone),
                Some(before) => before.clone(),
                None => return Err(Error::NoSuchLabel),
            };
            if update.patch {
                merge::patch(&mut record.metadata, metadata);
            } else {
                merge::merge(&mut record.metadata, metadata);
            }
            check(&record)?;
            Ok(Edit::Write { record, happened: Some(Happened::Facts(metadata)), rows: 0 })
        })
        .await
    }

    /// Updates a label by an event, once: the label stores which event it took last.
    pub(crate) async fn take(&self, machine: &str, label: &str, event: InputEvent<'_>) -> Result<(), Error> {
        if event.metadata.is_some_and(|metadata| !metadata.is_object()) {
            return Err(Error::BadMetadata("metadata must be an object".to_owned()));
        }
        let taken = (event.id, event.input);
        let changed = self.keyed((machine, label), None, |before, _, _| {
            let (mut record, happened) = match before {
                Some(before) if before.status == Status::Deleted => return Err(Error::Gone),
                Some(before) if before.has_taken(taken) => return Ok(Edit::Leave),
                Some(before) => (before.clone(), Happened::Topic(event.topic, event.metadata)),
                None if event.create => (Record::new(1), Happened::CreatedBy(event.topic, event.metadata)),
                None => return Err(Error::NoSuchLabel),
            };
            if let Some(metadata) = event.metadata {
                merge::merge(&mut record.metadata, metadata);
                check(&record)?;
            }
            record.take(taken);
            Ok(Edit::Write { record, happened: Some(happened), rows: 0 })
        });
        changed.await.map(drop)
    }

    /// A change under an idempotency key: the answer is stored in the same commit, and returned to repeats.
    async fn keyed<'a>(
        &self,
        (machine, label): (&str, &str),
        request: Option<KeyedRequest>,
        edit: impl Fn(Option<&Record>, &Version, u64) -> Result<Edit<'a>, Error>,
    ) -> Result<Answer, Error> {
        if let Some(request) = request
            && let Some(record) = self.store.read(machine, label).await?
            && let Some(first) = request.answer_in(&record)?
        {
            return Ok(first);
        }
        let done = self.store.change_keyed((machine, label), &FeedAnswers::default(), request, edit).await?;
        self.runner.follow(machine, label, &done);
        let record = done.record.as_ref().ok_or(Error::NoSuchLabel)?;
        if !done.changed
            && let Some(request) = request
            && let Some(first) = request.answer_in(record)?
        {
            return Ok(first);
        }
        Ok(Answer::of(record))
    }

    /// Deletes a label. A missing label is not an error.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], or a failure of the fabric.
    pub async fn delete(&self, machine: &str, label: &str) -> Result<(), Error> {
        self.store
            .change((machine, label), &FeedAnswers::default(), |before, version, now_ms| {
                let Some(before) = before.filter(|before| before.status != Status::Deleted) else {
                    return Ok(Edit::Leave);
                };
                let mut record = before.clone();
                record.history.push(Row {
                    visit: before.visit,
                    at_ms: now_ms,
                    from: Some(before.state.clone()),
                    to: None,
                    cause: Cause::Deleted,
                    trigger: None,
                    version: version.number,
                    event: 0,
                });
                record.status = Status::Deleted;
                record.entered_ms = now_ms;
                record.metadata = Value::Object(serde_json::Map::new());
                record.zones.clear();
                record.work = Work::default();
                record.seen.clear();
                Ok(Edit::Write { record, happened: None, rows: 1 })
            })
            .await
            .map(drop)
    }

    /// Retries the action of an errored label, with a new count of attempts and the same token.
    ///
    /// # Errors
    /// [`Error::NoSuchLabel`], [`Error::Gone`], [`Error::NotErrored`], or a failure of the fabric.
    pub async fn retry(&self, machine: &str, label: &str) -> Result<Answer, Error> {
        let done = self
            .store
            .change((machine, label), &FeedAnswers::default(), |before, _, _| match before {
                None => Err(Error::NoSuchLabel),
                Some(before) if before.status == Status::Deleted => Err(Error::Gone),
                Some(before) if before.status != Status::Errored => Err(Error::NotErrored),
                Some(before) => Ok(Edit::evaluate(before, Happened::Retried)),
            })
            .await?;
        self.runner.follow(machine, label, &done);
        let record = done.record.as_ref().ok_or(Error::NoSuchLabel)?;
        Ok(Answer::of(record))
    }
}

fn check(record: &Record) -> Result<(), Error> {
    merge::check(&record.metadata).map_err(|error| Error::BadMetadata(error.to_string()))
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
