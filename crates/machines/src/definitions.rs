//! Definitions of machines: their versions, the active version of each shard, and plans.
//!
//! A version never changes. [`crate::apply`] makes another version active, shard by shard. This module caches what it
//! reads: a commit under a version that is no longer active is rejected, and then the caller makes this module read
//! again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use signalbox_access::{Author, Denied, Effect};
use signalbox_machine::{
    Machine,
    definition::{self, Refused},
    step,
};
use tokio::task::spawn_blocking;

use crate::{
    Error,
    effort::Effort,
    record::Record,
    store::{Applying, Started, Stored, Versions},
};

/// How long a plan is retained, seconds.
const PLAN_SECONDS: u64 = 3600;

/// Maximum number of versions per machine that are kept in memory.
const MAX_CACHED_VERSIONS: usize = 8;

/// A version of a definition.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its number, from 1.
    pub number: u64,
    /// The machine that it defines.
    pub machine: Arc<Machine>,
    /// Which machine of this name it belongs to: a machine that was deleted and applied again has another origin.
    pub(crate) origin: Arc<str>,
    /// Who applied it, and what the machine may do for that reason.
    pub(crate) author: Arc<Author>,
    /// How long its evaluations take, and those of the versions before it that labels stay on.
    pub(crate) effort: Arc<Effort>,
    /// The active version, if this is an earlier one that a label stays on.
    pub(crate) active: Option<Arc<Version>>,
}

impl Version {
    /// The active version: this one, or a later one.
    pub(crate) fn active(&self) -> &Self {
        self.active.as_deref().unwrap_or(self)
    }

    /// The name of the token that applied it.
    pub fn by(&self) -> &str {
        &self.author.name
    }

    /// Whether the machine may have an effect, because its author may.
    ///
    /// # Errors
    /// What forbids it.
    pub(crate) fn may(&self, effect: Effect) -> Result<(), Denied> {
        self.author.caller().may(effect)
    }

    /// Why the machine may not have an effect, for people.
    pub(crate) fn why_not(&self, denied: &Denied) -> String {
        format!("{} applied the definition and may not do this: {denied}", self.by())
    }

    /// Whether labels in the state stay on this version. The active version may not have the state.
    pub(crate) fn keeps(&self, state: &str) -> bool {
        step::keeps(&self.machine, self.active.as_ref().map(|active| &*active.machine), state)
    }
}

/// The active version of a machine in a shard, and the earlier ones that labels stay on.
#[derive(Debug, Clone)]
pub(crate) struct Family {
    pub(crate) active: Version,
    /// The oldest first.
    kept: Vec<Version>,
}

impl Family {
    /// The version under which a label is evaluated.
    pub(crate) fn of(&self, record: &Record) -> &Version {
        let kept = self.kept.iter().find(|version| Some(version.number) == record.kept);
        kept.filter(|version| version.keeps(&record.state)).unwrap_or(&self.active)
    }

    /// All versions, the active one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Version> {
        std::iter::once(&self.active).chain(&self.kept)
    }

    /// The names of all states, those of the active version first.
    pub(crate) fn states(&self) -> Vec<&str> {
        let mut seen = HashSet::new();
        let states = self.all().flat_map(|version| version.machine.states());
        states.map(|state| state.name()).filter(|name| seen.insert(*name)).collect()
    }
}

/// The states of all versions of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllStates {
    /// Their names, ordered.
    pub(crate) names: Vec<String>,
    /// Whether every version could be read. Otherwise labels may be in other states, too.
    pub(crate) complete: bool,
}

/// A version as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredVersion {
    /// When it was applied, Unix milliseconds.
    pub at_ms: u64,
    /// Who applied it.
    #[serde(flatten)]
    pub author: Author,
    /// The digest of the source.
    pub hash: String,
    /// The same for all versions since the machine was created.
    #[serde(default)]
    pub origin: String,
    /// The names of its states. `None`: an earlier Signalbox stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    states: Option<Vec<String>>,
    /// The text of the definition, which is stored apart. An earlier Signalbox stored it here. Empty in a list of versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

