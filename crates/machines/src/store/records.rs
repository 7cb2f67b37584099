//! Packed records of labels, and the sorted sets of names by state, status and zone.

use std::sync::Arc;

use signalbox_store::{
    Combiner, Error, FabricRole, Script, SharedResult, Value, from_redis_value, keys::machines as keys,
};

use super::{FabricKey, NONE, Shards};

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
            let command = self
                .shards
                .redis(shard)
                .command("ZRANGE")
                .key(&self.shards.keys(shard).since(machine, state));
            let first: Vec<(String, f64)> = command.arg(0).arg(0).arg("WITHSCORES").query().await?;
            let here = first.first().map(|(_, score)| super::due::whole(*score));
            oldest = oldest.into_iter().chain(here).min();
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

    /// The next names after `after` in the index of a state, at most `limit`.
    pub(crate) async fn in_state(
        &self,
        shard: usize,
        machine: &str,
        state: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        self.names(shard, &self.shards.keys(shard).in_state(machine, state), after, limit).await
    }

    /// The next names after `after` in the index of a status that has one.
    pub(crate) async fn with_status(
        &self,
        shard: usize,
        machine: &str,
        status: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        self.names(shard, &self.shards.keys(shard).with_status(machine, status), after, limit).await
    }

    /// The next names after `after` of the labels with an indexed value.
    pub(crate) async fn with_value(
        &self,
        shard: usize,
        machine: &str,
        digest: u64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        self.names(shard, &self.shards.keys(shard).by_value(machine, digest), after, limit).await
    }

    /// Removes a name from the index of a state.
    pub(crate) async fn remove_from_state(
        &self,
        shard: usize,
        machine: &str,
        state: &str,
        name: &str,
    ) -> Result<(), Error> {
        let key = self.shards.keys(shard).in_state(machine, state);
        self.shards.redis(shard).command("ZREM").key(&key).arg(name).run().await
    }

    /// The next names after `after` of the labels at a gate whose own metadata names this zone.
    pub(crate) async fn in_zone(
        &self,
        shard: usize,
        machine: &str,
        (gate, zone): (&str, &str),
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        self.names(shard, &self.shards.keys(shard).in_zone(machine, gate, zone), after, limit).await
    }

    async fn names(
        &self,
        shard: usize,
        key: &FabricKey,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let command = self.shards.redis(shard).command("ZRANGE").key(key).arg(from).arg("+");
        command.arg("BYLEX").arg("LIMIT").arg(0).arg(limit).query().await
    }

    /// How many labels are in each of these states, over all shards.
    pub(crate) async fn count_states(&self, machine: &str, states: &[&str]) -> Result<Vec<u64>, Error> {
        self.count_all(states, |keys, state| keys.in_state(machine, state)).await
    }

    /// How many records the machine has over all shards: labels in these states, and deleted ones.
    pub(crate) async fn population(&self, machine: &str, states: &[&str]) -> Result<u64, Error> {
        let alive: u64 = self.count_states(machine, states).await?.into_iter().sum();
        let gone = self.count_all(&[""], |keys, _| keys.gone(machine)).await?;
        Ok(alive + gone.into_iter().sum::<u64>())
    }

    /// How many labels have each of these statuses, over all shards.
    pub(crate) async fn count_statuses(&self, machine: &str, statuses: &[&str]) -> Result<Vec<u64>, Error> {
        self.count_all(statuses, |keys, status| keys.with_status(machine, status)).await
    }

    /// How many labels have an indexed value, over all shards, in a list of one.
    pub(crate) async fn count_value(&self, machine: &str, digest: u64) -> Result<Vec<u64>, Error> {
        self.count_all(&[""], |keys, _| keys.by_value(machine, digest)).await
    }

    async fn count_all(
        &self,
        names: &[&str],
        key: impl Fn(&keys::Machines<'_>, &str) -> FabricKey,
    ) -> Result<Vec<u64>, Error> {
        let mut counts = vec![0; names.len()];
        if names.is_empty() {
            return Ok(counts);
        }
        for shard in 0..self.shards.count() {
            let mut batch = self.shards.redis(shard).batch();
            for name in names {
                batch.add("ZCARD", &key(&self.shards.keys(shard), name), &NONE[..]);
            }
            let found: Vec<u64> = batch.query().await?;
            counts.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
        }
        Ok(counts)
    }

    /// How many labels rest at each of these gates: all that are there, without those that loop, which continue.
    pub(crate) async fn count_at_rest(&self, machine: &str, gates: &[&str]) -> Result<Vec<u64>, Error> {
        let mut counts = self.count_states(machine, gates).await?;
        for shard in 0..self.shards.count() {
            // A label loops for a second, so these are few unless many labels loop.
            let looping = self.with_status(shard, machine, "looping", None, MAX_LOOPING).await?;
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

    /// How many labels at a gate a sweep can concern: all of them, or those whose own metadata names this zone.
    pub(crate) async fn count_at_gate(
        &self,
        shard: usize,
        machine: &str,
        gate: &str,
        zone: Option<&String>,
    ) -> Result<u64, Error> {
        let keys = self.shards.keys(shard);
        let key = match zone {
            Some(zone) => keys.in_zone(machine, gate, zone),
            None => keys.in_state(machine, gate),
        };
        self.shards.redis(shard).command("ZCARD").key(&key).query().await
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
        let scores: Vec<Option<f64>> = batch.query().await?;
        Ok(scores.into_iter().map(|score| score.map(super::due::whole)).collect())
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
            .key(&keys.due())
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
