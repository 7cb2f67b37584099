//! Redis access of the route table: desired state in the fabric, the table on the routes primary, routers and membership
//! sets on the stats Redis. No other module of this crate talks to Redis, and no decision is made here.

mod certificates;
mod challenges;
mod changes;
mod desired;
mod health;
mod membership;
mod policies;
mod promotions;
mod reply;
mod resource;
mod routers;
mod table;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use signalbox_store::{Call, Fabric, FabricRole, RoutesPrimary, RoutesPrimaryRole, Stats, Value};

pub use certificates::Certificate;
pub(crate) use changes::{Changes, Entry, Place};
pub(crate) use desired::{Desire, DesireOutcome, Pulse, Registrant, Sight};
pub use desired::{Stored, TableState};
pub(crate) use health::{Diagnosed, Diagnosis};
pub use resource::Wanted;
pub(crate) use resource::{Projected, Resource, ResourceOutcome, ResourceProjected, member};
pub use routers::RouterReport;
pub(crate) use table::{Applied, Due, Fence, HostRemoved, Lineage, Projection};
pub use table::{InstanceState, Live, host_pace};

use super::Error;
use reply::Reply;

/// Local functions that the scripts of the route table share.
const SHARED: &str = include_str!("../scripts/shared.lua");

/// The table that a change expects, or which has the change. A projection must not write to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableMark {
    /// The newest token of its lineage.
    pub(crate) epoch: String,
    /// A serial that it has reached.
    pub(crate) serial: u64,
}

/// The connections. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    fabric: Fabric,
    routes: RoutesPrimary,
    stats: Stats,
    /// The highest revision this process has seen; a fabric that knows less has lost changes.
    revision_floor: Arc<AtomicU64>,
    /// Replaces the servers' clocks in tests; 0 leaves them.
    clock_ms: Arc<AtomicU64>,
}

/// The reply, if it arrives in time.
async fn within<T, E>(patience: Duration, reply: impl Future<Output = Result<T, E>>) -> Option<T> {
    tokio::time::timeout(patience, reply).await.ok()?.ok()
}

impl Store {
    /// Uses these three connections.
    pub fn new(fabric: Fabric, routes: RoutesPrimary, stats: Stats) -> Self {
        Self { fabric, routes, stats, revision_floor: Arc::default(), clock_ms: Arc::default() }
    }

    /// Every server, and whether it responds within `patience`.
    pub async fn ping(&self, patience: Duration) -> [(&'static str, bool); 3] {
        let (routes, fabric, stats) = tokio::join!(
            within(patience, self.routes.command("PING").query::<Value>()),
            within(patience, self.fabric.command("PING").query::<Value>()),
            within(patience, self.stats.command("PING").query::<Value>()),
        );
        [("routes", routes.is_some()), ("fabric", fabric.is_some()), ("stats", stats.is_some())]
    }

    /// The reply of each server to `INFO`, by role; `None` for one that does not answer within `patience`.
    pub async fn info(&self, patience: Duration) -> [(&'static str, Option<String>); 3] {
        let (routes, fabric, stats) = tokio::join!(
            within(patience, self.routes.command("INFO").query()),
            within(patience, self.fabric.command("INFO").query()),
            within(patience, self.stats.command("INFO").query()),
        );
        [("routes", routes), ("fabric", fabric), ("stats", stats)]
    }

    /// Calls a script on the routes primary.
    async fn on_table(&self, name: &'static str, call: Call<'_, RoutesPrimaryRole>) -> Result<Reply, Error> {
        Ok(Reply::new(name, call.run(&self.routes).await.map_err(Error::table)?))
    }

    /// Calls a script in the fabric.
    async fn in_fabric(&self, name: &'static str, call: Call<'_, FabricRole>) -> Result<Reply, Error> {
        Ok(Reply::new(name, call.run(&self.fabric).await.map_err(Error::Fabric)?))
    }

    /// Remembers a revision that certainly existed.
    pub(crate) fn saw_revision(&self, revision: u64) {
        self.revision_floor.fetch_max(revision, Ordering::Relaxed);
    }

    fn floor(&self) -> u64 {
        self.revision_floor.load(Ordering::Relaxed)
    }

    /// The clock argument of a script: empty for the server's own.
    fn clock(&self) -> String {
        match self.clock_ms.load(Ordering::Relaxed) {
            0 => String::new(),
            fixed => fixed.to_string(),
        }
    }

    /// The routes primary's clock, in unix milliseconds.
    pub async fn table_now_ms(&self) -> Result<u64, Error> {
        match self.clock_ms.load(Ordering::Relaxed) {
            0 => self.routes.now_ms().await.map_err(Error::table),
            fixed => Ok(fixed),
        }
    }

    /// The fabric's clock, in unix milliseconds.
    pub(crate) async fn fabric_now_ms(&self) -> Result<u64, Error> {
        match self.clock_ms.load(Ordering::Relaxed) {
            0 => self.fabric.now_ms().await.map_err(Error::Fabric),
            fixed => Ok(fixed),
        }
    }

    #[cfg(test)]
    pub(crate) fn set_clock_ms(&self, now_ms: u64) {
        self.clock_ms.store(now_ms, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn routes(&self) -> &RoutesPrimary {
        &self.routes
    }

    #[cfg(test)]
    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    #[cfg(test)]
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }
}
