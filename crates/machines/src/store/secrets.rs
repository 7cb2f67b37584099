//! Encrypted secrets of machines. Stored in the first shard.

use std::collections::BTreeMap;

use signalbox_store::Error;

use super::{Shards, tasks::field};

/// The stored secrets of all machines. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StoredSecrets(pub(crate) Shards);

impl StoredSecrets {
    pub(crate) async fn put(&self, machine: &str, name: &str, json: &str) -> Result<(), Error> {
        let key = self.0.keys(0).secrets();
        self.0.redis(0).command("HSET").key(&key).arg(field(machine, name)).arg(json).run().await
    }

    pub(crate) async fn remove(&self, machine: &str, name: &str) -> Result<(), Error> {
        let key = self.0.keys(0).secrets();
        self.0.redis(0).command("HDEL").key(&key).arg(field(machine, name)).run().await
    }

    /// Some secrets of a machine, in the order of `names`, at least one.
    pub(crate) async fn some(&self, machine: &str, names: &[&str]) -> Result<Vec<Option<String>>, Error> {
        let key = self.0.keys(0).secrets();
        let mut command = self.0.redis(0).command("HMGET").key(&key);
        for name in names {
            command = command.arg(field(machine, name));
        }
        command.query().await
    }

    /// The secrets of all machines: machine and name → JSON.
    pub(crate) async fn all(&self) -> Result<BTreeMap<(String, String), String>, Error> {
        let key = self.0.keys(0).secrets();
        let all: Vec<(String, String)> = self.0.redis(0).command("HGETALL").key(&key).query().await?;
        let parts = |(field, json): (String, String)| {
            let (machine, name) = field.split_once(' ')?;
            Some(((machine.to_owned(), name.to_owned()), json))
        };
        Ok(all.into_iter().filter_map(parts).collect())
    }

    /// Replaces a secret, or removes it, if it is still stored as `before`. Returns whether it was.
    pub(crate) async fn replace(
        &self,
        (machine, name): (&str, &str),
        before: &str,
        after: Option<&str>,
    ) -> Result<bool, Error> {
        self.0.replace(&self.0.keys(0).secrets(), &field(machine, name), before, after).await
    }
}