impl StoredVersion {
    /// Joins a record with its text. `None` if there is no text: the version was removed while it was read.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if it is damaged, or another version of Signalbox stored it.
    pub(crate) fn read(stored: &Stored) -> Result<Option<Self>, Error> {
        let mut version: Self = serde_json::from_str(&stored.record).map_err(|_| Error::Unreadable)?;
        if !stored.source.is_empty() {
            version.source.clone_from(&stored.source);
        }
        Ok(Some(version).filter(|version| !version.source.is_empty()))
    }

    /// The client for which its bytes are counted.
    pub(crate) fn client(&self) -> &str {
        self.author.client().unwrap_or("root")
    }
}

/// A plan as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredPlan {
    /// The version that it was computed from; 0 for a new machine.
    pub base: u64,
    /// The text of the new definition.
    pub source: String,
}

/// The definitions of all machines. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Definitions {
    versions: Versions,
    known: Arc<RwLock<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Machine → shard → the active version.
    current: HashMap<String, BTreeMap<usize, u64>>,
    /// Machine → versions that were read recently.
    versions: HashMap<String, Vec<Version>>,
}

impl Known {
    fn version(&self, machine: &str, number: u64) -> Option<Version> {
        self.versions.get(machine)?.iter().find(|version| version.number == number).cloned()
    }
}

impl Definitions {
    pub(crate) fn new(versions: Versions) -> Self {
        Self { versions, known: Arc::default() }
    }

