//! Tasks: one operation for all labels that match a filter, in the background.
//!
//! A task is an entry of the first shard's due set, so it runs under that shard's lease, on whichever pacemaker holds
//! it. It works on a page of labels at a time and stores its progress after each page. A process that continues it
//! repeats at most one page. Each label stores the task as an idempotency key, so that an operation is applied to it
//! once. A label that entered its state after the task began is not skipped or moved.
//!
//! A request about a machine reads only the tasks of this machine, and what concerns all machines reads only the index
//! of the tasks that run. So a task is small: its filter and its operation have a limit, and only a deletion that runs
//! has the names of states.
//!
//! Deleting a machine is a task too. Its definition stops being active first, so no label can be created or changed;
//! then its labels are deleted, and finally its versions. The number of its last version is kept in each shard, so that a
//! process that was paused does not make an earlier version active again, and a machine with the same name does not reuse the
//! numbers that other processes remember. The task ends no version after that one.

use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    Error, Secrets,
    clock::Clock,
    definitions::{AllStates, Definitions},
    label_store::LabelStore,
    labels::{Labels, Operation},
    record::Record,
    search::{Filter, Search},
    store::{Begun, Due, DueSet, Index, Records, TaskName, Tasks, Versions},
};

/// Whether the tokens of a client have ended.
pub type HasEnded = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Labels of a page.
const PAGE: usize = 100;
/// Records that a scan reads together.
const SCAN: usize = 1_000;
/// Tasks of a machine that may run at the same time.
const MAX_RUNNING: usize = 5;
/// Ended tasks of a machine that are kept, and as many deletions of machines of its name; and for how long.
const MAX_ENDED: usize = 20;
pub(crate) const KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// The maximum of bytes of a task's filter and operation together, as JSON.
const MAX_BYTES: usize = 4_096;
/// The maximum of labels per second that can be set as a limit.
pub const MAX_RATE: u32 = 10_000;

/// What a task does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// An operation for each label that matches.
    Each(Operation),
    /// Deletes the machine with all labels.
    DeleteMachine,
}

/// Whether a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// It runs, or will in a moment.
    Running,
    /// It has worked on every label.
    Done,
    /// A client canceled it.
    Canceled,
    /// It cannot continue.
    Failed,
}

impl TaskState {
    /// The word of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
        }
    }
}

/// A task and its progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its ID.
    pub id: String,
    /// Its machine.
    pub machine: String,
    /// What it does.
    pub job: Job,
    /// For which labels.
    pub filter: Filter,
    /// Labels per second at most.
    pub rate: Option<u32>,
    /// The name of the token that started it.
    pub by: String,
    /// The client with this token, as the event bus identifies clients. The task ends with the token.
    #[serde(default)]
    pub client: String,
    /// Whether it runs.
    pub state: TaskState,
    /// When it was started, Unix milliseconds.
    pub created_ms: u64,
    /// When it last progressed, Unix milliseconds.
    pub updated_ms: u64,
    /// Labels of the machine when it was started.
    pub labels: u64,
    /// Labels that were examined.
    pub checked: u64,
    /// Labels that were changed.
    pub changed: u64,
    /// Labels that match and did not need a change.
    pub unchanged: u64,
    /// Labels that could not be changed.
    pub failed: u64,
    /// The last failure.
    pub error: Option<String>,
    /// The last label that was worked on.
    cursor: Option<String>,
    /// The states of a machine that is deleted. Empty when the task has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    states: Vec<String>,
    /// The search for labels of a machine that is deleted in other states, if one of its versions cannot be read.
    #[serde(default)]
    scan: Option<Scan>,
    /// The last version of a machine that is deleted. A later one is another machine of its name. `None` until it is known.
    #[serde(default)]
    last: Option<u64>,
}

