//! The limit of labels of one machine. Clients and events create labels at will, and each takes memory of the fabric, a
//! deleted one for thirty days.
//!
//! Labels are counted once a second for each machine that gets new ones, and creations in between are added. So several
//! pacemakers may exceed the limit by what they create within a second.

use std::collections::HashMap;

use parking_lot::Mutex;
use signalbox_machine::definition::Machine;

use crate::{
    Error,
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
    /// 0: no limit.
    max_labels: u64,
    counted: Mutex<HashMap<String, Counted>>,
}

impl Population {
    pub(crate) fn new(records: Records, max_labels: u64) -> Self {
        Self { records, max_labels, counted: Mutex::default() }
    }

    /// Counts a label that is about to be created.
    ///
    /// # Errors
    /// [`Error::TooManyLabels`] if the machine has the maximum number.
    pub(crate) async fn admit(&self, machine: &Machine, now_ms: u64) -> Result<(), Error> {
        if self.max_labels == 0 {
            return Ok(());
        }
        let name = machine.name();
        let known = self.counted.lock().get(name).copied();
        let labels = match known.filter(|known| now_ms.abs_diff(known.at_ms) < KEEP_MS) {
            Some(known) => known.labels,
            None => {
                // A deleted label is a record, too.
                let states = machine.states().iter().map(|state| Index::State(state.name()));
                let indexes: Vec<Index<'_>> = states.chain([Index::Gone]).collect();
                let labels = self.records.count(name, &indexes).await?.into_iter().sum();
                self.counted.lock().insert(name.to_owned(), Counted { at_ms: now_ms, labels });
                labels
            }
        };
        if labels >= self.max_labels {
            return Err(Error::TooManyLabels(self.max_labels));
        }
        if let Some(counted) = self.counted.lock().get_mut(name) {
            counted.labels += 1;
        }
        Ok(())
    }
}
