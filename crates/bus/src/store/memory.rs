//! The identity of the fabric, as remembered outside of it, on the stats Redis.
//!
//! A fabric that was replaced by an empty server has no subscriptions; accepting events there would silently lose them
//! for every subscriber. A process that saw the old one remembers it; one that starts afterwards reads it here.

use signalbox_store::{Error, Stats, keys};

/// The place where the identity of the fabric is kept.
#[derive(Debug, Clone)]
pub struct FabricMemory(Stats);

impl FabricMemory {
    /// Remembers on the statistics server.
    pub fn new(stats: Stats) -> Self {
        Self(stats)
    }

    /// The last known fabric; `None` before the first one.
    pub async fn recall(&self) -> Result<Option<String>, Error> {
        self.0.command("GET").key(&keys::stats::fabric()).query().await
    }

    /// Remembers a fabric.
    pub async fn keep(&self, fabric: &str) -> Result<(), Error> {
        self.0.command("SET").key(&keys::stats::fabric()).arg(fabric).run().await
    }
}
