//! Work on entries of the due set that may take long: sweeps, tasks, and labels whose evaluations are expensive. It runs next to
//! the pages of the due set, so that it delays no other entry.
//!
//! While this process works on an entry, the entry is postponed again and again. If the process dies, another one begins
//! when the entry is due. A machine that has much in progress, and a client whose machines have, wait for a second with the rest.

use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::sleep,
};

use crate::{
    Error,
    clock::Clock,
    evaluator::ms,
    fair::{Caps, Payer, Usage},
    runner::Runner,
    store::{Due, DueSet},
};

/// For how long an entry in progress is postponed: another process continues so long after this one has died.
const HOLD: Duration = Duration::from_secs(10);
/// How often it is postponed.
const HOLD_INTERVAL: Duration = Duration::from_secs(3);
/// The pause before an entry is worked on again after a failure, or if too many are in progress.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);
/// The pause before an entry is evaluated again that is due and in progress.
const IN_PROGRESS_PAUSE: Duration = Duration::from_millis(50);
/// Maximum of entries in progress. Few of them do anything: the others wait for places.
const CAPS: Caps = Caps { all: 2_000, client: 200, machine: 50 };

/// An entry of the due set, as it was read.
#[derive(Debug, Clone)]
pub(crate) struct DueEntry {
    pub(crate) shard: usize,
    pub(crate) member: String,
    /// When it was due, Unix milliseconds.
    pub(crate) at_ms: u64,
}

/// Entries that this process works on in the background.
#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) due: DueSet,
    pub(crate) clock: Clock,
    pub(crate) runner: Arc<Runner>,
    /// By shard: notified when work on an entry has ended.
    pub(crate) ended: Vec<Arc<Notify>>,
    pub(crate) in_progress: Mutex<InProgress>,
}

#[derive(Debug, Default)]
pub(crate) struct InProgress {
    entries: HashSet<(usize, String)>,
    usage: Usage,
}

/// An entry in progress. It is not any more when this is dropped.
struct One {
    background: Arc<Background>,
    key: (usize, String),
    payer: Payer,
}

impl Drop for One {
    fn drop(&mut self) {
        let mut in_progress = self.background.in_progress.lock();
        in_progress.entries.remove(&self.key);
        in_progress.usage.remove(&self.payer);
        drop(in_progress);
        if let Some(ended) = self.background.ended.get(self.key.0) {
            ended.notify_one();
        }
    }
}

impl Background {
    /// Begins work on an entry, unless it is in progress. The work moves the entry when it is done; after a failure it is
    /// repeated.
    pub(crate) async fn start(
        self: &Arc<Self>,
        entry: DueEntry,
        payer: Payer,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let key = (entry.shard, entry.member.clone());
        if self.in_progress.lock().entries.contains(&key) {
            // It was not postponed in time, or a client ends a task.
            sleep(IN_PROGRESS_PAUSE).await;
            return Ok(());
        }
        let Some(one) = self.admit(key, payer) else {
            return self.postpone(&entry, PAUSE).await.map(drop);
        };
        // One task postpones the entry and works on it: if the page were ended in between, the entry would wait until it is due
        // again.
        let (postponed, result) = oneshot::channel();
        let runner = Arc::clone(&self.runner);
        self.runner.tasks.spawn(async move {
            let held = one.background.postpone(&entry, HOLD).await;
            let (held, outcome) = match held {
                Ok(held) => (held, Ok(())),
                Err(error) => (None, Err(error)),
            };
            let _ended = postponed.send(outcome);
            if let Some(entry) = held {
                let working = Box::pin(one.background.work(entry, work));
                runner.stopped.run_until_cancelled(working).await;
            }
            drop(one);
        });
        result.await.unwrap_or(Ok(()))
    }

    fn admit(self: &Arc<Self>, key: (usize, String), payer: Payer) -> Option<One> {
        let mut in_progress = self.in_progress.lock();
        if !in_progress.usage.try_add(&payer, CAPS) {
            return None;
        }
        in_progress.entries.insert(key.clone());
        Some(One { background: Arc::clone(self), key, payer })
    }

    /// Works on an entry, and postpones it until then.
    async fn work(&self, mut entry: DueEntry, work: impl Future<Output = Result<(), Error>>) {
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                () = sleep(HOLD_INTERVAL) => match self.postpone(&entry, HOLD).await {
                    Ok(Some(held)) => entry = held,
                    // The work, a client or another process has moved it.
                    Ok(None) => break work.await,
                    Err(error) => tracing::debug!(%error, entry = entry.member, "entry not postponed"),
                },
            }
        };
        if let Err(error) = done {
            tracing::debug!(%error, entry = entry.member, "entry postponed");
            // If this fails too, the entry is due later.
            let _later = self.postpone(&entry, PAUSE).await;
        }
    }

    /// Postpones an entry, unless it was moved since it was read. Returns it as it is then.
    pub(crate) async fn postpone(
        &self,
        entry: &DueEntry,
        pause: Duration,
    ) -> Result<Option<DueEntry>, Error> {
        let at_ms = self.clock.now_ms().await? + ms(pause);
        let begins = matches!(Due::parse(&entry.member), Some(Due::Sweep { .. }));
        let postponed = self.due.postpone(entry.shard, &entry.member, (entry.at_ms, at_ms), begins).await?;
        Ok(postponed.then(|| DueEntry { at_ms, ..entry.clone() }))
    }

    /// Whether nothing is in progress.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_progress.lock().entries.is_empty()
    }
}
