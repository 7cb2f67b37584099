//! The Redis servers of a pacemaker.

use std::sync::Arc;

use signalbox_store::{Fabric, RoutesPrimary, Stats};
use tempfile::TempDir;

use crate::Server;

/// The three servers that a pacemaker works with, all without persistence.
#[derive(Debug)]
pub struct Servers {
    /// The primary of the route table.
    pub routes: Server,
    /// The statistics.
    pub stats: Server,
    /// Desired state and events.
    pub fabric: Server,
}

impl Servers {
    /// Starts all three and waits until they answer.
    ///
    /// # Panics
    /// When one does not start.
    pub async fn start() -> Self {
        let folder = Arc::new(TempDir::with_prefix("signalbox-redis-").expect("a temporary folder"));
        let server = |name| Server::in_folder(&folder, name);
        let servers = Self { routes: server("routes"), stats: server("stats"), fabric: server("fabric") };
        servers.answer().await;
        servers
    }

    /// Waits until every server that was not killed answers.
    ///
    /// # Panics
    /// When one does not within [`crate::PATIENCE`].
    pub async fn answer(&self) {
        for server in [&self.routes, &self.stats, &self.fabric] {
            if server.is_running() {
                server.answers().await;
            }
        }
    }

    /// Connects to the fabric.
    pub fn fabric(&self) -> Fabric {
        self.fabric.open()
    }

    /// Connects to the primary of the route table.
    pub fn routes(&self) -> RoutesPrimary {
        self.routes.open()
    }

    /// Connects to the statistics.
    pub fn stats(&self) -> Stats {
        self.stats.open()
    }
}
