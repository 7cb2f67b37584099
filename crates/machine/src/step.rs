//! The reaction of a label to an event: the one function that moves labels.
//!
//! ```text
//! facts, a time, an event ─▶ gate judged ─ not true ─▶ stays
//!                                │ true
//!                                ▼
//!                    next chosen (from the same facts) ─▶ gate: evaluated if it has an entry trigger, else rests
//!                                                      ├▶ action: rests until it is done, then next is chosen
//!                                                      └▶ end: rests
//! ```
//!
//! The engine calls [`decide`] with the current label, commits the result, and calls again when an action is done or a
//! feed has answered. [`crate::simulate()`] calls the same function with a simulated clock.

use std::{cell::RefCell, collections::BTreeMap};

use jiff::Timestamp;
use serde_json::Value as Json;
use signalbox_condition::{Facts, Feed as Answer, Feeds, NeedsFeed, Truth, Visit};

use crate::{
    definition::{Gate, Kind, Machine, Next, OnError, Path, State, StateIndex, Trigger, Zone},
    merge,
};
pub use signalbox_api::machines::{Cause, Status};

/// Maximum number of consecutive transitions. A label that reaches it pauses for a second.
pub const MAX_MOVES: usize = 50;

/// The current state of a label.
#[derive(Debug, Clone, Copy)]
pub struct Label<'a> {
    /// Its name.
    pub name: &'a str,
    /// The state that it is in.
    pub state: StateIndex,
    /// Its status in the state.
    pub status: Status,
    /// Its metadata, including the update of this event.
    pub metadata: &'a Json,
    /// When it entered the state.
    pub entered: Timestamp,
    /// The state that it came from.
    pub previous_state: Option<&'a str>,
    /// Whether metadata was updated during an action, and no gate has been evaluated since.
    pub facts_waiting: bool,
    /// The topics whose events came during an action, if no gate has been evaluated since.
    pub topics_waiting: &'a [Box<str>],
}

/// Something that happens to a label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event<'a> {
    /// The label has just entered its state, because it was created or an operator moved it.
    Entered,
    /// A metadata update was merged.
    Facts(&'a Json),
    /// A time or interval trigger, by its index at the label's gate.
    Trigger(usize),
    /// An input accepted an event of this topic for the label.
    Topic(&'a str),
    /// The gate is evaluated again, because the required feed was queried or a pause is over.
    Again {
        /// The cause of the transition: [`Decision::cause`] if the feed was only queried, [`Cause::Feed`] if
        /// the feed had failed before.
        cause: Cause,
        /// The trigger of that cause: [`Decision::trigger`].
        trigger: Option<&'a str>,
    },
    /// The action succeeded. This is also sent after the query of a feed that the transition needs.
    Done,
    /// The action failed for good, and the label goes to this state: see
    /// [`crate::definition::Action::after`].
    Failed {
        /// The state that follows.
        to: StateIndex,
        /// The failure.
        why: &'a str,
    },
    /// The state's deadline expired.
    Deadline,
}

/// A transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The state that the label left.
    pub from: StateIndex,
    /// The state that the label entered.
    pub to: StateIndex,
    /// The cause.
    pub cause: Cause,
    /// The trigger, if there was one: `metadata.plan`, `time 18:30 Europe/London`, `interval 5m`, `entry`,
    /// `topic orders`.
    pub trigger: Option<String>,
    /// Whether a metadata update had not been evaluated by a gate when the label left.
    pub facts_waiting: bool,
    /// The topics whose events no gate had been evaluated for when the label left.
    pub topics_waiting: Vec<Box<str>>,
}

/// The state of a label after its transitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rest {
    /// Nothing was evaluated, and nothing changed.
    Unchanged,
    /// At a gate that did not open, or was not evaluated.
    Waiting {
        /// A feed that failed and was read: query it again, and then evaluate the gate.
        failed_feed: Option<String>,
    },
    /// At a gate whose condition reads this feed: query it, and call again with [`Event::Again`].
    NeedsFeed(String),
    /// In an action that has to be started.
    Acting,
    /// The action succeeded, but the transition depends on this feed, which failed: query it again later.
    Choosing(String),
    /// Like `Choosing`, but the feed was not queried yet: query it, and call again with [`Event::Done`].
    ChoosingNeedsFeed(String),
    /// The label has made [`MAX_MOVES`] transitions: call again with [`Event::Again`] a second later. Then a
    /// gate is evaluated, or an action is started.
    Looping,
    /// In a state without a successor; its action, if any, is done.
    Ended,
}