    fn known<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(&self.known.read())
    }

    /// The version that is active in a shard, as far as this process knows. A commit under another version is refused;
    /// then [`Self::forget`] makes the next call read the fabric.
    pub(crate) async fn of(&self, machine: &str, shard: usize) -> Result<Version, Error> {
        if let Some(version) = self.known_of(machine, shard) {
            return Ok(version);
        }
        let number = self.versions.current(shard, machine).await?.ok_or(Error::NoSuchMachine)?;
        self.note_current(machine, shard, number);
        self.version(machine, shard, number).await
    }

    /// The same, if this process has read it.
    pub(crate) fn known_of(&self, machine: &str, shard: usize) -> Option<Version> {
        self.known(|known| known.version(machine, *known.current.get(machine)?.get(&shard)?))
    }

    /// The version under which a label of a shard is evaluated: the one that it stays on, or the active one.
    pub(crate) async fn of_label(
        &self,
        machine: &str,
        shard: usize,
        record: Option<&Record>,
    ) -> Result<Version, Error> {
        let active = self.of(machine, shard).await?;
        let kept = record.and_then(|record| Some((record.kept?, &record.state)));
        let Some((number, state)) = kept.filter(|(number, _)| *number != active.number) else {
            return Ok(active);
        };
        let kept = self.earlier(machine, shard, number, &active).await?;
        Ok(kept.filter(|version| version.keeps(state)).unwrap_or(active))
    }

    /// The active version of a machine in a shard, and those that labels stay on.
    pub(crate) async fn family(&self, machine: &str, shard: usize) -> Result<Family, Error> {
        let active = self.of(machine, shard).await?;
        let mut kept = Vec::new();
        for (number, _) in self.versions.kept(shard, machine).await? {
            if number != active.number {
                kept.extend(self.earlier(machine, shard, number, &active).await?);
            }
        }
        Ok(Family { active, kept })
    }

    /// An earlier version, if it can be read.
    async fn earlier(
        &self,
        machine: &str,
        shard: usize,
        number: u64,
        active: &Version,
    ) -> Result<Option<Version>, Error> {
        match self.version(machine, shard, number).await {
            Ok(version) => Ok(Some(Version { active: Some(Arc::new(active.clone())), ..version })),
            Err(Error::NoSuchVersion | Error::Unreadable) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names of all states in which labels of a machine can be: those of the active version, then those of versions
    /// that labels stay on.
    pub(crate) async fn states(&self, machine: &str) -> Result<Vec<String>, Error> {
        let (mut names, mut seen) = (Vec::new(), HashSet::new());
        for shard in 0..self.versions.shards() {
            let family = match self.family(machine, shard).await {
                Ok(family) => family,
                // The definition has not reached this shard yet.
                Err(Error::NoSuchMachine) if shard > 0 => continue,
                Err(error) => return Err(error),
            };
            for state in family.states() {
                if seen.insert(state.to_owned()) {
                    names.push(state.to_owned());
                }
            }
        }
        Ok(names)
    }

    /// As [`Self::states`], and those of the version before the active one: labels are moved from there while a definition is
    /// applied.
    pub(crate) async fn present_states(&self, machine: &str) -> Result<Vec<String>, Error> {
        let mut names = self.states(machine).await?;
        let before = self.active_number(machine).await?.saturating_sub(1);
        match self.version(machine, 0, before).await {
            Ok(before) => names.extend(names_of(&before.machine)),
            Err(Error::NoSuchVersion | Error::Unreadable) => {}
            Err(error) => return Err(error),
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The names of all states in which labels of a machine may be: those of all stored versions, ordered.
    pub(crate) async fn all_states(&self, machine: &str) -> Result<AllStates, Error> {
        let (mut names, mut complete) = (BTreeSet::new(), true);
        let numbers = self.versions.numbers(machine).await?;
        let mut left = &*numbers;
        while !left.is_empty() {
            let records = self.versions.records(machine, left).await?;
            left = left.get(records.len()..).unwrap_or_default();
            for record in records.into_iter().flatten() {
                let states = match serde_json::from_slice::<StoredVersion>(&record) {
                    Ok(StoredVersion { states: Some(states), .. }) => Some(states),
                    Ok(stored) => parse_stored(machine, stored.source).await.ok().map(|read| names_of(&read)),
                    Err(_) => None,
                };
                match states {
                    Some(states) => names.extend(states),
                    None => complete = false,
                }
            }
        }
        Ok(AllStates { names: names.into_iter().collect(), complete })
    }

    /// The number of labels that stay on versions before the active one, by version.
    pub async fn kept(&self, machine: &str, active: u64) -> Result<BTreeMap<u64, u64>, Error> {
        let mut counts = BTreeMap::new();
        for shard in 0..self.versions.shards() {
            for (version, count) in self.versions.kept(shard, machine).await? {
                if version != active {
                    *counts.entry(version).or_default() += count;
                }
            }
        }
        Ok(counts)
    }

    /// Whether a version is active in a shard, read from the fabric.
    pub(crate) async fn is_active(&self, shard: usize, machine: &str, number: u64) -> Result<bool, Error> {
        Ok(self.versions.current(shard, machine).await? == Some(number))
    }

    /// Forgets which version is active in a shard.
    pub(crate) fn forget(&self, machine: &str, shard: usize) {
        let mut known = self.known.write();
        if let Some(current) = known.current.get_mut(machine) {
            current.remove(&shard);
        }
    }

    /// Forgets all active versions, and the versions themselves: a server that lost the last version may have given its
    /// number to another one.
    pub(crate) fn forget_all(&self) {
        *self.known.write() = Known::default();
    }

    /// The names of all machines, ordered.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        Ok(self.versions.machines().await?)
    }

    /// [`Error::NoSuchMachine`] unless the machine exists. Its definition need not be readable.
    ///
    /// # Errors
    /// Also a failure of the fabric.
    pub async fn check_exists(&self, machine: &str) -> Result<(), Error> {
        self.active_number(machine).await.map(drop)
    }

    /// The number of the active version of a machine, whose definition need not be readable, read from the fabric's first
    /// shard.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], or a failure of the fabric.
    pub async fn active_number(&self, machine: &str) -> Result<u64, Error> {
        self.versions.current(0, machine).await?.ok_or(Error::NoSuchMachine)
    }

    /// The active version of a machine, read from the fabric's first shard.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], or a failure of the fabric.
    pub async fn current(&self, machine: &str) -> Result<Version, Error> {
        // What is known stays until the answer arrives. Otherwise every change in the meantime would read it, too.
        let Some(number) = self.versions.current(0, machine).await? else {
            self.forget(machine, 0);
            return Err(Error::NoSuchMachine);
        };
        self.note_current(machine, 0, number);
        self.version(machine, 0, number).await
    }

    fn note_current(&self, machine: &str, shard: usize, number: u64) {
        let mut known = self.known.write();
        known.current.entry(machine.to_owned()).or_default().insert(shard, number);
    }

    /// A version that was read before.
    pub(crate) fn known_version(&self, machine: &str, number: u64) -> Option<Version> {
        self.known(|known| known.version(machine, number))
    }

    /// A version, active or not.
    pub(crate) async fn version(&self, machine: &str, shard: usize, number: u64) -> Result<Version, Error> {
        if let Some(version) = self.known(|known| known.version(machine, number)) {
            return Ok(version);
        }
        let stored = self.stored(machine, shard, number).await?.ok_or(Error::NoSuchVersion)?;
        let machine_read = parse_stored(machine, stored.source).await?;
        let (origin, author) = (stored.origin.into(), Arc::new(stored.author));
        let version =
            Version { number, machine: machine_read, origin, author, effort: Arc::default(), active: None };
        let mut known = self.known.write();
        let kept = known.versions.entry(machine.to_owned()).or_default();
        kept.push(version.clone());
        let surplus = kept.len().saturating_sub(MAX_CACHED_VERSIONS);
        kept.drain(..surplus);
        Ok(version)
    }

    /// A version as it is stored.
    ///
    /// # Errors
    /// [`Error::NoSuchVersion`], or a failure of the fabric.
    pub async fn stored_version(&self, machine: &str, number: u64) -> Result<StoredVersion, Error> {
        self.stored(machine, 0, number).await?.ok_or(Error::NoSuchVersion)
    }

    /// A version as it is stored in a shard, if it is there.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if it is damaged, or another version of Signalbox stored it.
    pub(crate) async fn stored(
        &self,
        machine: &str,
        shard: usize,
        number: u64,
    ) -> Result<Option<StoredVersion>, Error> {
        match self.versions.version(shard, machine, number).await? {
            Some(stored) => StoredVersion::read(&stored),
            None => Ok(None),
        }
    }

    /// A version as the first shard has it now, if it is there.
    pub(crate) async fn read(&self, machine: &str, number: u64) -> Result<Option<Arc<Machine>>, Error> {
        match self.stored(machine, 0, number).await? {
            Some(stored) => parse_stored(machine, stored.source).await.map(Some),
            None => Ok(None),
        }
    }

    /// All readable versions of a machine without their texts, the oldest first.
    pub async fn versions(&self, machine: &str) -> Result<Vec<(u64, StoredVersion)>, Error> {
        let numbers = self.versions.numbers(machine).await?;
        let (mut found, mut left) = (Vec::new(), &*numbers);
        while !left.is_empty() {
            let records = self.versions.records(machine, left).await?;
            let (read, rest) = left.split_at(records.len().min(left.len()));
            for (number, record) in read.iter().zip(records) {
                let version = record.and_then(|record| serde_json::from_slice::<StoredVersion>(&record).ok());
                // A text that an earlier release stored here is dropped part by part, as are the names of states.
                let version =
                    version.map(|version| StoredVersion { states: None, source: String::new(), ..version });
                found.extend(version.map(|version| (*number, version)));
            }
            left = rest;
        }
        Ok(found)
    }

    /// Stores a plan of a client under a name for an hour.
    pub async fn keep_plan(
        &self,
        (machine, name): (&str, &str),
        client: &str,
        (base, source): (u64, &str),
    ) -> Result<(), Error> {
        let plan = StoredPlan { base, source: source.to_owned() };
        let text = serde_json::to_string(&plan).unwrap_or_default();
        Ok(self.versions.keep_plan((machine, name), client, &text, PLAN_SECONDS).await?)
    }

    /// A plan that has not expired.
    ///
    /// # Errors
    /// [`Error::NoSuchPlan`], or a failure of the fabric.
    pub async fn kept_plan(&self, machine: &str, name: &str) -> Result<StoredPlan, Error> {
        let text = self.versions.plan(machine, name).await?;
        text.and_then(|text| serde_json::from_str(&text).ok()).ok_or(Error::NoSuchPlan)
    }

    /// The changes of definition that are under way.
    pub(crate) async fn applying(&self) -> Result<Vec<Applying>, Error> {
        Ok(self.versions.applying().await?)
    }

    /// Begins a change of definition, which [`crate::apply`] continues. `mark` is unique to the caller, so that a
    /// repeated call has the same result.
    pub(crate) async fn begin(
        &self,
        machine: &Machine,
        base: u64,
        mark: &str,
        (at_ms, author): (u64, &Author),
        map: &BTreeMap<String, String>,
    ) -> Result<Applying, Error> {
        let origin = match base {
            0 => mark.to_owned(),
            _ => match self.stored(machine.name(), 0, base).await {
                Ok(stored) => stored.ok_or(Error::DefinitionChanged)?.origin,
                // It takes the place of a version that cannot be read. Labels and events of the versions before stay its own.
                Err(Error::Unreadable) => {
                    let readable = self.versions(machine.name()).await?;
                    let before = readable.into_iter().rfind(|(number, _)| *number < base);
                    before.map_or_else(|| mark.to_owned(), |(_, stored)| stored.origin)
                }
                Err(error) => return Err(error),
            },
        };
        let stored = StoredVersion {
            at_ms,
            origin,
            author: author.clone(),
            hash: machine.hash().to_owned(),
            states: Some(names_of(machine)),
            source: String::new(),
        };
        let record = serde_json::to_string(&stored).unwrap_or_default();
        let definition = Stored { record, source: machine.source().to_string() };
        let map = serde_json::to_string(map).unwrap_or_default();
        match self.versions.start_apply(machine, base, mark, (stored.client(), &definition), &map).await? {
            Started::As(version) => {
                let under_way = self.versions.applying().await?;
                let is_ours = |one: &Applying| one.machine == machine.name() && one.version == version;
                under_way.into_iter().find(is_ours).ok_or(Error::DefinitionChanged)
            }
            Started::Changed => Err(Error::DefinitionChanged),
            Started::Busy => Err(Error::ApplyUnderWay),
            Started::MemoryShort => Err(Error::TooManyDefinitions),
        }
    }
}

/// The names of a machine's states.
fn names_of(machine: &Machine) -> Vec<String> {
    machine.states().iter().map(|state| state.name().to_owned()).collect()
}

/// Reads a machine from its stored text, outside of the threads that serve requests, because it computes only.
///
/// # Errors
/// [`Error::Unreadable`] if the text is not a valid definition of a machine of that name.
pub async fn parse_stored(name: &str, source: String) -> Result<Arc<Machine>, Error> {
    let name = name.to_owned();
    let parsed = spawn_blocking(move || parse_machine(&name, &source)).await;
    let parsed = parsed.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
    parsed.map_err(|_| Error::Unreadable)?.ok_or(Error::Unreadable)
}

/// The machine of that name in the text of a definition.
///
/// # Errors
/// If the text is not a valid definition.
fn parse_machine(name: &str, source: &str) -> Result<Option<Arc<Machine>>, Refused> {
    let file = definition::load_stored(name, source)?;
    Ok(file.machines.into_iter().find(|machine| machine.name() == name))
}
