//! A machine as it was understood: names resolved, conditions compiled, texts with placeholders taken apart.

mod action;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use serde_json::Value as Json;
use signalbox_condition::{Condition, Reference};

use super::{
    outside::{Feed, Input, Limit, Webhook},
    zone::ZoneRule,
};
use crate::schedule::Schedule;
pub(super) use action::METHODS;
pub use action::{Action, Call, Failure, OnFailure, Quiet, ResultPart, Retry};

/// A state machine. It is immutable; a new version is another machine.
#[derive(Debug, Clone)]
pub struct Machine {
    pub(super) name: Box<str>,
    pub(super) zone: ZoneRule,
    pub(super) hosts: Vec<Box<str>>,
    pub(super) index: Vec<Path>,
    pub(super) feeds: Vec<Feed>,
    pub(super) inputs: Vec<Input>,
    pub(super) webhooks: Vec<Webhook>,
    pub(super) limits: Vec<Limit>,
    pub(super) states: Vec<State>,
    pub(super) places: HashMap<Box<str>, StateIndex>,
    pub(super) source: Arc<str>,
    pub(super) hash: Box<str>,
}

impl Machine {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rule that gives a label's time zone.
    pub fn zone(&self) -> &ZoneRule {
        &self.zone
    }

    /// The hosts whose routes its actions may change: those that it lists, and those that a `route` action names without a
    /// placeholder. A name, `*.example.org` for all names below, or `*`.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        let named = self.states.iter().filter_map(|state| state.action()?.call.constant_host());
        self.hosts.iter().map(|host| &**host).chain(named)
    }

    /// The version types under which its `route` actions register instances, as far as they contain no placeholders.
    pub fn version_types(&self) -> impl Iterator<Item = String> {
        self.states.iter().filter_map(|state| state.action()?.call.constant_version_type())
    }

    /// The indexed metadata paths, by whose values labels can be found.
    pub fn index(&self) -> &[Path] {
        &self.index
    }

    /// The feeds that its conditions may read.
    pub fn feeds(&self) -> &[Feed] {
        &self.feeds
    }

    /// The feed of that name.
    pub fn feed(&self, name: &str) -> Option<&Feed> {
        self.feeds.iter().find(|feed| &*feed.name == name)
    }

    /// The inputs: topics whose events update the metadata of labels.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The headers of outgoing calls.
    pub fn webhooks(&self) -> &[Webhook] {
        &self.webhooks
    }

    /// The limits of webhook addresses, by their targets.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The limit with this target.
    pub fn limit(&self, target: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| &*limit.target == target)
    }

    /// The limit that applies to attempts of an action.
    pub fn limit_of(&self, action: &Action) -> Option<&Limit> {
        if self.limits.is_empty() {
            return None;
        }
        self.limit(&action.call.origin()?)
    }

    /// The states in the order of the file. The first is the initial one.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The state of that name.
    pub fn state(&self, name: &str) -> Option<&State> {
        self.places.get(name).map(|place| self.at(*place))
    }

    /// The state in which labels begin.
    pub fn initial(&self) -> &State {
        // `load` rejects a machine without states.
        &self.states[0]
    }

    /// The state that a transition leads to.
    pub fn at(&self, index: StateIndex) -> &State {
        &self.states[index.0]
    }

    /// Source text from which [`super::load`] reads exactly this machine. It is the file itself if the file
    /// contains nothing else.
    pub fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// The hexadecimal SHA-256 of the machine's content; comments, order of keys and layout do not matter.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// The index of a state in its machine. Only valid for the same machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateIndex(pub(crate) usize);

impl StateIndex {
    /// The position in [`Machine::states`].
    pub fn position(self) -> usize {
        self.0
    }
}

/// A state of a machine.
#[derive(Debug, Clone)]
pub struct State {
    pub(super) name: Box<str>,
    pub(super) index: StateIndex,
    pub(super) kind: Kind,
    pub(super) deadline: Option<Deadline>,
    pub(super) alert: Option<Alert>,
    pub(super) keeps: bool,
    /// Its content as canonical text. Two definitions have the same state if these texts are equal.
    pub(super) says: Box<str>,
}

impl State {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its index in the machine.
    pub fn index(&self) -> StateIndex {
        self.index
    }

    /// Its kind.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The gate, if the state is a gate that can open.
    pub fn gate(&self) -> Option<&Gate> {
        match &self.kind {
            Kind::Gate(gate) => Some(gate),
            Kind::Action(_) | Kind::End => None,
        }
    }

