//! The only module of the crate that talks to the fabric, one small type for each kind of data. Records are written by the
//! bus (`labels.lua`), so that a move and its event are one step; everything else is read and written here.

mod bytes;
mod due;
mod flow;
mod inputs;
mod permits;
mod records;
mod secrets;
mod statistics;
mod tasks;
mod versions;

use std::sync::Arc;

use signalbox_bus as bus;
use signalbox_store::{Error, Fabric, FabricRole, Key, Script, Shard, Tag, keys::machines as keys};

use crate::faults::Faults;

pub(crate) use bytes::LabelBytes;
pub(crate) use due::{Due, DueSet, MACHINES, due_index};
pub(crate) use flow::FlowCounts;
pub(crate) use inputs::{InputPosition, InputPositions};
pub(crate) use permits::{Permit, Permits, queue};
pub(crate) use records::{Index, Records};
pub(crate) use secrets::StoredSecrets;
pub(crate) use statistics::Statistics;
pub(crate) use tasks::{Begun, TaskName, Tasks};
pub(crate) use versions::{Applying, Started, Stored, Versions};

/// A key of the fabric.
type FabricKey = Key<signalbox_store::FabricSpace>;

static REPLACE: Script<FabricRole> = Script::new("machines/replace", include_str!("../scripts/replace.lua"));

/// No arguments.
const NONE: [&str; 0] = [];

/// Every script of the machines, for the test that reads their headers.
#[cfg(test)]
pub(crate) fn scripts() -> Vec<&'static signalbox_store::Script<signalbox_store::FabricRole>> {
    versions::SCRIPTS
        .into_iter()
        .chain([
            &bytes::RECOUNT,
            &due::ADOPT,
            &due::CORRECT,
            &due::DROP,
            &due::POSTPONE,
            &due::SET,
            &flow::COUNT,
            &inputs::ADVANCE,
            &permits::PERMIT,
            &records::WALK,
            &records::UNLIST,
            &tasks::ADOPT_TASK,
            &tasks::TASK,
            &REPLACE,
        ])
        .collect()
}

/// The name of the bus's object that a label is.
pub(crate) fn object(machine: &str, label: &str) -> String {
    format!("machine:{machine}:{label}")
}

/// The shards of the fabric. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Shards {
    all: Arc<[Shard]>,
    faults: Faults,
}

impl Shards {
    /// All `count` shards of the fabric.
    pub(crate) fn new(fabric: &Fabric, count: usize, faults: Faults) -> Self {
        Self { all: Shard::all(fabric, count).into(), faults }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The shard of a label.
    pub(crate) fn of(&self, machine: &str, label: &str) -> usize {
        match self.all.len() {
            1 => 0,
            count => bus::shard_of(&object(machine, label), count),
        }
    }

    /// The connection to a shard, for one call.
    pub(crate) fn redis(&self, shard: usize) -> &Fabric {
        self.faults.before_call();
        self.all[shard].redis()
    }

    /// Replaces a field of a hash of the first shard, or removes it, if it is still `before`. Returns whether it was.
    async fn replace(
        &self,
        key: &FabricKey,
        field: &str,
        before: &str,
        after: Option<&str>,
    ) -> Result<bool, Error> {
        let call = REPLACE.call().key(key).arg(field).arg(before).arg(after.unwrap_or_default());
        Ok(call.run::<u64>(self.redis(0)).await? == 1)
    }

    fn tag(&self, shard: usize) -> &Tag {
        self.all[shard].tag()
    }

    fn keys(&self, shard: usize) -> keys::Machines<'_> {
        keys::machines(self.tag(shard))
    }
}