impl Task {
    /// Its name, with the client whose end cancels it.
    pub(crate) fn name(&self) -> TaskName<'_> {
        let client = match self.job {
            Job::Each(_) => &*self.client,
            Job::DeleteMachine => "",
        };
        TaskName { machine: &self.machine, id: &self.id, client }
    }

    /// The task as it is stored. Drops the names of states unless they are needed.
    pub(crate) fn stored_json(&mut self) -> String {
        if self.job != Job::DeleteMachine || self.state != TaskState::Running {
            self.states = Vec::new();
        }
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Where a scan of all labels continues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Scan {
    shard: usize,
    cursor: u64,
}

/// Runs tasks.
#[derive(Debug)]
pub struct TaskRunner {
    pub(crate) tasks: Tasks,
    pub(crate) due: DueSet,
    pub(crate) search: Search,
    pub(crate) labels: Labels,
    pub(crate) store: Arc<LabelStore>,
    pub(crate) records: Records,
    pub(crate) versions: Versions,
    pub(crate) secrets: Secrets,
    pub(crate) definitions: Definitions,
    pub(crate) clock: Clock,
    /// Labels that are changed at a time.
    pub(crate) concurrency: usize,
}

impl TaskRunner {
    /// Starts an operation for all labels that match. With a key, a repeat returns the task that was started first.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], [`Error::NoSuchState`], [`Error::BadFilter`], [`Error::TooManyTasks`],
    /// [`Error::Conflict`], or a failure of the fabric.
    pub async fn start(
        &self,
        machine: &str,
        operation: Operation,
        filter: Filter,
        rate: Option<u32>,
        (by, client): (&str, &str),
        key: Option<&str>,
    ) -> Result<Task, Error> {
        check_size(&operation, &filter)?;
        if let Operation::Move { to } = &operation
            && self.definitions.current(machine).await?.machine.state(to).is_none()
        {
            return Err(Error::NoSuchState(to.clone()));
        }
        // An invalid filter is rejected now.
        self.search.page(machine, &filter, None, 1).await?;
        let id = new_id(machine, by, key);
        let job = Job::Each(operation);
        let first = match self.get(machine, &id).await {
            Err(Error::NoSuchTask) => {
                let asked = (job.clone(), filter.clone());
                match self.store_new(id.clone(), machine, asked, rate, (by, client)).await? {
                    Some(task) => return Ok(task),
                    // A repeat was faster.
                    None => self.get(machine, &id).await?,
                }
            }
            found => found?,
        };
        if (&first.job, &first.filter, first.rate) != (&job, &filter, rate) {
            return Err(Error::Conflict);
        }
        if first.state == TaskState::Running {
            self.due.ensure(0, &member(machine, &id), first.updated_ms).await?;
        }
        Ok(first)
    }

    /// Continues tasks that run and are not in the due set, because the process that started them died, or the fabric
    /// lost the entry. Returns how many.
    pub(crate) async fn restore(&self) -> Result<usize, Error> {
        self.tasks.ready().await?;
        let now_ms = self.clock.now_ms().await?;
        let mut restored = 0;
        // The tasks are not read. One that does not run is removed from the index when its entry is due.
        for running in self.tasks.running().await? {
            let TaskName { machine, id, .. } = running.name();
            restored += usize::from(self.due.ensure(0, &member(machine, id), now_ms).await?);
        }
        Ok(restored)
    }

    /// The deletion of a machine that the client started under this key. The machine may have been created again.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the key started another task, or a failure of the fabric.
    pub async fn deletion(&self, machine: &str, by: &str, key: Option<&str>) -> Result<Option<Task>, Error> {
        let Some(key) = key else { return Ok(None) };
        match self.get(machine, &id_of(machine, by, key)).await {
            Ok(task) if task.job == Job::DeleteMachine => Ok(Some(task)),
            Ok(_) => Err(Error::Conflict),
            Err(Error::NoSuchTask) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a machine with all of its labels. With a key, a repeat returns the task that was started first.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], [`Error::ApplyUnderWay`], [`Error::TooManyTasks`], [`Error::Conflict`], or a failure of the
    /// fabric.
    pub async fn delete_machine(
        &self,
        machine: &str,
        (by, client): (&str, &str),
        key: Option<&str>,
    ) -> Result<Task, Error> {
        if let Some(first) = self.deletion(machine, by, key).await? {
            return Ok(first);
        }
        self.definitions.check_exists(machine).await?;
        if self.versions.applying().await?.iter().any(|one| one.machine == machine) {
            return Err(Error::ApplyUnderWay);
        }
        let id = new_id(machine, by, key);
        let job = (Job::DeleteMachine, Filter::default());
        let Some(mut task) = self.store_new(id, machine, job, None, (by, client)).await? else {
            // A repeat was faster.
            return self.deletion(machine, by, key).await?.ok_or(Error::Conflict);
        };
        self.retire(&mut task).await?;
        tracing::info!(machine, by, "machine deleted; its labels follow");
        Ok(task)
    }

    /// Stores a new task, unless there is one with this ID.
    async fn store_new(
        &self,
        id: String,
        machine: &str,
        (job, filter): (Job, Filter),
        rate: Option<u32>,
        (by, client): (&str, &str),
    ) -> Result<Option<Task>, Error> {
        let now_ms = self.clock.now_ms().await?;
        // Checked first: a rejected call must not read all versions and count the labels of all states.
        self.make_room(machine, now_ms).await?;
        let AllStates { names: states, complete } = self.definitions.all_states(machine).await?;
        let scan = (job == Job::DeleteMachine && !complete).then(Scan::default);
        let labels = self.records.count_states(machine, &states).await?.into_iter().sum();
        let mut task = Task {
            id,
            machine: machine.to_owned(),
            job,
            filter,
            rate,
            by: by.to_owned(),
            client: client.to_owned(),
            state: TaskState::Running,
            created_ms: now_ms,
            updated_ms: now_ms,
            labels,
            checked: 0,
            changed: 0,
            unchanged: 0,
            failed: 0,
            error: None,
            cursor: None,
            states,
            scan,
            last: None,
        };
        let json = task.stored_json();
        match self.tasks.begin(task.name(), &json, MAX_RUNNING).await? {
            Begun::Stored => {}
            Begun::Exists => return Ok(None),
            // Another one was started at the same time.
            Begun::Full => return Err(Error::TooManyTasks(MAX_RUNNING)),
        }
        self.due.ensure(0, &member(machine, &task.id), now_ms).await?;
        Ok(Some(task))
    }

    /// Forgets tasks that ended long ago.
    async fn make_room(&self, machine: &str, now_ms: u64) -> Result<(), Error> {
        let all = self.list(machine).await?;
        let (running, ended): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|task| task.state == TaskState::Running);
        if running.len() >= MAX_RUNNING {
            return Err(Error::TooManyTasks(MAX_RUNNING));
        }
        let old = |(n, task): &(usize, Task)| *n >= MAX_ENDED || task.updated_ms + KEPT_MS < now_ms;
        // A deletion is found by its key: other tasks do not displace it.
        let (deletions, others): (Vec<_>, Vec<_>) =
            ended.into_iter().partition(|task| task.job == Job::DeleteMachine);
        for ended in [deletions, others] {
            for (_, task) in ended.into_iter().enumerate().filter(old) {
                self.tasks.remove(machine, &task.id).await?;
            }
        }
        Ok(())
    }

    /// Replaces a task, if it is still stored as `before`. Returns it as it is stored then.
    async fn replace(&self, before: &str, task: &mut Task) -> Result<Option<String>, Error> {
        let (json, runs) = (task.stored_json(), task.state == TaskState::Running);
        let replaced = self.tasks.replace(task.name(), (before, &json), runs).await?;
        Ok(replaced.then_some(json))
    }

    /// The tasks of a machine, the newest first. The machine may have been deleted.
    pub async fn list(&self, machine: &str) -> Result<Vec<Task>, Error> {
        self.tasks.ready().await?;
        let all = self.tasks.of(machine).await?;
        let mut tasks: Vec<Task> = all.iter().filter_map(|task| serde_json::from_str(task).ok()).collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.created_ms));
        Ok(tasks)
    }

    /// A task.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`], or a failure of the fabric.
    pub async fn get(&self, machine: &str, id: &str) -> Result<Task, Error> {
        self.read(machine, id).await.map(|(_, task)| task)
    }

    /// A task, and as it is stored.
    pub(crate) async fn read(&self, machine: &str, id: &str) -> Result<(String, Task), Error> {
        self.tasks.ready().await?;
        let stored = self.tasks.get(machine, id).await?.ok_or(Error::NoSuchTask)?;
        let task = serde_json::from_str(&stored).map_err(|_| Error::NoSuchTask)?;
        Ok((stored, task))
    }

    /// Ends a task before its next page. What it has changed remains. A task that has ended stays as it is.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`], or a failure of the fabric. Deleting a machine cannot be canceled:
    /// [`Error::BeingDeleted`].
    pub async fn cancel(&self, machine: &str, id: &str, by: &str) -> Result<Task, Error> {
        let task = self.get(machine, id).await?;
        if task.state == TaskState::Running {
            if task.job == Job::DeleteMachine {
                return Err(Error::BeingDeleted);
            }
            self.tasks.cancel(machine, id, by).await?;
            // It may wait for its rate.
            self.due.set(0, &member(machine, id), Some(task.created_ms)).await?;
        }
        Ok(task)
    }

    /// Cancels the tasks of clients whose tokens have ended. The deletion of a machine continues, because no one could use what is
    /// left of it. `has_ended` is awaited after the tasks were read, so it knows the token of each of them.
    ///
    /// # Errors
    /// A failure of the fabric, or the one of `has_ended`.
    pub async fn end_lost<E: From<Error>>(
        &self,
        has_ended: impl Future<Output = Result<HasEnded, E>> + Send,
    ) -> Result<(), E> {
        self.tasks.ready().await?;
        let mut running = self.tasks.running().await.map_err(Error::from)?;
        running.retain(|running| !running.name().client.is_empty());
        if running.is_empty() {
            return Ok(());
        }
        let has_ended = has_ended.await?;
        for running in &running {
            let TaskName { machine, id, client } = running.name();
            if !has_ended(client) || self.tasks.find_running(machine, id).await?.is_none() {
                continue;
            }
            match self.cancel(machine, id, "the end of its token").await {
                Ok(task) => {
                    tracing::info!(machine, task = id, by = task.by, "task of an ended token canceled");
                }
                Err(Error::NoSuchTask) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Works on the next page of a task whose entry is due.
    pub(crate) async fn run(&self, entry: &str, machine: &str, id: &str) -> Result<(), Error> {
        let Some((mut stored, mut task)) = self.tasks.find_running(machine, id).await? else {
            return Ok(self.due.set(0, entry, None).await?);
        };
        if task.job == Job::DeleteMachine && task.last.is_none() {
            (stored, task) = self.find_last(machine, id).await?;
        }
        self.work(entry, &stored, task).await
    }

    /// Works on the next page of a task that was read.
    pub(crate) async fn work(&self, entry: &str, stored: &str, mut task: Task) -> Result<(), Error> {
        let (machine, id) = (&*task.machine.clone(), &*task.id.clone());
        let before = task.checked;
        if self.tasks.is_canceled(machine, id).await? {
            task.state = TaskState::Canceled;
        } else {
            let done = match task.job.clone() {
                Job::Each(operation) => self.page(&mut task, &operation).await,
                Job::DeleteMachine => self.delete_page(&mut task).await,
            };
            match done {
                Ok(true) => task.state = TaskState::Done,
                Ok(false) => {}
                Err(error @ (Error::NoSuchMachine | Error::NoSuchState(_) | Error::BadFilter(_))) => {
                    (task.state, task.error) = (TaskState::Failed, Some(error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        task.updated_ms = self.clock.now_ms().await?;
        // Otherwise this process was paused, and another one has continued the task.
        if self.replace(stored, &mut task).await?.is_none() {
            return Ok(());
        }
        if task.state == TaskState::Running {
            let pause_ms =
                task.rate.map_or(0, |rate| (task.checked - before) * 1000 / u64::from(rate.max(1)));
            return Ok(self.due.set(0, entry, Some(task.updated_ms + pause_ms)).await?);
        }
        tracing::info!(machine, task = id, state = task.state.as_str(), changed = task.changed, "task ended");
        self.tasks.forget_cancel(machine, id).await?;
        Ok(self.due.set(0, entry, None).await?)
    }

    /// Applies the operation to the next labels. Returns whether these were the last.
    async fn page(&self, task: &mut Task, operation: &Operation) -> Result<bool, Error> {
        let limit = task.rate.map_or(PAGE, |rate| PAGE.min(usize::try_from(rate).unwrap_or(PAGE)).max(1));
        let found = self.search.page(&task.machine, &task.filter, task.cursor.as_deref(), limit).await?;
        // A label that came into its state since then was moved by this task, or by something else.
        let was_there =
            |(_, record): &(String, Record)| !operation.moves_on() || record.entered_ms <= task.created_ms;
        let machine = task.machine.clone();
        // The page may be repeated; its ID keeps an operation from being applied to a label twice.
        let (labels, id) = (self.labels.by(&task.by), task.id.clone());
        let names: Vec<String> = found.labels.into_iter().filter(was_there).map(|(name, _)| name).collect();
        let (labels, machine, id) = (&labels, &*machine, &*id);
        let work = |name: String| async move {
            let result = labels.operate_once(machine, &name, operation, id).await;
            (name, result.map(|operated| operated.changed))
        };
        let mut results = stream::iter(names).map(work).buffer_unordered(self.concurrency);
        while let Some((name, result)) = results.next().await {
            match result {
                Ok(true) => task.changed += 1,
                Ok(false) | Err(Error::NotErrored | Error::NotActing | Error::Gone | Error::NoSuchLabel) => {
                    task.unchanged += 1;
                }
                Err(error @ (Error::BadMetadata(_) | Error::NoSuchState(_) | Error::Unreadable)) => {
                    task.failed += 1;
                    task.error = Some(format!("{name}: {error}"));
                }
                // The page is repeated.
                Err(error) => return Err(error),
            }
        }
        task.checked += found.checked;
        task.cursor = found.next;
        Ok(task.cursor.is_none())
    }

    /// Takes the definition of a machine out of service. Returns false if it is out of service already, and another machine of its
    /// name has taken its place.
    async fn retire(&self, task: &mut Task) -> Result<bool, Error> {
        if task.last.is_none() {
            (_, *task) = self.find_last(&task.machine, &task.id).await?;
        }
        let Some(last) = task.last.filter(|_| task.state == TaskState::Running) else { return Ok(false) };
        let ended = self.versions.retire(&task.machine, last).await?;
        (0..self.versions.shards()).for_each(|shard| self.definitions.forget(&task.machine, shard));
        Ok(ended)
    }

    /// Stores the number of the last version with the task before anything is deleted. A process that was paused for so long that
    /// the task has ended does not store the number of a later machine of the name.
    async fn find_last(&self, machine: &str, id: &str) -> Result<(String, Task), Error> {
        loop {
            let (stored, mut task) = self.read(machine, id).await?;
            if task.last.is_some() || task.state != TaskState::Running {
                return Ok((stored, task));
            }
            task.last = Some(self.versions.last(machine).await?);
            // Otherwise another process has found it.
            if let Some(json) = self.replace(&stored, &mut task).await? {
                return Ok((json, task));
            }
        }
    }

    /// Deletes the next labels of a machine. Returns whether nothing of it is left.
    async fn delete_page(&self, task: &mut Task) -> Result<bool, Error> {
        let Some(last) = task.last.filter(|_| task.state == TaskState::Running) else { return Ok(true) };
        if !self.retire(task).await? {
            return Ok(true);
        }
        for shard in 0..self.versions.shards() {
            for state in &task.states {
                let index = Index::State(state);
                let names = self.records.names(shard, &task.machine, index, None, PAGE).await?;
                if names.is_empty() {
                    continue;
                }
                for name in names {
                    match self.store.delete_without_definition(&task.machine, &name, last).await {
                        Ok(_) => task.changed += 1,
                        Err(Error::Unreadable) => task.failed += 1,
                        Err(error) => return Err(error),
                    }
                    // Its change has removed the entry, unless there was no readable record.
                    self.records.remove_from_state(shard, &task.machine, state, &name).await?;
                    task.checked += 1;
                }
                return Ok(false);
            }
        }
        if let Some(scan) = task.scan.filter(|scan| scan.shard < self.versions.shards()) {
            task.scan = Some(self.delete_scanned(task, scan, last).await?);
            return Ok(false);
        }
        self.secrets.delete_until(&task.machine, task.created_ms).await?;
        self.versions.remove(&task.machine).await?;
        Ok(true)
    }

    /// Deletes the labels of a machine among the next records of a shard. Returns where the scan continues.
    async fn delete_scanned(&self, task: &mut Task, scan: Scan, last: u64) -> Result<Scan, Error> {
        let (next, found) = self.records.walk(scan.shard, scan.cursor, SCAN).await?;
        for (_, name) in found.into_iter().filter(|(machine, _)| *machine == task.machine) {
            match self.store.delete_without_definition(&task.machine, &name, last).await {
                Ok(deleted) => {
                    task.changed += u64::from(deleted);
                    task.checked += u64::from(deleted);
                }
                Err(Error::Unreadable) => task.failed += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(match next {
            0 => Scan { shard: scan.shard + 1, cursor: 0 },
            cursor => Scan { cursor, ..scan },
        })
    }
}

/// The ID of a new task.
fn new_id(machine: &str, by: &str, key: Option<&str>) -> String {
    key.map_or_else(|| format!("{:016x}", rand::rng().random::<u64>()), |key| id_of(machine, by, key))
}

/// The ID of the task that a client starts under an idempotency key.
fn id_of(machine: &str, by: &str, key: &str) -> String {
    let digest = Sha256::digest(format!("{machine}\0{by}\0{key}").as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The entry of a task in the due set.
fn member(machine: &str, id: &str) -> String {
    Due::Task { machine: machine.to_owned(), id: id.to_owned() }.member()
}

/// A task is read with the others of its machine, so it must be small.
fn check_size(operation: &Operation, filter: &Filter) -> Result<(), Error> {
    let bytes = serde_json::to_vec(operation).unwrap_or_default().len()
        + serde_json::to_vec(filter).unwrap_or_default().len();
    if bytes > MAX_BYTES {
        return Err(Error::BadFilter(format!(
            "the filter and the operation of the task have {bytes} bytes together as JSON; the limit is {MAX_BYTES}"
        )));
    }
    Ok(())
}

impl Tasks {
    /// A task that runs, and as it is stored. One that has ended or is missing is removed from the index.
    async fn find_running(&self, machine: &str, id: &str) -> Result<Option<(String, Task)>, Error> {
        self.ready().await?;
        let stored = self.get(machine, id).await?;
        match stored.as_deref().map(serde_json::from_str::<Task>) {
            Some(Ok(task)) if task.state == TaskState::Running => {
                return Ok(stored.map(|stored| (stored, task)));
            }
            // A later version may be able to read it.
            Some(Err(_)) => {}
            Some(Ok(_)) | None => {
                let name = TaskName { machine, id, client: "" };
                self.unlist(name, stored.as_deref()).await?;
            }
        }
        Ok(None)
    }

    /// Whether a machine is being deleted.
    pub(crate) async fn is_deleting(&self, machine: &str) -> Result<bool, Error> {
        self.ready().await?;
        for running in self.running_of(machine).await? {
            let TaskName { id, client, .. } = running.name();
            // No client ends a deletion.
            if client.is_empty()
                && let Some((_, task)) = self.find_running(machine, id).await?
                && task.job == Job::DeleteMachine
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