/// The decision for a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The transitions, in order.
    pub moves: Vec<Move>,
    /// The state of the label after them.
    pub rest: Rest,
    /// Whether a metadata update has not been evaluated by a gate yet.
    pub facts_waiting: bool,
    /// The topics whose events no gate was evaluated for yet.
    pub topics_waiting: Vec<Box<str>>,
    /// The number of gate evaluations.
    pub evaluations: usize,
    /// The comparison that failed in the last evaluation.
    pub error: Option<String>,
    /// The cause of the last or the pending evaluation of a gate.
    pub cause: Option<Cause>,
    /// The trigger of that cause.
    pub trigger: Option<String>,
}

impl Decision {
    /// The label's new status; `None` if it is unchanged.
    pub fn status(&self) -> Option<Status> {
        match self.rest {
            Rest::Unchanged => None,
            Rest::Waiting { .. } | Rest::NeedsFeed(_) => Some(Status::Waiting),
            Rest::Acting => Some(Status::Acting),
            Rest::Choosing(_) | Rest::ChoosingNeedsFeed(_) => Some(Status::Choosing),
            Rest::Looping => Some(Status::Looping),
            Rest::Ended => Some(Status::Ended),
        }
    }
}

/// The known values of a machine's feeds, with their policies for failures.
#[derive(Debug, Clone)]
pub struct Known<'m> {
    machine: &'m Machine,
    answers: BTreeMap<String, Option<Json>>,
}

impl<'m> Known<'m> {
    /// No feed has been queried yet.
    pub fn nothing(machine: &'m Machine) -> Self {
        Self { machine, answers: BTreeMap::new() }
    }

    /// The answers are those of the feeds of another version.
    pub(crate) fn change_machine(&mut self, machine: &'m Machine) {
        self.machine = machine;
    }

    /// Records the answer of a feed; `None` if it could not be fetched.
    pub fn learn(&mut self, feed: &str, answer: Option<Json>) {
        self.answers.insert(feed.to_owned(), answer);
    }

    /// Whether the feed was queried, successfully or not.
    pub fn has(&self, feed: &str) -> bool {
        self.answers.contains_key(feed)
    }
}

impl Feeds for Known<'_> {
    fn feed(&self, name: &str) -> Answer<'_> {
        match self.answers.get(name) {
            None => Answer::NotAsked,
            Some(Some(value)) => Answer::Value(value),
            Some(None) => match self.machine.feed(name).map(|feed| &feed.on_error) {
                Some(OnError::Default(value)) => Answer::Value(value),
                _ => Answer::Failed,
            },
        }
    }
}

/// Records which failed feed was read.
struct Watching<'a> {
    feeds: &'a dyn Feeds,
    failed: RefCell<Option<String>>,
}

impl Feeds for Watching<'_> {
    fn feed(&self, name: &str) -> Answer<'_> {
        let answer = self.feeds.feed(name);
        if matches!(answer, Answer::Failed) {
            self.failed.borrow_mut().get_or_insert_with(|| name.to_owned());
        }
        answer
    }
}

/// Whether labels in a state stay on a version of the machine: the state says it, or the active version, if it is a later one,
/// does not have the state.
pub fn keeps(machine: &Machine, active: Option<&Machine>, state: &str) -> bool {
    let gone = active.is_some_and(|active| active.state(state).is_none());
    machine.state(state).is_some_and(|state| state.keeps() || gone)
}

/// The values that the label's gate is evaluated with at a given time. `zone` is that of the gate: see
/// [`gate_zone`].
pub fn facts<'a>(
    machine: &'a Machine,
    label: &Label<'a>,
    feeds: &'a dyn Feeds,
    zone: &'a Zone,
    now: Timestamp,
) -> Facts<'a> {
    let visit = Visit {
        entered: label.entered,
        previous_state: label.previous_state,
        state_machine: Some(machine.name()),
        label: Some(label.name),
    };
    Facts::new(label.metadata, feeds, visit, now, zone.rules())
}

