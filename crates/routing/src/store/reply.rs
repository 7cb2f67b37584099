//! What scripts answer: a word, then what belongs to it.

use signalbox_store::{FromRedisValue, Value, from_redis_value};

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

    /// Everything from `index` on.
    pub(super) fn rest<T: FromRedisValue>(&self, index: usize) -> Result<Vec<T>, Error> {
        (index..self.items.len()).map(|index| self.at(index)).collect()
    }

    /// A reply that the script's header does not name.
    pub(super) fn unexpected(&self) -> Error {
        Error::Reply { script: self.script, reply: format!("{:?}", self.items) }
    }
}
