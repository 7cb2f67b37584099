//! Bringing a definition to every shard, and labels out of states that are no more. Every step may be repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use futures_util::{StreamExt as _, stream};
use rand::RngExt as _;
use signalbox_machine::{Machine, definition, plan};

use super::{
    Error,
    definitions::{Version, only},
    engine::{Edit, Engine},
    feeds::Asked,
    judge::{Happened, wave},
    record::Status,
    store::Applying,
};

impl Engine {
    /// Applies a definition that is computed from version `base` (0 for a machine that is new); its number.
    pub async fn apply(
        &self,
        machine: &Machine,
        base: u64,
        by: &str,
        map: &BTreeMap<String, String>,
    ) -> Result<u64, Error> {
        let _one_at_a_time = self.0.applying.lock().await;
        self.check_map(machine, base, map).await?;
        let mark = format!("{:016x}", rand::rng().random::<u64>());
        let now_ms = self.0.clock.now_ms().await?;
        let under_way = self.0.definitions.begin(machine, base, &mark, (now_ms, by), map).await?;
        self.finish(&under_way).await?;
        tracing::info!(machine = machine.name(), version = under_way.version, by, "a definition was applied");
        Ok(under_way.version)
    }

    /// Whether the map says where labels go that stand in states that are no more, and nothing else.
    async fn check_map(
        &self,
        machine: &Machine,
        base: u64,
        map: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        if let Some(to) = map.values().find(|to| machine.state(to).is_none()) {
            return Err(Error::BadMap(format!(
                "the map leads to {to}, which is no state of the new definition"
            )));
        }
        if base == 0 {
            return Ok(());
        }
        let old = self.0.definitions.current(machine.name()).await?;
        let removed = plan::states(&old.machine, machine).removed;
        if let Some(from) = map.keys().find(|from| !removed.contains(from)) {
            return Err(Error::BadMap(format!("the map names {from}, which is no state that goes")));
        }
        let names: Vec<&str> = removed.iter().map(String::as_str).collect();
        let counts = self.0.store.count_states(machine.name(), &names).await?;
        let unmapped =
            removed.iter().zip(counts).filter(|(state, count)| *count > 0 && !map.contains_key(*state));
        let unmapped: Vec<String> = unmapped.map(|(state, _)| state.clone()).collect();
        if unmapped.is_empty() { Ok(()) } else { Err(Error::Unmapped(unmapped)) }
    }

    /// Goes on with every change of definition that is under way. Whoever comes second finds little left to do.
    pub(super) async fn finish_all(&self) -> Result<(), Error> {
        for under_way in self.0.store.applying().await? {
            let _one_at_a_time = self.0.applying.lock().await;
            tracing::info!(
                machine = under_way.machine,
                version = under_way.version,
                "a change of definition goes on"
            );
            self.finish(&under_way).await?;
        }
        Ok(())
    }

    /// Shard by shard: the version counts there, and its labels are brought in line.
    async fn finish(&self, under_way: &Applying) -> Result<(), Error> {
        let Applying { machine, version, map, .. } = under_way;
        let definition = self.0.store.version(0, machine, *version).await?.ok_or(Error::NoSuchVersion)?;
        let map: BTreeMap<String, String> = serde_json::from_str(map).unwrap_or_default();
        // Where labels may stand: the states of the version before, and of this one.
        let before = match version.checked_sub(1).filter(|before| *before > 0) {
            Some(before) => match self.0.definitions.stored(machine, 0, before).await? {
                Some(stored) => only(machine, &stored.source).ok().flatten(),
                None => None,
            },
            None => None,
        };
        for shard in 0..self.0.store.count() {
            let counts = self.0.store.switch(shard, machine, *version, &definition).await?;
            self.0.definitions.forget(machine, shard);
            if counts != *version {
                continue;
            }
            let now = self.0.definitions.of(machine, shard).await?;
            if let Some(before) = &before {
                self.look_over(shard, &now, before, &map).await?;
            }
            self.waves_of(shard, &now).await?;
        }
        self.0.store.end_apply(under_way).await?;
        self.0.redefined.notify_one();
        Ok(())
    }

