//! Tasks over many labels, with their progress, and which of them run. Stored in the first shard.
//!
//! The tasks of a machine are in a hash of the machine, so that no request reads those of other machines. The tasks
//! that run are also entries of one index of all machines. A script writes both, so that a task that runs is always in
//! the index.

use std::sync::Arc;

use signalbox_store::{Call, Error, FabricRole, Script};
use tokio::sync::OnceCell;

use super::Shards;

pub(super) static TASK: Script<FabricRole> =
    Script::new("machines/task", include_str!("../scripts/task.lua"));
pub(super) static ADOPT_TASK: Script<FabricRole> =
    Script::new("machines/adopt_task", include_str!("../scripts/adopt_task.lua"));

/// Entries of the index that are read together.
const PAGE: usize = 1_000;
/// Tasks of earlier versions that are read together. One of them may have a megabyte.
const OLD_PAGE: usize = 10;

/// The stored tasks of all machines. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    shards: Shards,
    /// How long the tasks of a machine are kept of which none runs.
    kept_ms: u64,
    /// Set when this process has moved the tasks of earlier versions once.
    pub(crate) adopted: Arc<OnceCell<()>>,
}

/// The name of a task, and the client with whose token it ends; empty for a task that no client ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskName<'a> {
    pub(crate) machine: &'a str,
    pub(crate) id: &'a str,
    pub(crate) client: &'a str,
}

impl TaskName<'_> {
    /// The entry of the index. Machine and ID contain no space.
    fn entry(self) -> String {
        format!("{} {} {}", self.machine, self.id, self.client)
    }
}

/// An entry of the index of tasks that run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running(String);

impl Running {
    pub(crate) fn name(&self) -> TaskName<'_> {
        let mut words = self.0.splitn(3, ' ');
        let mut next = || words.next().unwrap_or_default();
        TaskName { machine: next(), id: next(), client: next() }
    }
}

/// The result of [`Tasks::begin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The task is stored.
    Stored,
    /// There is a task with this ID.
    Exists,
    /// The limit of tasks that run is reached.
    Full,
}

/// A change of a stored task.
#[derive(Default)]
struct Write<'a> {
    before: &'a str,
    after: &'a str,
    runs: bool,
    /// 0 for none.
    limit: usize,
}

/// The field of something that belongs to a machine.
pub(super) fn field(machine: &str, id: &str) -> String {
    format!("{machine} {id}")
}

impl Tasks {
    pub(crate) fn new(shards: Shards, kept_ms: u64) -> Self {
        Self { shards, kept_ms, adopted: Arc::default() }
    }

