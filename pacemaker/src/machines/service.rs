//! What goes on by itself: what is due, waves, events as facts, changes of definition that somebody left unfinished.
//!
//! One task for each shard sleeps until the shard's next time, or until it hears of an earlier one; nothing due costs
//! nothing. What is due is worked on under the shard's lease, so several pacemakers share the work; the lease only saves
//! work done twice, since every commit compares.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use signalbox_machine::{
    State,
    definition::{Daily, Gate, Zone, ZoneRule},
    time,
};
use signalbox_store::Notice;
use tokio::{sync::Notify, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Error,
    definitions::Version,
    engine::{Edit, Engine},
    feeds::Asked,
    judge::{Happened, Judge, instant, unix_ms},
    record::{Record, Status},
    store::Due,
};
use crate::duty::Duty;

/// Entries that are looked at together.
const PAGE: usize = 500;
/// Before another try when the fabric does not answer, or another pacemaker does the work.
const PAUSE: Duration = Duration::from_secs(1);
/// How often unfinished changes of definition are looked for.
const LOOK_FOR_UNFINISHED: Duration = Duration::from_secs(10);

impl Engine {
    /// Runs until `shutdown`. `duties` are the leases of the shards, one for each.
    pub(crate) async fn run(self, duties: Vec<Duty>, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        if self.0.options.serve {
            let dues: Vec<Arc<Notify>> = duties.iter().map(|_| Arc::default()).collect();
            for ((shard, duty), due) in duties.into_iter().enumerate().zip(&dues) {
                tasks.spawn(self.clone().look_after(shard, duty, Arc::clone(due), shutdown.clone()));
            }
            tasks.spawn(self.clone().listen(dues, shutdown.clone()));
            tasks.spawn(self.clone().take_inputs(shutdown.clone()));
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
                sleep(LOOK_FOR_UNFINISHED).await;
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
                // What was said while nobody listened is found out by looking.
                Notice::Resumed => dues.iter().for_each(|due| due.notify_one()),
                Notice::Message { channel, .. } => {
                    if let Some(due) = channels.get(&channel).and_then(|shard| dues.get(*shard)) {
                        due.notify_one();
                    }
                }
            }
        }
    }

    async fn look_after(self, shard: usize, mut duty: Duty, due: Arc<Notify>, shutdown: CancellationToken) {
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
    pub(super) async fn work_off(&self, shard: usize, duty: &mut Duty) -> Result<Option<Duration>, Error> {
        loop {
            let Some(next_ms) = self.0.store.next_due(shard).await? else { return Ok(None) };
            let now_ms = self.0.clock.now_ms().await?;
            if next_ms > now_ms {
                return Ok(Some(Duration::from_millis(next_ms - now_ms)));
            }
            if duty.hold().await?.is_none() {
                return Ok(Some(PAUSE));
            }
            self.work_off_page(shard, now_ms).await?;
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

    /// A time of day has come: every label at the gate is judged, page by page.
    async fn wave(&self, shard: usize, member: &str, wave: Due, instant_ms: u64) -> Result<(), Error> {
        let Due::Wave { machine, gate, time, zone, own } = &wave else { return Ok(()) };
        // Of most labels nothing is written, so nobody would notice that another definition counts by now.
        self.0.definitions.forget(machine, shard);
        let version = match self.0.definitions.of(machine, shard).await {
            Err(Error::NoSuchMachine) => return Ok(self.0.store.end_wave(shard, member, None).await?),
            other => other?,
        };
        let due = DailyLook { machine, gate, zone, own: *own, version: &version };
        let triggers = due.triggers(time);
        let (Some((_, first)), Some(rules)) = (triggers.first(), Zone::named(zone)) else {
            // The definition has no such time any more.
            self.0.waves.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
            return Ok(self.0.store.end_wave(shard, member, None).await?);
        };
        let (time, rules) = (first.time, rules.rules());
        let now_ms = self.0.clock.now_ms().await?;
        // Of several times that were missed, the last is made up for.
        let last_ms = time::last_daily(time, rules, instant(now_ms)).map_or(0, unix_ms);
        let instant_ms = instant_ms.max(last_ms);
        let counting: Vec<usize> = triggers
            .iter()
            .filter(|(_, daily)| daily.still_counts(rules, instant(now_ms)) || now_ms < instant_ms + 1_000)
            .map(|(n, _)| *n)
            .collect();
        if !counting.is_empty() {
            self.0.metrics.wave();
            let begun = self.0.store.wave(shard, member).await?.filter(|(instant, _)| *instant == instant_ms);
            let mut after = begun.map(|(_, label)| label);
            loop {
                let page = self.0.options.page;
                let names = if *own {
                    self.0.store.in_zone(shard, machine, (gate, zone), after.as_deref(), page).await?
                } else {
                    self.0.store.in_state(shard, machine, gate, after.as_deref(), page).await?
                };
                let Some(last) = names.last().cloned() else { break };
                let records = self.0.store.labels(shard, machine, &names).await?;
                let judged = stream::iter(names.into_iter().zip(records))
                    .map(|(label, record)| self.wake(&due, label, record, &counting, instant_ms));
                let mut judged = judged.buffer_unordered(self.0.options.concurrency);
                while let Some(result) = judged.next().await {
                    result?;
                }
                self.0.store.set_wave(shard, member, instant_ms, &last).await?;
                after = Some(last);
            }
        }
        let next = time::next_daily(time, rules, instant(now_ms.max(instant_ms)));
        Ok(self.0.store.end_wave(shard, member, next.map(unix_ms)).await?)
    }

    /// Judges one label of a wave. What was read for the page decides, in memory, whether anything has to be written.
    async fn wake(
        &self,
        due: &DailyLook<'_>,
        label: String,
        record: Option<Vec<u8>>,
        counting: &[usize],
        instant_ms: u64,
    ) -> Result<(), Error> {
        let wanted = |record: &Record| due.trigger_for(record, counting, instant_ms);
        let Some(read) = record.and_then(|bytes| Record::read(&bytes).ok()) else { return Ok(()) };
        let Some(trigger) = wanted(&read) else { return Ok(()) };
        let mut tried = read.clone();
        let now_ms = self.0.clock.now_ms().await?.max(instant_ms);
        let (machine, number) = (&due.version.machine, due.version.number);
        let turn = {
            let judge = Judge { machine, version: number, label: &label, now_ms, feeds: &Asked::default() };
            judge.run(&mut tried, &Happened::Daily(trigger))
        };
        if turn.moves == 0 && turn.needs.is_none() && tried == read {
            self.0.metrics.evaluated(turn.evaluations);
            return Ok(());
        }
        let done = self
            .change((due.machine, &label), &Asked::default(), |before, now, _| {
                if now.number != number {
                    // The page is looked at again under the other definition.
                    return Err(Error::DefinitionChanged);
                }
                Ok(match before.and_then(|before| Some((before, wanted(before)?))) {
                    Some((before, trigger)) => Edit::Write {
                        record: before.clone(),
                        happened: Some(Happened::Daily(trigger)),
                        rows: 0,
                    },
                    None => Edit::Leave,
                })
            })
            .await?;
        self.follow(due.machine, &label, &done);
        Ok(())
    }
}

/// A gate's look at a time of day, in one zone.
struct DailyLook<'a> {
    machine: &'a str,
    gate: &'a str,
    zone: &'a str,
    /// Whether it is of the labels that name this zone themselves.
    own: bool,
    version: &'a Version,
}

impl DailyLook<'_> {
    /// The triggers of the gate that it may be of: several have the same time when their zones stand at different paths.
    fn triggers(&self, time: &str) -> Vec<(usize, &Daily)> {
        let gate = self.version.machine.state(self.gate).and_then(State::gate);
        let possible = |daily: &Daily| {
            daily.time.to_string() == time
                && if self.own {
                    matches!(daily.zone, ZoneRule::Metadata { .. })
                } else {
                    daily.zone.default().name() == self.zone
                }
        };
        gate.into_iter().flat_map(Gate::daily).filter(|(_, daily)| possible(daily)).collect()
    }

    /// Which of the triggers it is for a label; none when the label is not meant.
    fn trigger_for(&self, record: &Record, counting: &[usize], instant_ms: u64) -> Option<usize> {
        // Who entered at the instant or after it waits for the next one.
        let waits =
            &*record.state == self.gate && record.status == Status::Waiting && record.entered_ms < instant_ms;
        let gate = self.version.machine.state(self.gate).and_then(State::gate).filter(|_| waits)?;
        let is_of = |daily: &Daily| {
            let local = daily.zone.of(&record.metadata);
            local.own == self.own && local.zone.name() == self.zone
        };
        gate.daily().find(|(n, daily)| counting.contains(n) && is_of(daily)).map(|(n, _)| n)
    }
}
