//! A machine as it was understood: names resolved, conditions compiled, texts with placeholders taken apart.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use jiff::civil;
use serde_json::Value as Json;
use signalbox_condition::{Condition, Reference};

use super::{
    outside::{Feed, HeaderPart, Input, Limit, Webhook, origin},
    template::{Part, Template, Text},
    zone::ZoneRule,
};
use crate::schedule::Schedule;

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
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The zone of a label.
    #[must_use]
    pub fn zone(&self) -> &ZoneRule {
        &self.zone
    }

    /// The hosts whose routes its actions may change: those that it lists, and those that a `route` action names without a
    /// placeholder. A name, `*.example.org` for all names below, or `*`.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        let named = self.states.iter().filter_map(|state| state.action()?.call.constant_host());
        self.hosts.iter().map(|host| &**host).chain(named)
    }

    /// The paths of metadata by whose values labels can be found quickly.
    #[must_use]
    pub fn index(&self) -> &[Path] {
        &self.index
    }

    /// The feeds that its conditions may read.
    #[must_use]
    pub fn feeds(&self) -> &[Feed] {
        &self.feeds
    }

    /// The feed of that name.
    #[must_use]
    pub fn feed(&self, name: &str) -> Option<&Feed> {
        self.feeds.iter().find(|feed| &*feed.name == name)
    }

    /// The topics whose events are facts.
    #[must_use]
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The headers of outgoing calls.
    #[must_use]
    pub fn webhooks(&self) -> &[Webhook] {
        &self.webhooks
    }

    /// The limits of addresses, by their targets.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The limit of this target.
    #[must_use]
    pub fn limit(&self, target: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| &*limit.target == target)
    }

    /// The limit under which attempts of an action are made.
    #[must_use]
    pub fn limit_of(&self, action: &Action) -> Option<&Limit> {
        if self.limits.is_empty() {
            return None;
        }
        self.limit(&action.call.origin()?)
    }

    /// The states in the order of the file. The first is the initial one.
    #[must_use]
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The state of that name.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<&State> {
        self.places.get(name).map(|place| self.at(*place))
    }

    /// The state in which labels begin.
    #[must_use]
    pub fn initial(&self) -> &State {
        // A machine without a state is refused.
        &self.states[0]
    }

    /// The state that a transition leads to.
    #[must_use]
    pub fn at(&self, index: StateIndex) -> &State {
        &self.states[index.0]
    }

    /// A text that [`super::load`] reads as this machine and no other: the file itself if it holds nothing else.
    #[must_use]
    pub fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// The hexadecimal SHA-256 of the machine's content; comments, order of keys and layout do not matter.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The names of the secrets that headers and signatures use, sorted, without repeats.
    #[must_use]
    pub fn secrets(&self) -> Vec<&str> {
        let headers = self.webhooks.iter().flat_map(|webhook| &webhook.headers);
        let parts = headers.flat_map(|header| &header.parts);
        let in_headers = parts.filter_map(|part| match part {
            HeaderPart::Secret(name) => Some(&**name),
            HeaderPart::Text(_) => None,
        });
        let secrets = self.webhooks.iter().filter_map(|webhook| webhook.secret.as_deref());
        let mut names: Vec<&str> = in_headers.chain(secrets).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// The index of a state in its machine. Only valid for the same machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateIndex(pub(crate) usize);

impl StateIndex {
    /// The position in [`Machine::states`].
    #[must_use]
    pub fn position(self) -> usize {
        self.0
    }
}

/// A place where a label can be.
#[derive(Debug, Clone)]
pub struct State {
    pub(super) name: Box<str>,
    pub(super) index: StateIndex,
    pub(super) kind: Kind,
    pub(super) deadline: Option<Deadline>,
    pub(super) alert: Option<Alert>,
    pub(super) keeps: bool,
    /// Its content as canonical text: two definitions have the same state when these are equal.
    pub(super) says: Box<str>,
}

impl State {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place in the machine.
    #[must_use]
    pub fn index(&self) -> StateIndex {
        self.index
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The gate that it is, if it is one that can open.
    #[must_use]
    pub fn gate(&self) -> Option<&Gate> {
        match &self.kind {
            Kind::Gate(gate) => Some(gate),
            Kind::Action(_) | Kind::End => None,
        }
    }

    /// The action that it is, if it is one.
    #[must_use]
    pub fn action(&self) -> Option<&Action> {
        match &self.kind {
            Kind::Action(action) => Some(action),
            Kind::Gate(_) | Kind::End => None,
        }
    }

    /// Whether labels that rest here stay: a gate or an action without `next`.
    #[must_use]
    pub fn ends(&self) -> bool {
        match &self.kind {
            Kind::Gate(_) => false,
            Kind::Action(action) => action.next.is_none(),
            Kind::End => true,
        }
    }

    /// How long labels may stay, if that is limited.
    #[must_use]
    pub fn deadline(&self) -> Option<&Deadline> {
        self.deadline.as_ref()
    }

    /// The limits whose passing is reported, if there are any.
    #[must_use]
    pub fn alert(&self) -> Option<Alert> {
        self.alert
    }

    /// Whether labels that are here when another version is applied stay on their version until they leave the state.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Every state that labels may go to from here, each once, in the order of the file: by its transition, after a failure,
    /// and at its deadline.
    #[must_use]
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

    /// Its successor.
    #[must_use]
    pub fn next(&self) -> Option<&Next> {
        match &self.kind {
            Kind::Gate(gate) => Some(&gate.next),
            Kind::Action(action) => action.next.as_ref(),
            Kind::End => None,
        }
    }

    /// Its content as canonical text: equal states of two definitions have the same text.
    #[must_use]
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
    /// Something is done, once for every visit.
    Action(Action),
    /// A gate without `next`: labels stay.
    End,
}

/// A state that holds labels until a condition is true.
#[derive(Debug, Clone)]
pub struct Gate {
    /// When labels may pass.
    pub condition: Condition,
    /// The triggers of its evaluation, at least one.
    pub triggers: Vec<Trigger>,
    /// Where labels go.
    pub next: Next,
    /// The zone of `system.time`, `date` and `weekday`: that of the time triggers when they agree, else the label's.
    pub zone: ZoneRule,
}

impl Gate {
    /// Whether it is judged as soon as a label enters it.
    #[must_use]
    pub fn on_entry(&self) -> bool {
        self.triggers.iter().any(|trigger| matches!(trigger, Trigger::Entry))
    }

    /// Its triggers at a time that the metadata holds, with their places among all.
    pub fn moments(&self) -> impl Iterator<Item = (usize, &Path)> {
        self.triggers.iter().enumerate().filter_map(|(n, trigger)| match trigger {
            Trigger::At(path) => Some((n, path)),
            _ => None,
        })
    }

    /// Whether anything can trigger an evaluation of a label that is already there: any trigger but the entry.
    #[must_use]
    pub fn looks_again(&self) -> bool {
        self.triggers.iter().any(|trigger| !matches!(trigger, Trigger::Entry))
    }

    /// Whether it has a metadata trigger at all.
    #[must_use]
    pub fn on_metadata(&self) -> bool {
        self.triggers.iter().any(|trigger| matches!(trigger, Trigger::Metadata(_)))
    }

    /// Whether it is judged after an event of that topic.
    #[must_use]
    pub fn on_topic(&self, topic: &str) -> bool {
        self.triggers.iter().any(|trigger| matches!(trigger, Trigger::Topic(name) if &**name == topic))
    }

    /// Its time triggers, with their places among all.
    pub fn daily(&self) -> impl Iterator<Item = (usize, &Daily)> {
        self.triggers.iter().enumerate().filter_map(|(n, trigger)| match trigger {
            Trigger::Time(daily) => Some((n, daily)),
            _ => None,
        })
    }

    /// Its interval triggers, with their places among all.
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
    /// An update that mentions the path.
    Metadata(Path),
    /// A time of day.
    Time(Daily),
    /// So long after the entry, and again and again, in whole seconds.
    Interval(Duration),
    /// The time that the metadata holds at the path.
    At(Path),
    /// The entry itself.
    Entry,
    /// An event of the topic that an input took for the label.
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
    /// By the clock on the wall.
    pub schedule: Schedule,
    /// On whose wall.
    pub zone: ZoneRule,
    /// A missed wake time is made up for when it is no older than this.
    pub grace: Duration,
}

/// A path below `metadata`. Without any key it is all of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path {
    pub(crate) keys: Vec<Box<str>>,
}

impl Path {
    /// The path of these keys.
    #[must_use]
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
    #[must_use]
    pub fn keys(&self) -> &[Box<str>] {
        &self.keys
    }

    /// The value at the path, null if there is none; digits index a list.
    #[must_use]
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

/// Where labels go next.
#[derive(Debug, Clone)]
pub enum Next {
    /// There.
    Constant(StateIndex),
    /// It depends on a value.
    Context {
        /// Which.
        path: Reference,
        /// The first of them whose value equals it.
        destinations: Vec<(Json, StateIndex)>,
        /// If none does.
        default: StateIndex,
    },
    /// It depends on conditions.
    Condition {
        /// The first of them that is true.
        branches: Vec<(Condition, StateIndex)>,
        /// If none is.
        default: StateIndex,
    },
}

impl Next {
    /// Every state that it may lead to; some of them more than once.
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

/// A state that does something.
#[derive(Debug, Clone)]
pub struct Action {
    /// What.
    pub call: Call,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// The handling of a failed attempt.
    pub retry: Retry,
    /// Where labels go afterwards. Nowhere in an end state.
    pub next: Option<Next>,
    /// The parts of the answer that become metadata: where, and which.
    pub result: Vec<(Path, ResultPart)>,
    /// Where labels go when the action failed for good: the first that applies.
    pub on_error: Vec<OnFailure>,
    /// When no attempt begins.
    pub quiet: Option<Quiet>,
    /// The method of a webhook.
    pub method: Method,
    /// The body of a webhook, if it is not label and metadata.
    pub body: Option<Template>,
}

/// The method of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names are those of HTTP")]
pub enum Method {
    #[default]
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Post, Self::Put, Self::Patch, Self::Delete];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// A part of a webhook's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultPart {
    /// The HTTP status.
    Status,
    /// The value at this path of the JSON body; all of it for a path without keys.
    Body(Path),
}

/// Where labels go when their action failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnFailure {
    /// For which failures; for all if there are none.
    pub failures: Vec<Failure>,
    /// Where they go.
    pub to: StateIndex,
    /// Where the metadata gets `{"status", "error", "attempts"}`.
    pub into: Option<Path>,
}

/// A kind of failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// This status.
    Status(u16),
    /// The statuses of a class: 4 for `4xx`.
    Class(u16),
    /// No answer, or none in time.
    NoAnswer,
    /// The action cannot be made: a value is missing, or the change was rejected.
    Invalid,
}