/// The zone of `system.time` in the label's current state.
pub fn gate_zone(machine: &Machine, label: &Label<'_>) -> Zone {
    let rule = machine.at(label.state).gate().map_or(machine.zone(), |gate| &gate.zone);
    rule.of(label.metadata).zone
}

/// Decides what an event does to a label at rest.
pub fn decide(
    machine: &Machine,
    label: Label<'_>,
    event: Event<'_>,
    now: Timestamp,
    feeds: &dyn Feeds,
) -> Decision {
    decide_after(0, machine, label, event, now, feeds)
}

/// Like [`decide`], for a label that made this many transitions since it last rested. Actions that succeed
/// immediately and feeds that answer do not count as rests, so that a loop through them is detected, too.
pub fn decide_after(
    moved: usize,
    machine: &Machine,
    label: Label<'_>,
    event: Event<'_>,
    now: Timestamp,
    feeds: &dyn Feeds,
) -> Decision {
    let mut walk = Walk {
        moved,
        machine,
        label,
        now,
        feeds,
        decision: Decision {
            moves: Vec::new(),
            rest: Rest::Unchanged,
            facts_waiting: label.facts_waiting,
            topics_waiting: label.topics_waiting.to_vec(),
            evaluations: 0,
            error: None,
            cause: None,
            trigger: None,
        },
    };
    walk.begin(event);
    walk.decision
}

struct Walk<'a> {
    /// Transitions before this decision.
    moved: usize,
    machine: &'a Machine,
    label: Label<'a>,
    now: Timestamp,
    feeds: &'a dyn Feeds,
    decision: Decision,
}

/// The reason for an evaluation.
struct Look {
    cause: Cause,
    trigger: Option<String>,
}

impl<'a> Walk<'a> {
    fn begin(&mut self, event: Event<'_>) {
        let state = self.machine.at(self.label.state);
        match (state.kind(), event) {
            (_, Event::Entered) => self.arrive(),
            (Kind::Action(action), Event::Done) => match &action.next {
                None => self.decision.rest = Rest::Ended,
                Some(next) => self.leave_action(next),
            },
            (Kind::Action(_), Event::Failed { to, why }) => {
                self.go(to, Look { cause: Cause::Failed, trigger: Some(why.to_owned()) });
            }
            // The second is the end of a pause before a deadline that had passed.
            (_, Event::Deadline | Event::Again { cause: Cause::Deadline, .. }) => {
                if let Some(deadline) = state.deadline() {
                    self.go(
                        deadline.to,
                        Look { cause: Cause::Deadline, trigger: Some(deadline.to_string()) },
                    );
                }
            }
            (Kind::Action(_), Event::Facts(_)) => self.decision.facts_waiting = true,
            (Kind::Action(_), Event::Topic(topic)) => {
                remember(self.machine, &mut self.decision.topics_waiting, topic)
            }
            // The pause before the action is over.
            (Kind::Action(_), Event::Again { .. }) => self.decision.rest = Rest::Acting,
            (Kind::Gate(gate), event) => {
                if let Some(look) = looks(gate, event, self.label.metadata, self.now) {
                    self.look(gate, look);
                }
            }
            // A late event for a state that the label has left, or an update of a label that has ended.
            (Kind::Action(_) | Kind::End, _) => {}
        }
    }

