//! Where visits hand in what was sent: commits of the same moment share one call.
//!
//! One call is under way at a time for each shard and pacemaker; what comes meanwhile goes with the next. So nobody
//! waits for company, and the busier a shard is, the less a commit costs it.

use std::sync::Arc;

use signalbox_store::Error;
use tokio::sync::{mpsc, oneshot};

use super::store::{Commit, Committed, Store};

/// Commits in one call. Each takes one command, so this bounds what a call does.
const MOST: usize = 64;

type Reply = Result<Committed, Arc<Error>>;

/// Where a visit hands in. Cheap to clone; the desk is open for as long as anybody has one.
#[derive(Debug, Clone)]
pub(super) struct Desk(mpsc::UnboundedSender<(Commit, oneshot::Sender<Reply>)>);

/// The part that makes the calls.
pub(super) struct Clerk {
    store: Arc<Store>,
    lease_ms: u64,
    waiting: mpsc::UnboundedReceiver<(Commit, oneshot::Sender<Reply>)>,
}

/// Opens a desk for a shard.
pub(super) fn open(store: &Arc<Store>, lease_ms: u64) -> (Desk, Clerk) {
    let (sender, waiting) = mpsc::unbounded_channel();
    (Desk(sender), Clerk { store: Arc::clone(store), lease_ms, waiting })
}

impl Desk {
    /// Hands in, and waits for what came of it.
    pub(super) async fn commit(&self, commit: Commit) -> Reply {
        let (sender, reply) = oneshot::channel();
        // The clerk goes when the last desk does, and no sooner; if it is gone, so is the lease, sooner or later.
        if self.0.send((commit, sender)).is_err() {
            return Ok(Committed::Lost);
        }
        reply.await.unwrap_or(Ok(Committed::Lost))
    }
}

impl Clerk {
    /// Serves until the last desk is gone.
    pub(super) async fn run(mut self) {
        let mut batch = Vec::with_capacity(MOST);
        while self.waiting.recv_many(&mut batch, MOST).await > 0 {
            let (commits, visits): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
            match self.store.commit(&commits, self.lease_ms).await {
                Ok(replies) => {
                    // Whoever does not listen any more was abandoned, and so will be its lease.
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
