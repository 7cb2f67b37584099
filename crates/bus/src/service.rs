//! The bus as a running part: its tasks, and how they end.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use signalbox_store::{Clock, Fabric, Notice, Shard};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Deliverer, Error, Handle, Options,
    acknowledged::Acknowledged,
    attempts,
    commit::Committer,
    core::Core,
    housekeeping, replay,
    rng::Rng,
    store::Store,
    view::State,
    worker::{self, Busy, Fetcher},
};
use signalbox_lease::Lease;
use signalbox_queues as queues;
use signalbox_seal::Keys;

/// Interval of the attempts to initialize a new fabric.
const START_AGAIN: Duration = Duration::from_secs(1);

/// The event bus of this process, not running yet.
pub struct Bus<D> {
    core: Arc<Core>,
    committers: Vec<Committer>,
    deliverer: Arc<D>,
}

impl<D> std::fmt::Debug for Bus<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bus").field("core", &self.core).finish_non_exhaustive()
    }
}

impl<D: Deliverer> Bus<D> {
    /// Prepares the bus on a fabric of `shards` shards. `known_fabric` is the identity that [`Handle::fabric`]
    /// returned when the fabric was last seen: if it has been replaced by another or an empty one, events are rejected
    /// until [`Handle::initialize`]. Without it, an empty fabric is initialized on start.
    pub fn open(
        redis: &Fabric,
        shards: usize,
        options: Options,
        known_fabric: Option<String>,
        deliverer: D,
    ) -> (Handle, Self) {
        Self::assemble(Shard::all(redis, shards), Clock::Server, options, known_fabric, deliverer)
    }

    /// As [`Self::open`], with shards and a clock of the caller's.
    pub fn assemble(
        shards: Vec<Shard>,
        clock: Clock,
        options: Options,
        known_fabric: Option<String>,
        deliverer: D,
    ) -> (Handle, Self) {
        let queues =
            shards.iter().map(|shard| Arc::new(queues::Store::new(shard.clone(), clock.clone()))).collect();
        let stores: Vec<_> =
            shards.into_iter().map(|shard| Arc::new(Store::new(shard, clock.clone()))).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) =
            stores.iter().map(|_| mpsc::channel(options.waiting_events.max(1))).unzip();
        let core = Arc::new(Core::new(options, stores, queues, Rng::from_system(), senders, known_fabric));
        let committers = core
            .stores
            .iter()
            .zip(receivers)
            .map(|(store, items)| Committer {
                core: Arc::clone(&core),
                store: Arc::clone(store),
                items,
                sequence: 0,
                acknowledged: Acknowledged::default(),
                rejects: false,
            })
            .collect();
        let handle = Handle { core: Arc::clone(&core) };
        (handle, Self { core, committers, deliverer: Arc::new(deliverer) })
    }

    /// Names the machine that this process runs on. Jobs that an earlier process on it held when it died are found as soon as
    /// their heartbeats are missing, in place of after `dead_after_ms`. No other process may have this name at the same time.
    #[must_use]
    pub fn on_node(self, node: &str) -> Self {
        // It is set once, because `self` is consumed.
        let _ = self.core.node.set(node.to_owned());
        self
    }

    /// Encrypts credentials of deliveries with these keys. Without any, they are stored in clear text.
    #[must_use]
    pub fn with_keys(self, keys: Keys) -> Self {
        // It is set once, because `self` is consumed.
        let _ = self.core.keys.set(keys);
        self
    }

    /// Runs until `shutdown`: then accepted publishes are answered, and deliveries under way are abandoned and their
    /// jobs returned. If the fabric is down on start, this waits for it; publishers get an error in the meantime.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        if let Err(error @ Error::OtherShards { .. }) = self.core.start().await {
            return Err(error);
        }
        let tasks = TaskTracker::new();
        for committer in self.committers {
            tasks.spawn(committer.run(shutdown.clone()));
        }
        tasks.spawn(follow(Arc::clone(&self.core), shutdown.clone()));
        tasks.spawn(attempts::run(Arc::clone(&self.core), shutdown.clone()));
        for store in &self.core.stores {
            let (core, store) = (&self.core, store);
            let lease = Lease::new(
                store.shard().redis().clone(),
                "bus",
                core.incarnation.clone(),
                core.options.dead_after(),
            );
            tasks.spawn(housekeeping::run(Arc::clone(core), Arc::clone(store), lease, shutdown.clone()));
            tasks.spawn(housekeeping::recover(Arc::clone(core), Arc::clone(store), shutdown.clone()));
            if core.options.deliver {
                let busy: Busy = Arc::new(Mutex::default());
                tasks.spawn(Fetcher::new(core, store, &self.deliverer, &busy).run(shutdown.clone()));
                tasks.spawn(worker::beat(Arc::clone(core), Arc::clone(store), busy, shutdown.clone()));
                tasks.spawn(replay::run(Arc::clone(core), Arc::clone(store), shutdown.clone()));
            }
        }
        tasks.close();
        tasks.wait().await;
        Ok(())
    }
}

/// Keeps the registry in memory up to date, so that a token that was deleted elsewhere is soon unknown here.
async fn follow(core: Arc<Core>, shutdown: CancellationToken) {
    let mut changes = core.stores[0].registry_changes();
    // A new fabric may answer before it accepts writes, for example without enough replicas. Then it is initialized later.
    let mut is_started = core.view().state == State::Ready;
    loop {
        let notice = tokio::select! {
            notice = changes.next() => Some(notice),
            () = sleep(START_AGAIN), if !is_started => None,
            () = shutdown.cancelled() => return,
        };
        if matches!(&notice, Some(Notice::Message { payload, .. }) if *payload == core.view().stamp) {
            continue;
        }
        match core.start().await {
            Ok(_) => is_started = true,
            Err(error) => tracing::debug!(%error, "the registry cannot be read now"),
        }
    }
}
