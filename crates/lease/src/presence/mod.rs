//! The list of running pacemakers. Each one records a heartbeat with its version every few seconds, so that an operator
//! who upgrades them one by one sees which are left.
//!
//! The list is one hash in the fabric (`pacemakers`: process → version and time, by the fabric's clock). No decision depends
//! on it. While the fabric is unavailable, a pacemaker is only missing from the list. A pacemaker that shuts down removes
//! itself; one that was killed is removed after [`KNOWN`].

mod store;
#[cfg(test)]
mod tests;

use std::time::Duration;

use signalbox_store::{self as redis, Fabric};
use tokio::time;
use tokio_util::sync::CancellationToken;

pub use store::Seen;

/// Interval between heartbeats.
const BEAT: Duration = Duration::from_secs(5);
/// A pacemaker without a heartbeat for this long is removed from the list.
const KNOWN: Duration = Duration::from_secs(30);

/// Lists this pacemaker and shows the others. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Presence {
    fabric: Fabric,
    /// The node, and after a slash an identifier of this process on the node.
    who: String,
}

impl Presence {
    /// `who` is unique among all processes, and starts with the node and a slash.
    pub fn new(fabric: Fabric, who: String) -> Self {
        Self { fabric, who }
    }

    /// Records heartbeats until `shutdown`, then removes this pacemaker from the list.
    pub async fn run(self, shutdown: CancellationToken) {
        loop {
            if let Err(error) = store::beat(&self.fabric, &self.who, env!("CARGO_PKG_VERSION"), KNOWN).await {
                tracing::debug!(%error, "heartbeat not recorded");
            }
            if shutdown.run_until_cancelled(time::sleep(BEAT)).await.is_none() {
                break;
            }
        }
        if let Err(error) = store::leave(&self.fabric, &self.who).await {
            tracing::debug!(%error, "pacemaker not removed from the list; it expires");
        }
    }

    /// The running pacemakers, by node.
    pub async fn all(&self) -> Result<Vec<Seen>, redis::Error> {
        store::all(&self.fabric, KNOWN).await
    }
}
