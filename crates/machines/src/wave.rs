//! A time of day has come: every label at the gate is judged.
//!
//! Of a million labels a few move, so what costs is reading and judging the others. The gate's names are walked page by
//! page; a page's records are read in one command and judged on every core, from what was read and without a copy, and
//! only a label that would change goes the way of all changes. While a page is finished the next ones are
//! read and judged already, a bounded number of them, so memory does not grow with the number of labels. How far the wave
//! came is noted page by page: whoever goes on judges a page anew at most, and moves nothing twice.

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError},
};

use futures_util::{StreamExt as _, stream};
use signalbox_machine::{
    State,
    definition::{Daily, Gate, Zone, ZoneRule},
    time,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Error,
    definitions::Version,
    engine::{Edit, Engine},
    feeds::Asked,
    judge::{Happened, Judge, instant, unix_ms},
    record::{Record, Status},
    store::Due,
};

/// Pages that are read and judged while one is finished.
const AHEAD: usize = 4;

impl Engine {
    /// Works on a wave that stands in the due set for `due_ms`.
    pub(super) async fn wave(&self, shard: usize, member: &str, wave: Due, due_ms: u64) -> Result<(), Error> {
        let Due::Wave { machine, gate, time, zone, own } = wave else { return Ok(()) };
        // Of most labels nothing is written, so nobody would notice that another definition counts by now.
        self.0.definitions.forget(&machine, shard);
        let version = match self.0.definitions.of(&machine, shard).await {
            Err(Error::NoSuchMachine) => return Ok(self.0.store.end_wave(shard, member, None).await?),
            other => other?,
        };
        let mut look = Look { machine, gate, zone, own, version, counting: Vec::new(), instant_ms: 0 };
        let triggers = look.triggers(&time);
        let (Some((_, first)), Some(rules)) = (triggers.first(), Zone::named(&look.zone)) else {
            // The definition has no such time any more.
            self.0.waves.lock().unwrap_or_else(PoisonError::into_inner).clear();
            return Ok(self.0.store.end_wave(shard, member, None).await?);
        };
        let (time, rules) = (first.time, rules.rules());
        let now_ms = self.0.clock.now_ms().await?;
        // Of several times that were missed, the last is made up for.
        let last_ms = time::last_daily(time, rules, instant(now_ms)).map_or(0, unix_ms);
        let instant_ms = due_ms.max(last_ms);
        let counts =
            |daily: &Daily| daily.still_counts(rules, instant(now_ms)) || now_ms < instant_ms + 1_000;
        let counting: Vec<usize> =
            triggers.iter().filter(|(_, daily)| counts(daily)).map(|(n, _)| *n).collect();
        if !counting.is_empty() {
            self.0.metrics.wave();
            (look.counting, look.instant_ms) = (counting, instant_ms);
            self.walk(shard, member, &Arc::new(look)).await?;
        }
        let next = time::next_daily(time, rules, instant(now_ms.max(instant_ms)));
        Ok(self.0.store.end_wave(shard, member, next.map(unix_ms)).await?)
    }

    /// Goes on from where the wave stopped, if it is the same one.
    async fn walk(&self, shard: usize, member: &str, look: &Arc<Look>) -> Result<(), Error> {
        let begun = self.0.store.wave(shard, member).await?;
        let begun = begun.filter(|(instant_ms, _)| *instant_ms == look.instant_ms);
        let mut after = begun.map(|(_, label)| label);
        let (mut ahead, mut over) = (VecDeque::new(), false);
        loop {
            while !over && ahead.len() < AHEAD {
                let names = self.at_gate(shard, look, after.as_deref()).await?;
                over = names.len() < self.0.options.page;
                let Some(last) = names.last().cloned() else { break };
                let judging = self.clone().judge_page(shard, Arc::clone(look), names);
                // Nobody judges on when the wave is given up.
                ahead.push_back((last.clone(), AbortOnDropHandle::new(tokio::spawn(judging))));
                after = Some(last);
            }
            let Some((last, judged)) = ahead.pop_front() else { return Ok(()) };
            // A page whose judges did not come to an end is looked at again.
            let stirred = judged.await.map_err(|_| Error::Away)??;
            let changes = stream::iter(stirred).map(|label| self.wake(look, label));
            let mut changes = changes.buffer_unordered(self.0.options.concurrency);
            while let Some(result) = changes.next().await {
                result?;
            }
            self.0.store.set_wave(shard, member, look.instant_ms, &last).await?;
        }
    }

