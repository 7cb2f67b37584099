//! Packed records of labels, and the sorted sets of names by state, status and zone.

use std::sync::Arc;

use signalbox_store::{
    Combiner, Error, FabricRole, Script, SharedResult, Value, from_redis_value, keys::machines as keys,
};

use super::{FabricKey, NONE, Shards};

pub(super) static UNLIST: Script<FabricRole> =
    Script::new("machines/unlist", include_str!("../scripts/unlist.lua"));
pub(super) static WALK: Script<FabricRole> =
    Script::new("machines/walk", include_str!("../scripts/walk.lua"));

/// Looping labels that are read to subtract them from those at rest.
const MAX_LOOPING: usize = 10_000;

/// Maximum number of single records that one command reads.
const MAX_READS: usize = 128;

/// Reads of single records by shard, several in one command.
type Reads = Combiner<usize, FabricKey, SharedResult<Option<Vec<u8>>>>;

/// Reads records and indexes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    shards: Shards,
    reads: Arc<Reads>,
}

/// A sorted set that names labels of a machine.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Index<'a> {
    /// Those in a state.
    State(&'a str),
    /// Those with a status that has an index, or those that are suspended.
    Status(&'a str),
    /// Those with an indexed value, by its digest.
    Value(u64),
    /// Those at a gate whose own metadata names a zone.
    Zone(&'a str, &'a str),
    /// Those that were deleted.
    Gone,
}

impl Index<'_> {
    fn key(self, keys: &keys::Machines<'_>, machine: &str) -> FabricKey {
        match self {
            Self::State(state) => keys.in_state(machine, state),
            Self::Status(status) => keys.with_status(machine, status),
            Self::Value(digest) => keys.by_value(machine, digest),
            Self::Zone(gate, zone) => keys.in_zone(machine, gate, zone),
            Self::Gone => keys.gone(machine),
        }
    }
}

impl Records {
    pub(crate) fn new(shards: Shards) -> Self {
        Self { reads: Combiner::new(|_| MAX_READS), shards }
    }

    /// The shards that they are spread over.
    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// A label's packed record.
    pub(crate) async fn one(&self, machine: &str, label: &str) -> Result<Option<Vec<u8>>, Error> {
        let shard = self.shards.of(machine, label);
        let key = self.shards.keys(shard).label(machine, label);
        self.shards.faults.before_call();
        let shards = self.shards.clone();
        let run = move |keys| read_all(shards.clone(), shard, keys);
        match self.reads.call(shard, key.clone(), run).await {
            Some(Ok(record)) => Ok(record),
            // A failure that is shared is not the label's own.
            Some(Err(_)) | None => Box::pin(self.shards.redis(shard).command("GET").key(&key).query()).await,
        }
    }

    /// When the label that has been in a state for longest entered it, Unix milliseconds, over all shards.
    pub(crate) async fn oldest_in(&self, machine: &str, state: &str) -> Result<Option<u64>, Error> {
        let mut oldest: Option<u64> = None;
        for shard in 0..self.shards.count() {
            let key = self.shards.keys(shard).since(machine, state);
            let command = self.shards.redis(shard).command("ZRANGE").key(&key);
            let first: Vec<(String, u64)> = command.arg(0).arg(0).arg("WITHSCORES").query().await?;
            oldest = oldest.into_iter().chain(first.first().map(|(_, score)| *score)).min();
        }
        Ok(oldest)
    }

    /// The lines of a label's log, the oldest first.
    pub(crate) async fn log(&self, machine: &str, label: &str) -> Result<Vec<Vec<u8>>, Error> {
        let shard = self.shards.of(machine, label);
        let key = self.shards.keys(shard).log(machine, label);
        self.shards.redis(shard).command("LRANGE").key(&key).arg(0).arg(-1).query().await
    }

    /// The packed records of labels of one shard.
    pub(crate) async fn many(
        &self,
        shard: usize,
        machine: &str,
        labels: &[String],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        if labels.is_empty() {
            return Ok(Vec::new());
        }
        let keys = self.shards.keys(shard);
        let command = self.shards.redis(shard).command("MGET");
        labels.iter().fold(command, |command, label| command.key(&keys.label(machine, label))).query().await
    }

    /// The next names after `after` in an index of a shard, at most `limit`.
    pub(crate) async fn names(
        &self,
        shard: usize,
        machine: &str,
        index: Index<'_>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        let key = index.key(&self.shards.keys(shard), machine);
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let command = self.shards.redis(shard).command("ZRANGE").key(&key).arg(from).arg("+");
        command.arg("BYLEX").arg("LIMIT").arg(0).arg(limit).query().await
    }

