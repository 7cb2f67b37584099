//! Applies an update, a time or an event to a label's record. `signalbox_machine::step` decides where the label goes;
//! this module turns the decision into rows of history, counted attempts and times.
//!
//! Pure: the inputs are the record, the definition, the time and the answers of feeds; the output is the new record. If
//! a condition needs a feed that was not requested yet, the evaluation stops there and keeps the transitions made so
//! far.

mod times;

use serde_json::Value;
use signalbox_condition::Feeds;
use signalbox_machine::{
    Machine, State, StateIndex, attempt,
    definition::{Gate, OnFailure, Path},
    merge,
    step::{self, Decision, Event, Rest},
};

use crate::{
    Version,
    feeds::NothingAsked,
    record::{Cause, Record, Row, Status, Work},
};

pub use times::instant;
pub(crate) use times::{index_digest, ms, sweep_entry, unix_ms};

/// What a label's work holds while it waits for its next attempt.
pub(crate) const RETRY: &str = "retry";
/// What the work of a suspended label holds that an operator or a definition moved to a state: it has entered the state, and
/// nothing else has happened there.
const ENTERED: &str = "entered";
/// How the work of a suspended label begins whose action failed for good. The failure follows.
const FAILED: &str = "failed ";
/// How long a label that loops pauses, ms.
const LOOP_PAUSE_MS: u64 = 1_000;
/// How long after its timeout an attempt without an outcome is considered lost, ms.
pub(crate) const ATTEMPT_SLACK_MS: u64 = 5_000;
/// After how long without an answer another process asks a feed again, ms.
const FEED_DEADLINE_MS: u64 = 30_000;
/// After how long a label that waits for a limit or a place asks for it again, ms: as long as it has waited, within these
/// bounds. It is normally admitted before that; a process that died may not have done it.
const WAIT_PAUSE_MS: std::ops::RangeInclusive<u64> = 60_000..=600_000;

