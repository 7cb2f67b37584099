//! Replies of scripts: a word, then its values.

use signalbox_store::{FromRedisValue, Value, from_redis_value};

use super::{TableMark, desired::newest};
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

    pub(super) fn word(&self) -> Result<String, Error> {
        self.at(0)
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
        let lineage: String = self.at(3)?;
        Ok(TableMark { epoch: newest(&lineage).unwrap_or("").to_owned(), serial: self.at(2)? })
    }

    /// A reply that the script's header does not list.
    pub(super) fn unexpected(&self) -> Error {
        Error::Reply { script: self.script, reply: format!("{:?}", self.items) }
    }
}
