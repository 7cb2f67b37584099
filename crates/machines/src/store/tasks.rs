//! Tasks over many labels, with their progress. Stored in the first shard.

use signalbox_store::Error;

use super::Shards;

/// The stored tasks of all machines. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Tasks(pub(crate) Shards);

/// The field of something that belongs to a machine.
pub(super) fn field(machine: &str, id: &str) -> String {
    format!("{machine} {id}")
}

impl Tasks {
    pub(crate) async fn put(&self, machine: &str, id: &str, json: &str) -> Result<(), Error> {
        let key = self.0.keys(0).tasks();
        self.0.redis(0).command("HSET").key(&key).arg(field(machine, id)).arg(json).run().await
    }

    /// Replaces a task, if it is still as it was read. Returns whether it is.
    pub(crate) async fn replace(
        &self,
        machine: &str,
        id: &str,
        (before, after): (&str, &str),
    ) -> Result<bool, Error> {
        self.0.replace(&self.0.keys(0).tasks(), &field(machine, id), before, Some(after)).await
    }

    pub(crate) async fn get(&self, machine: &str, id: &str) -> Result<Option<String>, Error> {
        let key = self.0.keys(0).tasks();
        self.0.redis(0).command("HGET").key(&key).arg(field(machine, id)).query().await
    }

    /// The tasks of all machines, in no order.
    pub(crate) async fn all(&self) -> Result<Vec<String>, Error> {
        self.0.redis(0).command("HVALS").key(&self.0.keys(0).tasks()).query().await
    }

    /// All tasks of a machine, in no order.
    pub(crate) async fn of(&self, machine: &str) -> Result<Vec<String>, Error> {
        let all: Vec<(String, String)> =
            self.0.redis(0).command("HGETALL").key(&self.0.keys(0).tasks()).query().await?;
        let own = |(name, _): &(String, String)| name.split(' ').next() == Some(machine);
        Ok(all.into_iter().filter(own).map(|(_, task)| task).collect())
    }

    pub(crate) async fn remove(&self, machine: &str, id: &str) -> Result<(), Error> {
        let key = self.0.keys(0).tasks();
        self.0.redis(0).command("HDEL").key(&key).arg(field(machine, id)).run().await
    }

    /// Notes that a task is to be canceled. The pacemaker that works on it writes the task, so this is stored apart from it.
    pub(crate) async fn cancel(&self, machine: &str, id: &str, by: &str) -> Result<(), Error> {
        let key = self.0.keys(0).cancels();
        self.0.redis(0).command("HSET").key(&key).arg(field(machine, id)).arg(by).run().await
    }

    /// Whether a task is to be canceled.
    pub(crate) async fn is_canceled(&self, machine: &str, id: &str) -> Result<bool, Error> {
        let key = self.0.keys(0).cancels();
        self.0.redis(0).command("HEXISTS").key(&key).arg(field(machine, id)).query().await
    }

    /// Forgets that a task was to be canceled, when it has ended.
    pub(crate) async fn forget_cancel(&self, machine: &str, id: &str) -> Result<(), Error> {
        let key = self.0.keys(0).cancels();
        self.0.redis(0).command("HDEL").key(&key).arg(field(machine, id)).run().await
    }
}
