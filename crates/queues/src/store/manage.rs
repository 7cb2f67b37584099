//! The operators' calls: configure a queue, drop messages, manage dead letters, remove a queue.

use signalbox_api::queues::MessageState;
use signalbox_store::{Error, FabricRole, Script, keys, list_page, list_part, unpacked};

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

/// Maximum number of tenants that one call configures.
const TENANTS: usize = 60;
/// Maximum number of messages that one call drops; a tenant counts as 20 more.
const PART: usize = 2_000;
/// Maximum number of messages that one call drops, or examines, if each may be of another tenant.
const SCAN_PART: usize = 100;
/// Maximum number of messages of a deleted queue that one call removes; a tenant counts as 5 more.
const CLEAR_PART: usize = 500;
/// Maximum number of dead letters that one call reads.
const DEAD_PART: u64 = 200;

/// Parses a dead letter: a MessagePack array of six strings.
fn read_letter(stored: &[u8]) -> Option<Stored> {
    let [died, attempts, reason, tenant, id, body] = unpacked(stored)?;
    let text = |bytes| String::from_utf8(bytes).ok();
    let attempt = text(attempts)?.parse().ok()?;
    let message = Taken { id: text(id)?.parse().ok()?, attempt, tenant: text(tenant)?, backlog: 0, body };
    let (at_ms, reason) = (Some(text(died)?.parse().ok()?), Some(text(reason)?));
    Some(Stored { place: MessageState::Dead, at_ms, reason, message })
}

/// The result of configuring a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Configured {
    /// The definition is in effect in the shard.
    Done,
    /// The registry has changed, or a newer definition is being put into effect.
    Stale,
}

/// The result of removing a part of a deleted queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleared {
    /// More remains.
    Part,
    /// Nothing remains.
    All,
    /// The registry has another stamp. Nothing was done.
    Stale,
}

impl Store {
    /// Makes a definition take effect in this shard. It must come from the registry with this `stamp`. If one of `known`, which
    /// are earlier definitions of the queue, is in effect for all tenants, only the tenants that differ from it are changed.
    pub async fn configure(
        &self,
        queue: &str,
        stamp: &str,
        definition: &Definition,
        known: &[&Definition],
    ) -> Result<Configured, Error> {
        let keys = self.keys(queue);
        let settings = self.redis().command("HMGET").key(&keys.settings());
        let (revision, settled, ranked): (Option<u64>, Option<u64>, Option<u64>) =
            settings.arg(("revision", "settled", "ranked")).query().await?;
        if settled == Some(definition.revision) && ranked.is_some() {
            return Ok(Configured::Done);
        }
        let part = |base: Option<u64>| Part { queue, stamp, definition, base, is_last: false };
        let is_base = |base: &&&Definition| {
            // Parts of another revision may be in effect, if a pacemaker that configured it was interrupted.
            Some(base.revision) == settled
                && ranked.is_some()
                && revision == settled
                && base.in_flight_limit == definition.in_flight_limit
        };
        if let Some(base) = known.iter().find(is_base) {
            let names = definition.differences(base);
            let mut parts = names.chunks(TENANTS).peekable();
            loop {
                let names = parts.next().unwrap_or_default();
                let part = Part { is_last: parts.peek().is_none(), ..part(settled) };
                let done = self.configure_part(part, names).await?;
                if done != Configured::Done || part.is_last {
                    return Ok(done);
                }
            }
        }
        // The tenant whose turn it is comes first, and tenants with a rate may have no messages.
        let mut first: Vec<String> =
            self.redis().command("ZRANGE").key(&keys.ring()).arg((0, 0)).query().await?;
        let rated: Vec<String> = self.redis().command("HKEYS").key(&keys.rates()).query().await?;
        first.extend(rated);
        for names in first.chunks(TENANTS) {
            if self.configure_part(part(None), names).await? != Configured::Done {
                return Ok(Configured::Stale);
            }
        }
        let mut after = String::new();
        loop {
            let names = self.tenants_after(queue, &after, TENANTS).await?;
            let part = Part { is_last: names.len() < TENANTS, ..part(None) };
            let done = self.configure_part(part, &names).await?;
            match names.into_iter().next_back() {
                Some(last) if !part.is_last && done == Configured::Done => after = last,
                _ => return Ok(done),
            }
        }
    }

    async fn configure_part(&self, part: Part<'_>, names: &[String]) -> Result<Configured, Error> {
        let Part { queue, stamp, definition, base, is_last } = part;
        let settings = names
            .iter()
            .flat_map(|name| [name.clone(), definition.weight(name).to_string(), definition.rules(name)]);
        let refusal: u8 = self
            .call(&CONFIGURE, queue)
            .key(&keys::bus::bus(self.shard.tag()).registry())
            .arg(stamp)
            .arg(definition.revision)
            .arg(definition.lease_ms)
            .arg(definition.in_flight_limit.unwrap_or_default())
            .arg(definition.max_attempts)
            .arg(definition.retention_seconds * 1000)
            .arg(definition.backoff_ms)
            .arg(definition.max_backoff_ms)
            .arg(base.map(|base| base.to_string()).unwrap_or_default())
            .arg(u8::from(is_last))
            .arg(settings.collect::<Vec<_>>())
            .run(self.redis())
            .await?;
        Ok(if refusal == 0 { Configured::Done } else { Configured::Stale })
    }

