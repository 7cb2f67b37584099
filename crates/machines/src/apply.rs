//! Makes a version of a definition active in every shard, and moves labels out of removed states.
//!
//! A change stores the version, and a record in the first shard that the change is under way. Then it goes from shard to
//! shard: the version becomes active there in one step (`switch.lua`), commits that were computed under another version are
//! refused and computed again, and labels in removed states are moved by the map. After the last shard the record is
//! removed. If the pacemaker dies in between, the record stays, and any pacemaker that finds it (at its start, and every
//! few seconds) continues the change: every step may be repeated.
//!
//! ```text
//!  apply.lua: number, text, record ─▶ for each shard: switch.lua ─▶ move or evaluate its labels ─▶ applied.lua: no record
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use rand::RngExt as _;
use signalbox_access::Author;
use signalbox_machine::{
    Machine,
    definition::{self, File, Refused},
    plan,
};
use tokio::{
    sync::{self, Notify, OwnedMutexGuard},
    task::spawn_blocking,
};

use crate::{
    Error, Version,
    clock::Clock,
    definitions::{Definitions, StoredVersion},
    evaluator::Happened,
    fair::{FairPlaces, Payer},
    feeds::FeedAnswers,
    label_store::{Edit, LabelStore},
    record::Status,
    runner::Runner,
    secrets::Secrets,
    store::{Applying, Index, Records, Tasks, Versions},
    sweep_entries::SweepEntries,
};

/// The result of applying a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The number of the version that is active.
    pub version: u64,
    /// Whether it is a new one.
    pub changed: bool,
    /// The number of labels that stay on an earlier version, by version.
    pub kept: BTreeMap<u64, u64>,
}

/// Applies definitions.
#[derive(Debug)]
pub struct Applier {
    pub(crate) versions: Versions,
    pub(crate) definitions: Definitions,
    pub(crate) records: Records,
    pub(crate) labels: Arc<LabelStore>,
    pub(crate) runner: Arc<Runner>,
    pub(crate) sweeps: SweepEntries,
    pub(crate) tasks: Tasks,
    pub(crate) clock: Clock,
    pub(crate) secrets: Secrets,
    /// Labels of a page.
    pub(crate) page: usize,
    /// Labels that are changed at a time.
    pub(crate) concurrency: usize,
    /// Notified when a definition was applied in this process.
    pub(crate) redefined: Arc<Notify>,
    /// Changes that are applied.
    pub(crate) applying: UnderWay,
    /// For pages of labels. A change of any size delays those of other clients by a page.
    pub(crate) pages: FairPlaces,
}

/// Machines whose definitions change in this process: one change of a machine at a time.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<HashMap<String, Arc<sync::Mutex<()>>>>);

impl UnderWay {
    /// Waits until no other change of the machine is under way.
    async fn begin(&self, machine: &str) -> OwnedMutexGuard<()> {
        self.of(machine).lock_owned().await
    }

    /// Begins a change, unless another one of the machine is under way.
    fn try_begin(&self, machine: &str) -> Option<OwnedMutexGuard<()>> {
        self.of(machine).try_lock_owned().ok()
    }

    fn of(&self, machine: &str) -> Arc<sync::Mutex<()>> {
        let mut all = self.0.lock();
        all.retain(|_, one| Arc::strong_count(one) > 1);
        Arc::clone(all.entry(machine.to_owned()).or_default())
    }
}

/// The result of a computation, or of reading files, made outside of the threads that serve requests.
async fn computed<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

/// The files of definitions in a folder, ordered.
fn files_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_definition = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        (name.ends_with(".yaml") || name.ends_with(".yml")) && !name.contains(".test.")
    };
    let entries = std::fs::read_dir(folder)?;
    let mut paths: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_definition).collect();
    paths.sort();
    Ok(paths)
}

