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
    definition::{Gate, Kind, Machine, Next, OnError, Path, StateIndex, Trigger, Zone},
    merge,
};

/// Maximum number of consecutive transitions. A label that reaches it continues a second later.
pub const MAX_MOVES: usize = 50;

/// The status of a label in its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// At a gate.
    Waiting,
    /// In an action that is to be done.
    Acting,
    /// The action is done; where the label goes hangs on a feed.
    Choosing,
    /// The action failed for good.
    Errored,
    /// It continues a second later.
    Looping,
    /// In a state without a next.
    Ended,
}

impl Status {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Acting => "acting",
            Self::Choosing => "choosing",
            Self::Errored => "errored",
            Self::Looping => "looping",
            Self::Ended => "ended",
        }
    }
}

/// Why a label moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// It was created.
    Created,
    /// Facts came.
    Metadata,
    /// A time of day.
    Time,
    /// An interval.
    Interval,
    /// It had just arrived at the gate.
    Entry,
    /// An event of a topic.
    Topic,
    /// A feed that had failed answered.
    Feed,
    /// The action is done.
    Action,
    /// Its state is no longer part of the definition.
    Migrated,
    /// An operator had its gate evaluated, or the definition was changed.
    Evaluated,
    /// Its action failed for good.
    Failed,
    /// It was in the state for too long.
    Deadline,
}

impl Cause {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Metadata => "metadata",
            Self::Time => "time",
            Self::Interval => "interval",
            Self::Entry => "entry",
            Self::Topic => "topic",
            Self::Feed => "feed",
            Self::Action => "action",
            Self::Migrated => "migrated",
            Self::Evaluated => "evaluated",
            Self::Failed => "failed",
            Self::Deadline => "deadline",
        }
    }
}

/// The current state of a label.
#[derive(Debug, Clone, Copy)]
pub struct Label<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it is.
    pub state: StateIndex,
    /// Its status in the state.
    pub status: Status,
    /// Its facts, with what has just come.
    pub metadata: &'a Json,
    /// When it entered the state.
    pub entered: Timestamp,
    /// Where it was before.
    pub previous_state: Option<&'a str>,
    /// Whether updates arrived while it was in an action, which the next gate has not evaluated yet.
    pub facts_waiting: bool,
}

/// An event of a label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event<'a> {
    /// The label has just arrived: it was created there, or moved there by a map.
    Entered,
    /// This update was merged.
    Facts(&'a Json),
    /// A time of day or an interval: the trigger of that number at the label's gate.
    Trigger(usize),
    /// An event of this topic was taken for the label.
    Topic(&'a str),
    /// The gate is judged (again): a feed that was needed has been asked, or a second of rest is over.
    Again {
        /// The cause of the transition: [`Decision::cause`] if only a feed had to be queried first, [`Cause::Feed`] if
        /// it
        /// had failed before.
        cause: Cause,
        /// The trigger that goes with it: [`Decision::trigger`].
        trigger: Option<&'a str>,
    },
    /// The action is done; also when it was done before, and a feed that choosing needs has been asked since.
    Done,
    /// The action failed for good, and this state follows: see [`crate::definition::Action::after`].
    Failed {
        /// The state that follows.
        to: StateIndex,
        /// The failure.
        why: &'a str,
    },
    /// The time in the state is over.
    Deadline,
}

/// A move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// From there.
    pub from: StateIndex,
    /// To there.
    pub to: StateIndex,
    /// Why.
    pub cause: Cause,
    /// The trigger, where there was one: `metadata.plan`, `time 18:30 Europe/London`, `interval 5m`, `entry`, `topic orders`.
    pub trigger: Option<String>,
    /// Whether facts were waiting for a gate when the label left.
    pub facts_waiting: bool,
}

/// How a label rests after its transitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rest {
    /// It was not evaluated: as before.
    Unchanged,
    /// At a gate that did not open, or was not asked to.
    Waiting {
        /// A failed feed was needed: it has to be queried again, and then the gate evaluated.
        failed_feed: Option<String>,
    },
    /// At a gate whose condition reads this feed: query it, and call again with [`Event::Again`].
    NeedsFeed(String),
    /// In an action that is to be started.
    Acting,
    /// In an action that is done, but where to go depends on this feed, which failed: query it again later.
    Choosing(String),
    /// The same, but the feed was not queried yet: query it, and call again with [`Event::Done`].
    ChoosingNeedsFeed(String),
    /// It has moved [`MAX_MOVES`] times: call again with [`Event::Again`] a second later. At a gate it is judged then, in an
    /// action that is started then.
    Looping,
    /// In a state without a successor; its action, if any, is done.
    Ended,
}

/// The decision for a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Its moves, in order.
    pub moves: Vec<Move>,
    /// Where that leaves it.
    pub rest: Rest,
    /// Whether facts are still waiting for a gate.
    pub facts_waiting: bool,
    /// How many conditions of gates were judged.
    pub evaluations: usize,
    /// The comparison that failed in the last of them.
    pub error: Option<String>,
    /// The cause of the last evaluation of a gate, or of the pending one.
    pub cause: Option<Cause>,
    /// The trigger that goes with it.
    pub trigger: Option<String>,
}

impl Decision {
    /// The label's new status; `None` if it is unchanged.
    #[must_use]
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
    /// Nothing yet.
    #[must_use]
    pub fn nothing(machine: &'m Machine) -> Self {
        Self { machine, answers: BTreeMap::new() }
    }

    /// With the answer of a feed; none when it could not be fetched.
    pub fn learn(&mut self, feed: &str, answer: Option<Json>) {
        self.answers.insert(feed.to_owned(), answer);
    }

