//! Returns messages whose lease expired or whose delay is over.
//!
//! Each shard stores when its queues have something due next. A sweeper sleeps until the first of these moments, or
//! until it is notified of an earlier one, so it costs nothing while nothing is due. Every pacemaker sweeps: the
//! second one finds nothing, and none has to detect that another died.

use std::{sync::Arc, time::Duration};

use signalbox_store::{Kind, Notice};
use tokio::{sync::Notify, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    handle::{Handle, Inner},
    store::Store,
};

/// The pause before a retry if the fabric does not answer.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause before a queue is swept again whose data is damaged. The others are swept in the meantime.
const BROKEN_PAUSE: Duration = Duration::from_secs(10);

impl Handle {
    /// Sweeps queues and wakes waiting pulls until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        let dues: Vec<Arc<Notify>> = self.inner.stores.iter().map(|_| Arc::default()).collect();
        for (store, due) in self.inner.stores.iter().zip(&dues) {
            let (inner, store, due) = (Arc::clone(&self.inner), Arc::clone(store), Arc::clone(due));
            tasks.spawn(sweep(inner, store, due, shutdown.clone()));
        }
        tasks.spawn(listen(Arc::clone(&self.inner), dues, shutdown));
        tasks.close();
        tasks.wait().await;
    }
}

/// Receives the scripts' notifications: a message is available, or a sweep is due earlier than before.
async fn listen(inner: Arc<Inner>, dues: Vec<Arc<Notify>>, shutdown: CancellationToken) {
    let Some(mut wakes) = Store::wakes(&inner.stores) else { return };
    loop {
        let notice = tokio::select! {
            notice = wakes.next() => notice,
            () = shutdown.cancelled() => return,
        };
        match notice {
            // Notifications missed while disconnected are replaced by a check of everything.
            Notice::Resumed => {
                inner.waiting.wake_all();
                dues.iter().for_each(|due| due.notify_one());
            }
            Notice::Message { channel, payload } => {
                if let Some(queue) = payload.strip_prefix("gone ") {
                    inner.waiting.wake_queue(queue);
                    continue;
                }
                match payload.strip_prefix("pull ").or_else(|| payload.strip_prefix("only ")) {
                    // The name under which pulls wait: the queue, or the queue and a tenant.
                    Some(bench) => inner.waiting.wake(bench),
                    None => {
                        let shard = inner.stores.iter().position(|store| store.wake_channel() == channel);
                        if let Some(due) = shard.and_then(|shard| dues.get(shard)) {
                            due.notify_one();
                        }
                    }
                }
            }
        }
    }
}

async fn sweep(inner: Arc<Inner>, store: Arc<Store>, due: Arc<Notify>, shutdown: CancellationToken) {
    loop {
        let pause = sweep_due(&inner, &store).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "queues not swept, retrying");
            PAUSE
        });
        tokio::select! {
            () = sleep(pause) => {}
            () = due.notified() => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Sweeps all queues that are due. Returns the time until the next is due; the longest one if there is none. A queue that
/// cannot be swept is postponed.
async fn sweep_due(inner: &Inner, store: &Store) -> Result<Duration, signalbox_store::Error> {
    loop {
        let Some((queue, due_ms)) = store.next_due().await? else { return Ok(Duration::MAX) };
        let now_ms = store.now_ms().await?;
        if due_ms > now_ms {
            return Ok(Duration::from_millis(due_ms - now_ms));
        }
        let swept = match store.sweep(&queue, inner.options.dead_messages).await {
            Err(error) if error.kind() == Kind::Broken => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(queue, %error, source, "queue not swept");
                store.postpone(&queue, due_ms, BROKEN_PAUSE).await?;
                continue;
            }
            swept => swept?,
        };
        if swept.dead > 0 {
            tracing::warn!(
                queue,
                dead = swept.dead,
                "messages exhausted their attempts and became dead letters"
            );
        }
        tracing::debug!(queue, expired = swept.expired, due = swept.due, "messages returned");
    }
}