impl Applier {
    /// Applies a definition that was planned from version `base` (0 for a new machine). `map` names the target state for the
    /// labels of each removed state. A definition with the same content and author as the active one makes no new version, so
    /// that a request may be repeated. The machine may do what `author` may do from then on.
    ///
    /// # Errors
    /// [`Error::BeingDeleted`], [`Error::BadMap`], [`Error::Unmapped`], [`Error::DefinitionChanged`], [`Error::ApplyUnderWay`], or a failure of the
    /// fabric.
    pub async fn apply(
        &self,
        machine: &Machine,
        base: u64,
        author: &Author,
        map: &BTreeMap<String, String>,
    ) -> Result<Applied, Error> {
        let _one_at_a_time = self.applying.begin(machine.name()).await;
        if self.tasks.is_deleting(machine.name()).await? {
            return Err(Error::BeingDeleted);
        }
        match self.definitions.current(machine.name()).await {
            // Without a map nothing changes; a later version with this content is the result of the same request, which is
            // repeated because its answer was lost.
            Ok(now)
                if now.machine.hash() == machine.hash()
                    && *now.author == *author
                    && (now.number > base || map.is_empty()) =>
            {
                for under_way in self.versions.applying().await? {
                    if under_way.machine == machine.name() && under_way.version == now.number {
                        self.finish(&under_way).await?;
                    }
                }
                let kept = self.definitions.kept(machine.name(), now.number).await?;
                return Ok(Applied { version: now.number, changed: false, kept });
            }
            Ok(_) | Err(Error::NoSuchMachine) => {}
            // A readable version may replace one that cannot be read.
            Err(Error::Unreadable) => {}
            Err(error) => return Err(error),
        }
        self.check_map(machine, base, map).await?;
        let mark = format!("{:016x}", rand::rng().random::<u64>());
        let now_ms = self.clock.now_ms().await?;
        let under_way = self.definitions.begin(machine, base, &mark, (now_ms, author), map).await?;
        // A deletion that began before this change does not know its version, and any later one waits for the end of the change.
        if self.tasks.is_deleting(machine.name()).await? {
            self.abandon(&under_way).await?;
            return Err(Error::BeingDeleted);
        }
        self.finish(&under_way).await?;
        let by = &*author.name;
        tracing::info!(machine = machine.name(), version = under_way.version, by, "definition applied");
        let kept = self.definitions.kept(machine.name(), under_way.version).await?;
        Ok(Applied { version: under_way.version, changed: true, kept })
    }

    /// Checks that the map names a target for every removed state that contains labels, and nothing else.
    async fn check_map(
        &self,
        machine: &Machine,
        base: u64,
        map: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        if let Some(to) = map.values().find(|to| machine.state(to).is_none()) {
            return Err(Error::BadMap(format!(
                "the map names the target {to}, which is not a state of the new definition"
            )));
        }
        if base == 0 {
            return Ok(());
        }
        let old = match self.definitions.current(machine.name()).await {
            Err(Error::Unreadable) if map.is_empty() => return Ok(()),
            Err(Error::Unreadable) => {
                let why =
                    "the active version cannot be read, so its labels stay in their states; omit the map";
                return Err(Error::BadMap(why.to_owned()));
            }
            old => old?,
        };
        let removed = plan::states(&old.machine, machine).removed;
        let may_be_named: BTreeSet<&String> = removed.iter().collect();
        if let Some(from) = map.keys().find(|from| !may_be_named.contains(from)) {
            return Err(Error::BadMap(format!("the map names {from}, which is not a removed state")));
        }
        if let Some(from) = map.keys().find(|from| old.keeps(from)) {
            return Err(Error::BadMap(format!("the map names {from}, whose labels stay on their version")));
        }
        // Labels of other states stay on their version.
        let names: Vec<&str> = removed.iter().map(String::as_str).filter(|state| !old.keeps(state)).collect();
        let counts = self.records.count_states(machine.name(), &names).await?;
        let unmapped =
            names.iter().zip(counts).filter(|(state, count)| *count > 0 && !map.contains_key(**state));
        let unmapped: Vec<String> = unmapped.map(|(state, _)| (*state).to_owned()).collect();
        if unmapped.is_empty() { Ok(()) } else { Err(Error::Unmapped(unmapped)) }
    }