/// The limits of a state whose passing is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alert {
    /// How many labels may be in it.
    pub labels: Option<u64>,
    /// For how long a label may be in it.
    pub age: Option<Duration>,
}

/// How long labels may stay in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadline {
    /// When it is over.
    pub when: DeadlineAt,
    /// Where they go then.
    pub to: StateIndex,
}

/// When a [`Deadline`] is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadlineAt {
    /// So long after the entry.
    After(Duration),
    /// At the time that the metadata holds there.
    At(Path),
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.when {
            DeadlineAt::After(span) => write!(f, "deadline {}", super::units(*span)),
            DeadlineAt::At(path) => write!(f, "deadline {path}"),
        }
    }
}

/// The call of an action.
#[derive(Debug, Clone)]
pub enum Call {
    /// POST to an address.
    Webhook(Text),
    /// Change the route table: `{host, shares?, register?, retire?}` with placeholders.
    Route(Template),
    /// Publish an event: `{topic, type, url, data}` with placeholders; `type` is always there.
    Publish(Template),
}

impl Call {
    /// Scheme, host and port of a webhook. Placeholders cannot change them.
    pub(super) fn origin(&self) -> Option<String> {
        match self {
            Self::Webhook(text) => match text.parts().first()? {
                Part::Literal(beginning) => origin(beginning),
                _ => None,
            },
            Self::Route(_) | Self::Publish(_) => None,
        }
    }

    /// The host of a `route` action, if nothing is to be filled in.
    pub(super) fn constant_host(&self) -> Option<&str> {
        match self {
            Self::Route(template) => match template.get("host")? {
                Template::Text(text) => text.constant(),
                _ => None,
            },
            Self::Webhook(_) | Self::Publish(_) => None,
        }
    }
}

/// A time of day in which no attempt of an action begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Quiet {
    /// Its beginning, by the clock on the wall.
    pub from: civil::Time,
    /// Its end, on the next day if it is not after the beginning.
    pub to: civil::Time,
    /// On whose wall.
    pub zone: ZoneRule,
}

/// How often an action is tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// In all.
    pub attempts: u32,
    /// The longest wait after the first failure.
    pub first: Duration,
    /// By what the longest wait grows.
    pub factor: f64,
    /// Its maximum.
    pub longest: Duration,
    /// Failures that are not tried again.
    pub except: Vec<Failure>,
}

impl Default for Retry {
    fn default() -> Self {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(600));
        Self { attempts: 20, first, factor: 2.0, longest, except: Vec::new() }
    }
}
