//! Definitions of machines: versions that never change, and which of them is active in each shard.
//!
//! The text of a version is stored apart from its record, which contains everything else: a list of versions needs no text, and the
//! texts of a hundred versions can have a hundred megabytes. Records of earlier releases contain their text.

use signalbox_machine::Machine;
use signalbox_store::{Error, FabricRole, Script, Value, from_redis_value, hash_part, keys};

use super::Shards;

static APPLY: Script<FabricRole> = Script::new("machines/apply", include_str!("../scripts/apply.lua"));
static SWITCH: Script<FabricRole> = Script::new("machines/switch", include_str!("../scripts/switch.lua"));
static RETIRE: Script<FabricRole> = Script::new("machines/retire", include_str!("../scripts/retire.lua"));
static FORGET: Script<FabricRole> = Script::new("machines/forget", include_str!("../scripts/forget.lua"));
static PLAN: Script<FabricRole> = Script::new("machines/plan", include_str!("../scripts/plan.lua"));
static APPLIED: Script<FabricRole> = Script::new("machines/applied", include_str!("../scripts/applied.lua"));

/// The scripts of this file.
#[cfg(test)]
pub(super) const SCRIPTS: [&Script<FabricRole>; 6] = [&APPLY, &SWITCH, &RETIRE, &FORGET, &PLAN, &APPLIED];

/// The result of [`Versions::start_apply`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Started {
    /// The new version has this number.
    As(u64),
    /// Another version is active than the caller expects.
    Changed,
    /// Another change is under way.
    Busy,
    /// Memory is short, and the client uses most of it.
    MemoryShort,
}

/// Maximum number of plans of a client. Each may have a definition of the largest size.
const MAX_PLANS: usize = 16;

/// Records of versions that are read in one call, unless their bytes end it before.
const MAX_RECORDS: usize = 100;

/// A version as a shard has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    /// JSON of everything except the text.
    pub(crate) record: String,
    /// The text of the definition. Empty if it is in the record.
    pub(crate) source: String,
}

/// A change of definition that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applying {
    pub(crate) machine: String,
    pub(crate) version: u64,
    /// JSON: removed state → the state that its labels move to.
    pub(crate) map: String,
    /// As it is stored.
    note: String,
}

/// Reads and writes versions, and records of changes that are under way. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Versions(pub(crate) Shards);

impl Versions {
    pub(crate) fn shards(&self) -> usize {
        self.0.count()
    }

    /// Begins a change from the version `base` to the `definition` of a machine. Its bytes count for the client.
    pub(crate) async fn start_apply(
        &self,
        machine: &Machine,
        base: u64,
        mark: &str,
        (client, definition): (&str, &Stored),
        map: &str,
    ) -> Result<Started, Error> {
        let (keys, name) = (self.0.keys(0), machine.name());
        let bus = keys::bus::bus(self.0.tag(0));
        let reply: Vec<Value> = APPLY
            .call()
            .key(&keys.current(name))
            .key(&keys.applying())
            .key(&keys.names())
            .key(&keys.seen())
            .key(&keys.versions(name))
            .key(&keys.retired())
            .key(&bus.objects_state())
            .key(&bus.tenants())
            .key(&keys.definition_bytes(name))
            .key(&keys.sources(name))
            .arg(name)
            .arg(base)
            .arg(mark)
            .arg(&definition.record)
            .arg(machine.hash())
            .arg(map)
            .arg(client)
            .arg(&definition.source)
            .run(self.0.redis(0))
            .await?;
        let mut items = reply.into_iter();
        let word: Option<String> = items.next().and_then(|word| from_redis_value(word).ok());
        let number = items.next().and_then(|value| from_redis_value::<u64>(value).ok());
        Ok(match (word.as_deref(), number) {
            (Some("started"), Some(version)) => Started::As(version),
            (Some("busy"), _) => Started::Busy,
            (Some("full"), _) => Started::MemoryShort,
            _ => Started::Changed,
        })
    }

