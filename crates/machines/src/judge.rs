//! What becomes of a label's record when something happened. Where the label goes is decided by `signalbox_machine::step`;
//! here that becomes rows of history, counted attempts and times.
//!
//! Pure: the record, the definition, the moment and what the feeds say go in, the record as it shall be comes out. A feed
//! that was not asked yet ends the turn where it is needed; what is reached by then stands.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use serde_json::Value;
use signalbox_condition::Feeds;
use signalbox_machine::{
    Machine, State, StateIndex, attempt,
    definition::{Daily, Zone},
    step::{self, Decision, Event, Rest},
    time,
};

use super::{
    record::{Cause, Record, Row, Status, Work},
    store::Due,
};

/// The pause of a label that loops, ms.
const LOOP_PAUSE_MS: u64 = 1_000;
/// What an attempt may take beyond its timeout before it counts as lost, ms.
const SLACK_MS: u64 = 5_000;
/// What asking feeds may take before it counts as lost, ms.
const ASKING_MS: u64 = 30_000;

/// What happened.
#[derive(Debug, Clone)]
pub(super) enum Happened<'a> {
    /// It came to be.
    Created,
    /// It came to be by an event of a topic, which brought this.
    CreatedBy(&'a str, Option<&'a Value>),
    /// Facts came.
    Facts(&'a Value),
    /// An event of a topic, and what it brought.
    Topic(&'a str, Option<&'a Value>),
    /// A time of day: the trigger of that number at its gate.
    Daily(usize),
    /// One of its own times.
    Due,
    /// What it waited for is there: a feed was asked. It had moved so many times before, without a rest.
    Resumed(usize),
    /// Its action is done, and the same.
    Done(usize),
    /// It goes on trying an action that had failed for good.
    Retried,
    /// Its state is no more: it goes there.
    Migrated(StateIndex),
    /// The definition is another one, and its state is still there.
    Redefined,
}

/// What a turn came to, besides the record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// New rows of history, each of which is an event.
    pub(super) moves: usize,
    /// Those of them that it went by itself: not because it was created, or its state is no more.
    pub(super) steps: usize,
    /// An attempt of its action was counted and is to be made.
    pub(super) attempt: bool,
    /// The feed that has to be asked before it can go on.
    pub(super) needs: Option<String>,
    /// Waves that must come: entry and unix milliseconds.
    pub(super) waves: Vec<(String, u64)>,
    /// Conditions that were evaluated.
    pub(super) evaluations: u64,
}

/// By what a label is judged.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) machine: &'a Machine,
    pub(super) version: u64,
    pub(super) label: &'a str,
    pub(super) now_ms: u64,
    pub(super) feeds: &'a dyn Feeds,
}

