//! Answers to changes of labels, and the idempotency keys under which a record stores them.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    Error,
    labels::Operation,
    record::{Record, Seen, Status},
};

/// The answer to a change, and to every repeat of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The label's state after the change.
    pub state: String,
    /// Its status.
    pub status: Status,
    /// When it entered the state, Unix milliseconds.
    pub since_ms: u64,
    /// The number of its visit.
    pub visit: u64,
    /// The number of the change.
    pub revision: u64,
    /// Its metadata after the change; `None` in the answer to a repeated request.
    pub metadata: Option<Value>,
    /// Whether this answers a repeated request.
    pub repeated: bool,
}

impl Answer {
    /// The answer that describes a record.
    pub(crate) fn of(record: Record) -> Self {
        Self {
            state: record.state.to_string(),
            status: record.status,
            since_ms: record.entered_ms,
            visit: record.visit,
            revision: record.revision,
            metadata: Some(record.metadata),
            repeated: false,
        }
    }

    /// The answer to a repeat of a change.
    fn to_repeat(seen: &Seen) -> Self {
        Self {
            state: seen.state.to_string(),
            status: seen.status,
            since_ms: seen.since_ms,
            visit: seen.visit,
            revision: seen.revision,
            metadata: None,
            repeated: true,
        }
    }
}

/// A request with an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyedRequest {
    /// Digest of the key.
    key: u64,
    /// Digest of the request.
    body: u32,
    /// Whether the key is stored only with a change.
    only_changes: bool,
}

/// The first eight bytes of a digest of these parts.
fn digest(parts: &[&[u8]]) -> u64 {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl KeyedRequest {
    /// A request of some kind under a key of a client. Another client may use the same key.
    pub(crate) fn new((client, key): (&str, &str), kind: &str, request: &[u8]) -> Self {
        Self {
            key: digest(&[b"client", client.as_bytes(), key.as_bytes()]),
            body: (digest(&[kind.as_bytes(), request]) >> 32) as u32,
            only_changes: false,
        }
    }

    /// A task, which has one operation. The operation is not compared, because a later release may write it in another way.
    /// Stored only with a change: a task does not write the labels that it leaves as they are.
    pub(crate) fn of_task(id: &str) -> Self {
        Self { key: digest(&[b"task", id.as_bytes()]), body: 0, only_changes: true }
    }

    /// What distinguishes a label that the request creates ([`Record::origin`]): 48 bits, because a record stores its distance
    /// from a time.
    pub(crate) fn origin(self) -> u64 {
        self.key >> 16
    }

    /// An operation under a key of a client.
    pub(crate) fn of(key: (&str, &str), operation: &Operation) -> Self {
        Self::new(key, operation.word(), &serde_json::to_vec(operation).unwrap_or_default())
    }

    /// Whether the key is stored even if the request changes nothing. Otherwise a repeat after another change would change
    /// the label.
    pub(crate) fn is_always_stored(self) -> bool {
        !self.only_changes
    }

    /// Whether a record contains the key.
    pub(crate) fn is_in(self, record: &Record) -> bool {
        record.seen.iter().any(|seen| seen.key == self.key)
    }

    /// The answer that a record contains under the key. [`Error::Conflict`] if it answers another request.
    pub(crate) fn answer_in(self, record: &Record) -> Result<Option<Answer>, Error> {
        match record.seen.iter().rev().find(|seen| seen.key == self.key) {
            None => Ok(None),
            Some(seen) if seen.body == self.body => Ok(Some(Answer::to_repeat(seen))),
            Some(_) => Err(Error::Conflict),
        }
    }

    /// Adds the answer of the next commit to a record.
    pub(crate) fn store_in(self, record: &mut Record) {
        record.seen.retain(|seen| seen.key != self.key);
        record.seen.push(Seen {
            key: self.key,
            body: self.body,
            revision: record.revision + 1,
            visit: record.visit,
            since_ms: record.entered_ms,
            state: record.state.clone(),
            status: record.status,
        });
    }
}
