//! Sweeps: at a time of day, every label at a gate is evaluated.
//!
//! Of a million labels only a few move, so the cost is reading and evaluating the others. The gate's names are read page
//! by page; the records of a page are read with one command and evaluated on every core, without being copied, and only a
//! label that would change is changed. While the changes of one page are written, a bounded number of next pages are read
//! and evaluated, so memory does not grow with the number of labels. The progress is stored after each page: a process
//! that continues the sweep evaluates at most one page again, and moves no label twice.

use std::{collections::VecDeque, sync::Arc};

use futures_util::{StreamExt as _, stream};
use signalbox_machine::{
    State,
    definition::{Daily, Gate, Zone, ZoneRule},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Error, Version,
    clock::Clock,
    definitions::{Definitions, Family},
    evaluator::{Evaluator, Happened, instant, unix_ms},
    feeds::FeedAnswers,
    label_store::{Edit, LabelStore},
    metrics::Metrics,
    record::{Record, Status},
    runner::Runner,
    store::{Due, DueSet, Index, Records},
    sweep_entries::SweepEntries,
};

/// Pages that are read and evaluated while the changes of one are written.
const PAGES_AHEAD: usize = 4;
/// Labels that are evaluated before other tasks get a turn.
const EVALUATED_TOGETHER: usize = 32;

/// Runs sweeps.
#[derive(Debug)]
pub(crate) struct Sweeps {
    pub(crate) labels: Arc<LabelStore>,
    pub(crate) runner: Arc<Runner>,
    pub(crate) definitions: Definitions,
    pub(crate) records: Records,
    pub(crate) due: DueSet,
    pub(crate) entries: SweepEntries,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// Labels of a page.
    pub(crate) page: usize,
    /// Labels that are changed at a time.
    pub(crate) concurrency: usize,
}

impl Sweeps {
    /// Runs the sweep `sweep`, whose entry `member` was due at `due_ms`.
    pub(crate) async fn run(
        self: &Arc<Self>,
        shard: usize,
        member: &str,
        sweep: Due,
        due_ms: u64,
    ) -> Result<(), Error> {
        let Due::Sweep { machine, gate, time, zone, own } = sweep else { return Ok(()) };
        // Most labels are not written, so no refused commit would show that another version is active.
        self.definitions.forget(&machine, shard);
        let family = match self.definitions.family(&machine, shard).await {
            Err(Error::NoSuchMachine) => {
                return Ok(self.due.drop_entry(shard, member, (&machine, None)).await?);
            }
            other => other?,
        };
        let Some(zone) = Zone::named(&zone) else {
            return Ok(self.due.end_sweep(shard, member, None).await?);
        };
        let mut sweep = Sweep { machine, gate, time, zone, own, family, now_ms: 0, instant_ms: 0 };
        let triggers = sweep.triggers();
        let Some(first) = triggers.first() else {
            // The definition no longer contains this time.
            self.entries.forget();
            let version = Some(sweep.family.active.number);
            return Ok(self.due.drop_entry(shard, member, (&sweep.machine, version)).await?);
        };
        let (schedule, zone) = (first.schedule.clone(), sweep.zone.clone());
        let rules = zone.rules();
        let now_ms = self.clock.now_ms().await?;
        // Of several missed times, only the last is made up for.
        let last_ms = schedule.last(rules, instant(now_ms)).map_or(0, unix_ms);
        let instant_ms = due_ms.max(last_ms);
        (sweep.now_ms, sweep.instant_ms) = (now_ms, instant_ms);
        if sweep.triggers().into_iter().any(|daily| sweep.is_live(daily)) {
            self.metrics.sweeps.inc();
            self.walk(shard, member, &Arc::new(sweep)).await?;
        }
        let next = schedule.next(rules, instant(now_ms.max(instant_ms)));
        Ok(self.due.end_sweep(shard, member, next.map(unix_ms)).await?)
    }

    /// Evaluates the labels at the gate, from the stored progress of the same instant.
    async fn walk(self: &Arc<Self>, shard: usize, member: &str, sweep: &Arc<Sweep>) -> Result<(), Error> {
        let begun = self.due.progress(shard, member).await?;
        let begun = begun.filter(|(instant_ms, _)| *instant_ms == sweep.instant_ms);
        let mut after = begun.map(|(_, label)| label);
        let (mut ahead, mut over) = (VecDeque::new(), false);
        loop {
            while !over && ahead.len() < PAGES_AHEAD {
                let names = self.at_gate(shard, sweep, after.as_deref()).await?;
                over = names.len() < self.page;
                let Some(last) = names.last().cloned() else { break };
                let evaluating = Arc::clone(self).evaluate_page(shard, Arc::clone(sweep), names);
                // The task is aborted when the sweep is dropped.
                ahead.push_back((last.clone(), AbortOnDropHandle::new(tokio::spawn(evaluating))));
                after = Some(last);
            }
            let Some((last, evaluated)) = ahead.pop_front() else { return Ok(()) };
            // A page whose task failed is evaluated again.
            let changing = evaluated.await.map_err(|_| Error::Away)??;
            let changes = stream::iter(changing).map(|label| self.change(sweep, label));
            let mut changes = changes.buffer_unordered(self.concurrency);
            while let Some(result) = changes.next().await {
                result?;
            }
            self.due.set_progress(shard, member, sweep.instant_ms, &last).await?;
        }
    }