    /// Changes of definition that are under way, including those whose pacemaker died.
    pub(crate) async fn applying(&self) -> Result<Vec<Applying>, Error> {
        let notes: Vec<(String, String)> =
            self.0.redis(0).command("HGETALL").key(&self.0.keys(0).applying()).query().await?;
        let read = |(machine, note): (String, String)| {
            let mut parts = note.splitn(3, ' ');
            let version = parts.next()?.parse().ok()?;
            let map = parts.nth(1)?.to_owned();
            Some(Applying { machine, version, map, note })
        };
        Ok(notes.into_iter().filter_map(read).collect())
    }

    /// Ends a change after every shard has the version.
    pub(crate) async fn end_apply(&self, done: &Applying) -> Result<(), Error> {
        let call = APPLIED.call().key(&self.0.keys(0).applying()).arg(&done.machine).arg(&done.note);
        call.run::<u64>(self.0.redis(0)).await.map(drop)
    }

    /// Makes a version active in a shard unless a later one is, or it was deleted. Returns the version that is active then; 0 if
    /// there is none.
    pub(crate) async fn switch(
        &self,
        shard: usize,
        machine: &str,
        (version, has_inputs): (u64, bool),
        (client, definition): (&str, &Stored),
    ) -> Result<u64, Error> {
        let (keys, bus) = (self.0.keys(shard), keys::bus::bus(self.0.tag(shard)));
        SWITCH
            .call()
            .key(&keys.current(machine))
            .key(&keys.versions(machine))
            .key(&keys.inputs())
            .key(&bus.last_event_id())
            .key(&keys.retired())
            .key(&bus.tenants())
            .key(&keys.definition_bytes(machine))
            .key(&keys.sources(machine))
            .arg(version)
            .arg(&definition.record)
            .arg(machine)
            .arg(u8::from(has_inputs))
            .arg(client)
            .arg(&definition.source)
            .run(self.0.redis(shard))
            .await
    }

    /// The number of the last version of a machine, whether it is active, being applied or deleted.
    pub(crate) async fn last(&self, machine: &str) -> Result<u64, Error> {
        let retired = self.0.redis(0).command("HGET").key(&self.0.keys(0).retired()).arg(machine);
        let mut last = retired.query::<Option<u64>>().await?.unwrap_or(0);
        for under_way in self.applying().await?.into_iter().filter(|one| one.machine == machine) {
            last = last.max(under_way.version);
        }
        for shard in 0..self.shards() {
            last = last.max(self.current(shard, machine).await?.unwrap_or(0));
        }
        Ok(last)
    }

    /// Makes no version of a machine active in any shard, and lets none up to `last` become active again. May be repeated.
    /// Returns false if a later version is active: it is another machine of this name, and stays.
    pub(crate) async fn retire(&self, machine: &str, last: u64) -> Result<bool, Error> {
        let mut ended = true;
        // The first shard is last: while it has the machine, the machine is listed.
        for shard in (0..self.shards()).rev() {
            let keys = self.0.keys(shard);
            let call = RETIRE.call().key(&keys.current(machine)).key(&keys.inputs()).key(&keys.retired());
            ended &= call.arg(machine).arg(last).run::<u64>(self.0.redis(shard)).await? == 1;
        }
        if ended {
            self.unlist(machine).await?;
        }
        Ok(ended)
    }

    /// Removes a machine from the list of machines.
    pub(crate) async fn unlist(&self, machine: &str) -> Result<(), Error> {
        self.0.redis(0).command("ZREM").key(&self.0.keys(0).names()).arg(machine).run().await
    }

    /// Removes all versions of a machine that is not active, and the counts of its labels' bytes.
    pub(crate) async fn remove(&self, machine: &str) -> Result<(), Error> {
        for shard in 0..self.shards() {
            let keys = self.0.keys(shard);
            FORGET
                .call()
                .key(&keys.current(machine))
                .key(&keys.applying())
                .key(&keys.versions(machine))
                .key(&keys.recounts())
                .key(&keys::bus::bus(self.0.tag(shard)).tenants())
                .key(&keys.definition_bytes(machine))
                .key(&keys.sources(machine))
                .arg(machine)
                .arg(format!("machine:{machine}"))
                .run::<u64>(self.0.redis(shard))
                .await?;
        }
        Ok(())
    }

