//! The bytes that a shard stores for the labels of a machine. `labels.lua` counts them with each change.

use signalbox_store::{Error, FabricRole, Script, keys};

use super::Shards;

pub(super) static RECOUNT: Script<FabricRole> =
    Script::new("machines/recount", include_str!("../scripts/recount.lua"));

/// What is stored for a machine whose labels were counted. A recount that is under way begins with a number.
const COUNTED: &str = "counted 1";

/// Counts the bytes of labels again. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LabelBytes(pub(crate) Shards);

impl LabelBytes {
    pub(crate) fn shards(&self) -> usize {
        self.0.count()
    }

    /// Begins a recount of a machine, even if another one is under way.
    pub(crate) async fn begin(&self, shard: usize, machine: &str) -> Result<(), Error> {
        let key = self.0.keys(shard).recounts();
        self.0.redis(shard).command("HSET").key(&key).arg(machine).arg("0 ").run().await
    }

    /// Whether the labels of a machine were counted in every shard.
    pub(crate) async fn is_counted(&self, machine: &str) -> Result<bool, Error> {
        for shard in 0..self.shards() {
            let key = self.0.keys(shard).recounts();
            let stored: Option<String> =
                self.0.redis(shard).command("HGET").key(&key).arg(machine).query().await?;
            if stored.as_deref() != Some(COUNTED) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Marks a machine whose labels were counted, unless another recount of it is under way.
    pub(crate) async fn mark(&self, machine: &str) -> Result<(), Error> {
        for shard in 0..self.shards() {
            let key = self.0.keys(shard).recounts();
            self.0.redis(shard).command("HSETNX").key(&key).arg(machine).arg(COUNTED).run().await?;
        }
        Ok(())
    }

    /// Counts the next labels, about `max`, of those in these states, at most 250. Returns whether no recount is under way any more.
    pub(crate) async fn count_next(
        &self,
        shard: usize,
        machine: &str,
        states: &[String],
        max: usize,
    ) -> Result<bool, Error> {
        let keys = self.0.keys(shard);
        let call = RECOUNT.call().key(&keys.recounts()).key(&keys::bus::bus(self.0.tag(shard)).tenants());
        let call = states.iter().fold(call, |call, state| call.key(&keys.in_state(machine, state)));
        let prefix = format!("{}{machine}:", keys.label_prefix());
        let done: u64 = call.arg(machine).arg(prefix).arg(max).run(self.0.redis(shard)).await?;
        Ok(done == 1)
    }
}
