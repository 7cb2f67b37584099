//! Replies of scripts: a word, then its values.

use signalbox_store::{FromRedisValue, Value, from_redis_value};

use super::{TableMark, desired::mark};
use crate::Error;

/// A script's reply, before it becomes the enum of the one function that called it.
#[derive(Debug)]
pub(super) struct Reply {
    script: &'static str,
    items: Vec<Value>,
}

impl Reply {
    pub(super) fn new(script: &'static str, items: Vec<Value>) -> Self {
        Self { script, items }
    }

    /// The first word. Refusals that mean the same in every script are errors.
    pub(super) fn word(&self) -> Result<String, Error> {
        let word: String = self.at(0)?;
        match word.as_str() {
            // This is not the table that was meant, or it has lost changes.
            "foreign" | "behind" => Err(Error::Resyncing { recorded: false }),
            "blocked" => Err(Error::Blocked { key: self.at(1)?, recorded: false }),
            "fenced" => Err(Error::Fenced { epoch: self.at(1)? }),
            _ => Ok(word),
        }
    }

    pub(super) fn at<T: FromRedisValue>(&self, index: usize) -> Result<T, Error> {
        let value = self.items.get(index).cloned().ok_or_else(|| self.unexpected())?;
        from_redis_value(value).map_err(|_| self.unexpected())
    }

    /// All values from `index`.
    pub(super) fn rest<T: FromRedisValue>(&self, index: usize) -> Result<Vec<T>, Error> {
        (index..self.items.len()).map(|index| self.at(index)).collect()
    }

    /// The table after a change: its serial at 2, its lineage at 3.
    pub(super) fn table_mark(&self) -> Result<TableMark, Error> {
        mark(&self.at::<String>(3)?, self.at(2)?).ok_or_else(|| self.unexpected())
    }

    /// A reply that the script's header does not list.
    pub(super) fn unexpected(&self) -> Error {
        Error::Reply { script: self.script, reply: format!("{:?}", self.items) }
    }
}