    /// Continues every change of definition that was interrupted.
    pub(crate) async fn finish_all(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for under_way in self.versions.applying().await? {
            // Otherwise this process is making it. It may have completed it since it was read.
            let Some(_one_at_a_time) = self.applying.try_begin(&under_way.machine) else { continue };
            if !self.versions.applying().await?.contains(&under_way) {
                continue;
            }
            tracing::info!(
                machine = under_way.machine,
                version = under_way.version,
                "change of definition continued"
            );
            let finished = self.finish(&under_way).await;
            // One that cannot be completed here delays no other.
            result = result.and(finished);
        }
        result
    }

    /// Ends a change whose machine was deleted.
    async fn abandon(&self, under_way: &Applying) -> Result<(), Error> {
        self.versions.end_apply(under_way).await?;
        if self.versions.current(0, &under_way.machine).await?.is_none() {
            self.versions.unlist(&under_way.machine).await?;
        }
        Ok(())
    }

    /// For each shard: makes the version active, and adapts its labels.
    ///
    /// # Errors
    /// [`Error::BeingDeleted`] if the machine was deleted in the meantime, or a failure of the fabric.
    async fn finish(&self, under_way: &Applying) -> Result<(), Error> {
        let Applying { machine, version, map, .. } = under_way;
        let definition = self.versions.version(0, machine, *version).await?.ok_or(Error::NoSuchVersion)?;
        let stored = StoredVersion::read(&definition)?.ok_or(Error::NoSuchVersion)?;
        let map: BTreeMap<String, String> = serde_json::from_str(map).unwrap_or_default();
        // A version that this process cannot read is made active by one that can: it may have inputs, and labels to be moved.
        let new = self.definitions.read(machine, *version).await?.ok_or(Error::NoSuchVersion)?;
        let has_inputs = !new.inputs().is_empty();
        // Labels are in states of the version before, or of this one.
        let before = match version.checked_sub(1).filter(|before| *before > 0) {
            // A machine that was deleted before has no earlier version.
            Some(before) => match self.definitions.read(machine, before).await {
                Ok(before) => before,
                // The new version takes its place all the same, because nothing else could.
                Err(Error::Unreadable) => {
                    tracing::error!(
                        machine,
                        version = before,
                        "the version before cannot be read; its labels stay in their states"
                    );
                    None
                }
                Err(error) => return Err(error),
            },
            None => None,
        };
        for shard in 0..self.versions.shards() {
            let by = (stored.client(), &definition);
            let active = self.versions.switch(shard, machine, (*version, has_inputs), by).await?;
            self.definitions.forget(machine, shard);
            if active == 0 {
                self.abandon(under_way).await?;
                return Err(Error::BeingDeleted);
            }
            if active != *version {
                continue;
            }
            let now = self.definitions.of(machine, shard).await?;
            if let Some(before) = &before {
                self.adapt_all(shard, &now, before, &map).await?;
            }
            self.sweeps.ensure_all(shard, &now).await?;
        }
        // Limits may have been raised or removed.
        for limit in before.iter().flat_map(|before| before.limits()) {
            self.runner.admit_soon(machine, &limit.target);
        }
        self.versions.end_apply(under_way).await?;
        self.redefined.notify_one();
        Ok(())
    }

    /// Moves labels out of removed states, and evaluates those whose states have changed.
    async fn adapt_all(
        &self,
        shard: usize,
        now: &Version,
        before: &Machine,
        map: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        let payer = Payer::of(now);
        let states = plan::states(before, &now.machine);
        let removed: BTreeSet<&str> = states.removed.iter().map(String::as_str).collect();
        let reindexed: BTreeSet<String> = plan::reindexed(before, &now.machine).into_iter().collect();
        // In an added state are only labels that stay on a version that had it.
        for state in states.removed.iter().chain(&states.added).chain(&states.changed).chain(&reindexed) {
            let mut after: Option<String> = None;
            loop {
                let _place = self.pages.take(&payer).await;
                let (machine, page) = (now.machine.name(), self.page);
                let index = Index::State(state);
                let names = self.records.names(shard, machine, index, after.as_deref(), page).await?;
                let Some(last) = names.last().cloned() else { break };
                let target = removed.contains(state.as_str()).then(|| {
                    // The map may omit a state that was empty when the map was checked.
                    let to = map.get(state).and_then(|to| now.machine.state(to));
                    to.unwrap_or_else(|| now.machine.initial()).index()
                });
                let same = reindexed.contains(state);
                let stays = if same { Happened::Reindexed } else { Happened::Redefined };
                let happened = target.map_or(stays, Happened::Migrated);
                let mut changes = stream::iter(names)
                    .map(|label| self.adapt(now.machine.name().to_owned(), label, state, happened.clone()))
                    .buffer_unordered(self.concurrency);
                while let Some(result) = changes.next().await {
                    result?;
                }
                after = Some(last);
            }
        }
        Ok(())
    }