    /// The version that is active in a shard.
    pub(crate) async fn current(&self, shard: usize, machine: &str) -> Result<Option<u64>, Error> {
        self.0.redis(shard).command("GET").key(&self.0.keys(shard).current(machine)).query().await
    }

    /// A version as stored in a shard.
    pub(crate) async fn version(
        &self,
        shard: usize,
        machine: &str,
        version: u64,
    ) -> Result<Option<Stored>, Error> {
        let keys = self.0.keys(shard);
        let mut batch = self.0.redis(shard).batch();
        batch.add("HGET", &keys.versions(machine), version).add("HGET", &keys.sources(machine), version);
        let (record, source): (Option<String>, Option<String>) = batch.query().await?;
        Ok(record.map(|record| Stored { record, source: source.unwrap_or_default() }))
    }

    /// The numbers of all versions of a machine, ordered.
    pub(crate) async fn numbers(&self, machine: &str) -> Result<Vec<u64>, Error> {
        let key = self.0.keys(0).versions(machine);
        let mut numbers: Vec<u64> = self.0.redis(0).command("HKEYS").key(&key).query().await?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The records of the first of these versions, about a megabyte together, and at least one. `None` for a version that was
    /// removed in the meantime.
    pub(crate) async fn records(
        &self,
        machine: &str,
        numbers: &[u64],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let numbers = &numbers[..numbers.len().min(MAX_RECORDS)];
        hash_part(self.0.redis(0), &self.0.keys(0).versions(machine), numbers).await
    }

    /// The versions that labels of a shard stay on, each with their number, the oldest first.
    pub(crate) async fn kept(&self, shard: usize, machine: &str) -> Result<Vec<(u64, u64)>, Error> {
        let (redis, key) = (self.0.redis(shard), self.0.keys(shard).kept(machine));
        let (mut found, mut after) = (Vec::new(), "-inf".to_owned());
        loop {
            let next = redis.command("ZRANGEBYSCORE").key(&key).arg(&after).arg("+inf").arg("WITHSCORES");
            let next: Vec<(String, u64)> = next.arg("LIMIT").arg(0).arg(1).query().await?;
            let Some((_, version)) = next.into_iter().next() else { return Ok(found) };
            let count = redis.command("ZCOUNT").key(&key).arg(version).arg(version).query().await?;
            found.push((version, count));
            after = format!("({version}");
        }
    }

    /// The machines, by name.
    pub(crate) async fn machines(&self) -> Result<Vec<String>, Error> {
        self.0.redis(0).command("ZRANGE").key(&self.0.keys(0).names()).arg(0).arg(-1).query().await
    }

    /// Whether a definition of this digest was ever applied.
    pub(crate) async fn was_seen(&self, digest: &str) -> Result<bool, Error> {
        self.0.redis(0).command("SISMEMBER").key(&self.0.keys(0).seen()).arg(digest).query().await
    }

    /// Stores a plan that expires, instead of the client's oldest one if it has many.
    pub(crate) async fn keep_plan(
        &self,
        (machine, plan): (&str, &str),
        client: &str,
        text: &str,
        seconds: u64,
    ) -> Result<(), Error> {
        let keys = self.0.keys(0);
        let call = PLAN.call().key(&keys.plan(machine, plan)).key(&keys.plans(client));
        call.arg(text).arg(seconds).arg(MAX_PLANS).run::<u64>(self.0.redis(0)).await.map(drop)
    }

    /// A plan that has not expired.
    pub(crate) async fn plan(&self, machine: &str, plan: &str) -> Result<Option<String>, Error> {
        self.0.redis(0).command("GET").key(&self.0.keys(0).plan(machine, plan)).query().await
    }
}
