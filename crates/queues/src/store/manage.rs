//! The operators' calls: configure a queue, drop messages, manage dead letters, remove a queue.

use signalbox_store::{Error, FabricRole, Script, keys, unpacked};

use super::{SHARED, Store};
use crate::Definition;

static CONFIGURE: Script<FabricRole> =
    Script::composed("queues/configure", &[include_str!("../scripts/configure.lua"), SHARED]);
static DROP_WAITING: Script<FabricRole> =
    Script::composed("queues/drop", &[include_str!("../scripts/drop.lua"), SHARED]);
static DROP_DELAYED: Script<FabricRole> =
    Script::composed("queues/drop_delayed", &[include_str!("../scripts/drop_delayed.lua"), SHARED]);
static DROP_FLYING: Script<FabricRole> =
    Script::composed("queues/drop_flying", &[include_str!("../scripts/drop_flying.lua"), SHARED]);
static TAKE_DEAD: Script<FabricRole> =
    Script::composed("queues/redrive", &[include_str!("../scripts/redrive.lua"), SHARED]);
static CLEAR: Script<FabricRole> =
    Script::composed("queues/clear", &[include_str!("../scripts/clear.lua"), SHARED]);

#[cfg(test)]
pub(super) const SCRIPTS: &[(&str, &Script<FabricRole>)] = &[
    ("configure", &CONFIGURE),
    ("drop", &DROP_WAITING),
    ("drop_delayed", &DROP_DELAYED),
    ("drop_flying", &DROP_FLYING),
    ("redrive", &TAKE_DEAD),
    ("clear", &CLEAR),
];

/// Maximum number of facets that one call configures.
const FACETS: usize = 500;
/// Maximum number of messages that one call drops or examines.
const PART: usize = 2_000;

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// When it became a dead letter, unix milliseconds.
    pub died_ms: u64,
    /// The number of deliveries.
    pub attempts: u32,
    /// The last outcome: `nacked`, `expired` or `rejected`.
    pub reason: String,
    /// Its environment.
    pub environment: String,
    /// Its id.
    pub id: u64,
    /// The log entry.
    pub body: Vec<u8>,
}

impl DeadLetter {
    /// Parses the stored form: a MessagePack array of six strings.
    fn read(stored: &[u8]) -> Option<Self> {
        let [died, attempts, reason, environment, id, body] = unpacked(stored)?;
        let text = |bytes| String::from_utf8(bytes).ok();
        Some(Self {
            died_ms: text(died)?.parse().ok()?,
            attempts: text(attempts)?.parse().ok()?,
            reason: text(reason)?,
            environment: text(environment)?,
            id: text(id)?.parse().ok()?,
            body,
        })
    }
}

/// The result of configuring a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Configured {
    /// The definition, or a newer one, is in effect in the shard.
    Done,
    /// The registry has changed.
    Stale,
}

/// Which dead letters a call removes from their list, and what happens to them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeadCall<'a> {
    /// If set, only those of this environment.
    pub environment: Option<&'a str>,
    /// Only those with these ids; all if empty.
    pub ids: &'a [u64],
    /// Whether they are dropped instead of redriven.
    pub drop: bool,
    /// Messages to redrive per 1,000 seconds; 0 for all immediately.
    pub rate: u64,
    /// The number that earlier parts of the same request redrove.
    pub before: u64,
    /// The index of the first letter to read.
    pub from: u64,
    /// The number of letters to read.
    pub most: u64,
}

/// The result of one part of a redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadTaken {
    /// The number of letters that were processed, and the index of the next part, if there is one.
    Part(u64, Option<u64>),
    /// The registry has changed.
    Stale,
}

impl Store {
    /// Makes a definition take effect in this shard, unless the registry that it comes from (`stamp`) has
    /// changed.
    pub async fn configure(
        &self,
        queue: &str,
        stamp: &str,
        definition: &Definition,
    ) -> Result<Configured, Error> {
        let registry = keys::bus::bus(self.shard.tag()).registry();
        let mut cursor = String::new();
        loop {
            let (stale, next): (u8, String) = self
                .call(&CONFIGURE, queue)
                .key(&registry)
                .arg(stamp)
                .arg(definition.revision)
                .arg(definition.lease_ms)
                .arg(definition.in_flight_limit.unwrap_or_default())
                .arg(definition.max_attempts)
                .arg(definition.retention_seconds * 1000)
                .arg(definition.backoff_ms)
                .arg(definition.max_backoff_ms)
                .arg(cursor)
                .arg(FACETS)
                .arg(flat(definition))
                .run(self.redis())
                .await?;
            if stale == 1 {
                return Ok(Configured::Stale);
            }
            if next.is_empty() {
                return Ok(Configured::Done);
            }
            cursor = next;
        }
    }

