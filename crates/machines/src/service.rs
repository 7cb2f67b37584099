//! Runs what happens without a request: due times, inputs, and changes of definition that another process left unfinished.
//!
//! One task per shard sleeps until the shard's next time, or until it is notified of an earlier one. A shard with nothing
//! due costs nothing.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use signalbox_lease::Lease;
use signalbox_store::Notice;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Options,
    assembly::{Dependencies, Hooks},
    background::PAUSE,
    due_times::DueTimes,
    flow::Flow,
    handle::Handle,
    inputs::Inputs,
    label_store::LabelStore,
    reconcile::{self, SweepReconciler},
    recount::Recounter,
    runner::Runner,
    store::DueSet,
};

/// How often unfinished changes of definition are searched for.
const UNFINISHED_INTERVAL: Duration = Duration::from_secs(10);
/// How often counts of transitions are stored.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// The machines of this process, not running yet.
#[derive(Debug, Clone)]
pub struct Service {
    pub(crate) handle: Handle,
    pub(crate) runner: Arc<Runner>,
    pub(crate) due_times: Arc<DueTimes>,
    pub(crate) inputs: Inputs,
    pub(crate) reconciler: SweepReconciler,
    pub(crate) recounter: Recounter,
    pub(crate) due: DueSet,
    pub(crate) flow: Flow,
    /// Whether due times and inputs are worked on.
    pub(crate) serve: bool,
    /// A folder of definitions to apply at start.
    pub(crate) folder: Option<PathBuf>,
}

impl Service {
    /// Builds the machines of this process.
    pub fn new(dependencies: Dependencies, options: Options) -> Self {
        Self::with_hooks(dependencies, options, Hooks::default())
    }

    /// The interface for request handlers.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs until `shutdown`. `leases` contains one lease per shard, in order; see [`crate::lease_name`].
    pub async fn run(self, leases: Vec<Lease>, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        if self.serve {
            let dues = self.due_times.background.ended.clone();
            for ((shard, lease), due) in leases.into_iter().enumerate().zip(&dues) {
                let (due_times, due) = (Arc::clone(&self.due_times), Arc::clone(due));
                tasks.spawn(work_on_shard(due_times, shard, lease, due, shutdown.clone()));
            }
            tasks.spawn(self.inputs.clone().run(shutdown.clone()));
            let (recounter, until) = (self.recounter.clone(), shutdown.clone());
            tasks.spawn(async move { until.run_until_cancelled(Box::pin(recounter.run())).await });
            self.spawn_listeners(&tasks, dues, &shutdown);
        } else {
            self.spawn_listeners(&tasks, Vec::new(), &shutdown);
        }
        tasks.spawn(flush_counts(self.flow.clone(), shutdown.clone()));
        tasks.close();
        tasks.wait().await;
        self.runner.stop().await;
        if let Err(error) = self.flow.flush().await {
            tracing::debug!(%error, "counts of transitions lost");
        }
    }

    /// Starts what runs on every pacemaker.
    fn spawn_listeners(&self, tasks: &TaskTracker, dues: Vec<Arc<Notify>>, shutdown: &CancellationToken) {
        let reconnected = Arc::new(Notify::new());
        let (due, labels) = (self.due.clone(), Arc::clone(&self.handle.label_store));
        tasks.spawn(listen(due, labels, dues, Arc::clone(&reconnected), shutdown.clone()));
        tasks.spawn(self.clone().reconcile(reconnected, shutdown.clone()));
    }

    /// Moves tasks of earlier versions, continues unfinished changes of definition, applies the folder of definitions once, and
    /// restores lost sweeps.
    async fn reconcile(self, reconnected: Arc<Notify>, shutdown: CancellationToken) {
        let mut folder = self.folder.clone();
        let mut restored_at: Option<Instant> = None;
        let mut resealed = false;
        loop {
            let round = async {
                // Before anything else: a definition cannot be applied while its machine is deleted.
                if let Err(error) = self.handle.tasks.tasks.adopt().await {
                    tracing::debug!(%error, "tasks of an earlier version not moved yet");
                }
                let finished = self.handle.applier.finish_all().await;
                // A definition that this process cannot read delays no other.
                if matches!(finished, Ok(()) | Err(crate::Error::Unreadable))
                    && let Some(folder) = folder.take()
                {
                    self.handle.applier.apply_folder(&folder).await;
                }
                if let Err(error) = finished {
                    tracing::debug!(%error, "changes of definition not finished yet");
                }
                if !resealed {
                    match self.handle.secrets.reseal().await {
                        Ok(()) => resealed = true,
                        Err(error) => tracing::debug!(%error, "secrets not encrypted with the first key yet"),
                    }
                }
                if self.serve && restored_at.is_none_or(|at| at.elapsed() >= reconcile::INTERVAL) {
                    let restored = async {
                        self.handle.tasks.restore().await?;
                        self.reconciler.restore().await
                    };
                    match restored.await {
                        Ok(_) => restored_at = Some(Instant::now()),
                        Err(error) => tracing::debug!(%error, "sweeps not checked yet"),
                    }
                }
                tokio::select! {
                    () = sleep(UNFINISHED_INTERVAL) => {}
                    () = reconnected.notified() => restored_at = None,
                }
            };
            if shutdown.run_until_cancelled(Box::pin(round)).await.is_none() {
                return;
            }
        }
    }
}

/// Notifies the shards of entries that are due earlier than they know, and reacts to a lost connection: what this process
/// remembers may be wrong then.
async fn listen(
    due: DueSet,
    labels: Arc<LabelStore>,
    dues: Vec<Arc<Notify>>,
    reconnected: Arc<Notify>,
    shutdown: CancellationToken,
) {
    let mut wakes = due.wakes();
    let channels: HashMap<String, usize> =
        (0..due.shards()).map(|shard| (due.wake_channel(shard), shard)).collect();
    while let Some(notice) = shutdown.run_until_cancelled(wakes.next()).await {
        match notice {
            // Messages may have been missed, and the fabric may have lost its last writes.
            Notice::Resumed => {
                labels.forget_assumptions();
                reconnected.notify_one();
                dues.iter().for_each(|due| due.notify_one());
            }
            Notice::Message { channel, .. } => {
                if let Some(due) = channels.get(&channel).and_then(|shard| dues.get(*shard)) {
                    due.notify_one();
                }
            }
        }
    }
}

/// Adds the counts of this process to those in the fabric, until `shutdown`.
async fn flush_counts(flow: Flow, shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(sleep(FLUSH_INTERVAL)).await.is_some() {
        if let Err(error) = flow.flush().await {
            tracing::debug!(%error, "counts of transitions not stored yet");
        }
    }
}

/// Works on what is due in a shard, until `shutdown`.
async fn work_on_shard(
    due_times: Arc<DueTimes>,
    shard: usize,
    mut lease: Lease,
    due: Arc<Notify>,
    shutdown: CancellationToken,
) {
    loop {
        let work = Box::pin(due_times.work_off(shard, &mut lease));
        let pause = match shutdown.run_until_cancelled(work).await {
            None => break,
            Some(Ok(pause)) => pause,
            Some(Err(error)) => {
                tracing::debug!(%error, shard, "due times postponed");
                Some(PAUSE)
            }
        };
        let wait = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {}
            () = due.notified() => {}
            () = shutdown.cancelled() => break,
        }
    }
    lease.release().await;
}
