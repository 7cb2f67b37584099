//! Sweeps: at a time of day, every label at a gate is evaluated.
//!
//! Of a million labels only a few move, so the cost is reading and evaluating the others. The gate's names are read page
//! by page; the records of a page are read with one command and evaluated on every core, without being copied, and only a
//! label that would change is changed. While the changes of one page are written, a bounded number of next pages are read
//! and evaluated, so memory does not grow with the number of labels. The progress is stored after each page: a process
//! that continues the sweep evaluates at most one page again, and moves no label twice.
//!
//! Sweeps share places, and give theirs back every second ([`crate::fair`]).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use signalbox_machine::{
    State,
    definition::{Daily, Gate, Zone, ZoneRule},
};
use tokio::{task::spawn_blocking, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Error, Version,
    clock::Clock,
    definitions::{Definitions, Family},
    evaluator::{Evaluator, Happened, instant, unix_ms},
    fair::{Caps, FairPlaces, Payer},
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
/// For how long labels are evaluated before others get the place.
const TURN: Duration = Duration::from_millis(20);

/// For how long a sweep keeps its place, if others wait for one.
const ROUND: Duration = Duration::from_secs(1);
/// Sweeps that do anything at a time; likewise pages of tasks.
pub(crate) const PLACES: Caps = Caps { all: 16, client: 4, machine: 2 };

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
    pub(crate) places: FairPlaces,
    /// For evaluations.
    pub(crate) computing: FairPlaces,
    /// Labels of a page.
    pub(crate) page: usize,
    /// Labels that are changed at a time.
    pub(crate) concurrency: usize,
}

impl Sweeps {
    /// Runs the sweep `sweep`, whose entry `member` was due at `due_ms`, or was postponed since then.
    pub(crate) async fn run(
        self: &Arc<Self>,
        shard: usize,
        member: &str,
        sweep: Due,
        due_ms: u64,
    ) -> Result<(), Error> {
        let Due::Sweep { machine, gate, time, zone, own } = sweep else { return Ok(()) };
        let begun = self.due.progress(shard, member).await?;
        let due_ms = begun.as_ref().map_or(due_ms, |(instant_ms, _)| *instant_ms);
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
        let payer = Payer::of(&family.active);
        let mut sweep = Sweep { machine, gate, time, zone, own, family, payer, now_ms: 0, instant_ms: 0 };
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
            let begun = begun.filter(|(begun_ms, _)| *begun_ms == instant_ms).map(|(_, label)| label);
            self.walk(shard, member, &Arc::new(sweep), begun).await?;
        }
        let next = schedule.next(rules, instant(now_ms.max(instant_ms)));
        Ok(self.due.end_sweep(shard, member, next.map(unix_ms)).await?)
    }

    /// Evaluates the labels at the gate after this one.
    async fn walk(
        self: &Arc<Self>,
        shard: usize,
        member: &str,
        sweep: &Arc<Sweep>,
        mut after: Option<String>,
    ) -> Result<(), Error> {
        loop {
            let _place = self.places.take(&sweep.payer).await;
            if self.round(shard, member, sweep, &mut after).await? {
                return Ok(());
            }
        }
    }

    /// Evaluates the labels after this one, for about [`ROUND`]. Returns whether these were the last.
    async fn round(
        self: &Arc<Self>,
        shard: usize,
        member: &str,
        sweep: &Arc<Sweep>,
        after: &mut Option<String>,
    ) -> Result<bool, Error> {
        let until = Instant::now() + ROUND;
        let (mut ahead, mut over, mut read) = (VecDeque::new(), false, after.clone());
        loop {
            while !over && ahead.len() < PAGES_AHEAD && (ahead.is_empty() || Instant::now() < until) {
                let names = self.at_gate(shard, sweep, read.as_deref()).await?;
                over = names.len() < self.page;
                let Some(last) = names.last().cloned() else { break };
                let evaluating = Arc::clone(self).evaluate_page(shard, Arc::clone(sweep), names, until);
                // The task is aborted when the sweep is dropped.
                ahead.push_back(AbortOnDropHandle::new(tokio::spawn(evaluating)));
                read = Some(last);
            }
            let Some(evaluated) = ahead.pop_front() else { return Ok(true) };
            // A page whose task failed is evaluated again.
            let Evaluated { changing, last, complete } = evaluated.await.map_err(|_| Error::Away)??;
            let changes = stream::iter(changing).map(|label| self.change(sweep, label));
            let mut changes = changes.buffer_unordered(self.concurrency);
            while let Some(result) = changes.next().await {
                result?;
            }
            self.due.set_progress(shard, member, sweep.instant_ms, &last).await?;
            *after = Some(last);
            if !complete || (ahead.is_empty() && !over && Instant::now() >= until) {
                return Ok(false);
            }
        }
    }

    async fn at_gate(&self, shard: usize, sweep: &Sweep, after: Option<&str>) -> Result<Vec<String>, Error> {
        let index =
            if sweep.own { Index::Zone(&sweep.gate, sweep.zone.name()) } else { Index::State(&sweep.gate) };
        Ok(self.records.names(shard, &sweep.machine, index, after, self.page).await?)
    }

    /// Evaluates the labels of a page, until about `until`.
    async fn evaluate_page(
        self: Arc<Self>,
        shard: usize,
        sweep: Arc<Sweep>,
        names: Vec<String>,
        until: Instant,
    ) -> Result<Evaluated, Error> {
        let records = self.records.many(shard, &sweep.machine, &names).await?;
        let now_ms = self.clock.now_ms().await?.max(sweep.instant_ms);
        let mut labels = names.into_iter().zip(records);
        let mut evaluated = Evaluated { changing: Vec::new(), last: String::new(), complete: false };
        loop {
            let place = self.computing.take(&sweep.payer).await;
            let (sweeps, of) = (Arc::clone(&self), Arc::clone(&sweep));
            // Outside of the threads that serve requests, because it computes only.
            let turn = spawn_blocking(move || {
                let _place = place;
                let began = Instant::now();
                for (label, record) in labels.by_ref() {
                    evaluated.last.clone_from(&label);
                    if record.is_some_and(|record| sweeps.would_change(&of, &label, &record, now_ms)) {
                        evaluated.changing.push(label);
                    }
                    if began.elapsed() >= TURN {
                        break;
                    }
                }
                evaluated.complete = labels.len() == 0;
                (evaluated, labels)
            });
            (evaluated, labels) =
                turn.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
            if evaluated.complete || Instant::now() >= until {
                return Ok(evaluated);
            }
        }
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
        let effort = &version.active().effort;
        let (changes, evaluations) = effort.noting(|| evaluator.would_change(&record, trigger));
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

/// The labels of a page that were evaluated.
struct Evaluated {
    /// Those that would change.
    changing: Vec<String>,
    /// The last one.
    last: String,
    /// Whether all were evaluated.
    complete: bool,
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
    payer: Payer,
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
