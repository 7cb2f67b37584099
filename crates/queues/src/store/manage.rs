//! The operators' calls: configure a queue, drop messages, manage dead letters, remove a queue.

use signalbox_api::queues::MessageState;
use signalbox_store::{Error, FabricRole, Script, keys, unpacked};

use super::{Store, Stored, Taken};
use crate::{DeadLetters, Definition};

scripts! {
    CONFIGURE: "configure",
    DROP_WAITING: "drop",
    DROP_DELAYED: "drop_delayed",
    DROP_FLYING: "drop_flying",
    TAKE_DEAD: "redrive",
    CLEAR: "clear",
}

/// Maximum number of facets that one call configures.
const FACETS: usize = 500;
/// Maximum number of messages that one call drops or examines.
const PART: usize = 2_000;
/// Maximum number of dead letters that one call reads.
const DEAD_PART: u64 = 500;

/// Parses a dead letter: a MessagePack array of six strings.
fn read_letter(stored: &[u8]) -> Option<Stored> {
    let [died, attempts, reason, environment, id, body] = unpacked(stored)?;
    let text = |bytes| String::from_utf8(bytes).ok();
    let attempt = text(attempts)?.parse().ok()?;
    let message =
        Taken { id: text(id)?.parse().ok()?, attempt, environment: text(environment)?, backlog: 0, body };
    let (at_ms, reason) = (Some(text(died)?.parse().ok()?), Some(text(reason)?));
    Some(Stored { place: MessageState::Dead, at_ms, reason, message })
}

/// The result of configuring a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Configured {
    /// The definition, or a newer one, is in effect in the shard.
    Done,
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

    /// Drops waiting messages of one facet or of all.
    pub(crate) async fn drop_waiting(&self, queue: &str, environment: Option<&str>) -> Result<u64, Error> {
        let (mut dropped, mut cursor) = (0, String::new());
        loop {
            let (part, next) = self.drop_part(queue, environment, None, &cursor, PART).await?;
            dropped += part;
            if next.is_empty() {
                return Ok(dropped);
            }
            cursor = next;
        }
    }

    /// Drops one part of these; only those accepted before `before_ms`, if it is given. Returns where the next part begins, or nothing at the end.
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
    pub(crate) async fn dead(&self, queue: &str, from: u64, count: u64) -> Result<Vec<Stored>, Error> {
        let stored: Vec<Vec<u8>> = self
            .redis()
            .command("LRANGE")
            .key(&self.keys(queue).dead())
            .arg(from)
            .arg((from + count).saturating_sub(1))
            .query()
            .await?;
        Ok(stored.iter().filter_map(|letter| read_letter(letter)).collect())
    }

    /// Takes one part of the dead letters out of their list, the oldest first. `definition` must come from the
    /// registry with this `stamp`. `before` is the number of letters that earlier parts took, and `from` the
    /// index of the first letter to read. Returns the number of letters that were taken, and the index of the
    /// next part, if there is one; `None` if the registry has changed.
    pub(crate) async fn take_dead(
        &self,
        queue: &str,
        stamp: &str,
        definition: &Definition,
        wanted: DeadLetters<'_>,
        before: u64,
        from: u64,
    ) -> Result<Option<(u64, Option<u64>)>, Error> {
        let bus = keys::bus::bus(self.shard.tag());
        let (taken, next): (i64, i64) = self
            .call(&TAKE_DEAD, queue)
            .key(&bus.log())
            .key(&bus.registry())
            .arg(self.clock.argument())
            .arg(stamp)
            .arg(DEAD_PART)
            .arg(u8::from(wanted.drop))
            .arg(from)
            .arg(wanted.environment.unwrap_or_default())
            .arg(wanted.rate.unwrap_or_default())
            .arg(before)
            .arg(wanted.ids.len())
            .arg(wanted.ids)
            .arg(flat(definition))
            .run(self.redis())
            .await?;
        Ok(u64::try_from(taken).ok().map(|taken| (taken, u64::try_from(next).ok())))
    }
}

/// Environments, weights and rules as a flat list.
fn flat(definition: &Definition) -> Vec<String> {
    definition
        .facets()
        .flat_map(|(name, weight, rules)| [name.to_owned(), weight.to_string(), rules])
        .collect()
}