    /// Moves labels out of states that are no more, and brings those in line whose states say something else.
    async fn look_over(
        &self,
        shard: usize,
        now: &Version,
        before: &Machine,
        map: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        let states = plan::states(before, &now.machine);
        let removed: BTreeSet<&str> = states.removed.iter().map(String::as_str).collect();
        let unsettled = plan::unsettled(before, &now.machine);
        for state in states.removed.iter().chain(&unsettled) {
            let mut after: Option<String> = None;
            loop {
                let page = self.0.options.page;
                let names =
                    self.0.store.in_state(shard, now.machine.name(), state, after.as_deref(), page).await?;
                let Some(last) = names.last().cloned() else { break };
                let target = removed.contains(state.as_str()).then(|| {
                    // Nobody mapped a state that was empty when the map was checked.
                    let to = map.get(state).and_then(|to| now.machine.state(to));
                    to.unwrap_or_else(|| now.machine.initial()).index()
                });
                let happened = target.map_or(Happened::Redefined, Happened::Migrated);
                let mut changes = stream::iter(names)
                    .map(|label| {
                        self.bring_in_line(now.machine.name().to_owned(), label, state, happened.clone())
                    })
                    .buffer_unordered(self.0.options.concurrency);
                while let Some(result) = changes.next().await {
                    result?;
                }
                after = Some(last);
            }
        }
        Ok(())
    }

    pub(super) async fn bring_in_line(
        &self,
        machine: String,
        label: String,
        state: &str,
        happened: Happened<'_>,
    ) -> Result<(), Error> {
        let done = self
            .change((&machine, &label), &Asked::default(), |before, _, _| match before {
                Some(before) if &*before.state == state && before.status != Status::Deleted => {
                    Ok(Edit::Write { record: before.clone(), happened: Some(happened.clone()), rows: 0 })
                }
                _ => Ok(Edit::Leave),
            })
            .await;
        match done {
            Ok(done) => self.follow(&machine, &label, &done),
            // Nobody can move it, and the others shall not wait for it.
            Err(Error::Unreadable) => self.pass_over(&machine, &label),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Lets the times of day of every gate come.
    pub(super) async fn waves_of(&self, shard: usize, version: &Version) -> Result<(), Error> {
        let now_ms = self.0.clock.now_ms().await?;
        let machine = &version.machine;
        let waves = machine.states().iter().filter_map(|state| Some((state, state.gate()?))).flat_map(
            |(state, gate)| {
                gate.daily().filter_map(|(_, daily)| {
                    wave(machine.name(), state.name(), daily, daily.zone.default(), false, now_ms)
                })
            },
        );
        let waves: Vec<(String, u64)> = waves.collect();
        self.ensure(shard, version, &waves).await
    }

    /// Applies the definitions of a folder that were never seen before. A machine that is there already is changed only if
    /// no label stands in a state that goes.
    pub(super) async fn apply_folder(&self, folder: &Path) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::error!(folder = %folder.display(), %error, "the folder of definitions cannot be read");
                return;
            }
        };
        let is_definition = |path: &std::path::PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            (name.ends_with(".yaml") || name.ends_with(".yml")) && !name.contains(".test.")
        };
        let mut paths: Vec<_> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_definition).collect();
        paths.sort();
        for path in paths {
            let name = path.display().to_string();
            let file = match std::fs::read_to_string(&path) {
                Ok(text) => definition::load_with(&name, &text, &self.0.options.environment),
                Err(error) => {
                    tracing::error!(file = name, %error, "a definition cannot be read");
                    continue;
                }
            };
            match file {
                Ok(file) => {
                    for machine in &file.machines {
                        if let Err(error) = self.apply_once(machine).await {
                            tracing::error!(file = name, machine = machine.name(), %error, "a definition is not applied");
                        }
                    }
                }
                Err(refused) => tracing::error!(file = name, %refused, "a definition is refused"),
            }
        }
    }

    async fn apply_once(&self, machine: &Arc<Machine>) -> Result<(), Error> {
        if self.0.store.was_seen(machine.hash()).await? {
            return Ok(());
        }
        let base = self.0.store.current(0, machine.name()).await?.unwrap_or(0);
        match self.apply(machine, base, "file", &BTreeMap::new()).await {
            // Another pacemaker reads the same folder.
            Err(Error::DefinitionChanged | Error::ApplyUnderWay) => Ok(()),
            other => other.map(drop),
        }
    }
}