    /// Whether the feed was queried, with whatever result.
    #[must_use]
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

/// Notes which failed feed was read.
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

/// The facts by which a label's gate is judged at a moment; `zone` is that of the gate: see [`gate_zone`].
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

/// The zone of `system.time` for a label where it is.
#[must_use]
pub fn gate_zone(machine: &Machine, label: &Label<'_>) -> Zone {
    let rule = machine.at(label.state).gate().map_or(machine.zone(), |gate| &gate.zone);
    rule.of(label.metadata).zone
}

/// Decides for a label that rested until now.
#[must_use]
pub fn decide(
    machine: &Machine,
    label: Label<'_>,
    event: Event<'_>,
    now: Timestamp,
    feeds: &dyn Feeds,
) -> Decision {
    decide_after(0, machine, label, event, now, feeds)
}

/// Decides for a label with this many transitions since its last rest: actions that are done immediately, and feeds
/// that answer, are not rests, so a loop through them is detected too.
#[must_use]
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
    /// Moves before this decision.
    moved: usize,
    machine: &'a Machine,
    label: Label<'a>,
    now: Timestamp,
    feeds: &'a dyn Feeds,
    decision: Decision,
}

/// The reason of an evaluation.
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
            (_, Event::Deadline) => {
                if let Some(deadline) = state.deadline() {
                    self.go(
                        deadline.to,
                        Look { cause: Cause::Deadline, trigger: Some(deadline.to_string()) },
                    );
                }
            }
            (Kind::Action(_), Event::Facts(_)) => self.decision.facts_waiting = true,
            // The rest before it is over.
            (Kind::Action(_), Event::Again { .. }) => self.decision.rest = Rest::Acting,
            (Kind::Gate(gate), event) => {
                if let Some(look) = looks(gate, event, self.label.metadata, self.now) {
                    self.look(gate, look);
                }
            }
            // A late event of a state that the label has left, or an update of an ended label.
            (Kind::Action(_) | Kind::End, _) => {}
        }
    }

    /// The label has just entered its state.
    fn arrive(&mut self) {
        match self.machine.at(self.label.state).kind() {
            Kind::End => self.decision.rest = Rest::Ended,
            Kind::Action(_) if self.is_tired() => {
                self.decision.cause = Some(Cause::Action);
                self.decision.trigger = None;
                self.decision.rest = Rest::Looping;
            }
            Kind::Action(_) => self.decision.rest = Rest::Acting,
            Kind::Gate(gate) => {
                let waiting = std::mem::take(&mut self.decision.facts_waiting);
                let look = if gate.on_entry() {
                    Some(Look { cause: Cause::Entry, trigger: Some(Trigger::Entry.to_string()) })
                } else if waiting && gate.on_metadata() {
                    Some(Look { cause: Cause::Metadata, trigger: None })
                } else {
                    // The time of a trigger was over before the label came.
                    past_moment(gate, self.label.metadata, self.now)
                        .map(|trigger| Look { cause: Cause::Time, trigger: Some(trigger.to_string()) })
                };
                match look {
                    None => self.decision.rest = Rest::Waiting { failed_feed: None },
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

    /// Whether it has moved so often that it rests for a second.
    fn is_tired(&self) -> bool {
        self.moved + self.decision.moves.len() >= MAX_MOVES
    }

    /// Evaluates the label's gate, and continues if it opens.
    fn look(&mut self, gate: &'a Gate, look: Look) {
        self.decision.evaluations += 1;
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
            self.decision.rest = Rest::Waiting { failed_feed: watching.failed.take() };
            return;
        }
        match choose(&gate.next, &facts) {
            Ok(to) => self.go(to, look),
            Err(NeedsFeed(feed)) => self.decision.rest = Rest::NeedsFeed(feed.to_owned()),
        }
    }

    /// The action is done.
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
        self.decision.moves.push(Move { from, to, cause, trigger, facts_waiting });
        self.label.previous_state = Some(self.machine.at(from).name());
        self.label.state = to;
        self.label.entered = self.now;
        self.arrive();
    }
}

/// Whether an event makes a gate look.
fn looks(gate: &Gate, event: Event<'_>, metadata: &Json, now: Timestamp) -> Option<Look> {
    let named = |cause, trigger: &Trigger| Some(Look { cause, trigger: Some(trigger.to_string()) });
    match event {
        Event::Facts(update) => {
            let fires = |trigger: &&Trigger| match trigger {
                Trigger::Metadata(path) => merge::mentions(update, path),
                // A time that is over already.
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
        Event::Topic(topic) => gate
            .on_topic(topic)
            .then(|| Look { cause: Cause::Topic, trigger: Some(format!("topic {topic}")) }),
        Event::Again { cause, trigger } => Some(Look { cause, trigger: trigger.map(str::to_owned) }),
        Event::Entered | Event::Done | Event::Failed { .. } | Event::Deadline => None,
    }
}

/// The first trigger whose time, in the metadata, is over.
fn past_moment<'g>(gate: &'g Gate, metadata: &Json, now: Timestamp) -> Option<&'g Trigger> {
    let is_past = |path: &Path| path.moment(metadata).is_some_and(|at| at <= now);
    let (n, _) = gate.moments().find(|(_, path)| is_past(path))?;
    gate.triggers.get(n)
}

/// The target of a label. A condition on a failed feed is not true.
fn choose<'a>(next: &'a Next, facts: &'a Facts<'_>) -> Result<StateIndex, NeedsFeed<'a>> {
    match next {
        Next::Constant(state) => Ok(*state),
        Next::Context { path, destinations, default } => {
            for (value, state) in destinations {
                if path.equals(facts, value)? == Truth::True {
                    return Ok(*state);
                }
            }
            // Also without any destination the value is queried for: whether its feed can be had may matter.
            path.value(facts)?;
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
