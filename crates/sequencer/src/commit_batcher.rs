//! Batches commits: the commits of all visits that arrive at about the same time share one call.
//!
//! Each shard has one call under way at a time for each pacemaker. Commits that arrive in the meantime go into the next
//! call. A commit never waits for others to arrive, and the busier a shard is, the less a commit costs it.

use std::sync::Arc;

use signalbox_store::Error;
use tokio::sync::{mpsc, oneshot};

use super::store::{Commit, Committed, Store};

/// Commits in one call. Each takes one command, so this limits what one call does.
const MAX_COMMITS: usize = 64;

type Reply = Result<Committed, Arc<Error>>;

/// Where a visit sends its commits. Cheap to clone. The [`BatchWriter`] runs until the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct CommitBatcher(mpsc::UnboundedSender<(Commit, oneshot::Sender<Reply>)>);

/// The task that makes the calls.
pub(super) struct BatchWriter {
    store: Arc<Store>,
    lease_ms: u64,
    waiting: mpsc::UnboundedReceiver<(Commit, oneshot::Sender<Reply>)>,
}

impl CommitBatcher {
    /// The batcher of a shard, with the task that it needs.
    pub(super) fn new(store: &Arc<Store>, lease_ms: u64) -> (Self, BatchWriter) {
        let (sender, waiting) = mpsc::unbounded_channel();
        (Self(sender), BatchWriter { store: Arc::clone(store), lease_ms, waiting })
    }

    /// Commits, and waits for the result.
    pub(super) async fn commit(&self, commit: Commit) -> Reply {
        let (sender, reply) = oneshot::channel();
        // The writer ends only after the last batcher was dropped. If it is gone nevertheless, the lease will expire.
        if self.0.send((commit, sender)).is_err() {
            return Ok(Committed::Lost);
        }
        reply.await.unwrap_or(Ok(Committed::Lost))
    }
}

impl BatchWriter {
    /// Runs until the last batcher is dropped.
    pub(super) async fn run(mut self) {
        let mut batch = Vec::with_capacity(MAX_COMMITS);
        while self.waiting.recv_many(&mut batch, MAX_COMMITS).await > 0 {
            let (commits, visits): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
            match self.store.commit(&commits, self.lease_ms).await {
                Ok(replies) => {
                    // A dropped receiver means that the visit was abandoned. Its lease will expire.
                    for (visit, reply) in visits.into_iter().zip(replies) {
                        let _ = visit.send(Ok(reply));
                    }
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for visit in visits {
                        let _ = visit.send(Err(Arc::clone(&error)));
                    }
                }
            }
        }
    }
}