    /// The action, if the state is an action.
    pub fn action(&self) -> Option<&Action> {
        match &self.kind {
            Kind::Action(action) => Some(action),
            Kind::Gate(_) | Kind::End => None,
        }
    }

    /// Whether labels stay in this state permanently: a gate or an action without `next`.
    pub fn ends(&self) -> bool {
        match &self.kind {
            Kind::Gate(_) => false,
            Kind::Action(action) => action.next.is_none(),
            Kind::End => true,
        }
    }

    /// The maximum time that labels may stay, if there is one.
    pub fn deadline(&self) -> Option<&Deadline> {
        self.deadline.as_ref()
    }

    /// The limits above which the state raises an alert, if there are any.
    pub fn alert(&self) -> Option<Alert> {
        self.alert
    }

    /// Whether labels in this state keep their version when another version is applied, until they leave the
    /// state.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Every state that labels may go to from here: by its transition, after a failure, and at its deadline.
    /// Each is listed once, in the order of the file.
    pub fn targets(&self) -> Vec<StateIndex> {
        let failures =
            self.action().into_iter().flat_map(|action| &action.on_error).map(|failure| failure.to);
        let deadline = self.deadline.iter().map(|deadline| deadline.to);
        let mut targets: Vec<StateIndex> =
            self.next().into_iter().flat_map(Next::targets).chain(failures).chain(deadline).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// The transition to the next state.
    pub fn next(&self) -> Option<&Next> {
        match &self.kind {
            Kind::Gate(gate) => Some(&gate.next),
            Kind::Action(action) => action.next.as_ref(),
            Kind::End => None,
        }
    }

    /// Its content as canonical text. Equal states of two definitions have the same text.
    pub fn says(&self) -> &str {
        &self.says
    }
}

/// The kind of a state.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a machine has a handful of states")]
pub enum Kind {
    /// Labels wait until its condition is true.
    Gate(Gate),
    /// An action is executed once per visit.
    Action(Action),
    /// A gate without `next`: labels stay here.
    End,
}

/// A state that holds labels until its condition is true.
#[derive(Debug, Clone)]
pub struct Gate {
    /// The condition that labels must meet to pass.
    pub condition: Condition,
    /// The triggers of its evaluation, at least one.
    pub triggers: Vec<Trigger>,
    /// The state that labels go to.
    pub next: Next,
    /// The zone of `system.time`, `date` and `weekday`: that of the time triggers if they all have the same,
    /// otherwise the label's.
    pub zone: ZoneRule,
}

impl Gate {
    /// Whether the gate is evaluated as soon as a label enters it.
    pub fn on_entry(&self) -> bool {
        self.triggers.iter().any(|trigger| matches!(trigger, Trigger::Entry))
    }

    /// Its triggers at a time that is stored in the metadata, each with its index among all triggers.
    pub fn moments(&self) -> impl Iterator<Item = (usize, &Path)> {
        self.triggers.iter().enumerate().filter_map(|(n, trigger)| match trigger {
            Trigger::At(path) => Some((n, path)),
            _ => None,
        })
    }

    /// Whether any trigger can cause an evaluation of a label that is already at the gate, which is any
    /// trigger except `entry`.
    pub fn looks_again(&self) -> bool {
        self.triggers.iter().any(|trigger| !matches!(trigger, Trigger::Entry))
    }

    /// Whether the gate has a metadata trigger.
    pub fn on_metadata(&self) -> bool {
        self.triggers.iter().any(|trigger| matches!(trigger, Trigger::Metadata(_)))
    }

    /// Whether an event of that topic triggers an evaluation.
    pub fn on_topic(&self, topic: &str) -> bool {
        self.triggers.iter().any(|trigger| matches!(trigger, Trigger::Topic(name) if &**name == topic))
    }

    /// Its time triggers, each with its index among all triggers.
    pub fn daily(&self) -> impl Iterator<Item = (usize, &Daily)> {
        self.triggers.iter().enumerate().filter_map(|(n, trigger)| match trigger {
            Trigger::Time(daily) => Some((n, daily)),
            _ => None,
        })
    }

