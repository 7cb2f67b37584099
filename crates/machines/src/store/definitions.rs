//! Definitions: versions that never change, and which of them counts in each shard.

use signalbox_store::{Error, FabricRole, Script, Value, from_redis_value};

use super::Store;

static APPLY: Script<FabricRole> = Script::new("machines/apply", include_str!("../scripts/apply.lua"));
static SWITCH: Script<FabricRole> = Script::new("machines/switch", include_str!("../scripts/switch.lua"));
static APPLIED: Script<FabricRole> = Script::new("machines/applied", include_str!("../scripts/applied.lua"));

/// The scripts that are called here.
#[cfg(test)]
pub(super) const SCRIPTS: [&Script<FabricRole>; 3] = [&APPLY, &SWITCH, &APPLIED];

/// How a change of definition began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Started {
    /// It has this number.
    As(u64),
    /// Another version counts than was expected.
    Changed,
    /// Another change is under way.
    Busy,
}

/// A change of definition that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applying {
    pub(crate) machine: String,
    pub(crate) version: u64,
    /// JSON: removed state → where its labels go.
    pub(crate) map: String,
    /// As it is stored.
    note: String,
}

/// What a change of definition begins with.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) machine: &'a str,
    pub(crate) base: u64,
    pub(crate) mark: &'a str,
    pub(crate) definition: &'a str,
    pub(crate) digest: &'a str,
    pub(crate) map: &'a str,
}

impl Store {
    /// Begins a change of definition.
    pub(crate) async fn start_apply(&self, start: &Start<'_>) -> Result<Started, Error> {
        let keys = self.keys(0);
        let reply: Vec<Value> = APPLY
            .call()
            .key(&keys.current(start.machine))
            .key(&keys.applying())
            .key(&keys.names())
            .key(&keys.seen())
            .key(&keys.versions(start.machine))
            .arg(start.machine)
            .arg(start.base)
            .arg(start.mark)
            .arg(start.definition)
            .arg(start.digest)
            .arg(start.map)
            .run(self.redis(0))
            .await?;
        let mut items = reply.into_iter();
        let word: Option<String> = items.next().and_then(|word| from_redis_value(word).ok());
        let number = items.next().and_then(|value| from_redis_value::<u64>(value).ok());
        Ok(match (word.as_deref(), number) {
            (Some("started"), Some(version)) => Started::As(version),
            (Some("busy"), _) => Started::Busy,
            _ => Started::Changed,
        })
    }

    /// Changes of definition that are under way, or were when somebody died.
    pub(crate) async fn applying(&self) -> Result<Vec<Applying>, Error> {
        let notes: Vec<(String, String)> =
            self.redis(0).command("HGETALL").key(&self.keys(0).applying()).query().await?;
        let read = |(machine, note): (String, String)| {
            let mut parts = note.splitn(3, ' ');
            let version = parts.next()?.parse().ok()?;
            let map = parts.nth(1)?.to_owned();
            Some(Applying { machine, version, map, note })
        };
        Ok(notes.into_iter().filter_map(read).collect())
    }

    /// Every shard has the version now.
    pub(crate) async fn end_apply(&self, done: &Applying) -> Result<(), Error> {
        let call = APPLIED.call().key(&self.keys(0).applying()).arg(&done.machine).arg(&done.note);
        call.run::<u64>(self.redis(0)).await.map(drop)
    }

    /// Makes a version the one that counts in a shard, unless a later one does already; the one that counts then.
    pub(crate) async fn switch(
        &self,
        shard: usize,
        machine: &str,
        version: u64,
        definition: &str,
    ) -> Result<u64, Error> {
        let keys = self.keys(shard);
        let call = SWITCH.call().key(&keys.current(machine)).key(&keys.versions(machine));
        call.arg(version).arg(definition).run(self.redis(shard)).await
    }

    /// The version that counts in a shard.
    pub(crate) async fn current(&self, shard: usize, machine: &str) -> Result<Option<u64>, Error> {
        self.redis(shard).command("GET").key(&self.keys(shard).current(machine)).query().await
    }

    /// A version's JSON as a shard has it.
    pub(crate) async fn version(
        &self,
        shard: usize,
        machine: &str,
        version: u64,
    ) -> Result<Option<String>, Error> {
        self.redis(shard).command("HGET").key(&self.keys(shard).versions(machine)).arg(version).query().await
    }

    /// All versions of a machine: number and JSON.
    pub(crate) async fn versions(&self, machine: &str) -> Result<Vec<(u64, String)>, Error> {
        let mut all: Vec<(u64, String)> =
            self.redis(0).command("HGETALL").key(&self.keys(0).versions(machine)).query().await?;
        all.sort_unstable_by_key(|(version, _)| *version);
        Ok(all)
    }

    /// The machines, by name.
    pub(crate) async fn machines(&self) -> Result<Vec<String>, Error> {
        self.redis(0).command("ZRANGE").key(&self.keys(0).names()).arg(0).arg(-1).query().await
    }

    /// Whether a definition of this digest was ever applied.
    pub(crate) async fn was_seen(&self, digest: &str) -> Result<bool, Error> {
        self.redis(0).command("SISMEMBER").key(&self.keys(0).seen()).arg(digest).query().await
    }

    /// Keeps a plan for a while.
    pub(crate) async fn keep_plan(
        &self,
        machine: &str,
        plan: &str,
        text: &str,
        seconds: u64,
    ) -> Result<(), Error> {
        let key = self.keys(0).plan(machine, plan);
        self.redis(0).command("SET").key(&key).arg(text).arg("EX").arg(seconds).run().await
    }

    /// A plan, while it is kept.
    pub(crate) async fn plan(&self, machine: &str, plan: &str) -> Result<Option<String>, Error> {
        self.redis(0).command("GET").key(&self.keys(0).plan(machine, plan)).query().await
    }
}
