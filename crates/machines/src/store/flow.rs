//! Counts of transitions, one hash per machine and hour. Stored in the first shard.

use signalbox_store::{Error, FabricRole, Script};

use super::Shards;

/// Maximum number of different counts of a machine in an hour.
const MAX_FIELDS: usize = 20_000;

pub(super) static COUNT: Script<FabricRole> =
    Script::new("machines/count", include_str!("../scripts/count.lua"));

/// The counts of all machines. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FlowCounts(pub(crate) Shards);

impl FlowCounts {
    /// Adds to counts of an hour, which are forgotten `ttl_ms` later.
    pub(crate) async fn add(
        &self,
        machine: &str,
        hour: u64,
        ttl_ms: u64,
        counts: &[(String, u64)],
    ) -> Result<(), Error> {
        let call = COUNT.call().key(&self.0.keys(0).flow(machine, hour)).arg(ttl_ms).arg(MAX_FIELDS);
        let call = counts.iter().fold(call, |call, (field, count)| call.arg(field).arg(*count));
        call.run::<u64>(self.0.redis(0)).await.map(drop)
    }

    /// The counts of an hour.
    pub(crate) async fn of(&self, machine: &str, hour: u64) -> Result<Vec<(String, u64)>, Error> {
        self.0.redis(0).command("HGETALL").key(&self.0.keys(0).flow(machine, hour)).query().await
    }
}
