//! What a source shows at one moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use signalbox_client::routes::NewInstance;

use crate::Error;

/// A place in which instances are described.
pub trait Source: Send {
    /// Reads everything that exists now.
    ///
    /// # Errors
    /// When the answer may be incomplete.
    fn read(&mut self) -> impl Future<Output = Result<Snapshot, Error>> + Send;

    /// Returns when another reading may differ. It may be dropped at any time.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// The longest time until the next reading, if the source limits it.
    fn expires(&self) -> Option<Duration> {
        None
    }
}

/// An entry of a source.
#[derive(Debug, Clone)]
pub enum Entry {
    /// An instance.
    Instance(Box<NewInstance>),
    /// Something that exists and cannot be registered now, with the reason. An instance that it was before stays.
    Unclear(String),
    /// Something that exists and is not ready yet. It is not a problem to be reported.
    Pending,
}

/// What a source shows at one moment, by the key of each entry.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The entries. A key has only letters, digits, `-` and `_` ([`key`]).
    pub entries: BTreeMap<String, Entry>,
    /// Keys whose end the source has shown.
    pub ended: BTreeSet<String>,
}

impl Snapshot {
    /// Adds an entry. A second one with the same key makes the key unclear.
    pub(crate) fn add(&mut self, name: &str, entry: Entry) {
        let key = key(name);
        let entry = if self.entries.contains_key(&key) {
            Entry::Unclear(format!("two entries have the name {key}"))
        } else {
            entry
        };
        self.entries.insert(key, entry);
    }
}

/// A name with the characters that a key may have.
pub(crate) fn key(name: &str) -> String {
    const MAX: usize = 80;
    let plain = |char: char| if char.is_ascii_alphanumeric() || char == '-' { char } else { '_' };
    name.chars().take(MAX).map(plain).collect()
}
