//! Ensures that the due set contains the sweeps that gates need.
//!
//! A process asks the fabric for each sweep once and then remembers that the entry exists. This memory is cleared
//! when the connection was lost, because the fabric may have lost the entry ([`crate::reconcile`]).

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;

use crate::{Error, Version, clock::Clock, evaluator::sweep_entry, store::DueSet};

/// Version, shard and entry.
type Known = HashSet<(u64, usize, String)>;

/// The sweeps in the due sets. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SweepEntries {
    due: DueSet,
    clock: Clock,
    known: Arc<Mutex<Known>>,
}

impl SweepEntries {
    pub(crate) fn new(due: DueSet, clock: Clock) -> Self {
        Self { due, clock, known: Arc::default() }
    }

    /// Adds the entries that are not known to exist.
    pub(crate) async fn ensure(
        &self,
        shard: usize,
        version: &Version,
        entries: &[(String, u64)],
    ) -> Result<(), Error> {
        for (member, at_ms) in entries {
            let entry = (version.number, shard, member.clone());
            let exists = self.known.lock().contains(&entry);
            if !exists {
                self.due.ensure(shard, member, *at_ms).await?;
                self.known.lock().insert(entry);
            }
        }
        Ok(())
    }

    /// Adds the sweeps of a definition, in the default zones of its triggers.
    pub(crate) async fn ensure_all(&self, shard: usize, version: &Version) -> Result<(), Error> {
        let now_ms = self.clock.now_ms().await?;
        let machine = &version.machine;
        let gates = machine.states().iter().filter_map(|state| Some((state.name(), state.gate()?)));
        let entries: Vec<(String, u64)> = gates
            .flat_map(|(state, gate)| {
                gate.daily().filter_map(move |(_, daily)| {
                    sweep_entry(machine.name(), state, daily, daily.zone.default(), false, now_ms)
                })
            })
            .collect();
        self.ensure(shard, version, &entries).await
    }

    pub(crate) fn forget(&self) {
        self.known.lock().clear();
    }
}
