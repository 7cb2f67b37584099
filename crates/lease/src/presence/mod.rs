//! Which pacemakers serve: each says so every few seconds, with its version, so that an operator who upgrades one after
//! the other sees which is left.
//!
//! One hash in the fabric (`pacemakers`: who → version and moment, by the fabric's clock). Nothing is decided by it, and
//! a fabric that is away costs a pacemaker nothing but its line in the list. Who shuts down takes itself off; who was
//! killed is forgotten after [`KNOWN`].

mod store;
#[cfg(test)]
mod tests;

use std::time::Duration;

use signalbox_store::{self as redis, Fabric};
use tokio::time;
use tokio_util::sync::CancellationToken;

pub use store::Seen;

/// How often a pacemaker says that it serves.
const BEAT: Duration = Duration::from_secs(5);
/// Who was silent for longer is no longer in the list.
const KNOWN: Duration = Duration::from_secs(30);

/// One pacemaker among others. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Presence {
    fabric: Fabric,
    /// Its node, and what tells this process from another of that name.
    who: String,
}

impl Presence {
    /// `who` is unique among all processes, and begins with the node and a slash.
    pub fn new(fabric: Fabric, who: String) -> Self {
        Self { fabric, who }
    }

    /// Says that it serves until `shutdown`, and that it does not any more after that.
    pub async fn run(self, shutdown: CancellationToken) {
        loop {
            if let Err(error) = store::beat(&self.fabric, &self.who, env!("CARGO_PKG_VERSION"), KNOWN).await {
                tracing::debug!(%error, "the other pacemakers do not hear of this one");
            }
            if shutdown.run_until_cancelled(time::sleep(BEAT)).await.is_none() {
                break;
            }
        }
        if let Err(error) = store::leave(&self.fabric, &self.who).await {
            tracing::debug!(%error, "this pacemaker stays in the list for a while");
        }
    }

    /// All that serve, by node.
    pub async fn all(&self) -> Result<Vec<Seen>, redis::Error> {
        store::all(&self.fabric, KNOWN).await
    }
}