    async fn at_gate(&self, shard: usize, sweep: &Sweep, after: Option<&str>) -> Result<Vec<String>, Error> {
        let index =
            if sweep.own { Index::Zone(&sweep.gate, sweep.zone.name()) } else { Index::State(&sweep.gate) };
        Ok(self.records.names(shard, &sweep.machine, index, after, self.page).await?)
    }

    /// The labels of a page that would change.
    async fn evaluate_page(
        self: Arc<Self>,
        shard: usize,
        sweep: Arc<Sweep>,
        names: Vec<String>,
    ) -> Result<Vec<String>, Error> {
        let records = self.records.many(shard, &sweep.machine, &names).await?;
        let now_ms = self.clock.now_ms().await?.max(sweep.instant_ms);
        let mut changing = Vec::new();
        for (place, (label, record)) in names.into_iter().zip(records).enumerate() {
            if record.is_some_and(|record| self.would_change(&sweep, &label, &record, now_ms)) {
                changing.push(label);
            }
            // Evaluations compute only, so other tasks have to get their turn in between.
            if place % EVALUATED_TOGETHER == EVALUATED_TOGETHER - 1 {
                tokio::task::yield_now().await;
            }
        }
        Ok(changing)
    }

    /// Whether the time would change a label, judged by the record that was read for its page.
    fn would_change(&self, sweep: &Sweep, label: &str, record: &[u8], now_ms: u64) -> bool {
        let Ok(record) = Record::read(record) else {
            self.labels.report_unreadable(&sweep.machine, label);
            return false;
        };
        let Some(trigger) = sweep.trigger_for(&record) else { return false };
        let version = sweep.family.of(&record);
        let evaluator = Evaluator { version, label, now_ms, feeds: &FeedAnswers::default() };
        let (changes, evaluations) = evaluator.would_change(&record, trigger);
        // The interval of a suspended label may have passed; it is set again with its next change.
        debug_assert!(
            changes || record.suspended || {
                let mut tried = record.clone();
                let turn = evaluator.run(&mut tried, &Happened::Daily(trigger));
                turn.moves == 0 && turn.needs.is_none() && tried == record
            }
        );
        if !changes {
            self.metrics.evaluations.inc_by(evaluations);
        }
        changes
    }

    /// Changes a label, evaluated again from its present record.
    async fn change(&self, sweep: &Sweep, label: String) -> Result<(), Error> {
        let done = self
            .labels
            .change((&sweep.machine, &label), &FeedAnswers::default(), |before, now, _| {
                if now.active().number != sweep.family.active.number {
                    // The page is evaluated again under the other version.
                    return Err(Error::DefinitionChanged);
                }
                Ok(match before.and_then(|before| Some((before, sweep.trigger_for(before)?))) {
                    Some((before, trigger)) => Edit::evaluate(before, Happened::Daily(trigger)),
                    None => Edit::Leave,
                })
            })
            .await?;
        self.runner.follow(&sweep.machine, &label, &done);
        Ok(())
    }
}

/// One sweep: a gate, a time of day and a zone.
struct Sweep {
    machine: String,
    gate: String,
    time: String,
    zone: Zone,
    /// Whether it concerns only labels whose own metadata names this zone.
    own: bool,
    family: Family,
    now_ms: u64,
    instant_ms: u64,
}

impl Sweep {
    /// The time triggers of the gate in a version, with their places among all.
    fn daily<'v>(&self, version: &'v Version) -> impl Iterator<Item = (usize, &'v Daily)> + use<'v> {
        let gate = version.machine.state(&self.gate).and_then(State::gate);
        gate.into_iter().flat_map(Gate::daily)
    }

    /// The triggers of the gate with this time and zone, in all versions. Several triggers of a version have the same time if
    /// they read their zones from different metadata.
    fn triggers(&self) -> Vec<&Daily> {
        let possible = |daily: &&Daily| {
            daily.schedule.key() == self.time
                && if self.own {
                    matches!(daily.zone, ZoneRule::Metadata { .. })
                } else {
                    daily.zone.default().name() == self.zone.name()
                }
        };
        let all = self.family.all().flat_map(|version| self.daily(version)).map(|(_, daily)| daily);
        all.filter(possible).collect()
    }

    /// Whether the instant is within the grace period of a trigger.
    fn is_live(&self, daily: &Daily) -> bool {
        daily.still_counts(self.zone.rules(), instant(self.now_ms)) || self.now_ms < self.instant_ms + 1_000
    }

    /// The trigger that applies to a label, if any does.
    fn trigger_for(&self, record: &Record) -> Option<usize> {
        // A label that entered at the instant or later waits for the next one.
        let waits = *record.state == *self.gate
            && record.status == Status::Waiting
            && record.entered_ms < self.instant_ms;
        let applies = |daily: &Daily| {
            let local = daily.zone.of(&record.metadata);
            daily.schedule.key() == self.time
                && local.own == self.own
                && local.zone.name() == self.zone.name()
                && self.is_live(daily)
        };
        let mut applicable = self.daily(self.family.of(record)).filter(|_| waits);
        applicable.find(|(_, daily)| applies(daily)).map(|(n, _)| n)
    }
}
