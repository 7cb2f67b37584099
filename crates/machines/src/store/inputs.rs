//! The last event of each shard's log that inputs have processed. Stored in the first shard.

use signalbox_store::Error;

use super::Shards;

/// Positions in the logs of the bus. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TakenEvents(pub(crate) Shards);

impl TakenEvents {
    /// The last event of a shard's log that was taken.
    pub(crate) async fn up_to(&self, shard: usize) -> Result<Option<u64>, Error> {
        let Self(shards) = self;
        shards.redis(0).command("HGET").key(&shards.keys(0).inputs()).arg(shard).query().await
    }

    /// Stores the position at which taking events begins, unless there is a position already.
    pub(crate) async fn begin_at(&self, shard: usize, id: u64) -> Result<(), Error> {
        let Self(shards) = self;
        shards.redis(0).command("HSETNX").key(&shards.keys(0).inputs()).arg(shard).arg(id).run().await
    }

    /// Stores the last event that was taken.
    pub(crate) async fn set(&self, shard: usize, id: u64) -> Result<(), Error> {
        let Self(shards) = self;
        shards.redis(0).command("HSET").key(&shards.keys(0).inputs()).arg(shard).arg(id).run().await
    }
}