    /// Handles a label that has just entered its state.
    fn arrive(&mut self) {
        match self.machine.at(self.label.state).kind() {
            Kind::End => self.decision.rest = Rest::Ended,
            Kind::Action(_) if self.is_tired() => {
                self.decision.cause = Some(Cause::Action);
                self.decision.trigger = None;
                self.decision.rest = Rest::Looping;
            }
            Kind::Action(_) => self.rest_until_deadline(Rest::Acting),
            Kind::Gate(gate) => {
                let waiting = std::mem::take(&mut self.decision.facts_waiting);
                let topics = std::mem::take(&mut self.decision.topics_waiting);
                let look = if gate.on_entry() {
                    Some(Look { cause: Cause::Entry, trigger: Some(Trigger::Entry.to_string()) })
                } else if waiting && gate.on_metadata() {
                    Some(Look { cause: Cause::Metadata, trigger: None })
                } else if let Some(look) = topics.iter().find_map(|topic| topic_look(gate, topic)) {
                    Some(look)
                } else {
                    // The time of a trigger had already passed when the label arrived.
                    past_moment(gate, self.label.metadata, self.now)
                        .map(|trigger| Look { cause: Cause::Time, trigger: Some(trigger.to_string()) })
                };
                match look {
                    None => self.rest_until_deadline(Rest::Waiting { failed_feed: None }),
                    Some(look) if self.is_tired() => {
                        self.decision.cause = Some(look.cause);
                        self.decision.trigger = look.trigger;
                        self.decision.rest = Rest::Looping;
                    }
                    Some(look) => self.look(gate, look),
                }
            }
        }
    }

    /// Whether the label has reached the maximum number of transitions and has to pause.
    fn is_tired(&self) -> bool {
        self.moved + self.decision.moves.len() >= MAX_MOVES
    }

    /// Evaluates the label's gate. If it opens, the label continues.
    fn look(&mut self, gate: &'a Gate, look: Look) {
        self.decision.evaluations += 1;
        self.decision.facts_waiting = false;
        self.decision.topics_waiting.clear();
        self.decision.cause = Some(look.cause);
        self.decision.trigger.clone_from(&look.trigger);
        let zone = gate_zone(self.machine, &self.label);
        let watching = Watching { feeds: self.feeds, failed: RefCell::new(None) };
        let facts = facts(self.machine, &self.label, &watching, &zone, self.now);
        let verdict = match gate.condition.evaluate(&facts) {
            Ok(verdict) => verdict,
            Err(NeedsFeed(feed)) => {
                self.decision.rest = Rest::NeedsFeed(feed.to_owned());
                return;
            }
        };
        self.decision.error = gate.condition.error_of(&verdict);
        if !verdict.truth.holds() {
            self.rest_until_deadline(Rest::Waiting { failed_feed: watching.failed.take() });
            return;
        }
        // The condition is true without the feeds that failed in it; the choice needs its own.
        watching.failed.take();
        let to = match choose(&gate.next, &facts) {
            Ok(to) => to,
            Err(NeedsFeed(feed)) => {
                self.decision.rest = Rest::NeedsFeed(feed.to_owned());
                return;
            }
        };
        // A branch whose feed failed is unknown, which is not true: `default` may be the safe way. A value has no such rule.
        match watching.failed.take().filter(|_| matches!(gate.next, Next::Context { .. })) {
            Some(feed) => self.decision.rest = Rest::Waiting { failed_feed: Some(feed) },
            None => self.go(to, look),
        }
    }

    /// Rests, unless the state's deadline had passed when the label entered the state: then the label leaves it immediately, as
    /// one of its consecutive transitions. Otherwise a loop through such deadlines would never pause.
    fn rest_until_deadline(&mut self, rest: Rest) {
        let state = self.machine.at(self.label.state);
        let at = state.deadline_of(self.label.entered, self.label.metadata);
        let Some(deadline) = state.deadline().filter(|_| at.is_some_and(|at| at <= self.label.entered))
        else {
            self.decision.rest = rest;
            return;
        };
        let look = Look { cause: Cause::Deadline, trigger: Some(deadline.to_string()) };
        if self.is_tired() {
            self.decision.cause = Some(look.cause);
            self.decision.trigger = look.trigger;
            self.decision.rest = Rest::Looping;
        } else {
            self.go(deadline.to, look);
        }
    }

