//! Works on the due sets of a shard: times of labels (retries, feeds, intervals), and sweeps.
//!
//! A shard's entries are processed under its lease, so that pacemakers share the work. The lease only avoids duplicate
//! work: every commit compares the record that it was computed from. A page has entries of every client that has something
//! due ([`crate::turns`]), only starts what may take long ([`crate::background`]), and postpones what fails, so no entry
//! delays the others.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use signalbox_lease::Lease;
use signalbox_store::Kind;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::{
    Error,
    background::{Background, DueEntry, PAUSE},
    clock::Clock,
    definitions::Definitions,
    evaluator::{Happened, ms},
    fair::{FairPlaces, Payer},
    feeds::FeedAnswers,
    label_store::{Edit, LabelStore, Note},
    log::Entry,
    record::{Record, Status},
    runner::Runner,
    store::{Due, DueSet},
    sweeps::Sweeps,
    tasks::TaskRunner,
    turns::{Turns, in_turn},
};

/// Entries that are read together.
const PAGE: usize = 500;
/// How often the lease is renewed while work continues.
const LEASE_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before a label is read again whose record could not be read.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);
/// The pause before a label is evaluated again that is still due after its evaluation, ms.
const STILL_DUE_PAUSE_MS: u64 = 1_000;
/// The pause before labels that wait for a limit are evaluated again, if nothing else causes it earlier.
const LIMIT_PAUSE: Duration = Duration::from_secs(10);

/// Works on everything that is due.
#[derive(Debug)]
pub(crate) struct DueTimes {
    pub(crate) due: DueSet,
    pub(crate) definitions: Definitions,
    pub(crate) background: Arc<Background>,
    pub(crate) labels: Arc<LabelStore>,
    pub(crate) runner: Arc<Runner>,
    pub(crate) sweeps: Arc<Sweeps>,
    pub(crate) tasks: Arc<TaskRunner>,
    /// For pages of tasks.
    pub(crate) task_places: FairPlaces,
    pub(crate) turns: Turns,
    pub(crate) clock: Clock,
    /// Entries that are worked on at a time.
    pub(crate) concurrency: usize,
}

impl DueTimes {
    /// Works on everything that is due in a shard. Returns how long until the next entry is due, if there is one.
    pub(crate) async fn work_off(
        self: &Arc<Self>,
        shard: usize,
        lease: &mut Lease,
    ) -> Result<Option<Duration>, Error> {
        loop {
            // After an upgrade, also while a pacemaker of the earlier version runs.
            let adopted = self.due.adopt(shard, PAGE).await?;
            let next_ms = self.due.next(shard).await?;
            let now_ms = self.clock.now_ms().await?;
            if next_ms.is_some_and(|next_ms| next_ms <= now_ms) {
                if !self.work_off_page_under(lease, shard, now_ms).await? {
                    return Ok(Some(PAUSE));
                }
            } else if adopted == 0 {
                return Ok(next_ms.map(|next_ms| Duration::from_millis(next_ms - now_ms)));
            }
        }
    }

    /// Works on one page while the lease is held. Returns whether the page was completed. A page may take longer than the lease,
    /// which is therefore renewed; if it is lost, the next holder continues.
    async fn work_off_page_under(
        self: &Arc<Self>,
        lease: &mut Lease,
        shard: usize,
        now_ms: u64,
    ) -> Result<bool, Error> {
        // Nothing begins without the lease. The first tick of an interval may be a millisecond late, so it is not used for that.
        if lease.hold().await?.is_none() {
            return Ok(false);
        }
        let mut again = interval_at(Instant::now() + LEASE_INTERVAL, LEASE_INTERVAL);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut work = std::pin::pin!(self.work_off_page(shard, now_ms));
        loop {
            tokio::select! {
                biased;
                _ = again.tick() => if lease.hold().await?.is_none() {
                    return Ok(false);
                },
                done = &mut work => return done.map(|()| true),
            }
        }
    }

    /// Works on one page of entries.
    pub(crate) async fn work_off_page(self: &Arc<Self>, shard: usize, now_ms: u64) -> Result<(), Error> {
        let due = self.next_page(shard, now_ms).await?;
        let work = |(member, at_ms): (String, u64)| async move {
            let entry = DueEntry { shard, member, at_ms };
            let Err(error) = self.work_off_entry(entry.clone(), now_ms).await else { return Ok(()) };
            // If the fabric answers, the failure is that of this entry.
            tracing::debug!(%error, entry = entry.member, "entry postponed");
            self.background.postpone(&entry, PAUSE).await.map(drop)
        };
        let mut under_way = stream::iter(due).map(work).buffer_unordered(self.concurrency);
        let mut failed = Ok(());
        while let Some(result) = under_way.next().await {
            if result.is_err() {
                failed = result;
            }
        }
        failed
    }

    /// The next entries that are due, of all clients and machines in turn, those of a machine by time.
    async fn next_page(&self, shard: usize, now_ms: u64) -> Result<Vec<(String, u64)>, Error> {
        let machines = self.due.machines(shard, now_ms).await?;
        // Nothing is read for this: after a start, that could take longer than the page.
        let payers = machines.iter().map(|machine| match self.definitions.known_of(machine, shard) {
            Some(version) => Payer::of(&version),
            None => Payer::unknown(machine),
        });
        let shares = self.turns.shares(shard, payers, PAGE);
        let found = self.due.due_of(shard, now_ms, &shares).await?;
        for ((machine, _), _) in shares.iter().zip(&found).filter(|(_, entries)| entries.is_empty()) {
            // Another pacemaker was faster, or the index is damaged and would have the shard worked on without end.
            match self.due.settle(shard, machine).await {
                // Its set is damaged, and it was put off.
                Err(error) if error.kind() == Kind::Broken => {}
                settled => settled?,
            }
        }
        Ok(in_turn(found))
    }