impl Judge<'_> {
    /// Runs the label on. `record` has its new facts already.
    pub(super) fn run(&self, record: &mut Record, happened: &Happened<'_>) -> Turn {
        let mut turn = Turn::default();
        match happened {
            Happened::Created => {
                self.row(record, self.machine.initial(), Cause::Created, None, &mut turn);
                self.decide(record, Event::Entered, &mut turn);
            }
            Happened::Migrated(to) => {
                self.row(record, self.machine.at(*to), Cause::Migrated, None, &mut turn);
                self.decide(record, Event::Entered, &mut turn);
            }
            Happened::Facts(update) => self.decide(record, Event::Facts(update), &mut turn),
            Happened::CreatedBy(topic, update) => {
                self.row(record, self.machine.initial(), Cause::Created, None, &mut turn);
                self.decide(record, Event::Entered, &mut turn);
                if turn.moves == 1 && turn.needs.is_none() {
                    self.told(record, topic, *update, &mut turn);
                }
            }
            Happened::Topic(topic, update) => self.told(record, topic, *update, &mut turn),
            Happened::Daily(trigger) => self.decide(record, Event::Trigger(*trigger), &mut turn),
            Happened::Due => self.due(record, None, &mut turn),
            Happened::Resumed(moved) => self.due(record, Some(*moved), &mut turn),
            Happened::Done(moved) => self.decide_after(*moved, record, Event::Done, &mut turn),
            Happened::Retried => {
                record.work.attempts = 0;
                self.attempt(record, &mut turn);
            }
            Happened::Redefined => self.settle(record, &mut turn),
        }
        self.times(record, &mut turn);
        turn
    }

    fn state(&self, record: &Record) -> Option<&State> {
        self.machine.state(&record.state)
    }

    /// The label as the decision sees it; nothing while its state is not part of the definition.
    pub(super) fn label<'r>(&'r self, record: &'r Record) -> Option<step::Label<'r>> {
        Some(step::Label {
            name: self.label,
            state: self.state(record)?.index(),
            status: record.status.of_step(),
            metadata: &record.metadata,
            entered: instant(record.entered_ms),
            previous_state: record.previous_state(),
            facts_waiting: record.work.facts,
        })
    }

    /// Whether a time of day would change a label that waits, and how many conditions it took to say so. Nothing is written:
    /// of most labels that a time of day comes for there is nothing to write.
    pub(super) fn stirs(&self, record: &Record, trigger: usize) -> (bool, u64) {
        let Some(label) = self.label(record) else { return (false, 0) };
        let event = Event::Trigger(trigger);
        let decision = step::decide(self.machine, label, event, instant(self.now_ms), self.feeds);
        let work = &record.work;
        let stays = decision.moves.is_empty()
            && decision.facts_waiting == work.facts
            && decision.status().is_none_or(|status| Status::from_step(status) == record.status)
            && match decision.rest {
                Rest::Unchanged => true,
                // What `rest` would set is set already.
                Rest::Waiting { failed_feed: None } => {
                    (work.feed_failures, work.again_ms, &work.held) == (0, None, &None)
                        && decision.error.as_deref() == work.error.as_deref()
                }
                _ => false,
            };
        (!stays, decision.evaluations as u64)
    }

    fn decide(&self, record: &mut Record, event: Event<'_>, turn: &mut Turn) {
        self.decide_after(0, record, event, turn);
    }

    /// Of a label that has moved so many times without a rest.
    fn decide_after(&self, moved: usize, record: &mut Record, event: Event<'_>, turn: &mut Turn) {
        let Some(label) = self.label(record) else { return };
        let now = instant(self.now_ms);
        let decision = step::decide_after(moved, self.machine, label, event, now, self.feeds);
        turn.evaluations += decision.evaluations as u64;
        turn.steps += decision.moves.len();
        for moved in &decision.moves {
            let to = self.machine.at(moved.to);
            self.row(record, to, Cause::from_step(moved.cause), moved.trigger.as_deref(), turn);
        }
        record.work.facts = decision.facts_waiting;
        self.rest(record, &decision, turn);
    }

    /// An event of a topic, and the facts in it.
    fn told(&self, record: &mut Record, topic: &str, update: Option<&Value>, turn: &mut Turn) {
        let moves = turn.moves;
        if let Some(update) = update {
            self.decide(record, Event::Facts(update), turn);
        }
        // An event is about the gate at which the label stood when it came.
        if turn.moves == moves && turn.needs.is_none() {
            self.decide(record, Event::Topic(topic), turn);
        }
    }

    /// Into a state, with a row of history.
    fn row(&self, record: &mut Record, to: &State, cause: Cause, trigger: Option<&str>, turn: &mut Turn) {
        record.visit += 1;
        record.history.push(Row {
            visit: record.visit,
            at_ms: self.now_ms,
            from: (cause != Cause::Created).then(|| record.state.clone()),
            to: Some(to.name().into()),
            cause,
            trigger: trigger.map(Into::into),
            version: self.version,
            event: 0,
        });
        record.state = to.name().into();
        record.entered_ms = self.now_ms;
        record.work = Work { facts: record.work.facts, ..Work::default() };
        turn.moves += 1;
    }

    fn rest(&self, record: &mut Record, decision: &Decision, turn: &mut Turn) {
        if let Some(status) = decision.status() {
            record.status = Status::from_step(status);
        }
        let held = || {
            let cause = decision.cause.map_or("entry", step::Cause::as_str);
            Some(format!("{cause} {}", decision.trigger.as_deref().unwrap_or_default()).into())
        };
        let work = &mut record.work;
        match &decision.rest {
            Rest::Unchanged => {}
            Rest::Waiting { failed_feed: None } => {
                (work.feed_failures, work.again_ms, work.held) = (0, None, None);
                work.error = decision.error.as_deref().map(Into::into);
            }
            Rest::Waiting { failed_feed: Some(feed) } => {
                self.feed_failed(work, feed);
                work.held = Some("feed ".into());
            }
            Rest::NeedsFeed(feed) => {
                turn.needs = Some(feed.clone());
                work.held = held();
                // If this process dies before the feed has answered, another finds the label.
                work.again_ms = Some(self.now_ms + ASKING_MS);
            }
            Rest::Choosing(feed) => self.feed_failed(work, feed),
            Rest::ChoosingNeedsFeed(feed) => {
                turn.needs = Some(feed.clone());
                work.again_ms = Some(self.now_ms + ASKING_MS);
            }
            Rest::Looping => {
                work.held = held();
                work.again_ms = Some(self.now_ms + LOOP_PAUSE_MS);
            }
            Rest::Ended => *work = Work::default(),
            Rest::Acting => self.attempt(record, turn),
        }
    }

    fn feed_failed(&self, work: &mut Work, feed: &str) {
        work.feed_failures = work.feed_failures.saturating_add(1);
        work.again_ms = Some(self.now_ms + ms(attempt::feed_wait(work.feed_failures)));
        work.error = Some(format!("the feed {feed} failed").into());
    }

    /// One of the label's own times has come, or what it waited for (`resumed`: after so many moves without a rest).
    fn due(&self, record: &mut Record, resumed: Option<usize>, turn: &mut Turn) {
        let (moved, resumed) = (resumed.unwrap_or(0), resumed.is_some());
        let over = record.work.again_ms.is_some_and(|at_ms| at_ms <= self.now_ms);
        let interval_ms = record.work.interval_ms.filter(|at_ms| *at_ms <= self.now_ms);
        match record.status {
            // An attempt whose outcome nobody told is over by now, or the pause before the next one.
            Status::Acting if over => self.attempt(record, turn),
            Status::Choosing if over || resumed => self.decide_after(moved, record, Event::Done, turn),
            Status::Waiting | Status::Looping if (over || resumed) && record.work.held.is_some() => {
                let work = Work { held: record.work.held.take(), ..Work::default() };
                if let Some((cause, trigger)) = held(&work) {
                    self.decide_after(moved, record, Event::Again { cause, trigger }, turn);
                }
            }
            Status::Waiting => {
                if over {
                    record.work.again_ms = None;
                }
                let gate = self.state(record).and_then(State::gate);
                let found = gate.zip(interval_ms).and_then(|(gate, at_ms)| {
                    let since_ms = at_ms.saturating_sub(record.entered_ms);
                    gate.intervals().find(|(_, every)| since_ms % ms(*every).max(1) == 0).map(|(n, _)| n)
                });
                if let Some(trigger) = found {
                    self.decide(record, Event::Trigger(trigger), turn);
                }
            }
            _ => {}
        }
    }

    /// Counts an attempt, or gives the action up.
    fn attempt(&self, record: &mut Record, turn: &mut Turn) {
        let Some(action) = self.state(record).and_then(State::action) else { return };
        if record.work.attempts >= action.retry.attempts {
            record.status = Status::Errored;
            record.work.again_ms = None;
            return;
        }
        record.status = Status::Acting;
        record.work.attempts += 1;
        record.work.again_ms = Some(self.now_ms + ms(action.timeout) + SLACK_MS);
        turn.attempt = true;
    }

    /// Brings a label in line with a definition in which its state says something else.
    fn settle(&self, record: &mut Record, turn: &mut Turn) {
        let Some(state) = self.state(record) else { return };
        let fits = match (state.gate(), state.action()) {
            // What looped in front of an action does not wait for a gate.
            (Some(_), _) if record.status == Status::Looping => {
                held(&record.work).is_some_and(|(cause, _)| cause != step::Cause::Action)
            }
            (Some(_), _) => record.status == Status::Waiting,
            (_, Some(action)) if record.status == Status::Ended => {
                if action.next.is_some() {
                    // It is done already, and is not done again because it leads on now.
                    self.decide(record, Event::Done, turn);
                }
                true
            }
            (_, Some(_)) => {
                matches!(record.status, Status::Acting | Status::Errored | Status::Choosing | Status::Looping)
            }
            _ => record.status == Status::Ended,
        };
        if !fits {
            record.work = Work { facts: record.work.facts, ..Work::default() };
            self.decide(record, Event::Entered, turn);
        }
    }

    /// When its gate looks by itself: its own times, and the waves that it has part in.
    fn times(&self, record: &mut Record, turn: &mut Turn) {
        let gate = self.state(record).and_then(State::gate).filter(|_| record.status != Status::Deleted);
        let Some((gate, label)) = gate.zip(self.label(record)) else {
            record.zones.clear();
            record.work.interval_ms = None;
            return;
        };
        let now = instant(self.now_ms);
        let zone = step::gate_zone(self.machine, &label);
        let facts = step::facts(self.machine, &label, self.feeds, &zone, now);
        let interval = gate.next_interval(&facts, label.entered, now).map(|(_, at)| unix_ms(at));
        let mut own = BTreeSet::new();
        for (_, daily) in gate.daily() {
            let local = daily.zone.of(&record.metadata);
            if local.own {
                own.insert(local.zone.name().to_owned());
            }
            turn.waves.extend(wave(
                self.machine.name(),
                &record.state,
                daily,
                &local.zone,
                local.own,
                self.now_ms,
            ));
        }
        record.work.interval_ms = interval;
        record.zones = own.into_iter().map(String::into_boxed_str).collect();
    }
}