    /// Drops waiting messages of one facet or of all; only those accepted before `before_ms`, if it is given.
    pub(crate) async fn drop_waiting(
        &self,
        queue: &str,
        environment: Option<&str>,
        before_ms: Option<u64>,
    ) -> Result<u64, Error> {
        let (mut dropped, mut cursor) = (0, String::new());
        loop {
            let (part, next): (u64, String) =
                self.drop_part(queue, environment, before_ms, &cursor, PART).await?;
            dropped += part;
            if next.is_empty() {
                return Ok(dropped);
            }
            cursor = next;
        }
    }

    /// Drops one part of these. Returns where the next part begins, or nothing at the end.
    pub async fn drop_part(
        &self,
        queue: &str,
        environment: Option<&str>,
        before_ms: Option<u64>,
        cursor: &str,
        most: usize,
    ) -> Result<(u64, String), Error> {
        self.call(&DROP_WAITING, queue)
            .arg(environment.unwrap_or_default())
            .arg(cursor)
            .arg(before_ms.map(|ms| ms.to_string()).unwrap_or_default())
            .arg(most)
            .run(self.redis())
            .await
    }

    /// Drops delayed messages of one facet or of all.
    pub(crate) async fn drop_delayed(&self, queue: &str, environment: Option<&str>) -> Result<u64, Error> {
        let environment = environment.unwrap_or_default();
        self.scan(&DROP_DELAYED, queue, environment).await
    }

    /// Drops a facet's messages in flight.
    pub(crate) async fn drop_flying(&self, queue: &str, environment: &str) -> Result<u64, Error> {
        self.scan(&DROP_FLYING, queue, environment).await
    }

    async fn scan(&self, script: &Script<FabricRole>, queue: &str, environment: &str) -> Result<u64, Error> {
        let (mut dropped, mut cursor) = (0, "0".to_owned());
        loop {
            let (part, next): (u64, String) =
                self.call(script, queue).arg(environment).arg(cursor).arg(PART).run(self.redis()).await?;
            dropped += part;
            if next == "0" {
                return Ok(dropped);
            }
            cursor = next;
        }
    }

    /// Removes a part of a deleted queue. Returns true if more remains.
    pub async fn clear(&self, queue: &str) -> Result<bool, Error> {
        Ok(self.call(&CLEAR, queue).arg(PART).run::<i64>(self.redis()).await? == 1)
    }

    /// Dead letters from an index on, oldest first.
    pub(crate) async fn dead(&self, queue: &str, from: u64, count: u64) -> Result<Vec<DeadLetter>, Error> {
        let stored: Vec<Vec<u8>> = self
            .redis()
            .command("LRANGE")
            .key(&self.keys(queue).dead())
            .arg(from)
            .arg((from + count).saturating_sub(1))
            .query()
            .await?;
        Ok(stored.iter().filter_map(|letter| DeadLetter::read(letter)).collect())
    }

    /// Removes dead letters from their list, the oldest first. `definition` must come from the registry with
    /// this `stamp`.
    pub(crate) async fn take_dead(
        &self,
        queue: &str,
        stamp: &str,
        definition: &Definition,
        call: DeadCall<'_>,
    ) -> Result<DeadTaken, Error> {
        let bus = keys::bus::bus(self.shard.tag());
        let (taken, next): (i64, i64) = self
            .call(&TAKE_DEAD, queue)
            .key(&bus.log())
            .key(&bus.registry())
            .arg(self.clock.argument())
            .arg(stamp)
            .arg(call.most)
            .arg(u8::from(call.drop))
            .arg(call.from)
            .arg(call.environment.unwrap_or_default())
            .arg(call.rate)
            .arg(call.before)
            .arg(call.ids.len())
            .arg(call.ids)
            .arg(flat(definition))
            .run(self.redis())
            .await?;
        Ok(u64::try_from(taken)
            .map_or(DeadTaken::Stale, |taken| DeadTaken::Part(taken, u64::try_from(next).ok())))
    }
}

/// Environments, weights and rules as a flat list.
fn flat(definition: &Definition) -> Vec<String> {
    definition
        .facets()
        .flat_map(|(name, weight, rules)| [name.to_owned(), weight.to_string(), rules])
        .collect()
}