    /// Starts a call of a script that writes a task.
    fn call<'a>(&self, script: &'a Script<FabricRole>, machine: &str) -> Call<'a, FabricRole> {
        let keys = self.shards.keys(0);
        script.call().key(&keys.tasks(machine)).key(&keys.running())
    }

    async fn write(&self, name: TaskName<'_>, write: Write<'_>) -> Result<i64, Error> {
        let entry = if write.runs { name.entry() } else { String::new() };
        let call = self.call(&TASK, name.machine).arg(name.machine).arg(name.id);
        let call = call.arg(write.before).arg(write.after).arg(entry).arg(write.limit).arg(self.kept_ms);
        call.run(self.shards.redis(0)).await
    }

    /// Stores a new task, which runs, unless `limit` tasks of its machine run.
    pub(crate) async fn begin(&self, name: TaskName<'_>, json: &str, limit: usize) -> Result<Begun, Error> {
        let write = Write { after: json, runs: true, limit, ..Write::default() };
        Ok(match self.write(name, write).await? {
            1 => Begun::Stored,
            -1 => Begun::Full,
            _ => Begun::Exists,
        })
    }

    /// Replaces a task, if it is still as it was read. Returns whether it was.
    pub(crate) async fn replace(
        &self,
        name: TaskName<'_>,
        (before, after): (&str, &str),
        runs: bool,
    ) -> Result<bool, Error> {
        Ok(self.write(name, Write { before, after, runs, limit: 0 }).await? == 1)
    }

    /// Removes a task that does not run from the index, if it is still as it was read, or still absent.
    pub(crate) async fn unlist(&self, name: TaskName<'_>, before: Option<&str>) -> Result<(), Error> {
        let write = Write { before: before.unwrap_or_default(), ..Write::default() };
        self.write(name, write).await.map(drop)
    }

    pub(crate) async fn get(&self, machine: &str, id: &str) -> Result<Option<String>, Error> {
        let key = self.shards.keys(0).tasks(machine);
        self.shards.redis(0).command("HGET").key(&key).arg(id).query().await
    }

    /// All tasks of a machine, in no order.
    pub(crate) async fn of(&self, machine: &str) -> Result<Vec<String>, Error> {
        self.shards.redis(0).command("HVALS").key(&self.shards.keys(0).tasks(machine)).query().await
    }

    /// Removes a task that has ended.
    pub(crate) async fn remove(&self, machine: &str, id: &str) -> Result<(), Error> {
        let key = self.shards.keys(0).tasks(machine);
        self.shards.redis(0).command("HDEL").key(&key).arg(id).run().await
    }

    /// The tasks of all machines that run, by name.
    pub(crate) async fn running(&self) -> Result<Vec<Running>, Error> {
        let (mut all, mut first) = (Vec::new(), "-".to_owned());
        loop {
            let page = self.range(&first, "+", PAGE).await?;
            let last = page.last().filter(|_| page.len() == PAGE).map(|last| format!("({}", last.0));
            all.extend(page);
            match last {
                Some(last) => first = last,
                None => return Ok(all),
            }
        }
    }

    /// The tasks of a machine that run.
    pub(crate) async fn running_of(&self, machine: &str) -> Result<Vec<Running>, Error> {
        // The exclamation mark follows the space in the order of bytes.
        self.range(&format!("[{machine} "), &format!("({machine}!"), PAGE).await
    }

    async fn range(&self, first: &str, last: &str, limit: usize) -> Result<Vec<Running>, Error> {
        let command = self.shards.redis(0).command("ZRANGE").key(&self.shards.keys(0).running());
        let found: Vec<String> = command.arg((first, last, "BYLEX", "LIMIT", 0, limit)).query().await?;
        Ok(found.into_iter().map(Running).collect())
    }

    /// The next tasks in the hash that all machines shared in earlier versions: machine and ID, and JSON. Returns also
    /// where the next page begins; 0 at the end.
    pub(crate) async fn old_page(&self, cursor: u64) -> Result<(u64, Vec<(String, String)>), Error> {
        let command = self.shards.redis(0).command("HSCAN").key(&self.shards.keys(0).old_tasks());
        command.arg(cursor).arg("COUNT").arg(OLD_PAGE).query().await
    }

    /// Moves a task from the hash that all machines shared in earlier versions to that of its machine, if it is still
    /// as it was read. Returns whether it was.
    pub(crate) async fn adopt_one(
        &self,
        name: TaskName<'_>,
        (before, after): (&str, &str),
        runs: bool,
    ) -> Result<bool, Error> {
        let entry = if runs { name.entry() } else { String::new() };
        let call = self.call(&ADOPT_TASK, name.machine).key(&self.shards.keys(0).old_tasks());
        let call = call.arg(name.machine).arg(name.id).arg(before).arg(after).arg(entry).arg(self.kept_ms);
        Ok(call.run::<u64>(self.shards.redis(0)).await? == 1)
    }

    /// Notes that a task is to be canceled. The pacemaker that works on it writes the task, so this is stored apart from it.
    pub(crate) async fn cancel(&self, machine: &str, id: &str, by: &str) -> Result<(), Error> {
        let key = self.shards.keys(0).cancels();
        self.shards.redis(0).command("HSET").key(&key).arg(field(machine, id)).arg(by).run().await
    }

    /// Whether a task is to be canceled.
    pub(crate) async fn is_canceled(&self, machine: &str, id: &str) -> Result<bool, Error> {
        let key = self.shards.keys(0).cancels();
        self.shards.redis(0).command("HEXISTS").key(&key).arg(field(machine, id)).query().await
    }

    /// Forgets that a task was to be canceled, when it has ended.
    pub(crate) async fn forget_cancel(&self, machine: &str, id: &str) -> Result<(), Error> {
        let key = self.shards.keys(0).cancels();
        self.shards.redis(0).command("HDEL").key(&key).arg(field(machine, id)).run().await
    }
}
