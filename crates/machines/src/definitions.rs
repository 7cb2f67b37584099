//! Which definition of a machine counts, and how another one comes to count.
//!
//! A version never changes. `apply` stores it, notes in the first shard that a change is under way, and then goes from
//! shard to shard: the version counts there from one step on (`switch.lua`), commits that were computed under another are
//! refused and computed again, and labels in states that are no more are moved by the map. When every shard is done, the
//! note goes. Whoever dies in between leaves the note, and any pacemaker that finds it (at its start, and now and then)
//! goes on from it: every step may be repeated.
//!
//! ```text
//!  apply.lua: number, text, note ─▶ for each shard: switch.lua ─▶ move or look over its labels ─▶ applied.lua: no note
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use serde::{Deserialize, Serialize};
use signalbox_machine::{
    Machine,
    definition::{self, Refused},
};

use super::{
    Error,
    store::{Applying, Start, Started, Store},
};

/// How long a plan can be applied, in seconds.
const PLAN_SECONDS: u64 = 3600;

/// A definition with its number.
#[derive(Debug, Clone)]
pub struct Version {
    pub number: u64,
    pub machine: Arc<Machine>,
}

/// What is stored of a version.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredVersion {
    pub at_ms: u64,
    pub by: String,
    pub hash: String,
    pub source: String,
}

/// What is kept of a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredPlan {
    pub base: u64,
    pub source: String,
}

/// The definitions as this process knows them. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Definitions {
    store: Store,
    known: Arc<RwLock<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Machine and shard → the version that counts there.
    current: HashMap<(String, usize), u64>,
    /// Machine → its versions that were asked for lately.
    versions: HashMap<String, Vec<Version>>,
}

/// Versions of one machine that are kept in memory.
const KEPT: usize = 4;

impl Definitions {
    pub(super) fn new(store: Store) -> Self {
        Self { store, known: Arc::default() }
    }

    fn known<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The version that counts in a shard, as far as is known. A commit under another is refused, and then
    /// [`Self::forget`] makes the next look a real one.
    pub(super) async fn of(&self, machine: &str, shard: usize) -> Result<Version, Error> {
        let place = (machine.to_owned(), shard);
        let number = match self.known(|known| known.current.get(&place).copied()) {
            Some(number) => number,
            None => {
                let number = self.store.current(shard, machine).await?.ok_or(Error::NoSuchMachine)?;
                let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
                known.current.insert(place, number);
                number
            }
        };
        self.version(machine, shard, number).await
    }

    /// Lets the next look at the machine in this shard be a real one.
    pub(super) fn forget(&self, machine: &str, shard: usize) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.current.remove(&(machine.to_owned(), shard));
    }

    /// The same of all machines, and of what their versions say: a server that forgot the last one may have given its number
    /// to another.
    pub(super) fn forget_all(&self) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Known::default();
    }

    /// The one that counts, for questions about the machine as a whole.
    pub(super) async fn current(&self, machine: &str) -> Result<Version, Error> {
        self.forget(machine, 0);
        self.of(machine, 0).await
    }

    async fn version(&self, machine: &str, shard: usize, number: u64) -> Result<Version, Error> {
        let found = self.known(|known| {
            let mut versions = known.versions.get(machine)?.iter();
            versions.find(|version| version.number == number).cloned()
        });
        if let Some(version) = found {
            return Ok(version);
        }
        let stored = self.stored(machine, shard, number).await?.ok_or(Error::NoSuchVersion)?;
        let version = Version { number, machine: read(machine, &stored.source)? };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let kept = known.versions.entry(machine.to_owned()).or_default();
        kept.push(version.clone());
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
        Ok(version)
    }

    /// A version as it is stored.
    pub(super) async fn stored(
        &self,
        machine: &str,
        shard: usize,
        number: u64,
    ) -> Result<Option<StoredVersion>, Error> {
        let text = self.store.version(shard, machine, number).await?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// All versions, the oldest first.
    pub(super) async fn versions(&self, machine: &str) -> Result<Vec<(u64, StoredVersion)>, Error> {
        let all = self.store.versions(machine).await?;
        Ok(all
            .into_iter()
            .filter_map(|(number, text)| Some((number, serde_json::from_str(&text).ok()?)))
            .collect())
    }

    /// Keeps a plan, and gives it a name.
    pub(super) async fn keep_plan(&self, machine: &str, name: &str, plan: &StoredPlan) -> Result<(), Error> {
        let text = serde_json::to_string(plan).unwrap_or_default();
        Ok(self.store.keep_plan(machine, name, &text, PLAN_SECONDS).await?)
    }

    /// A plan, while it is kept.
    pub(super) async fn plan(&self, machine: &str, name: &str) -> Result<Option<StoredPlan>, Error> {
        let text = self.store.plan(machine, name).await?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Begins a change of definition; the rest is [`super::apply`].
    pub(super) async fn begin(
        &self,
        machine: &Machine,
        base: u64,
        mark: &str,
        (at_ms, by): (u64, &str),
        map: &BTreeMap<String, String>,
    ) -> Result<Applying, Error> {
        let stored = StoredVersion {
            at_ms,
            by: by.to_owned(),
            hash: machine.hash().to_owned(),
            source: machine.source().to_string(),
        };
        let definition = serde_json::to_string(&stored).unwrap_or_default();
        let start = Start {
            machine: machine.name(),
            base,
            mark,
            definition: &definition,
            digest: machine.hash(),
            map: &serde_json::to_string(map).unwrap_or_default(),
        };
        match self.store.start_apply(&start).await? {
            Started::As(version) => {
                let under_way = self.store.applying().await?;
                let ours =
                    under_way.into_iter().find(|one| one.machine == start.machine && one.version == version);
                ours.ok_or(Error::DefinitionChanged)
            }
            Started::Changed => Err(Error::DefinitionChanged),
            Started::Busy => Err(Error::ApplyUnderWay),
        }
    }
}

/// Reads a machine out of its stored text.
fn read(name: &str, source: &str) -> Result<Arc<Machine>, Error> {
    only(name, source).map_err(|_| Error::Unreadable)?.ok_or(Error::Unreadable)
}

/// The machine of that name in a text.
pub fn only(name: &str, source: &str) -> Result<Option<Arc<Machine>>, Refused> {
    let file = definition::load(name, source)?;
    Ok(file.machines.into_iter().find(|machine| machine.name() == name))
}
