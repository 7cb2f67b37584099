//! What goes on by itself: what is due, waves, events as facts, changes of definition that somebody left unfinished.
//!
//! One task for each shard sleeps until the shard's next time, or until it hears of an earlier one; nothing due costs
//! nothing. What is due is worked on under the shard's lease, so several pacemakers share the work; the lease only saves
//! work done twice, since every commit compares.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use signalbox_store::Notice;
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Error,
    engine::Engine,
    judge::ms,
    reconcile,
    record::{Record, Status},
    store::Due,
};
use signalbox_lease::Lease;

/// Entries that are looked at together.
const PAGE: usize = 500;
/// Before another try when the fabric does not answer, or another pacemaker does the work.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the lease is looked at while work goes on.
const HOLD_AGAIN: Duration = Duration::from_secs(1);
/// Before a label is looked at again whose record could not be read.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);
/// How often unfinished changes of definition are looked for.
const LOOK_FOR_UNFINISHED: Duration = Duration::from_secs(10);

impl Engine {
    /// Runs until `shutdown`. `duties` are the leases of the shards, one for each.
    pub async fn run(self, duties: Vec<Lease>, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        if self.0.options.serve {
            let dues: Vec<Arc<Notify>> = duties.iter().map(|_| Arc::default()).collect();
            for ((shard, duty), due) in duties.into_iter().enumerate().zip(&dues) {
                tasks.spawn(self.clone().look_after(shard, duty, Arc::clone(due), shutdown.clone()));
            }
            tasks.spawn(self.clone().listen(dues, shutdown.clone()));
            tasks.spawn(self.clone().take_inputs(shutdown.clone()));
        } else {
            tasks.spawn(self.clone().listen(Vec::new(), shutdown.clone()));
        }
        tasks.spawn(self.clone().look_for_unfinished(shutdown.clone()));
        tasks.close();
        tasks.wait().await;
        self.0.shutdown.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    async fn look_for_unfinished(self, shutdown: CancellationToken) {
        let mut folder = self.0.options.folder.clone();
        let mut looked: Option<Instant> = None;
        loop {
            let look = async {
                let finished = self.finish_all().await;
                if finished.is_ok()
                    && let Some(folder) = folder.take()
                {
                    self.apply_folder(&folder).await;
                }
                if let Err(error) = finished {
                    tracing::debug!(%error, "changes of definition are finished later");
                }
                if self.0.options.serve && looked.is_none_or(|at| at.elapsed() >= reconcile::EVERY) {
                    match self.put_back_waves().await {
                        Ok(_) => looked = Some(Instant::now()),
                        Err(error) => tracing::debug!(%error, "times of day are looked for later"),
                    }
                }
                tokio::select! {
                    () = sleep(LOOK_FOR_UNFINISHED) => {}
                    () = self.0.doubted.notified() => looked = None,
                }
            };
            if shutdown.run_until_cancelled(Box::pin(look)).await.is_none() {
                return;
            }
        }
    }

    async fn listen(self, dues: Vec<Arc<Notify>>, shutdown: CancellationToken) {
        let mut wakes = self.0.store.wakes();
        let channels: HashMap<String, usize> =
            (0..self.0.store.count()).map(|shard| (self.0.store.wake_channel(shard), shard)).collect();
        while let Some(notice) = shutdown.run_until_cancelled(wakes.next()).await {
            match notice {
                // What was said while nobody listened is found out by looking, and who was away may have forgotten something.
                Notice::Resumed => {
                    self.doubt();
                    self.0.doubted.notify_one();
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

    async fn look_after(self, shard: usize, mut duty: Lease, due: Arc<Notify>, shutdown: CancellationToken) {
        loop {
            let pause = match shutdown.run_until_cancelled(Box::pin(self.work_off(shard, &mut duty))).await {
                None => break,
                Some(Ok(pause)) => pause,
                Some(Err(error)) => {
                    tracing::debug!(%error, shard, "what is due is looked at later");
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
        duty.release().await;
    }

    /// Works on everything that is due; how long until the next, if there is one.
    pub(super) async fn work_off(&self, shard: usize, duty: &mut Lease) -> Result<Option<Duration>, Error> {
        loop {
            let Some(next_ms) = self.0.store.next_due(shard).await? else { return Ok(None) };
            let now_ms = self.0.clock.now_ms().await?;
            if next_ms > now_ms {
                return Ok(Some(Duration::from_millis(next_ms - now_ms)));
            }
            if !self.work_off_page_in(shard, duty, now_ms).await? {
                return Ok(Some(PAUSE));
            }
        }
    }

    /// The same page while the duty is ours; whether it was to the end. A wave may take longer than a lease, which is renewed
    /// meanwhile; what is left off when it is lost goes on with whoever took it over.
    async fn work_off_page_in(&self, shard: usize, duty: &mut Lease, now_ms: u64) -> Result<bool, Error> {
        let mut again = interval(HOLD_AGAIN);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut work = std::pin::pin!(self.work_off_page(shard, now_ms));
        loop {
            // The first tick is at once: nothing is begun without the duty.
            tokio::select! {
                biased;
                _ = again.tick() => if duty.hold().await?.is_none() {
                    return Ok(false);
                },
                done = &mut work => return done.map(|()| true),
            }
        }
    }

    /// One page of what is due.
    pub(super) async fn work_off_page(&self, shard: usize, now_ms: u64) -> Result<(), Error> {
        let due = self.0.store.due(shard, now_ms, PAGE).await?;
        let work = |(member, at_ms): (String, u64)| async move {
            match Due::parse(&member) {
                Some(Due::Label { machine, label }) => match self.due(&machine, &label).await {
                    // Nothing belongs to the entry any more.
                    Err(Error::NoSuchMachine) => Ok(self.0.store.set_due(shard, &member, None).await?),
                    // The commit has put the entry where it belongs.
                    Ok(true) => Ok(()),
                    Ok(false) => self.correct(&machine, &label).await,
                    // It does not keep the others waiting, and is looked at again in case somebody mends it.
                    Err(Error::Unreadable) => {
                        self.pass_over(&machine, &label);
                        let later_ms = now_ms + ms(UNREADABLE_PAUSE);
                        Ok(self.0.store.set_due(shard, &member, Some(later_ms)).await?)
                    }
                    Err(error) => Err(error),
                },
                Some(wave @ Due::Wave { .. }) => self.wave(shard, &member, wave, at_ms).await,
                None => Ok(self.0.store.set_due(shard, &member, None).await?),
            }
        };
        let mut under_way = stream::iter(due).map(work).buffer_unordered(self.0.options.concurrency);
        let mut failed = Ok(());
        while let Some(result) = under_way.next().await {
            if result.is_err() {
                failed = result;
            }
        }
        failed
    }

    /// An entry that no commit of its label has moved belongs to nothing: to a label that is gone, or that is due later.
    async fn correct(&self, machine: &str, label: &str) -> Result<(), Error> {
        let record = self.read(machine, label).await?;
        let header = record.as_ref().map(Record::header).unwrap_or_default();
        let due_ms =
            record.filter(|record| record.status != Status::Deleted).and_then(|record| record.due_ms());
        let now_ms = self.0.clock.now_ms().await?;
        // What is due still could not be worked on; not at once again.
        let due_ms = due_ms.map(|due_ms| if due_ms <= now_ms { now_ms + 1_000 } else { due_ms });
        Ok(self.0.store.correct_due((machine, label), &header, due_ms).await?)
    }
}