    /// Continues after a successful action.
    fn leave_action(&mut self, next: &'a Next) {
        let zone = gate_zone(self.machine, &self.label);
        let watching = Watching { feeds: self.feeds, failed: RefCell::new(None) };
        let facts = facts(self.machine, &self.label, &watching, &zone, self.now);
        let to = match choose(next, &facts) {
            Ok(to) => to,
            Err(NeedsFeed(feed)) => {
                self.decision.rest = Rest::ChoosingNeedsFeed(feed.to_owned());
                return;
            }
        };
        match watching.failed.take() {
            Some(feed) => self.decision.rest = Rest::Choosing(feed),
            None => self.go(to, Look { cause: Cause::Action, trigger: None }),
        }
    }

    fn go(&mut self, to: StateIndex, look: Look) {
        let from = self.label.state;
        let Look { cause, trigger } = look;
        let facts_waiting = self.decision.facts_waiting;
        let topics_waiting = self.decision.topics_waiting.clone();
        self.decision.moves.push(Move { from, to, cause, trigger, facts_waiting, topics_waiting });
        self.label.previous_state = Some(self.machine.at(from).name());
        self.label.state = to;
        self.label.entered = self.now;
        self.arrive();
    }
}

/// The evaluation that an event triggers at a gate, if any.
fn looks(gate: &Gate, event: Event<'_>, metadata: &Json, now: Timestamp) -> Option<Look> {
    let named = |cause, trigger: &Trigger| Some(Look { cause, trigger: Some(trigger.to_string()) });
    match event {
        Event::Facts(update) => {
            let fires = |trigger: &&Trigger| match trigger {
                Trigger::Metadata(path) => merge::mentions(update, path),
                // The stored time has already passed.
                Trigger::At(path) => {
                    merge::mentions(update, path) && path.moment(metadata).is_some_and(|at| at <= now)
                }
                _ => false,
            };
            named(Cause::Metadata, gate.triggers.iter().find(fires)?)
        }
        Event::Trigger(n) => match gate.triggers.get(n)? {
            trigger @ (Trigger::Time(_) | Trigger::At(_)) => named(Cause::Time, trigger),
            trigger @ Trigger::Interval(_) => named(Cause::Interval, trigger),
            _ => None,
        },
        Event::Topic(topic) => topic_look(gate, topic),
        Event::Again { cause, trigger } => Some(Look { cause, trigger: trigger.map(str::to_owned) }),
        Event::Entered | Event::Done | Event::Failed { .. } | Event::Deadline => None,
    }
}

/// The evaluation that an event of a topic triggers at a gate, if any.
fn topic_look(gate: &Gate, topic: &str) -> Option<Look> {
    gate.on_topic(topic).then(|| Look { cause: Cause::Topic, trigger: Some(format!("topic {topic}")) })
}

/// Remembers an event for the next gate of a label, by its topic: an event of one topic does not trigger a gate that waits
/// for another. Topics that trigger no gate are left out, so that the list is never longer than the definition.
pub fn remember(machine: &Machine, topics: &mut Vec<Box<str>>, topic: &str) {
    let mut gates = machine.states().iter().filter_map(State::gate);
    if topics.iter().all(|known| **known != *topic) && gates.any(|gate| gate.on_topic(topic)) {
        topics.push(topic.into());
    }
}

/// The first trigger whose time in the metadata has passed.
fn past_moment<'g>(gate: &'g Gate, metadata: &Json, now: Timestamp) -> Option<&'g Trigger> {
    let is_past = |path: &Path| path.moment(metadata).is_some_and(|at| at <= now);
    let (n, _) = gate.moments().find(|(_, path)| is_past(path))?;
    gate.triggers.get(n)
}

/// The next state of a label. A condition that reads a failed feed is not true.
fn choose<'a>(next: &'a Next, facts: &'a Facts<'_>) -> Result<StateIndex, NeedsFeed<'a>> {
    match next {
        Next::Constant(state) => Ok(*state),
        Next::Context { path, destinations, default } => {
            for (value, state) in destinations {
                if path.equals(facts, value)? == Truth::True {
                    return Ok(*state);
                }
            }
            // The value is read even without destinations, so that a missing feed is queried.
            path.equals(facts, &Json::Null)?;
            Ok(*default)
        }
        Next::Condition { branches, default } => {
            for (condition, state) in branches {
                if condition.evaluate(facts)?.truth.holds() {
                    return Ok(*state);
                }
            }
            Ok(*default)
        }
    }
}