/// What a gate that could not be judged is to be judged for.
pub(super) fn held(work: &Work) -> Option<(step::Cause, Option<&str>)> {
    let held = work.held.as_deref()?;
    let (cause, trigger) = held.split_once(' ').unwrap_or((held, ""));
    let cause = STEP_CAUSES.into_iter().find(|known| known.as_str() == cause);
    Some((cause.unwrap_or(step::Cause::Feed), (!trigger.is_empty()).then_some(trigger)))
}

/// The wave of a gate's time of day, and when it comes next.
pub(super) fn wave(
    machine: &str,
    gate: &str,
    daily: &Daily,
    zone: &Zone,
    own: bool,
    now_ms: u64,
) -> Option<(String, u64)> {
    let due = Due::Wave {
        machine: machine.to_owned(),
        gate: gate.to_owned(),
        time: daily.time.to_string(),
        zone: zone.name().to_owned(),
        own,
    };
    let next = time::next_daily(daily.time, zone.rules(), instant(now_ms))?;
    Some((due.member(), unix_ms(next)))
}

/// A moment as conditions see it.
pub fn instant(unix_ms: u64) -> Timestamp {
    i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX)
}

/// A moment as the fabric keeps it. Rounded up, so that what is due then is due.
pub(super) fn unix_ms(at: Timestamp) -> u64 {
    let ms =
        at.as_nanosecond().div_euclid(1_000_000) + i128::from(at.as_nanosecond().rem_euclid(1_000_000) != 0);
    u64::try_from(ms).unwrap_or(0)
}

pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const STEP_CAUSES: [step::Cause; 9] = [
    step::Cause::Created,
    step::Cause::Metadata,
    step::Cause::Time,
    step::Cause::Interval,
    step::Cause::Entry,
    step::Cause::Topic,
    step::Cause::Feed,
    step::Cause::Action,
    step::Cause::Migrated,
];
