//! What can be asked of labels: create, tell facts, delete, retry, look, list.

use std::{sync::PoisonError, time::Duration};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use signalbox_machine::merge;
use tokio::time::{Instant, sleep};

use super::{
    Error,
    definitions::Version,
    engine::{Edit, Engine},
    feeds::Asked,
    judge::Happened,
    record::{Cause, Record, Row, Seen, Status, Work},
};

/// The longest name, in bytes.
const LONGEST_NAME: usize = 256;
/// Labels of which it is told that they cannot be read.
const MOST_UNREADABLE: usize = 1_000;
/// Between two looks at a label that somebody waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOK_AGAIN_MOST: Duration = Duration::from_millis(250);

/// An update of a label.
#[derive(Debug, Clone, Copy)]
pub struct Update<'a> {
    pub metadata: Option<&'a Value>,
    /// Whether null removes.
    pub patch: bool,
    /// The event that brought it.
    pub event: Option<Brought<'a>>,
    /// Whether a label that is not there is created.
    pub create: bool,
    /// A repeat under the same key changes nothing.
    pub key: Option<&'a str>,
}

/// An event that an input takes.
#[derive(Debug, Clone, Copy)]
pub struct Brought<'a> {
    pub(crate) topic: &'a str,
    /// Its id.
    pub(crate) id: u64,
    /// The number of the input among those of the machine.
    pub(crate) input: u32,
}

/// What a change was answered, and what a repeat of it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub state: String,
    pub status: Status,
    pub since_ms: u64,
    pub visit: u64,
    pub revision: u64,
    pub repeated: bool,
}

/// Whether a label can be called this.
pub fn check_name(name: &str) -> Result<(), ()> {
    let good = (1..=LONGEST_NAME).contains(&name.len())
        && !name.chars().any(char::is_control)
        && !matches!(name, "." | "..");
    if good { Ok(()) } else { Err(()) }
}

/// Digests of an idempotency key and of what came under it.
fn digests(key: &str, parts: [&[u8]; 2]) -> (u64, u32) {
    let key = Sha256::digest(key.as_bytes());
    let mut body = Sha256::new();
    for part in parts {
        body.update((part.len() as u64).to_be_bytes());
        body.update(part);
    }
    let body = body.finalize();
    let long = key.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let short = body.iter().take(4).fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    (long, short)
}

fn answer(record: &Record, repeated: bool) -> Answer {
    Answer {
        state: record.state.to_string(),
        status: record.status,
        since_ms: record.entered_ms,
        visit: record.visit,
        revision: record.revision,
        repeated,
    }
}

fn answered(seen: &Seen) -> Answer {
    Answer {
        state: seen.state.to_string(),
        status: seen.status,
        since_ms: seen.since_ms,
        visit: seen.visit,
        revision: seen.revision,
        repeated: true,
    }
}

/// What came under an idempotency key of a label, if it is still known.
fn known(record: &Record, digests: Option<(u64, u32)>) -> Result<Option<Answer>, Error> {
    let Some((key, body)) = digests else { return Ok(None) };
    match record.seen.iter().rev().find(|seen| seen.key == key) {
        None => Ok(None),
        Some(seen) if seen.body == body => Ok(Some(answered(seen))),
        Some(_) => Err(Error::Conflict),
    }
}

