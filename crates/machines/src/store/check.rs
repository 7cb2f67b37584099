//! What only a check asks: records by walking over keys, and entries of indexes.

use signalbox_store::{Error, FabricRole, Script, Value, from_redis_value};

use super::{NONE, Store};

pub(super) static WALK: Script<FabricRole> =
    Script::new("machines/walk", include_str!("../scripts/walk.lua"));

impl Store {
    /// The next labels of a shard in no order: where the walk is then (0 at its end), and machine and name of each.
    pub(crate) async fn walk(
        &self,
        shard: usize,
        at: u64,
        count: usize,
    ) -> Result<(u64, Vec<(String, String)>), Error> {
        let keys = self.keys(shard);
        let begin = keys.label_prefix();
        let reply: Vec<Value> = WALK
            .call()
            .key(&keys.due())
            .arg(at)
            .arg(format!("{begin}*:data"))
            .arg(count)
            .run(self.redis(shard))
            .await?;
        let mut parts = reply.into_iter();
        let next: Option<String> = parts.next().and_then(|next| from_redis_value(next).ok());
        let found: Vec<String> =
            parts.next().and_then(|found| from_redis_value(found).ok()).unwrap_or_default();
        // Names of machines hold no colon, those of labels may.
        let read = |key: &String| {
            let (machine, label) = key.strip_prefix(&*begin)?.strip_suffix(":data")?.split_once(':')?;
            Some((machine.to_owned(), label.to_owned()))
        };
        let next = next.and_then(|next| next.parse().ok()).unwrap_or(0);
        Ok((next, found.iter().filter_map(read).collect()))
    }

    /// With which score members stand in sorted sets: key behind `machine:` and member.
    pub(crate) async fn scores(
        &self,
        shard: usize,
        places: &[(&str, &str)],
    ) -> Result<Vec<Option<u64>>, Error> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.redis(shard).batch();
        for (key, member) in places {
            batch.add("ZSCORE", &self.keys(shard).index(key), *member);
        }
        let scores: Vec<Option<f64>> = batch.query().await?;
        Ok(scores.into_iter().map(|score| score.map(super::due::whole)).collect())
    }

    /// Whether labels at a gate have each of these zones for themselves.
    pub(crate) async fn zones_there(
        &self,
        shard: usize,
        machine: &str,
        gate: &str,
        zones: &[String],
    ) -> Result<Vec<bool>, Error> {
        if zones.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.redis(shard).batch();
        for zone in zones {
            batch.add("EXISTS", &self.keys(shard).in_zone(machine, gate, zone), &NONE[..]);
        }
        let there: Vec<u64> = batch.query().await?;
        Ok(there.into_iter().map(|there| there == 1).collect())
    }

    /// How many labels are at gates that look at nobody who is there already, by gate: those that loop do go on.
    pub(crate) async fn count_at_rest(&self, machine: &str, gates: &[&str]) -> Result<Vec<u64>, Error> {
        let mut counts = self.count_states(machine, gates).await?;
        for shard in 0..self.count() {
            // A label loops for a second, so these are few, or something is in a circle.
            let looping = self.with_status(shard, machine, "looping", None, MOST_LOOPING).await?;
            if looping.is_empty() || gates.is_empty() {
                continue;
            }
            for (gate, count) in gates.iter().zip(&mut counts) {
                let mut batch = self.redis(shard).batch();
                batch.add("ZMSCORE", &self.keys(shard).in_state(machine, gate), &looping);
                let there: Vec<Vec<Option<f64>>> = batch.query().await?;
                *count = count.saturating_sub(there.iter().flatten().flatten().count() as u64);
            }
        }
        Ok(counts)
    }
}

/// Looping labels that are told from those at rest.
const MOST_LOOPING: usize = 10_000;
