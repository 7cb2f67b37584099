//! What a person wants to see of a machine at a glance: labels with their records, what is due next, how feeds do.

use std::collections::BTreeMap;

use super::{
    Engine, Error,
    feeds::Health,
    record::{Record, Status},
    store::Due,
};

/// Entries of the due set that are looked at for a machine, over all shards.
const MOST_DUE: usize = 1_000;

/// Something that will be looked at by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    pub at_ms: u64,
    pub what: Waking,
}

/// Times of day at gates: when, gate, time and zone, with the labels of the gate and those with the zone of their own.
type Waves = BTreeMap<(u64, String, String, String), [u64; 2]>;

/// What is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waking {
    /// A label: an interval, an action or a feed that is tried again.
    Label(String),
    /// The labels at a gate, at a time of day.
    Gate {
        gate: String,
        /// `HH:MM:SS`.
        time: String,
        zone: String,
        /// Labels that are looked at, at most: of those at the gate some may have a zone of their own.
        labels: u64,
    },
}

impl Engine {
    /// Labels as they stand, in the order of the names. Those that are gone meanwhile are left out.
    pub async fn records(&self, machine: &str, names: Vec<String>) -> Result<Vec<(String, Record)>, Error> {
        let store = &self.0.store;
        let mut by_shard: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for name in names {
            by_shard.entry(store.shard_of(machine, &name)).or_default().push(name);
        }
        let mut found = Vec::new();
        for (shard, names) in by_shard {
            let records = store.labels(shard, machine, &names).await?;
            let read = |bytes: Option<Vec<u8>>| bytes.and_then(|bytes| Record::read(&bytes).ok());
            let both = names.into_iter().zip(records.into_iter().map(read));
            found.extend(both.filter_map(|(name, record)| Some((name, record?))));
        }
        found.retain(|(_, record)| record.status != Status::Deleted);
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    /// What is due next of a machine, the first first, among the next entries of all machines.
    pub async fn wakes(&self, machine: &str) -> Result<Vec<Wake>, Error> {
        let store = &self.0.store;
        let most = (MOST_DUE / store.count()).max(1);
        let mut labels: Vec<Wake> = Vec::new();
        // A time of day stands in the due set of every shard, and twice in one: for the labels with that zone of their
        // own, and for all at the gate, among whom they are.
        let mut gates = Waves::new();
        for shard in 0..store.count() {
            for (member, at_ms) in store.upcoming(shard, most).await? {
                match Due::parse(&member) {
                    Some(Due::Label { machine: of, label }) if of == machine => {
                        labels.push(Wake { at_ms, what: Waking::Label(label) });
                    }
                    Some(Due::Wave { machine: of, gate, time, zone, own }) if of == machine => {
                        let count = store.count_wave(shard, machine, &gate, own.then_some(&zone)).await?;
                        gates.entry((at_ms, gate, time, zone)).or_default()[usize::from(own)] += count;
                    }
                    _ => {}
                }
            }
        }
        let gate = |((at_ms, gate, time, zone), [all, own]): (_, [u64; 2])| Wake {
            at_ms,
            what: Waking::Gate { gate, time, zone, labels: all.max(own) },
        };
        labels.extend(gates.into_iter().map(gate));
        labels.sort_by_key(|wake| wake.at_ms);
        Ok(labels)
    }

    /// How the feeds of a machine have answered this process, by name.
    pub fn feed_health(&self, machine: &str) -> BTreeMap<String, Health> {
        self.0.feeds.health(machine)
    }

    /// The fabric's clock, unix milliseconds.
    pub async fn now_ms(&self) -> Result<u64, Error> {
        Ok(self.0.clock.now_ms().await?)
    }
}
