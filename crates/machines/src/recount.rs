//! Counts the bytes of all labels again, once after each start.
//!
//! If the memory of the fabric is short, the machine whose labels use most gets no more of them. Each change of a label adds
//! to the count of its machine. A release without these counts may have written to the fabric, also while this one ran on
//! other pacemakers, and then a count is wrong: the last pacemaker that is upgraded corrects it.
//!
//! A recount goes through the labels of a machine by name, a page at a time, and notes in the fabric how far it is. Changes of
//! labels before that name are added to it, so it is exact, and several pacemakers may do it together.

use crate::{Error, definitions::Definitions, store::LabelBytes};

/// Labels of a page, in a machine with few states.
pub(crate) const PAGE: usize = 200;
/// Names that a page reads at most: up to a page in each state.
const MAX_NAMES: usize = 4_000;
/// How often a recount begins again because a definition was applied that has other states.
const ATTEMPTS: usize = 3;

/// Counts again.
#[derive(Debug, Clone)]
pub(crate) struct Recounter {
    pub(crate) definitions: Definitions,
    pub(crate) bytes: LabelBytes,
    /// Labels of a page.
    pub(crate) page: usize,
}

impl Recounter {
    /// Counts the labels of all machines.
    pub(crate) async fn run(&self) -> Result<(), Error> {
        for machine in self.definitions.names().await? {
            match Box::pin(self.count(&machine)).await {
                // It was deleted, or its labels cannot change.
                Ok(()) | Err(Error::NoSuchMachine | Error::NoSuchVersion | Error::Unreadable) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn count(&self, machine: &str) -> Result<(), Error> {
        let mut states = self.definitions.present_states(machine).await?;
        for _ in 0..ATTEMPTS {
            for shard in 0..self.bytes.shards() {
                self.bytes.begin(shard, machine).await?;
                while !self.next(shard, machine, &states).await? {}
            }
            // A label may have come into a state that was not known.
            let now = self.definitions.present_states(machine).await?;
            if now == states {
                break;
            }
            states = now;
        }
        Ok(())
    }

    /// Counts a page. Returns whether it was the last.
    pub(crate) async fn next(&self, shard: usize, machine: &str, states: &[String]) -> Result<bool, Error> {
        let max = (MAX_NAMES / states.len().max(1)).clamp(1, self.page);
        Ok(self.bytes.count_next(shard, machine, states, max).await?)
    }
}
