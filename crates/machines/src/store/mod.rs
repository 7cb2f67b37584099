//! The only part of the machines that talks to Redis. Labels are written by the publish script, by way of the bus
//! (`labels.lua`); here are the reads, the definitions, and what is due.

mod check;
mod definitions;
mod due;
mod statistics;

use signalbox_store::{Error, Fabric, Shard, Subscription, keys::machines as keys};

pub(super) use definitions::{Applying, Start, Started};
pub(super) use due::Due;
pub(crate) use statistics::Statistics;

use super::fate::Fate;
use signalbox_bus as bus;

/// The fabric, shard by shard. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Store {
    shards: std::sync::Arc<[Shard]>,
    pub(super) fate: Fate,
}

/// Every script of the machines, for the test that reads their headers.
#[cfg(test)]
pub(super) fn scripts() -> Vec<&'static signalbox_store::Script<signalbox_store::FabricRole>> {
    definitions::SCRIPTS.into_iter().chain([&due::CORRECT, &check::WALK]).collect()
}

/// No arguments.
const NONE: [&str; 0] = [];

/// The name of the object that a label is.
pub(super) fn object(machine: &str, label: &str) -> String {
    format!("machine:{machine}:{label}")
}

impl Store {
    pub(super) fn new(fabric: &Fabric, shards: usize) -> Self {
        Self { shards: Shard::all(fabric, shards).into(), fate: Fate::default() }
    }

    /// How many shards there are.
    pub(super) fn count(&self) -> usize {
        self.shards.len()
    }

    /// The shard of a label.
    pub(super) fn shard_of(&self, machine: &str, label: &str) -> usize {
        bus::shard_of(&object(machine, label), self.shards.len())
    }

    fn keys(&self, shard: usize) -> keys::Machines<'_> {
        keys::machines(self.shards[shard].tag())
    }

    fn redis(&self, shard: usize) -> &Fabric {
        self.fate.call();
        self.shards[shard].redis()
    }

    /// The clock of the first shard, in unix milliseconds.
    pub(super) async fn now_ms(&self) -> Result<u64, Error> {
        self.redis(0).now_ms().await
    }

    /// A label's packed record.
    pub(super) async fn label(&self, machine: &str, label: &str) -> Result<Option<Vec<u8>>, Error> {
        let shard = self.shard_of(machine, label);
        self.redis(shard).command("GET").key(&self.keys(shard).label(machine, label)).query().await
    }

    /// The packed records of labels of one shard.
    pub(super) async fn labels(
        &self,
        shard: usize,
        machine: &str,
        labels: &[String],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        if labels.is_empty() {
            return Ok(Vec::new());
        }
        let keys = self.keys(shard);
        let command = self.redis(shard).command("MGET");
        labels.iter().fold(command, |command, label| command.key(&keys.label(machine, label))).query().await
    }

    /// The next names after `after` in the index of a state, at most `most`.
    pub(super) async fn in_state(
        &self,
        shard: usize,
        machine: &str,
        state: &str,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        self.names_of(shard, &self.keys(shard).in_state(machine, state), after, most).await
    }

    /// The same, of a status that has an index.
    pub(super) async fn with_status(
        &self,
        shard: usize,
        machine: &str,
        status: &str,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        self.names_of(shard, &self.keys(shard).with_status(machine, status), after, most).await
    }

    /// The same, of the labels at a gate with this zone of their own.
    pub(super) async fn in_zone(
        &self,
        shard: usize,
        machine: &str,
        (gate, zone): (&str, &str),
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        self.names_of(shard, &self.keys(shard).in_zone(machine, gate, zone), after, most).await
    }

    async fn names_of(
        &self,
        shard: usize,
        key: &signalbox_store::Key<signalbox_store::FabricSpace>,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let command = self.redis(shard).command("ZRANGE").key(key).arg(from).arg("+");
        command.arg("BYLEX").arg("LIMIT").arg(0).arg(most).query().await
    }

    /// How many labels are in each of these states, over all shards.
    pub(super) async fn count_states(&self, machine: &str, states: &[&str]) -> Result<Vec<u64>, Error> {
        self.count_all(states, |keys, state| keys.in_state(machine, state)).await
    }

    /// How many labels have each of these statuses, over all shards.
    pub(super) async fn count_statuses(&self, machine: &str, statuses: &[&str]) -> Result<Vec<u64>, Error> {
        self.count_all(statuses, |keys, status| keys.with_status(machine, status)).await
    }

    async fn count_all(
        &self,
        names: &[&str],
        key: impl Fn(&keys::Machines<'_>, &str) -> signalbox_store::Key<signalbox_store::FabricSpace>,
    ) -> Result<Vec<u64>, Error> {
        let mut counts = vec![0; names.len()];
        if names.is_empty() {
            return Ok(counts);
        }
        for shard in 0..self.count() {
            let mut batch = self.redis(shard).batch();
            for name in names {
                batch.add("ZCARD", &key(&self.keys(shard), name), &NONE[..]);
            }
            let found: Vec<u64> = batch.query().await?;
            counts.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
        }
        Ok(counts)
    }

    /// Hears when something is due earlier than was known.
    pub(super) fn wakes(&self) -> Subscription {
        let channels: Vec<String> = (0..self.count()).map(|shard| self.wake_channel(shard)).collect();
        let names: Vec<&str> = channels.iter().map(String::as_str).collect();
        // Pub/sub knows no shards: whatever node one listens at, one hears all.
        self.redis(0).subscribe(&names)
    }

    /// The channel of a shard.
    pub(super) fn wake_channel(&self, shard: usize) -> String {
        self.keys(shard).wake_channel()
    }

    /// How far the events of a shard's log were taken as facts.
    pub(super) async fn taken_up_to(&self, shard: usize) -> Result<Option<u64>, Error> {
        self.redis(0).command("HGET").key(&self.keys(0).inputs()).arg(shard).query().await
    }

    /// Says where the taking of a shard's events begins, unless it has begun.
    pub(super) async fn take_from(&self, shard: usize, id: u64) -> Result<(), Error> {
        self.redis(0).command("HSETNX").key(&self.keys(0).inputs()).arg(shard).arg(id).run().await
    }

    /// Notes how far the events of a shard's log were taken as facts.
    pub(super) async fn take_up_to(&self, shard: usize, id: u64) -> Result<(), Error> {
        self.redis(0).command("HSET").key(&self.keys(0).inputs()).arg(shard).arg(id).run().await
    }
}
