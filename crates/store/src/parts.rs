//! Reads of lists and hashes with large values, in parts that end after some bytes.
//!
//! All callers of a process share a connection. One reply of many values would delay every call behind it, those that publish
//! included, by as long as the server needs to write it.

use redis::ToRedisArgs;

use crate::{Error, Fabric, FabricRole, FabricSpace, Key, Script};

static LIST_PART: Script<FabricRole> = Script::new("list_part", include_str!("scripts/list_part.lua"));
static HASH_PART: Script<FabricRole> = Script::new("hash_part", include_str!("scripts/hash_part.lua"));

/// Maximum bytes of one reply, unless a single value has more.
const PART_BYTES: usize = 1 << 20;

/// Maximum bytes of a page that a caller makes of several parts, about.
pub const PAGE_BYTES: usize = 4 << 20;

/// Reads items of a list from a place on: at most so many, and about a megabyte. None if there is none at that place.
pub async fn list_part(
    redis: &Fabric,
    key: &Key<FabricSpace>,
    from: u64,
    count: u64,
) -> Result<Vec<Vec<u8>>, Error> {
    read(redis, key, from, count, false).await
}

async fn read(
    redis: &Fabric,
    key: &Key<FabricSpace>,
    from: u64,
    count: u64,
    backwards: bool,
) -> Result<Vec<Vec<u8>>, Error> {
    let call = LIST_PART.call().key(key).arg(from).arg(count).arg(PART_BYTES).arg(u8::from(backwards));
    call.run(redis).await
}

/// Reads items of a list in several parts: `count` from a place on, or fewer when their bytes exceed `bytes`, from which they are
/// subtracted. Also returns whether the list has no more.
pub async fn list_page(
    redis: &Fabric,
    key: &Key<FabricSpace>,
    from: u64,
    count: u64,
    bytes: &mut usize,
) -> Result<(Vec<Vec<u8>>, bool), Error> {
    let mut items = Vec::new();
    while (items.len() as u64) < count && *bytes > 0 {
        let read_before = items.len() as u64;
        let part = list_part(redis, key, from + read_before, count - read_before).await?;
        if part.is_empty() {
            return Ok((items, true));
        }
        *bytes = bytes.saturating_sub(part.iter().map(Vec::len).sum());
        items.extend(part);
    }
    Ok((items, false))
}

/// Reads the last items of a list, the last one first: `count`, or fewer when their bytes exceed `bytes`, from which they are
/// subtracted.
pub async fn list_end(
    redis: &Fabric,
    key: &Key<FabricSpace>,
    count: u64,
    bytes: &mut usize,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut items = Vec::new();
    let mut place: u64 = redis.command("LLEN").key(key).query().await?;
    while (items.len() as u64) < count && *bytes > 0 && place > 0 {
        let part = read(redis, key, place - 1, count - items.len() as u64, true).await?;
        if part.is_empty() {
            break;
        }
        place = place.saturating_sub(part.len() as u64);
        *bytes = bytes.saturating_sub(part.iter().map(Vec::len).sum());
        items.extend(part);
    }
    Ok(items)
}

/// Reads values of a hash: those of the first of `fields`, as many as fit into about a megabyte, and one at least. `None` for a
/// field that does not exist.
pub async fn hash_part(
    redis: &Fabric,
    key: &Key<FabricSpace>,
    fields: &[impl ToRedisArgs + Sync],
) -> Result<Vec<Option<Vec<u8>>>, Error> {
    if fields.is_empty() {
        return Ok(Vec::new());
    }
    HASH_PART.call().key(key).arg(PART_BYTES).arg(fields).run(redis).await
}

/// How many values of unknown size are read together, of which each reply contains all: few at first, then as many as have about a
/// megabyte by the size of the ones before.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    count: usize,
    max: usize,
}

/// Values of the first reply: a policy or a certificate has up to 64 KiB.
const FIRST: usize = 16;
/// How many times as many values the next reply may have.
const GROWTH: usize = 4;

impl Pace {
    /// At most `max` values in each reply.
    pub fn new(max: usize) -> Self {
        Self { count: FIRST.min(max), max }
    }

    /// The number of values to read next.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A reply had so many values, of so many bytes together.
    pub fn read(&mut self, values: usize, bytes: usize) {
        let fit = PART_BYTES.saturating_mul(values) / bytes.max(1);
        self.count = fit.min(self.count * GROWTH).clamp(1, self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_are_read_in_large_numbers_and_large_ones_in_small_numbers() {
        let mut pace = Pace::new(500);
        let mut counts = Vec::new();
        for bytes_each in [300, 300, 300, 300, 64 << 10, 64 << 10, 4 << 20, 100] {
            counts.push(pace.count());
            pace.read(pace.count(), pace.count() * bytes_each);
        }
        assert_eq!(counts, [16, 64, 256, 500, 500, 16, 16, 1]);
        assert_eq!(pace.count(), 4);
        assert_eq!(Pace::new(3).count(), 3);
    }
}