    /// Its interval triggers, each with its index among all triggers.
    pub fn intervals(&self) -> impl Iterator<Item = (usize, Duration)> {
        self.triggers.iter().enumerate().filter_map(|(n, trigger)| match trigger {
            Trigger::Interval(every) => Some((n, *every)),
            _ => None,
        })
    }
}

/// A trigger of a gate's evaluation.
#[derive(Debug, Clone, PartialEq)]
pub enum Trigger {
    /// An update that changes the path.
    Metadata(Path),
    /// A time of day.
    Time(Daily),
    /// A period after the entry that repeats, in whole seconds.
    Interval(Duration),
    /// The time that is stored in the metadata at this path.
    At(Path),
    /// A label enters the gate.
    Entry,
    /// An event of this topic that an input accepted for the label.
    Topic(Box<str>),
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata(path) => write!(f, "{path}"),
            Self::Time(daily) => match &daily.zone {
                ZoneRule::Fixed(zone) => write!(f, "time {} {zone}", daily.schedule),
                ZoneRule::Metadata { path, .. } => write!(f, "time {} {path}", daily.schedule),
            },
            Self::Interval(every) => write!(f, "interval {}", super::units(*every)),
            Self::At(path) => write!(f, "at {path}"),
            Self::Entry => f.write_str("entry"),
            Self::Topic(topic) => write!(f, "topic {topic}"),
        }
    }
}

/// Times that a calendar repeats, such as every day at half past six.
#[derive(Debug, Clone, PartialEq)]
pub struct Daily {
    /// The recurring local times.
    pub schedule: Schedule,
    /// The zone of these times.
    pub zone: ZoneRule,
    /// A missed trigger time is made up for if it is no older than this.
    pub grace: Duration,
}

/// A path below `metadata`. Without keys it is the metadata as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path {
    pub(crate) keys: Vec<Box<str>>,
}

impl Path {
    /// The path with these keys.
    pub fn new(keys: Vec<Box<str>>) -> Self {
        Self { keys }
    }

    /// Parses a path as written in definitions, with or without one leading `metadata.`.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        super::metadata_path(text)
    }

    /// The keys below `metadata`.
    pub fn keys(&self) -> &[Box<str>] {
        &self.keys
    }

    /// The value at the path, or null if there is none. A number selects an element of a list.
    pub fn of<'a>(&self, metadata: &'a Json) -> &'a Json {
        let mut found = metadata;
        for key in &self.keys {
            let below = match found {
                Json::Object(object) => object.get(&**key),
                Json::Array(list) if key.bytes().all(|byte| byte.is_ascii_digit()) => {
                    key.parse().ok().and_then(|index: usize| list.get(index))
                }
                _ => None,
            };
            match below {
                Some(value) => found = value,
                None => return &Json::Null,
            }
        }
        found
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")?;
        if self.keys.is_empty() {
            Ok(())
        } else {
            write!(f, ".{}", signalbox_condition::path_text(&self.keys))
        }
    }
}

/// The rule that selects the next state.
#[derive(Debug, Clone)]
pub enum Next {
    /// Always this state.
    Constant(StateIndex),
    /// The state depends on a value.
    Context {
        /// The path of the value.
        path: Reference,
        /// Values with their states. The first equal value decides.
        destinations: Vec<(Json, StateIndex)>,
        /// The state if no value is equal.
        default: StateIndex,
    },
    /// The state depends on conditions.
    Condition {
        /// Conditions with their states. The first true condition decides.
        branches: Vec<(Condition, StateIndex)>,
        /// The state if no condition is true.
        default: StateIndex,
    },
}

impl Next {
    /// Every state that it may lead to. A state may be repeated.
    pub fn targets(&self) -> impl Iterator<Item = StateIndex> {
        let (first, rest): (StateIndex, Vec<StateIndex>) = match self {
            Self::Constant(state) => (*state, Vec::new()),
            Self::Context { destinations, default, .. } => {
                (*default, destinations.iter().map(|(_, state)| *state).collect())
            }
            Self::Condition { branches, default } => {
                (*default, branches.iter().map(|(_, state)| *state).collect())
            }
        };
        rest.into_iter().chain([first])
    }
}

/// Limits of a state above which an alert is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alert {
    /// The maximum number of labels in the state.
    pub labels: Option<u64>,
    /// The maximum time that a label may spend in the state.
    pub age: Option<Duration>,
}

/// The maximum stay in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadline {
    /// When the stay ends.
    pub when: DeadlineAt,
    /// The state that labels go to then.
    pub to: StateIndex,
}

/// When a [`Deadline`] expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadlineAt {
    /// This long after the entry.
    After(Duration),
    /// At the time that is stored in the metadata at this path.
    At(Path),
}

impl Deadline {
    /// Where the metadata has its time, if it does.
    pub fn path(&self) -> Option<&Path> {
        match &self.when {
            DeadlineAt::At(path) => Some(path),
            DeadlineAt::After(_) => None,
        }
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.when {
            DeadlineAt::After(span) => write!(f, "deadline {}", super::units(*span)),
            DeadlineAt::At(path) => write!(f, "deadline {path}"),
        }
    }
}