    /// The next names after `after` in any of these indexes of all shards, in order.
    pub(crate) async fn names_in_any(
        &self,
        machine: &str,
        indexes: &[Index<'_>],
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for shard in 0..self.shards.count() {
            for index in indexes {
                names.extend(self.names(shard, machine, *index, after, limit).await?);
            }
        }
        names.sort_unstable();
        names.dedup();
        names.truncate(limit);
        Ok(names)
    }

    /// Removes a name from the index of a state, while no version of its machine is active.
    pub(crate) async fn remove_from_state(
        &self,
        shard: usize,
        machine: &str,
        state: &str,
        name: &str,
    ) -> Result<(), Error> {
        let keys = self.shards.keys(shard);
        let call = UNLIST.call().key(&keys.current(machine)).key(&keys.in_state(machine, state)).arg(name);
        call.run::<u64>(self.shards.redis(shard)).await.map(drop)
    }

    /// How many labels are in each of these states, over all shards.
    pub(crate) async fn count_states(
        &self,
        machine: &str,
        states: &[impl AsRef<str>],
    ) -> Result<Vec<u64>, Error> {
        let states: Vec<Index<'_>> = states.iter().map(|state| Index::State(state.as_ref())).collect();
        self.count(machine, &states).await
    }

    /// How many names are in each of these indexes, over all shards.
    pub(crate) async fn count(&self, machine: &str, indexes: &[Index<'_>]) -> Result<Vec<u64>, Error> {
        let mut counts = vec![0; indexes.len()];
        if indexes.is_empty() {
            return Ok(counts);
        }
        for shard in 0..self.shards.count() {
            let mut batch = self.shards.redis(shard).batch();
            for index in indexes {
                batch.add("ZCARD", &index.key(&self.shards.keys(shard), machine), &NONE[..]);
            }
            let found: Vec<u64> = batch.query().await?;
            counts.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
        }
        Ok(counts)
    }

    /// How many names are in an index of a shard.
    pub(crate) async fn count_here(
        &self,
        shard: usize,
        machine: &str,
        index: Index<'_>,
    ) -> Result<u64, Error> {
        let key = index.key(&self.shards.keys(shard), machine);
        self.shards.redis(shard).command("ZCARD").key(&key).query().await
    }

    /// How many labels rest at each of these gates: all that are there, without those that loop, which continue.
    pub(crate) async fn count_at_rest(&self, machine: &str, gates: &[&str]) -> Result<Vec<u64>, Error> {
        let mut counts = self.count_states(machine, gates).await?;
        for shard in 0..self.shards.count() {
            // A label loops for a second, so these are few unless many labels loop.
            let looping = self.names(shard, machine, Index::Status("looping"), None, MAX_LOOPING).await?;
            if looping.is_empty() || gates.is_empty() {
                continue;
            }
            for (gate, count) in gates.iter().zip(&mut counts) {
                let mut batch = self.shards.redis(shard).batch();
                batch.add("ZMSCORE", &self.shards.keys(shard).in_state(machine, gate), &looping);
                let found: Vec<Vec<Option<f64>>> = batch.query().await?;
                *count = count.saturating_sub(found.iter().flatten().flatten().count() as u64);
            }
        }
        Ok(counts)
    }

    /// For each zone, whether labels at the gate name it in their own metadata.
    pub(crate) async fn zones_present(
        &self,
        shard: usize,
        machine: &str,
        gate: &str,
        zones: &[String],
    ) -> Result<Vec<bool>, Error> {
        if zones.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.shards.redis(shard).batch();
        for zone in zones {
            batch.add("EXISTS", &self.shards.keys(shard).in_zone(machine, gate, zone), &NONE[..]);
        }
        let present: Vec<u64> = batch.query().await?;
        Ok(present.into_iter().map(|present| present == 1).collect())
    }

    /// The scores of members of sorted sets. Each place is the key after `machine:` and the member.
    pub(crate) async fn scores(
        &self,
        shard: usize,
        places: &[(&str, &str)],
    ) -> Result<Vec<Option<u64>>, Error> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.shards.redis(shard).batch();
        for (key, member) in places {
            batch.add("ZSCORE", &self.shards.keys(shard).index(key), *member);
        }
        batch.query().await
    }

    /// Scans the records of a shard in no order. Returns the next cursor (0 at the end), and machine and name of each
    /// label found.
    pub(crate) async fn walk(
        &self,
        shard: usize,
        cursor: u64,
        count: usize,
    ) -> Result<(u64, Vec<(String, String)>), Error> {
        let keys = self.shards.keys(shard);
        let begin = keys.label_prefix();
        let reply: Vec<Value> = WALK
            .call()
            .key(&keys.next())
            .arg(cursor)
            .arg(format!("{begin}*:data"))
            .arg(count)
            .run(self.shards.redis(shard))
            .await?;
        let mut parts = reply.into_iter();
        let next: Option<String> = parts.next().and_then(|next| from_redis_value(next).ok());
        let found: Vec<String> =
            parts.next().and_then(|found| from_redis_value(found).ok()).unwrap_or_default();
        // Names of machines contain no colon; those of labels may.
        let read = |key: &String| {
            let (machine, label) = key.strip_prefix(&*begin)?.strip_suffix(":data")?.split_once(':')?;
            Some((machine.to_owned(), label.to_owned()))
        };
        let next = next.and_then(|next| next.parse().ok()).unwrap_or(0);
        Ok((next, found.iter().filter_map(read).collect()))
    }
}

/// Reads single records in one command, which costs Redis and this process much less than one command for each.
async fn read_all(shards: Shards, shard: usize, keys: Vec<FabricKey>) -> Vec<SharedResult<Option<Vec<u8>>>> {
    let command = shards.all[shard].redis().command("MGET");
    let read = keys.iter().fold(command, |command, key| command.key(key)).query().await;
    match read {
        Ok(records) => {
            let records: Vec<Option<Vec<u8>>> = records;
            records.into_iter().map(Ok).collect()
        }
        Err(error) => {
            let error = Arc::new(error);
            keys.iter().map(|_| Err(Arc::clone(&error))).collect()
        }
    }
}