impl Engine {
    /// Creates a label. `recreate` lets one that was deleted come back.
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
        let digests = key.map(|key| digests(key, [b"create", &sent]));
        let done = self
            .keyed((machine, label), digests, |before, _, _| {
                let incarnation = match before {
                    None => 1,
                    Some(before) if before.status != Status::Deleted => return Err(Error::Exists),
                    Some(before) if recreate => before.incarnation + 1,
                    Some(_) => return Err(Error::Deleted),
                };
                let mut record = Record::new(incarnation);
                record.metadata = metadata.clone();
                // Of a name that was used before, numbers go on: no two visits are ever the same.
                record.visit = before.map_or(0, |before| before.visit);
                record.taken = before.map(|before| before.taken.clone()).unwrap_or_default();
                record.history = before.map(|before| before.history.clone()).unwrap_or_default();
                Ok(Edit::Write { record, happened: Some(Happened::Created), rows: 0 })
            })
            .await?;
        Ok(done)
    }

    /// Tells a label facts.
    pub async fn update(&self, machine: &str, label: &str, update: &Update<'_>) -> Result<Answer, Error> {
        let sent = update
            .metadata
            .map(|metadata| serde_json::to_vec(metadata).unwrap_or_default())
            .unwrap_or_default();
        let kind: &[u8] = if update.patch { b"patch" } else { b"merge" };
        let digests = update.key.map(|key| digests(key, [kind, &sent]));
        if update.metadata.is_some_and(|metadata| !metadata.is_object()) {
            return Err(Error::BadMetadata("metadata is an object".to_owned()));
        }
        self.keyed((machine, label), digests, |before, _, _| {
            let took = update.event.map(|event| (event.id, event.input));
            let mut record = match before {
                Some(before) if before.status == Status::Deleted => return Err(Error::Gone),
                Some(before) if took.is_some_and(|took| before.has_taken(took)) => return Ok(Edit::Leave),
                Some(before) => before.clone(),
                None if update.create => {
                    let mut record = Record::new(1);
                    took.into_iter().for_each(|took| record.take(took));
                    if let Some(metadata) = update.metadata {
                        merge::merge(&mut record.metadata, metadata);
                    }
                    check(&record)?;
                    let happened = match update.event {
                        Some(event) => Happened::CreatedBy(event.topic, update.metadata),
                        None => Happened::Created,
                    };
                    return Ok(Edit::Write { record, happened: Some(happened), rows: 0 });
                }
                None => return Err(Error::NoSuchLabel),
            };
            if let Some(metadata) = update.metadata {
                if update.patch {
                    merge::patch(&mut record.metadata, metadata);
                } else {
                    merge::merge(&mut record.metadata, metadata);
                }
                check(&record)?;
            }
            took.into_iter().for_each(|took| record.take(took));
            let happened = match (update.event, update.metadata) {
                (Some(event), facts) => Happened::Topic(event.topic, facts),
                (None, Some(facts)) => Happened::Facts(facts),
                (None, None) => return Ok(Edit::Leave),
            };
            Ok(Edit::Write { record, happened: Some(happened), rows: 0 })
        })
        .await
    }

    /// A change under an idempotency key: the first answer is kept in the very commit, and given again.
    async fn keyed<'a>(
        &self,
        (machine, label): (&str, &str),
        digests: Option<(u64, u32)>,
        edit: impl Fn(Option<&Record>, &Version, u64) -> Result<Edit<'a>, Error>,
    ) -> Result<Answer, Error> {
        if let Some(record) = self.read_if(machine, label, digests.is_some()).await?
            && let Some(first) = known(&record, digests)?
        {
            return Ok(first);
        }
        let done = self.change_keyed((machine, label), &Asked::default(), digests, edit).await?;
        self.follow(machine, label, &done);
        let record = done.record.as_ref().ok_or(Error::NoSuchLabel)?;
        if !done.changed
            && let Some(first) = known(record, digests)?
        {
            return Ok(first);
        }
        Ok(answer(record, false))
    }

    /// Notes that a label's record cannot be read, and says so once. What is due for it, or came for it, is left undone.
    pub fn pass_over(&self, machine: &str, label: &str) {
        self.0.metrics.passed_over();
        let mut told = self.0.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MOST_UNREADABLE && told.insert(format!("{machine} {label}")) {
            tracing::error!(machine, label, "the record of a label cannot be read; it is passed over");
        }
    }

    async fn read_if(&self, machine: &str, label: &str, wanted: bool) -> Result<Option<Record>, Error> {
        if wanted { self.read(machine, label).await } else { Ok(None) }
    }

    /// Deletes a label; one that is not there is no error.
    pub async fn delete(&self, machine: &str, label: &str) -> Result<(), Error> {
        let done = self
            .change((machine, label), &Asked::default(), |before, version, now_ms| {
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
            .await;
        match done {
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Tries the action of an errored label again, with a new count and the same token.
    pub async fn retry(&self, machine: &str, label: &str) -> Result<Answer, Error> {
        let done = self
            .change((machine, label), &Asked::default(), |before, _, _| match before {
                None => Err(Error::NoSuchLabel),
                Some(before) if before.status == Status::Deleted => Err(Error::Gone),
                Some(before) if before.status != Status::Errored => Err(Error::NotErrored),
                Some(before) => {
                    Ok(Edit::Write { record: before.clone(), happened: Some(Happened::Retried), rows: 0 })
                }
            })
            .await?;
        self.follow(machine, label, &done);
        let record = done.record.as_ref().ok_or(Error::NoSuchLabel)?;
        Ok(answer(record, false))
    }

    /// A label that is there.
    pub async fn label(&self, machine: &str, label: &str) -> Result<Record, Error> {
        // A machine that is not there is said first.
        let shard = self.0.store.shard_of(machine, label);
        self.0.definitions.of(machine, shard).await?;
        match self.read(machine, label).await? {
            None => Err(Error::NoSuchLabel),
            Some(record) if record.status == Status::Deleted => Err(Error::Gone),
            Some(record) => Ok(record),
        }
    }

    /// A label, also one that was deleted.
    pub async fn label_or_tombstone(&self, machine: &str, label: &str) -> Result<Record, Error> {
        self.read(machine, label).await?.ok_or(Error::NoSuchLabel)
    }

    /// Waits until the label has come to rest, at most so long.
    pub async fn rest(&self, machine: &str, label: &str, patience: Duration) -> Result<Answer, Error> {
        let deadline = Instant::now() + patience;
        let mut pause = LOOK_AGAIN;
        loop {
            let record = self.label(machine, label).await?;
            let rests = match record.status {
                Status::Waiting => record.work.held.is_none(),
                Status::Acting | Status::Choosing | Status::Looping => false,
                Status::Errored | Status::Ended | Status::Deleted => true,
            };
            if rests || Instant::now() >= deadline {
                return Ok(answer(&record, false));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN_MOST);
        }
    }

    /// The next names after `after`, in order, of labels in these states or with this status, over all shards.
    pub async fn list(
        &self,
        machine: &str,
        states: &[&str],
        status: Option<Status>,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for shard in 0..self.0.store.count() {
            match status.filter(|status| status.has_index()) {
                Some(status) => {
                    let status = status.as_str();
                    names.extend(self.0.store.with_status(shard, machine, status, after, most).await?);
                }
                None => {
                    for state in states {
                        names.extend(self.0.store.in_state(shard, machine, state, after, most).await?);
                    }
                }
            }
        }
        names.sort_unstable();
        names.dedup();
        names.truncate(most);
        Ok(names)
    }
}

fn check(record: &Record) -> Result<(), Error> {
    merge::check(&record.metadata).map_err(|error| Error::BadMetadata(error.to_string()))
}

/// Notes what a change was answered, for repeats of it.
pub(super) fn note(record: &mut Record, (key, body): (u64, u32)) {
    record.seen.retain(|seen| seen.key != key);
    record.seen.push(Seen {
        key,
        body,
        revision: record.revision + 1,
        visit: record.visit,
        since_ms: record.entered_ms,
        state: record.state.clone(),
        status: record.status,
    });
}

/// Whether the key is known of a record already.
pub(super) fn is_known(record: &Record, (key, _): (u64, u32)) -> bool {
    record.seen.iter().any(|seen| seen.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable_and_no_steps_of_a_path() {
        for good in ["a", "a b/c", "é", "...", &"x".repeat(256)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a\n", "\0", &"x".repeat(257)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
