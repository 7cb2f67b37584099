//! The sequencer as a running part: its tasks, and how they end.

use std::sync::Arc;

use parking_lot::Mutex;
use rand::RngExt as _;
use signalbox_store::{Clock, Fabric, Shard};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Handle, Options, Sink,
    store::Store,
    worker::{self, Fetcher, Holding, Shared},
};
use signalbox_bus as bus;

/// The sequencer of this process before it runs.
#[derive(Debug)]
pub struct Sequencer<S> {
    shared: Arc<Shared<S>>,
}

impl<S: Sink> Sequencer<S> {
    /// Prepares the sequencer on the same fabric and shards as the bus.
    pub fn open(
        redis: &Fabric,
        shards: usize,
        options: Options,
        bus: bus::Handle,
        sink: S,
    ) -> (Handle, Self) {
        let stores =
            Shard::all(redis, shards).into_iter().map(|shard| Store::new(shard, Clock::Server)).collect();
        Self::assemble(stores, options, bus, sink)
    }

    pub(super) fn assemble(
        stores: Vec<Store>,
        options: Options,
        bus: bus::Handle,
        sink: S,
    ) -> (Handle, Self) {
        let stores: Vec<_> = stores.into_iter().map(Arc::new).collect();
        let incarnation = format!("{:016x}", rand::rng().random::<u64>());
        let handle = Handle::new(bus.clone(), stores.clone(), options.clone());
        let shared = Shared { options, bus, sink: Arc::new(sink), incarnation, stores };
        (handle, Self { shared: Arc::new(shared) })
    }

    /// Runs until `shutdown`. Then pending calls are abandoned, and their objects are released.
    pub async fn run(self, shutdown: CancellationToken) {
        if !self.shared.options.serve {
            return;
        }
        let tasks = TaskTracker::new();
        for store in &self.shared.stores {
            let holding: Holding = Arc::new(Mutex::default());
            tasks.spawn(Fetcher::new(&self.shared, store, &holding).run(shutdown.clone()));
            tasks.spawn(worker::beat(Arc::clone(&self.shared), Arc::clone(store), holding, shutdown.clone()));
        }
        tasks.close();
        tasks.wait().await;
    }
}