    async fn work_off_entry(self: &Arc<Self>, entry: DueEntry, now_ms: u64) -> Result<(), Error> {
        let shard = entry.shard;
        match Due::parse(&entry.member) {
            Some(Due::Label { machine, label }) => {
                let version = self.definitions.of(&machine, shard).await.ok();
                let Some(version) = version.filter(|version| version.effort.is_high()) else {
                    return self.work_off_label(&entry, (&machine, &label), now_ms).await;
                };
                let (due_times, of) = (Arc::clone(self), entry.clone());
                let run = async move { due_times.work_off_label(&of, (&machine, &label), now_ms).await };
                self.background.start(entry, Payer::of(&version), Box::pin(run)).await
            }
            Some(Due::Limit { machine, target }) => {
                // If this process dies, another one looks again.
                self.due.set(shard, &entry.member, Some(now_ms + ms(LIMIT_PAUSE))).await?;
                self.runner.admit_soon(&machine, &target);
                Ok(())
            }
            Some(Due::Task { machine, id }) => {
                let payer = self.payer_of_task(&machine, &id, shard).await;
                let (due_times, member, of) = (Arc::clone(self), entry.member.clone(), payer.clone());
                let run = async move {
                    let _place = due_times.task_places.take(&of).await;
                    due_times.tasks.run(&member, &machine, &id).await
                };
                self.background.start(entry, payer, Box::pin(run)).await
            }
            Some(sweep @ Due::Sweep { .. }) => {
                let payer = self.payer(sweep.machine(), shard).await;
                let (sweeps, of) = (Arc::clone(&self.sweeps), entry.clone());
                let run = async move { sweeps.run(shard, &of.member, sweep, of.at_ms).await };
                self.background.start(entry, payer, Box::pin(run)).await
            }
            None => Ok(self.due.set(shard, &entry.member, None).await?),
        }
    }

    /// Who pays for a page of a task. A machine that is deleted has no version any more.
    async fn payer_of_task(&self, machine: &str, id: &str, shard: usize) -> Payer {
        let payer = self.payer(machine, shard).await;
        if payer != Payer::alone(machine) {
            return payer;
        }
        let task = self.tasks.get(machine, id).await.ok().filter(|task| !task.client.is_empty());
        task.map_or(payer, |task| Payer::of_client(&task.client, machine))
    }

    /// Who pays for work on an entry of a machine.
    async fn payer(&self, machine: &str, shard: usize) -> Payer {
        let version = self.definitions.of(machine, shard).await;
        version.map_or_else(|_| Payer::alone(machine), |version| Payer::of(&version))
    }

    async fn work_off_label(
        &self,
        entry: &DueEntry,
        (machine, label): (&str, &str),
        now_ms: u64,
    ) -> Result<(), Error> {
        let (shard, member) = (entry.shard, &*entry.member);
        match self.evaluate(machine, label).await {
            // The commit has moved the entry.
            Ok(true) => Ok(()),
            Ok(false) => self.correct(machine, label).await,
            // The entry belongs to no machine.
            Err(Error::NoSuchMachine) => Ok(self.due.drop_entry(shard, member, (machine, None)).await?),
            // The label does not delay the others, and is read again in case it was repaired.
            Err(Error::Unreadable) => {
                self.labels.report_unreadable(machine, label);
                Ok(self.due.set(shard, member, Some(now_ms + ms(UNREADABLE_PAUSE))).await?)
            }
            Err(error) => Err(error),
        }
    }

    /// Evaluates a label whose own time has come. Returns whether anything was written, including the label's next time.
    async fn evaluate(&self, machine: &str, label: &str) -> Result<bool, Error> {
        let done = self
            .labels
            .change((machine, label), &FeedAnswers::default(), |before, _, now_ms| match before {
                Some(before) if before.due_ms().is_some_and(|due_ms| due_ms <= now_ms) => {
                    Ok(Edit::evaluate(before, Happened::Due).noted(lost_attempt(before, now_ms)))
                }
                _ => Ok(Edit::Leave),
            })
            .await?;
        self.runner.follow(machine, label, &done);
        Ok(done.changed)
    }

    /// Corrects an entry that no commit has moved: its label was removed or is due later.
    async fn correct(&self, machine: &str, label: &str) -> Result<(), Error> {
        let record = self.labels.read(machine, label).await?;
        let header = record.as_ref().map(Record::header).unwrap_or_default();
        let due_ms =
            record.filter(|record| record.status != Status::Deleted).and_then(|record| record.due_ms());
        let now_ms = self.clock.now_ms().await?;
        // A label that is still due could not be worked on, and is not tried again immediately.
        let due_ms = due_ms.map(|due_ms| if due_ms <= now_ms { now_ms + STILL_DUE_PAUSE_MS } else { due_ms });
        Ok(self.due.correct((machine, label), &header, due_ms).await?)
    }
}

/// What the log says if the process that made an attempt has not written its outcome.
fn lost_attempt(before: &Record, now_ms: u64) -> Note {
    let over = before.work.again_ms.is_some_and(|at_ms| at_ms <= now_ms);
    let lost =
        before.status == Status::Acting && before.work.attempts > 0 && before.work.held.is_none() && over;
    let entry = lost.then(|| Entry::Attempt {
        state: before.state.to_string(),
        number: before.work.attempts,
        outcome: "unknown".to_owned(),
        status: None,
        took_ms: None,
        answer: None,
        error: Some("its outcome was not stored: the process that made it has ended".to_owned()),
    });
    Note { by: String::new(), entry }
}