/// An occurrence that a label is evaluated for.
#[derive(Debug, Clone)]
pub(crate) enum Happened<'a> {
    /// The label was created.
    Created,
    /// The label was created by an event of a topic, with this metadata.
    CreatedBy(&'a str, Option<&'a Value>),
    /// A metadata update.
    Facts(&'a Value),
    /// An event of a topic, and its metadata.
    Topic(&'a str, Option<&'a Value>),
    /// A time of day: the number of the trigger at the gate.
    Daily(usize),
    /// A time of the label itself: a retry or an interval.
    Due,
    /// A feed was asked that the evaluation needed. The label had moved this many times without resting.
    Resumed(usize),
    /// The action is done. The label had moved this many times without resting.
    Done(usize),
    /// The action failed for good in this way. The label had moved this many times without resting.
    Failed(attempt::Outcome, usize),
    /// The limit of this address, for which the label waits, allows an attempt.
    Permitted(&'a str),
    /// The call of the attempt that was counted has no place, and waits for one to this destination, maybe since a time in Unix
    /// milliseconds.
    NoPlace(&'a str, Option<u64>),
    /// The call for which the label waits has a place.
    Placed,
    /// A client retries an action that had failed finally.
    Retried,
    /// A client has the gate evaluated.
    Evaluated,
    /// A client, described here, skips the action.
    Skipped(&'a str),
    /// A client, described here, moves the label to this state.
    Moved(&'a str, &'a str),
    /// A client ends the suspension of the label.
    Resumption,
    /// The label's state was removed from the definition: the label moves to this state.
    Migrated(StateIndex),
    /// The definition changed and still contains the label's state.
    Redefined,
    /// The definition indexes other values, and the label's state is the same.
    Reindexed,
}

/// The result of an evaluation, apart from the record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// New rows of history, each of which becomes an event.
    pub(crate) moves: usize,
    /// Moves that the definition decided: not the creation and not a migration.
    pub(crate) steps: usize,
    /// Whether an attempt of the action was counted and must be made.
    pub(crate) attempt: bool,
    /// The feed that must be asked before the evaluation can continue.
    pub(crate) needs: Option<String>,
    /// Sweeps that the gate needs: entry of the due set and Unix milliseconds.
    pub(crate) sweeps: Vec<(String, u64)>,
    /// The address for whose limit the label waits.
    pub(crate) limit: Option<String>,
    /// Since when the call of the attempt waits for a place, if it has waited before.
    pub(crate) placeless_ms: Option<u64>,
    /// The number of conditions evaluated.
    pub(crate) evaluations: u64,
    /// Whether the label has left an earlier version that it stayed on.
    pub(crate) left: bool,
}

/// The inputs of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Evaluator<'a> {
    /// The version of the definition that the label is on.
    pub(crate) version: &'a Version,
    /// The name of the label.
    pub(crate) label: &'a str,
    /// Unix milliseconds.
    pub(crate) now_ms: u64,
    /// The answers of feeds that were asked.
    pub(crate) feeds: &'a dyn Feeds,
}

impl<'a> Evaluator<'a> {
    fn machine(&self) -> &'a Machine {
        &self.version.machine
    }

    /// The evaluator of a label that enters a state: a label leaves the version that it stayed on at the first state
    /// that does not keep it.
    fn on(&self, state: &str) -> Self {
        match self.version.active.as_deref().filter(|_| !self.version.keeps(state)) {
            // Feeds were asked under the version that the label leaves.
            Some(active) => Self { version: active, feeds: &NothingAsked, ..*self },
            None => *self,
        }
    }

    /// Evaluates the label, and moves it as far as it goes. `record` already contains the new metadata.
    pub(crate) fn run(&self, record: &mut Record, happened: &Happened<'_>) -> Turn {
        let mut turn = Turn::default();
        if record.suspended && self.waits(record, happened) {
            self.times(record, &mut turn);
            return turn;
        }
        match happened {
            Happened::Created => {
                self.row(record, self.machine().initial(), Cause::Created, None, &mut turn);
                self.decide(record, Event::Entered, &mut turn);
            }
            Happened::Migrated(to) => self.migrate(record, *to, &mut turn),
            Happened::Facts(update) => self.decide(record, Event::Facts(update), &mut turn),
            Happened::CreatedBy(topic, update) => {
                self.row(record, self.machine().initial(), Cause::Created, None, &mut turn);
                self.decide(record, Event::Entered, &mut turn);
                if turn.moves == 1 && turn.needs.is_none() {
                    self.topic_event(record, topic, *update, &mut turn);
                }
            }
            Happened::Topic(topic, update) => self.topic_event(record, topic, *update, &mut turn),
            Happened::Daily(trigger) => self.decide(record, Event::Trigger(*trigger), &mut turn),
            Happened::Due => self.due(record, None, &mut turn),
            Happened::Resumed(moved) => self.due(record, Some(*moved), &mut turn),
            Happened::Done(moved) => self.choose(None, *moved, record, &mut turn),
            Happened::Failed(outcome, moved) => self.fail(record, *outcome, *moved, &mut turn),
            Happened::Permitted(target) => {
                if record.status == Status::Acting && record.work.limit().is_some() {
                    self.attempt(Some(target), record, &mut turn);
                }
            }
            Happened::NoPlace(to, since_ms) => self.wait_for_place(record, (to, *since_ms)),
            Happened::Placed => {
                if record.status == Status::Acting && record.work.place().is_some() {
                    self.attempt(None, record, &mut turn);
                }
            }
            Happened::Retried => {
                record.work.attempts = 0;
                self.attempt(None, record, &mut turn);
            }
            Happened::Evaluated => self.evaluate(record, &mut turn),
            Happened::Skipped(by) => self.choose(Some((*by).into()), 0, record, &mut turn),
            Happened::Moved(to, by) => {
                // An operator means the state of the active version.
                let active =
                    self.version.active.as_deref().filter(|active| active.machine.state(to).is_some());
                let evaluator = active.map_or(*self, |version| Self { version, ..*self });
                if let Some(to) = evaluator.machine().state(to) {
                    turn.left = active.is_some();
                    evaluator.row(record, to, Cause::Moved, Some(by), &mut turn);
                    evaluator.enter(record, &mut turn);
                }
            }
            Happened::Resumption => self.resume(record, &mut turn),
            Happened::Redefined => self.settle(record, &mut turn),
            Happened::Reindexed => {}
        }
        let active = self.version.active.as_deref().filter(|_| turn.left);
        active.map_or(*self, |version| Self { version, ..*self }).times(record, &mut turn);
        turn
    }

    /// Whether a suspended label does not react now. It remembers what has to follow when it is resumed: that metadata came, of
    /// which topics events came, that its action is done or has failed, and that its gate has another condition.
    fn waits(&self, record: &mut Record, happened: &Happened<'_>) -> bool {
        let acted = |record: &mut Record, status, held| {
            record.status = status;
            (record.work.again_ms, record.work.held) = (Some(self.now_ms), held);
            true
        };
        match happened {
            Happened::Done(_) => acted(record, Status::Choosing, None),
            Happened::Skipped(by) => acted(record, Status::Choosing, Some((*by).into())),
            Happened::Failed(outcome, _) => {
                let held = format!("{FAILED}{}", outcome.word()).into();
                self.after(record, *outcome).is_some() && acted(record, Status::Acting, Some(held))
            }
            Happened::Facts(_) => {
                record.work.facts = true;
                true
            }
            Happened::Topic(topic, update) => {
                record.work.facts |= update.is_some();
                step::remember(self.machine(), &mut record.work.topics, topic);
                true
            }
            Happened::Daily(_)
            | Happened::Due
            | Happened::Resumed(_)
            | Happened::Evaluated
            | Happened::Placed
            | Happened::Permitted(_) => true,
            Happened::Redefined => {
                let gate = self.state(record).and_then(State::gate);
                let evaluated = gate.is_some_and(Gate::on_metadata) && record.status == Status::Waiting;
                record.work.facts |= evaluated && !self.entered_under_this(record);
                true
            }
            _ => false,
        }
    }

    /// Moves the label out of a removed state. From gate to gate it keeps its clocks, because the wait continues under
    /// another name; metadata that came before may open the new gate.
    fn migrate(&self, record: &mut Record, to: StateIndex, turn: &mut Turn) {
        let since_ms = record.entered_ms;
        let waits_on = record.status == Status::Waiting && self.machine().at(to).gate().is_some();
        self.row(record, self.machine().at(to), Cause::Migrated, None, turn);
        if waits_on {
            record.entered_ms = since_ms;
            record.work.facts = true;
        }
        self.enter(record, turn);
    }

    /// Continues in the state that the label was moved to. A suspended label does it when it is resumed.
    fn enter(&self, record: &mut Record, turn: &mut Turn) {
        let state = self.state(record).filter(|_| record.suspended);
        record.status = match state.map(|state| (state.gate(), state.action())) {
            Some((Some(_), _)) => Status::Waiting,
            Some((_, Some(_))) => Status::Acting,
            _ => return self.decide(record, Event::Entered, turn),
        };
        record.work.held = Some(ENTERED.into());
    }

    /// Chooses the state that follows the action. If a client skipped the action, `by` describes it, until the label has moved.
    fn choose(&self, by: Option<Box<str>>, moved: usize, record: &mut Record, turn: &mut Turn) {
        record.work.held = None;
        let rows = record.history.len();
        self.decide_after(moved, record, Event::Done, turn);
        match (by, record.history.get_mut(rows)) {
            (Some(by), Some(row)) => (row.cause, row.trigger) = (Cause::Moved, Some(by.into())),
            (by, None) if record.status == Status::Choosing => record.work.held = by,
            _ => {}
        }
    }

    /// Evaluates the gate of a label that waits.
    fn evaluate(&self, record: &mut Record, turn: &mut Turn) {
        if record.status == Status::Waiting {
            let again = Event::Again { cause: Cause::Evaluated, trigger: None };
            self.decide(record, again, turn);
        }
    }

    /// Continues a label that was suspended, with what came in the meantime.
    fn resume(&self, record: &mut Record, turn: &mut Turn) {
        if self.refit(record, turn) {
            return;
        }
        // An interval that has passed is not repeated.
        record.work.interval_ms = None;
        if self.missed_deadline(record) {
            return self.decide(record, Event::Deadline, turn);
        }
        let held = record.work.held.as_deref().unwrap_or_default();
        if let Some(failure) = held.strip_prefix(FAILED).filter(|_| record.status == Status::Acting) {
            return self.fail(record, attempt::Outcome::from_word(failure), 0, turn);
        }
        match record.status {
            Status::Waiting | Status::Acting if held == ENTERED => {
                record.work.held = None;
                self.decide(record, Event::Entered, turn);
            }
            Status::Choosing if record.work.again_ms.is_none_or(|at_ms| at_ms <= self.now_ms) => {
                self.choose(record.work.held.take(), 0, record, turn);
            }
            Status::Acting
                if record.work.limit().is_some()
                    || record.work.place().is_some()
                    || record.work.again_ms.is_none_or(|at_ms| at_ms <= self.now_ms) =>
            {
                self.attempt(None, record, turn);
            }
            Status::Waiting => {
                let facts = std::mem::take(&mut record.work.facts);
                let topics = std::mem::take(&mut record.work.topics);
                let Some(gate) = self.state(record).and_then(State::gate) else { return };
                if facts && gate.on_metadata() {
                    let again = Event::Again { cause: Cause::Metadata, trigger: None };
                    self.decide(record, again, turn);
                } else if let Some(topic) = topics.iter().find(|topic| gate.on_topic(topic)) {
                    self.decide(record, Event::Topic(topic), turn);
                } else if let Some(trigger) = self.moment(record, |at_ms| at_ms <= self.now_ms) {
                    // As when a label enters the gate.
                    self.decide(record, Event::Trigger(trigger), turn);
                }
            }
            _ => {}
        }
    }

    /// Whether the deadline of a suspended label passed, and nothing came before it that ends the stay in the state: an outcome
    /// of its action. A deadline that had passed when the label entered the state follows its entry.
    fn missed_deadline(&self, record: &Record) -> bool {
        let work = &record.work;
        let held = work.held.as_deref().unwrap_or_default();
        let acted = match record.status {
            Status::Choosing => work.feed_failures == 0,
            Status::Acting => held.starts_with(FAILED),
            _ => false,
        };
        let outcome_ms = work.again_ms.filter(|_| acted);
        work.deadline_ms.is_some_and(|deadline_ms| {
            deadline_ms <= self.now_ms
                && outcome_ms.is_none_or(|at_ms| at_ms >= deadline_ms)
                && (held != ENTERED || deadline_ms > record.entered_ms)
        })
    }

    /// What the definition says about an action that failed for good.
    fn after(&self, record: &Record, outcome: attempt::Outcome) -> Option<&OnFailure> {
        self.state(record)?.action()?.after(outcome)
    }

    /// The action failed for good: the label goes where the definition says, or is errored.
    fn fail(&self, record: &mut Record, outcome: attempt::Outcome, moved: usize, turn: &mut Turn) {
        let Some(case) = self.after(record, outcome) else {
            record.status = Status::Errored;
            (record.work.again_ms, record.work.held) = (None, None);
            return;
        };
        let error = record.work.error.as_deref().unwrap_or("no outcome of the last attempt is known");
        if let Some(update) = case.update(outcome, error, record.work.attempts) {
            let mut metadata = record.metadata.clone();
            merge::merge(&mut metadata, &update);
            // Without room for the failure the label still leaves the action.
            if merge::check(&metadata).is_ok() {
                record.metadata = metadata;
                record.work.facts = true;
            }
        }
        self.decide_after(moved, record, Event::Failed { to: case.to, why: &outcome.word() }, turn);
    }

    fn state(&self, record: &Record) -> Option<&State> {
        self.machine().state(&record.state)
    }

    /// The label as an input of the decision. `None` if the definition does not contain its state.
    pub(crate) fn label<'r>(&'r self, record: &'r Record) -> Option<step::Label<'r>> {
        Some(step::Label {
            name: self.label,
            state: self.state(record)?.index(),
            status: record.status,
            metadata: &record.metadata,
            entered: instant(record.entered_ms),
            previous_state: record.previous_state(),
            facts_waiting: record.work.facts,
            topics_waiting: &record.work.topics,
        })
    }

    /// Whether a time of day would change a waiting label, and how many conditions were evaluated to find out. A sweep
    /// calls it for each label, and most labels do not change, so the record is not copied.
    pub(crate) fn would_change(&self, record: &Record, trigger: usize) -> (bool, u64) {
        let Some(label) = self.label(record).filter(|_| !record.suspended) else { return (false, 0) };
        let event = Event::Trigger(trigger);
        let decision = step::decide(self.machine(), label, event, instant(self.now_ms), self.feeds);
        let work = &record.work;
        let stays = decision.moves.is_empty()
            && decision.facts_waiting == work.facts
            && decision.topics_waiting == work.topics
            && decision.status().is_none_or(|status| status == record.status)
            && match decision.rest {
                Rest::Unchanged => true,
                // `rest` would set only what is set already.
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

    /// Decides for a label that has moved this many times without resting.
    fn decide_after(&self, moved: usize, record: &mut Record, event: Event<'_>, turn: &mut Turn) {
        let Some(label) = self.label(record) else { return };
        let now = instant(self.now_ms);
        let decision = step::decide_after(moved, self.machine(), label, event, now, self.feeds);
        turn.evaluations += decision.evaluations as u64;
        for (n, step) in decision.moves.iter().enumerate() {
            let to = self.machine().at(step.to);
            self.row(record, to, step.cause, step.trigger.as_deref(), turn);
            turn.steps += 1;
            let next = self.on(to.name());
            if next.version.number != self.version.number {
                // The rest of the decision was made under the version that the label has left.
                turn.left = true;
                record.work.facts = step.facts_waiting;
                record.work.topics.clone_from(&step.topics_waiting);
                return next.decide_after(moved + n + 1, record, Event::Entered, turn);
            }
        }
        record.work.facts = decision.facts_waiting;
        record.work.topics.clone_from(&decision.topics_waiting);
        self.rest(record, &decision, turn);
    }

    /// Evaluates the metadata of an event, and then the event itself.
    fn topic_event(&self, record: &mut Record, topic: &str, update: Option<&Value>, turn: &mut Turn) {
        let moves = turn.moves;
        if let Some(update) = update {
            self.decide(record, Event::Facts(update), turn);
        }
        // An event concerns the gate at which the label was when the event arrived.
        if turn.moves == moves && turn.needs.is_none() {
            self.decide(record, Event::Topic(topic), turn);
        }
    }

    /// Moves the label to a state, and adds a row of history.
    fn row(&self, record: &mut Record, to: &State, cause: Cause, trigger: Option<&str>, turn: &mut Turn) {
        record.visit += 1;
        record.history.push(Row {
            visit: record.visit,
            at_ms: self.now_ms,
            from: (cause != Cause::Created).then(|| record.state.clone()),
            to: Some(to.name().into()),
            cause,
            trigger: trigger.map(Into::into),
            version: self.on(to.name()).version.number,
            event: 0,
        });
        record.state = to.name().into();
        record.entered_ms = self.now_ms;
        let topics = std::mem::take(&mut record.work.topics);
        record.work = Work { facts: record.work.facts, topics, ..Work::default() };
        turn.moves += 1;
    }

    fn rest(&self, record: &mut Record, decision: &Decision, turn: &mut Turn) {
        if let Some(status) = decision.status() {
            record.status = status;
        }
        let held = || {
            let cause = decision.cause.map_or("entry", Cause::as_str);
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
                // If this process dies before the feed answers, another process finds the label in the due set.
                work.again_ms = Some(self.now_ms + FEED_DEADLINE_MS);
            }
            Rest::Choosing(feed) => self.feed_failed(work, feed),
            Rest::ChoosingNeedsFeed(feed) => {
                turn.needs = Some(feed.clone());
                work.again_ms = Some(self.now_ms + FEED_DEADLINE_MS);
            }
            Rest::Looping => {
                work.held = held();
                work.again_ms = Some(self.now_ms + LOOP_PAUSE_MS);
            }
            Rest::Ended => *work = Work::default(),
            Rest::Acting => self.attempt(None, record, turn),
        }
    }

    /// The first trigger of the gate with such a time in the metadata, Unix milliseconds.
    fn moment(&self, record: &Record, wanted: impl Fn(u64) -> bool) -> Option<usize> {
        let is_moment = |path: &Path| path.moment(&record.metadata).is_some_and(|at| wanted(unix_ms(at)));
        let gate = self.state(record)?.gate()?;
        gate.moments().find(|(_, path)| is_moment(path)).map(|(n, _)| n)
    }

    fn feed_failed(&self, work: &mut Work, feed: &str) {
        work.feed_failures = work.feed_failures.saturating_add(1);
        work.again_ms = Some(self.now_ms + ms(attempt::feed_wait(work.feed_failures)));
        work.error = Some(format!("the feed {feed} failed").into());
    }

    /// A time of the label itself has come, or a feed was asked (`resumed`: after this many moves without resting).
    fn due(&self, record: &mut Record, resumed: Option<usize>, turn: &mut Turn) {
        let (moved, resumed) = (resumed.unwrap_or(0), resumed.is_some());
        let pauses = record.status == Status::Looping && record.work.again_ms > Some(self.now_ms);
        if !resumed && !pauses && record.work.deadline_ms.is_some_and(|at_ms| at_ms <= self.now_ms) {
            self.decide(record, Event::Deadline, turn);
            return;
        }
        let over = record.work.again_ms.is_some_and(|at_ms| at_ms <= self.now_ms);
        let interval_ms = record.work.interval_ms.filter(|at_ms| *at_ms <= self.now_ms);
        match record.status {
            // The pause before the next attempt is over, or the outcome of the last attempt was lost.
            Status::Acting if over => self.attempt(None, record, turn),
            Status::Choosing if over || resumed => {
                self.choose(record.work.held.take(), moved, record, turn);
            }
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
                if interval_ms.is_some() {
                    record.work.interval_ms = None;
                }
                let gate = self.state(record).and_then(State::gate);
                let found = gate.zip(interval_ms).and_then(|(gate, at_ms)| {
                    let since_ms = at_ms.saturating_sub(record.entered_ms);
                    let mut intervals = gate.intervals();
                    self.moment(record, |moment_ms| moment_ms == at_ms).or_else(|| {
                        intervals.find(|(_, every)| since_ms % ms(*every).max(1) == 0).map(|(n, _)| n)
                    })
                });
                if let Some(trigger) = found {
                    self.decide(record, Event::Trigger(trigger), turn);
                }
            }
            _ => {}
        }
    }

    /// Counts an attempt, lets it wait, or ends the action as errored after the last one. `permit` is the address whose limit
    /// allows the attempt.
    fn attempt(&self, permit: Option<&str>, record: &mut Record, turn: &mut Turn) {
        let Some(action) = self.state(record).and_then(State::action) else { return };
        if record.work.attempts >= action.retry.attempts {
            return self.fail(record, attempt::Outcome::Silence, 0, turn);
        }
        record.status = Status::Acting;
        let waited = record.work.held.take().map(|held| Work { held: Some(held), ..Work::default() });
        if record.suspended {
            record.work.again_ms = Some(self.now_ms);
            return;
        }
        let quiet = action.quiet.as_ref();
        if let Some(end) = quiet.and_then(|quiet| quiet.until(&record.metadata, instant(self.now_ms))) {
            record.work.again_ms = Some(unix_ms(end));
            record.work.held = Some(RETRY.into());
            return;
        }
        // Limits are those of the active version.
        let active = self.version.active();
        let limit = active.machine.limit_of(action).map(|limit| &*limit.target);
        if let Some(target) = limit.filter(|target| permit != Some(*target)) {
            let waited = waited.as_ref().and_then(Work::limit).filter(|(_, known)| *known == target);
            let since_ms = waited.map_or(self.now_ms, |(since_ms, _)| since_ms);
            let pause_ms = self.now_ms.saturating_sub(since_ms);
            record.work.wait_for_limit(since_ms, target);
            record.work.again_ms =
                Some(self.now_ms + pause_ms.clamp(*WAIT_PAUSE_MS.start(), *WAIT_PAUSE_MS.end()));
            turn.limit = Some(target.to_owned());
            return;
        }
        turn.placeless_ms = waited.as_ref().and_then(Work::place).map(|(since_ms, _)| since_ms);
        record.work.attempts += 1;
        record.work.again_ms = Some(self.now_ms + ms(action.timeout) + ATTEMPT_SLACK_MS);
        turn.attempt = true;
    }

    /// Takes the attempt back that was counted: its call was not made. Another process begins it if this one dies.
    fn wait_for_place(&self, record: &mut Record, (to, since_ms): (&str, Option<u64>)) {
        let since_ms = since_ms.unwrap_or(self.now_ms);
        let pause_ms = self.now_ms.saturating_sub(since_ms);
        record.work.attempts = record.work.attempts.saturating_sub(1);
        record.work.wait_for_place(since_ms, to);
        record.work.again_ms =
            Some(self.now_ms + pause_ms.clamp(*WAIT_PAUSE_MS.start(), *WAIT_PAUSE_MS.end()));
    }

    /// Whether the label came to its state under this definition: then it has been evaluated under it.
    fn entered_under_this(&self, record: &Record) -> bool {
        record.history.last().is_some_and(|row| row.version == self.version.number)
    }

    /// Adapts a label to a definition in which its state has changed.
    fn settle(&self, record: &mut Record, turn: &mut Turn) {
        if self.entered_under_this(record) || self.refit(record, turn) {
            return;
        }
        // An update that came before may satisfy the new condition.
        if self.state(record).and_then(State::gate).is_some_and(Gate::on_metadata) {
            self.evaluate(record, turn);
        }
    }

    /// Continues a label whose state is of another kind in this definition. Returns whether it is.
    fn refit(&self, record: &mut Record, turn: &mut Turn) -> bool {
        let Some(state) = self.state(record) else { return false };
        let fits = match (state.gate(), state.action()) {
            // A label that looped before an action does not wait at a gate.
            (Some(_), _) if record.status == Status::Looping => {
                held(&record.work).is_some_and(|(cause, _)| cause != Cause::Action)
            }
            (Some(_), _) => record.status == Status::Waiting,
            (_, Some(action)) if record.status == Status::Ended => {
                if action.next.is_some() {
                    // The action is done, and is not repeated because the state has a next state now.
                    self.decide(record, Event::Done, turn);
                }
                return action.next.is_some();
            }
            (_, Some(_)) => {
                matches!(record.status, Status::Acting | Status::Errored | Status::Choosing | Status::Looping)
            }
            _ => record.status == Status::Ended,
        };
        if !fits {
            let topics = std::mem::take(&mut record.work.topics);
            record.work = Work { facts: record.work.facts, topics, ..Work::default() };
            self.decide(record, Event::Entered, turn);
        }
        !fits
    }
}

/// The cause for which a gate must be evaluated that could not be evaluated before.
pub(crate) fn held(work: &Work) -> Option<(Cause, Option<&str>)> {
    let held = work.held.as_deref()?;
    let (cause, trigger) = held.split_once(' ').unwrap_or((held, ""));
    Some((Cause::from_word(cause).unwrap_or(Cause::Feed), (!trigger.is_empty()).then_some(trigger)))
}
