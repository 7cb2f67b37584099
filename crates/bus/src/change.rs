//! The part of a label's record that is written in the step that publishes its events.
//!
//! The bus does not interpret labels; it passes these arguments to the fragment of the publish script that does
//! (`scripts/labels.lua`), so that a label's transition and its event are one atomic step.

use crate::EventId;

/// A change of a label: the record that must exist, and the record that replaces it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// The label's machine.
    pub machine: String,
    /// How the stored record must begin; empty when there must be none.
    pub expected: Vec<u8>,
    /// The version of the machine's definition that must be current in the shard; any, when absent.
    pub version: Option<u64>,
    /// The new record up to where the id of the change's first event goes, in eight bytes. Begins with its header.
    pub head: Vec<u8>,
    /// The new record behind that id.
    pub tail: Vec<u8>,
    /// After how many milliseconds the record is forgotten.
    pub ttl_ms: Option<u64>,
    /// Bytes of the record that it replaces; 0 if there is none, or if that record expires, because it is not counted.
    pub replaced: usize,
    /// The id of the label's last event, if it had any. The bus does not remember the events of labels.
    pub prev: Option<EventId>,
    /// The changes of the indexes.
    pub indexes: Vec<Index>,
    /// What is appended to the label's log.
    pub log: Log,
}

/// Lines that are appended to the log of a label. Without lines the log stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    /// The lines, the oldest first.
    pub lines: Vec<Vec<u8>>,
    /// How many lines are kept.
    pub keep: usize,
    /// After how many milliseconds without another line the log is forgotten.
    pub ttl_ms: u64,
}

/// A member that enters or leaves a sorted set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// The key behind `machine:`.
    pub key: String,
    /// The member.
    pub member: String,
    /// Its score; `None` removes the entry.
    pub score: Option<u64>,
}

impl Change {
    /// Bytes that it takes on its way, about.
    pub(super) fn bytes(&self) -> usize {
        let indexes = self.indexes.iter().map(|index| index.key.len() + index.member.len() + 32);
        self.machine.len()
            + self.expected.len()
            + self.head.len()
            + self.tail.len()
            + 128
            + indexes.sum::<usize>()
            + self.log.lines.iter().map(|line| line.len() + 16).sum::<usize>()
    }
}