    /// Drops waiting messages of one tenant or of all.
    pub(crate) async fn drop_waiting(&self, queue: &str, tenant: Option<&str>) -> Result<u64, Error> {
        let (mut dropped, mut cursor) = (0, String::new());
        loop {
            let only = tenant.unwrap_or_default();
            let (part, next) = self.drop_part(queue, only, &cursor, false, PART).await?;
            dropped += part;
            if next.is_empty() {
                return Ok(dropped);
            }
            cursor = next;
        }
    }

    /// Drops a part of the messages that have waited for longer than the queue's retention, at most `most`. Returns their
    /// number, and where the next part begins; an empty text at the end.
    pub async fn drop_expired(&self, queue: &str, cursor: &str, most: usize) -> Result<(u64, String), Error> {
        self.drop_part(queue, "", cursor, true, most).await
    }

    async fn drop_part(
        &self,
        queue: &str,
        tenant: &str,
        cursor: &str,
        only_expired: bool,
        most: usize,
    ) -> Result<(u64, String), Error> {
        self.call(&DROP_WAITING, queue)
            .arg(self.clock.argument())
            .arg(tenant)
            .arg(cursor)
            .arg(u8::from(only_expired))
            .arg(most)
            .run(self.redis())
            .await
    }

    /// Drops delayed messages of one tenant or of all.
    pub(crate) async fn drop_delayed(&self, queue: &str, tenant: Option<&str>) -> Result<u64, Error> {
        let tenant = tenant.unwrap_or_default();
        self.scan(&DROP_DELAYED, queue, tenant).await
    }

    /// Drops a tenant's messages in flight.
    pub(crate) async fn drop_flying(&self, queue: &str, tenant: &str) -> Result<u64, Error> {
        self.scan(&DROP_FLYING, queue, tenant).await
    }

    async fn scan(&self, script: &Script<FabricRole>, queue: &str, tenant: &str) -> Result<u64, Error> {
        let (mut dropped, mut cursor) = (0, "0".to_owned());
        loop {
            let (part, next): (u64, String) =
                self.call(script, queue).arg(tenant).arg(cursor).arg(SCAN_PART).run(self.redis()).await?;
            dropped += part;
            if next == "0" {
                return Ok(dropped);
            }
            cursor = next;
        }
    }

    /// Removes a part of a queue that is deleted in the registry with this `stamp`.
    pub async fn clear(&self, queue: &str, stamp: &str) -> Result<Cleared, Error> {
        let registry = keys::bus::bus(self.shard.tag()).registry();
        let call = self.call(&CLEAR, queue).key(&registry).arg(stamp).arg(CLEAR_PART);
        Ok(match call.run::<i64>(self.redis()).await? {
            1 => Cleared::Part,
            0 => Cleared::All,
            _ => Cleared::Stale,
        })
    }

    /// Dead letters from an index on, oldest first: at most `count`, and about a megabyte. `None` for one that is not readable.
    pub(crate) async fn dead_part(
        &self,
        queue: &str,
        from: u64,
        count: u64,
    ) -> Result<Vec<Option<Stored>>, Error> {
        let stored = list_part(self.redis(), &self.keys(queue).dead(), from, count).await?;
        Ok(stored.iter().map(|letter| read_letter(letter)).collect())
    }

    /// The same in several parts, until their bytes exceed `bytes`, from which they are subtracted. Also returns whether there
    /// are no more.
    pub(crate) async fn dead(
        &self,
        queue: &str,
        from: u64,
        count: u64,
        bytes: &mut usize,
    ) -> Result<(Vec<Option<Stored>>, bool), Error> {
        let (stored, is_last) = list_page(self.redis(), &self.keys(queue).dead(), from, count, bytes).await?;
        Ok((stored.iter().map(|letter| read_letter(letter)).collect(), is_last))
    }

    /// Takes one part of the dead letters out of their list, the oldest first. `definition` must come from the
    /// registry with this `stamp`. `before` is the number of letters that earlier parts took, and `from` the
    /// index of the first letter to read, and the ID of the letter before it. Returns the number of letters that were taken, and
    /// these two for the next part, if there is one; `None` if the registry has changed.
    pub(crate) async fn take_dead(
        &self,
        queue: &str,
        stamp: &str,
        definition: &Definition,
        wanted: DeadLetters<'_>,
        before: u64,
        (from, behind): &(u64, String),
    ) -> Result<Option<(u64, Option<(u64, String)>)>, Error> {
        let bus = keys::bus::bus(self.shard.tag());
        let (taken, next, behind): (i64, i64, String) = self
            .call(&TAKE_DEAD, queue)
            .key(&bus.log())
            .key(&bus.registry())
            .arg(self.clock.argument())
            .arg(stamp)
            .arg(DEAD_PART)
            .arg(u8::from(wanted.drop))
            .arg(*from)
            .arg(behind)
            .arg(wanted.tenant.unwrap_or_default())
            .arg(wanted.rate.unwrap_or_default())
            .arg(before)
            .arg(wanted.ids.len())
            .arg(wanted.ids)
            .arg(flat(definition))
            .run(self.redis())
            .await?;
        let next = u64::try_from(next).ok().map(|next| (next, behind));
        Ok(u64::try_from(taken).ok().map(|taken| (taken, next)))
    }
}

/// A part of the work of putting a definition into effect.
#[derive(Clone, Copy)]
struct Part<'a> {
    queue: &'a str,
    stamp: &'a str,
    definition: &'a Definition,
    /// The revision that is in effect, if the parts contain only what differs from it.
    base: Option<u64>,
    is_last: bool,
}

/// Tenants, weights and rules as a flat list.
fn flat(definition: &Definition) -> Vec<String> {
    definition
        .tenants()
        .flat_map(|(name, weight, rules)| [name.to_owned(), weight.to_string(), rules])
        .collect()
}