    async fn at_gate(&self, shard: usize, look: &Look, after: Option<&str>) -> Result<Vec<String>, Error> {
        let (store, page) = (&self.0.store, self.0.options.page);
        let (machine, gate) = (&look.machine, &look.gate);
        Ok(if look.own {
            store.in_zone(shard, machine, (gate, &look.zone), after, page).await?
        } else {
            store.in_state(shard, machine, gate, after, page).await?
        })
    }

    /// Those labels of a page that would change.
    async fn judge_page(
        self,
        shard: usize,
        look: Arc<Look>,
        names: Vec<String>,
    ) -> Result<Vec<String>, Error> {
        let records = self.0.store.labels(shard, &look.machine, &names).await?;
        let now_ms = self.0.clock.now_ms().await?.max(look.instant_ms);
        let stirs = |(label, record): (String, Option<Vec<u8>>)| {
            self.stirs(&look, &label, &record?, now_ms).then_some(label)
        };
        Ok(names.into_iter().zip(records).filter_map(stirs).collect())
    }

    /// Whether the time would change a label, as it was read for its page.
    fn stirs(&self, look: &Look, label: &str, record: &[u8], now_ms: u64) -> bool {
        let Ok(record) = Record::read(record) else {
            self.pass_over(&look.machine, label);
            return false;
        };
        let Some(trigger) = look.trigger_for(&record) else { return false };
        let (machine, version) = (&*look.version.machine, look.version.number);
        let judge = Judge { machine, version, label, now_ms, feeds: &Asked::default() };
        let (stirs, evaluations) = judge.stirs(&record, trigger);
        debug_assert!(
            stirs || {
                let mut tried = record.clone();
                let turn = judge.run(&mut tried, &Happened::Daily(trigger));
                turn.moves == 0 && turn.needs.is_none() && tried == record
            }
        );
        if !stirs {
            self.0.metrics.evaluated(evaluations);
        }
        stirs
    }

    /// Judges a label that would change, from what its record says now.
    async fn wake(&self, look: &Look, label: String) -> Result<(), Error> {
        let done = self
            .change((&look.machine, &label), &Asked::default(), |before, now, _| {
                if now.number != look.version.number {
                    // The page is looked at again under the other definition.
                    return Err(Error::DefinitionChanged);
                }
                Ok(match before.and_then(|before| Some((before, look.trigger_for(before)?))) {
                    Some((before, trigger)) => Edit::Write {
                        record: before.clone(),
                        happened: Some(Happened::Daily(trigger)),
                        rows: 0,
                    },
                    None => Edit::Leave,
                })
            })
            .await?;
        self.follow(&look.machine, &label, &done);
        Ok(())
    }
}

/// A gate's look at a time of day, in one zone.
struct Look {
    machine: String,
    gate: String,
    zone: String,
    /// Whether it is of the labels that name this zone themselves.
    own: bool,
    version: Version,
    /// The triggers that this instant still counts for.
    counting: Vec<usize>,
    instant_ms: u64,
}

impl Look {
    fn daily(&self) -> impl Iterator<Item = (usize, &Daily)> {
        let gate = self.version.machine.state(&self.gate).and_then(State::gate);
        gate.into_iter().flat_map(Gate::daily)
    }

    /// The triggers of the gate that it may be of: several have the same time when their zones stand at different paths.
    fn triggers(&self, time: &str) -> Vec<(usize, &Daily)> {
        let possible = |daily: &Daily| {
            daily.time.to_string() == time
                && if self.own {
                    matches!(daily.zone, ZoneRule::Metadata { .. })
                } else {
                    daily.zone.default().name() == self.zone
                }
        };
        self.daily().filter(|(_, daily)| possible(daily)).collect()
    }

    /// Which of the triggers it is for a label; none when the label is not meant.
    fn trigger_for(&self, record: &Record) -> Option<usize> {
        // Who entered at the instant or after it waits for the next one.
        let waits = *record.state == *self.gate
            && record.status == Status::Waiting
            && record.entered_ms < self.instant_ms;
        let is_of = |daily: &Daily| {
            let local = daily.zone.of(&record.metadata);
            local.own == self.own && local.zone.name() == self.zone
        };
        let mut meant = self.daily().filter(|_| waits);
        meant.find(|(n, daily)| self.counting.contains(n) && is_of(daily)).map(|(n, _)| n)
    }
}
