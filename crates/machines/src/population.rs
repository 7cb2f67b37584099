//! The limit of labels of one machine. Clients and events create labels at will, and each takes memory of the fabric, a
//! deleted one for thirty days.
//!
//! Labels are counted once a second for each machine that gets new ones, and creations in between are added. So several
//! pacemakers may exceed the limit by what they create within a second.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::{
    Error,
    definitions::Definitions,
    store::{Index, Records},
};

/// How long a count is used.
const KEEP_MS: u64 = 1_000;

#[derive(Debug, Clone, Copy)]
struct Counted {
    at_ms: u64,
    labels: u64,
}

/// The numbers of labels of all machines.
#[derive(Debug)]
pub(crate) struct Population {
    records: Records,
    definitions: Definitions,
    /// 0: no limit.
    max_labels: u64,
    counted: Mutex<HashMap<String, Counted>>,
}

impl Population {
    pub(crate) fn new(records: Records, definitions: Definitions, max_labels: u64) -> Self {
        Self { records, definitions, max_labels, counted: Mutex::default() }
    }

    /// Counts a label that is about to be created.
    ///
    /// # Errors
    /// [`Error::TooManyLabels`] if the machine has the maximum number, [`Error::NoSuchMachine`] if it was deleted.
    pub(crate) async fn admit(&self, machine: &str, now_ms: u64) -> Result<(), Error> {
        if self.max_labels == 0 {
            return Ok(());
        }
        let known = self.counted.lock().get(machine).copied();
        let labels = match known.filter(|known| now_ms.abs_diff(known.at_ms) < KEEP_MS) {
            Some(known) => known.labels,
            None => {
                // The states are those in the fabric: another process may have applied a definition, and no commit would show
                // it if the label is refused.
                for shard in 0..self.records.shards().count() {
                    self.definitions.forget(machine, shard);
                }
                let states = self.definitions.states(machine).await?;
                // A deleted label is a record, too.
                let indexes = states.iter().map(|state| Index::State(state)).chain([Index::Gone]);
                let indexes: Vec<Index<'_>> = indexes.collect();
                let labels = self.records.count(machine, &indexes).await?.into_iter().sum();
                self.counted.lock().insert(machine.to_owned(), Counted { at_ms: now_ms, labels });
                labels
            }
        };
        if labels >= self.max_labels {
            return Err(Error::TooManyLabels(self.max_labels));
        }
        if let Some(counted) = self.counted.lock().get_mut(machine) {
            counted.labels += 1;
        }
        Ok(())
    }
}