    /// Evaluates a label for `happened` if it is still in `state`.
    pub(crate) async fn adapt(
        &self,
        machine: String,
        label: String,
        state: &str,
        happened: Happened<'_>,
    ) -> Result<(), Error> {
        let done = self
            .labels
            .change((&machine, &label), &FeedAnswers::default(), |before, version, _| match before {
                Some(before) if &*before.state == state && before.status != Status::Deleted => {
                    // A label that stays on its version is not moved; the index of its values may have changed.
                    let stays = version.active.is_some() && matches!(happened, Happened::Migrated(_));
                    let happened = if stays { Happened::Redefined } else { happened.clone() };
                    Ok(Edit::evaluate(before, happened))
                }
                _ => Ok(Edit::Leave),
            })
            .await;
        match done {
            Ok(done) => self.runner.follow(&machine, &label, &done),
            // An unreadable label cannot be moved, and does not delay the others.
            Err(Error::Unreadable) => self.labels.report_unreadable(&machine, &label),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Applies the definitions of a folder that were never applied before. An existing machine is changed only if its removed
    /// states contain no labels.
    pub(crate) async fn apply_folder(&self, folder: &Path) {
        let listed = {
            let folder = folder.to_owned();
            computed(move || files_of(&folder)).await
        };
        let paths = match listed {
            Ok(paths) => paths,
            Err(error) => {
                tracing::error!(folder = %folder.display(), %error, "folder of definitions not readable");
                return;
            }
        };
        for path in paths {
            let name = path.display().to_string();
            let file = match computed(move || std::fs::read_to_string(&path)).await {
                Ok(text) => match self.load(&name, text.into()).await {
                    Ok(loaded) => loaded,
                    Err(error) => {
                        tracing::error!(file = name, %error, "definition not applied");
                        continue;
                    }
                },
                Err(error) => {
                    tracing::error!(file = name, %error, "definition not readable");
                    continue;
                }
            };
            match file {
                Ok(file) => {
                    for machine in &file.machines {
                        if let Err(error) = self.apply_once(machine).await {
                            tracing::error!(file = name, machine = machine.name(), %error, "definition not applied");
                        }
                    }
                }
                Err(refused) => tracing::error!(file = name, %refused, "definition rejected"),
            }
        }
    }

    /// Loads a file, and checks each machine against its secrets.
    async fn load(&self, name: &str, text: Arc<str>) -> Result<Result<File, Refused>, Error> {
        let (of, all) = (name.to_owned(), Arc::clone(&text));
        let file = match computed(move || definition::load(&of, &all)).await {
            Ok(file) => file,
            Err(refused) => return Ok(Err(refused)),
        };
        for machine in &file.machines {
            let secrets = self.secrets.names(machine.name()).await?;
            let (of, all, machine) = (name.to_owned(), Arc::clone(&text), Arc::clone(machine));
            let check = move || definition::load_with(&of, &all, Some(machine.name()), &secrets).map(drop);
            if let Err(refused) = computed(check).await {
                return Ok(Err(refused));
            }
        }
        Ok(Ok(file))
    }

    async fn apply_once(&self, machine: &Arc<Machine>) -> Result<(), Error> {
        if self.versions.was_seen(machine.hash()).await? {
            return Ok(());
        }
        let base = self.versions.current(0, machine.name()).await?.unwrap_or(0);
        match self.apply(machine, base, &Author::operator(), &BTreeMap::new()).await {
            // Another pacemaker reads the same folder.
            Err(Error::DefinitionChanged | Error::ApplyUnderWay) => Ok(()),
            other => other.map(drop),
        }
    }
}
