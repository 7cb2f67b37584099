//! Random machines, and a naive reference machine that walks the same table and shares no code with the product.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use rand::{RngExt as _, rngs::StdRng};
use serde_json::{Map, Value, json};

pub(super) const KEYS: [&str; 3] = ["x", "y", "z"];
/// Zones that labels may name.
pub(super) const ZONES: [&str; 3] = ["Asia/Tokyo", "Europe/London", "America/New_York"];
/// Maximum number of transitions without a rest. Another test covers loops.
const MAX_MOVES: usize = 18;

/// Facts, by the number of their key.
pub(super) type Facts = BTreeMap<usize, u8>;

#[derive(Debug, Clone)]
pub(super) enum State {
    /// Opens by a metadata value; is evaluated on an update of that or another key, or on entry.
    Gate {
        key: usize,
        value: u8,
        also: usize,
        entry: bool,
        next: Where,
    },
    /// Opens this many seconds after the entry; is evaluated at this interval.
    Timer {
        seconds: u64,
        every: u64,
        next: Where,
    },
    /// Opens by a metadata value; is evaluated at a time of day in a zone that the label can name.
    Daily {
        key: usize,
        value: u8,
        hour: u8,
        own_zone: bool,
        next: Where,
    },
    /// Opens by the answer of a feed.
    Feed {
        next: Where,
    },
    /// Opens at the time that the metadata holds.
    At {
        next: Where,
    },
    /// Opens by a metadata value that is there when the label arrives with an update; otherwise its deadline comes.
    Limited {
        key: usize,
        value: u8,
        seconds: u64,
        late: usize,
        next: Where,
    },
    /// Calls a webhook; the next state may depend on a feed.
    Action {
        by_feed: Option<usize>,
        next: Where,
    },
    /// Calls a webhook, and stores a part of its answer.
    Result {
        key: usize,
        value: u8,
        next: Where,
    },
    /// Calls a webhook that always refuses; the failure leads to another state, and may be stored.
    Refused {
        stored: bool,
        failed: usize,
        next: Where,
    },
    /// Calls a webhook that never succeeds, until its deadline.
    Hopeless {
        seconds: u64,
        late: usize,
        next: Where,
    },
    End,
}

/// Where a label goes: by the value of a key, or there.
#[derive(Debug, Clone)]
pub(super) struct Where {
    by: Option<(usize, u8, usize)>,
    otherwise: usize,
}

impl Where {
    fn random(random: &mut StdRng, states: usize) -> Self {
        let by = random
            .random_bool(0.4)
            .then(|| (random.random_range(0..3), random.random_range(0..3), random.random_range(0..states)));
        Self { by, otherwise: random.random_range(0..states) }
    }

    fn goes(&self, facts: &Facts) -> usize {
        match self.by {
            Some((key, value, to)) if facts.get(&key) == Some(&value) => to,
            _ => self.otherwise,
        }
    }

    fn yaml(&self, names: &Names) -> String {
        match self.by {
            None => names.of(self.otherwise),
            Some((key, value, to)) => format!(
                "{{type: context, path: metadata.{}, destinations: [{{value: {value}, state: {}}}], default: {}}}",
                KEYS[key],
                names.of(to),
                names.of(self.otherwise)
            ),
        }
    }
}

impl State {
    fn random(random: &mut StdRng, states: usize) -> Self {
        let next = Where::random(random, states);
        let (key, value) = (random.random_range(0..3), random.random_range(0..3));
        let (seconds, other) = (random.random_range(5..90), random.random_range(0..states));
        match random.random_range(0..18) {
            0..=4 => Self::Gate {
                key,
                value,
                also: random.random_range(0..3),
                entry: random.random_bool(0.5),
                next,
            },
            5 => Self::Timer { seconds: random.random_range(1..90), every: random.random_range(1..40), next },
            6 => {
                let (hour, own_zone) = (random.random_range(0..24), random.random_bool(0.5));
                Self::Daily { key, value, hour, own_zone, next }
            }
            7 => Self::Feed { next },
            8..=10 => {
                let by_feed = random.random_bool(0.3).then(|| random.random_range(0..states));
                Self::Action { by_feed, next }
            }
            11 => Self::At { next },
            12 => Self::Limited { key, value, seconds, late: other, next },
            13 | 14 => Self::Result { key, value, next },
            15 => Self::Refused { stored: random.random_bool(0.5), failed: other, next },
            16 => Self::Hopeless { seconds, late: other, next },
            _ => Self::End,
        }
    }

    fn targets(&mut self) -> Vec<&mut usize> {
        match self {
            Self::Gate { next, .. }
            | Self::Timer { next, .. }
            | Self::Daily { next, .. }
            | Self::Feed { next }
            | Self::At { next }
            | Self::Result { next, .. } => next.targets(),
            Self::Limited { late: other, next, .. }
            | Self::Refused { failed: other, next, .. }
            | Self::Hopeless { late: other, next, .. } => [other].into_iter().chain(next.targets()).collect(),
            Self::Action { by_feed, next } => by_feed.iter_mut().chain(next.targets()).collect(),
            Self::End => Vec::new(),
        }
    }

    fn yaml(&self, n: usize, outside: &str, names: &Names) -> String {
        let name = names.of(n);
        let to = |next: &Where| next.yaml(names);
        match self {
            Self::End => format!("{{gate: {name}}}"),
            Self::Gate { key, value, also, entry, next } => {
                let entry = if *entry { ", {event: entry}" } else { "" };
                let other =
                    if also == key { String::new() } else { format!(", {{metadata: {}}}", KEYS[*also]) };
                let key = KEYS[*key];
                format!(
                    "{{gate: {name}, exit_condition: metadata.{key} = {value}, triggers: [{{metadata: {key}}}{other}{entry}], next: {}}}",
                    to(next)
                )
            }
            Self::Timer { seconds, every, next } => format!(
                "{{gate: {name}, exit_condition: {seconds}s has passed since system.entered_state, triggers: [{{interval: {every}s}}], next: {}}}",
                to(next)
            ),
            Self::Daily { key, value, hour, own_zone, next } => {
                let zone = if *own_zone { ", timezone: metadata.zone" } else { "" };
                format!(
                    "{{gate: {name}, exit_condition: metadata.{} = {value}, triggers: [{{time: {hour}h30m{zone}}}, {{metadata: never}}], next: {}}}",
                    KEYS[*key],
                    to(next)
                )
            }
            Self::Feed { next } => format!(
                "{{gate: {name}, exit_condition: feeds.f.open, triggers: [{{event: entry}}, {{interval: 1h}}], next: {}}}",
                to(next)
            ),
            Self::At { next } => format!(
                "{{gate: {name}, exit_condition: system.now >= metadata.due, triggers: [{{at: metadata.due}}], next: {}}}",
                to(next)
            ),
            Self::Limited { key, value, seconds, late, next } => format!(
                "{{gate: {name}, exit_condition: metadata.{key} = {value}, triggers: [{{metadata: {key}}}], deadline: {{after: {seconds}s, next: {}}}, next: {}}}",
                names.of(*late),
                to(next),
                key = KEYS[*key]
            ),
            Self::Action { by_feed, next } => {
                let next = match by_feed {
                    Some(left) => format!(
                        "{{type: context, path: feeds.f.way, destinations: [{{value: 1, state: {}}}], default: {}}}",
                        names.of(*left),
                        names.of(next.otherwise)
                    ),
                    None => to(next),
                };
                format!("{{action: {name}, webhook: '{outside}/act/<label>', {RETRY}}}, next: {next}}}")
            }
            Self::Result { key, value, next } => format!(
                "{{action: {name}, webhook: '{outside}/give/{value}/<label>', {RETRY}}}, result: {{metadata.{}: response.value}}, next: {}}}",
                KEYS[*key],
                to(next)
            ),
            Self::Refused { stored, failed, next } => {
                let into = if *stored { ", into: metadata.failure" } else { "" };
                format!(
                    "{{action: {name}, webhook: '{outside}/refuse/<label>', {RETRY}, except: [422]}}, on_error: [{{status: 422, next: {}{into}}}], next: {}}}",
                    names.of(*failed),
                    to(next)
                )
            }
            Self::Hopeless { seconds, late, next } => format!(
                "{{action: {name}, webhook: '{outside}/never/<label>', retry: {{attempts: 1000, first: 1s, factor: 1, longest: 5s}}, deadline: {{after: {seconds}s, next: {}}}, next: {}}}",
                names.of(*late),
                to(next)
            ),
        }
    }
}

/// The retries of an action, without the closing brace.
const RETRY: &str = "retry: {attempts: 4, first: 1s, factor: 2, longest: 5s";

/// The names of states in a version of the definition: some have another name than in the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Names(pub(super) BTreeSet<usize>);

impl Names {
    pub(super) fn of(&self, state: usize) -> String {
        if self.0.contains(&state) { format!("t{state}") } else { format!("s{state}") }
    }

    /// By the name of each state in these that is not in `next`, the name there. Labels of states that keep their version stay.
    pub(super) fn map(&self, next: &Self, kept: &BTreeSet<usize>) -> BTreeMap<String, String> {
        let renamed = self.0.symmetric_difference(&next.0).filter(|state| !kept.contains(state));
        renamed.map(|state| (self.of(*state), next.of(*state))).collect()
    }
}

impl Where {
    fn targets(&mut self) -> Vec<&mut usize> {
        self.by.iter_mut().map(|(_, _, to)| to).chain([&mut self.otherwise]).collect()
    }
}

/// Removes unreachable states, which a definition must not have; the others keep their order.
fn reachable(mut states: Vec<State>) -> Vec<State> {
    let (mut reached, mut ahead) = (vec![false; states.len()], vec![0]);
    while let Some(n) = ahead.pop() {
        if !std::mem::replace(&mut reached[n], true) {
            // Of an action that goes by a feed, the facts that it does not go by lead nowhere.
            if let State::Action { by_feed: Some(_), next } = &mut states[n] {
                next.by = None;
            }
            ahead.extend(states[n].targets().into_iter().map(|to| *to));
        }
    }
    let renamed: Vec<usize> =
        (0..states.len()).map(|n| reached[..n].iter().filter(|reached| **reached).count()).collect();
    let mut kept: Vec<State> =
        states.into_iter().zip(&reached).filter(|(_, reached)| **reached).map(|(state, _)| state).collect();
    kept.iter_mut().flat_map(State::targets).for_each(|to| *to = renamed[*to]);
    kept
}

pub(super) fn random(random: &mut StdRng) -> Vec<State> {
    let count = random.random_range(3..8);
    reachable((0..count).map(|_| State::random(random, count)).collect())
}

/// A random machine.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) states: Vec<State>,
    /// States whose labels stay on their version until they leave.
    pub(super) kept: BTreeSet<usize>,
    /// How many attempts may be in progress, and how many may begin in [`PERIOD_MS`].
    pub(super) limit: Option<(usize, usize)>,
}

/// The period of a limit.
pub(super) const PERIOD_MS: u64 = 3_000;

impl Table {
    pub(super) fn random(random: &mut StdRng) -> Self {
        let states = self::random(random);
        let ends = |n: &usize| matches!(states[*n], State::End);
        let kept = (0..states.len()).filter(|n| random.random_bool(0.3) && !ends(n)).collect();
        let calls = |state: &State| {
            use State::{Action, Hopeless, Refused, Result};
            matches!(state, Action { .. } | Result { .. } | Refused { .. } | Hopeless { .. })
        };
        let limit = (random.random_bool(0.5) && states.iter().any(calls))
            .then(|| (random.random_range(1..3), random.random_range(1..4)));
        Self { states, kept, limit }
    }

    pub(super) fn definition(&self, outside: &str, names: &Names) -> String {
        let mut text = String::from("state_machines:\n  m:\n");
        if let Some((concurrent, rate)) = self.limit {
            let per = PERIOD_MS / 1_000;
            let _written = writeln!(
                text,
                "    limits: {{'{outside}': {{rate: {rate}, per: {per}s, concurrent: {concurrent}}}}}"
            );
        }
        let _written = writeln!(text, "    feeds: [{{name: f, url: '{outside}/feed/<label>'}}]\n    states:");
        for (n, state) in self.states.iter().enumerate() {
            let mut line = state.yaml(n, outside, names);
            if self.kept.contains(&n) {
                line.insert_str(line.len() - 1, ", on_apply: keep");
            }
            let _written = writeln!(text, "      - {line}");
        }
        text
    }
}

/// Some of the facts that there can be.
pub(super) fn facts(random: &mut StdRng, most: usize) -> Facts {
    let count = random.random_range(0..most);
    (0..count).map(|_| (random.random_range(0..3), random.random_range(0..3))).collect()
}

/// The metadata of an update.
pub(super) fn as_metadata(facts: &Facts) -> Value {
    Value::Object(
        facts.iter().map(|(key, value)| (KEYS[*key].to_owned(), json!(value))).collect::<Map<_, _>>(),
    )
}

/// What happens to all labels between two rests.
#[derive(Debug, Clone)]
pub(super) enum Round {
    /// Each label receives its update, if there is one.
    Updates(Vec<Option<Facts>>),
    /// A task updates all labels.
    Task(Facts),
    /// All labels are suspended, updated, and resumed, by tasks.
    Suspended(Facts),
    /// As updates, but all labels are suspended while they follow, and resumed when nothing happens any more.
    Interrupted(Vec<Option<Facts>>),
    /// Another version of the definition, with these names of states.
    Version(Names),
}

/// The rounds of one seed.
pub(super) fn rounds(random: &mut StdRng, states: usize, labels: usize) -> Vec<Round> {
    let each = |random: &mut StdRng| {
        let one = |random: &mut StdRng| random.random_bool(0.8).then(|| facts(random, 3));
        (0..labels).map(|_| one(random)).collect()
    };
    let updates = |random: &mut StdRng| Round::Updates(each(random));
    let mut rounds: Vec<Round> = (0..random.random_range(0..4)).map(|_| updates(random)).collect();
    if random.random_bool(0.5) {
        rounds.push(Round::Task(facts(random, 3)));
    }
    if random.random_bool(0.3) {
        rounds.push(Round::Suspended(facts(random, 3)));
    }
    if random.random_bool(0.5) {
        rounds.push(Round::Interrupted(each(random)));
    }
    if random.random_bool(0.5) {
        let renamed = (0..states).filter(|_| random.random_bool(0.4)).collect();
        rounds.push(Round::Version(Names(renamed)));
        rounds.push(updates(random));
        // Back to the definition of before.
        rounds.push(Round::Version(Names::default()));
        rounds.push(updates(random));
    }
    rounds
}

/// A label that is moved by hand, and never waits: time passes until nothing happens any more.
#[derive(Debug, Clone)]
pub(super) struct Naive<'a> {
    states: &'a [State],
    kept: &'a BTreeSet<usize>,
    /// The answer of the feed.
    pub(super) way: bool,
    /// Whether its metadata holds the time of gates that open at one.
    pub(super) due: bool,
    /// What its metadata was when it was created.
    pub(super) first: Facts,
    facts: Facts,
    /// Whether an update came that no gate has evaluated.
    pending: bool,
    /// Whether a failure is stored in its metadata.
    pub(super) failed: bool,
    /// The names of the version that it is on.
    names: Names,
    /// The names of the active version.
    active: Names,
    at: usize,
    /// The states that it entered, and their names at that time.
    pub(super) path: Vec<(usize, String)>,
    left: usize,
}

impl<'a> Naive<'a> {
    pub(super) fn new(table: &'a Table, facts: &Facts, way: bool, due: bool) -> Self {
        let mut naive = Self {
            states: &table.states,
            kept: &table.kept,
            way,
            due,
            first: facts.clone(),
            facts: facts.clone(),
            pending: false,
            failed: false,
            names: Names::default(),
            active: Names::default(),
            at: 0,
            path: Vec::new(),
            left: MAX_MOVES,
        };
        naive.path.push((0, naive.names.of(0)));
        naive.enter();
        naive
    }

    /// Whether it moves too often without a rest, now or in these rounds.
    pub(super) fn gets_lost(mut self, label: usize, rounds: &[Round]) -> bool {
        rounds.iter().any(|round| {
            let lost = self.left == 0;
            self.round(label, round);
            lost
        }) || self.left == 0
    }

    /// What a round does to the label with this number.
    pub(super) fn round(&mut self, label: usize, round: &Round) {
        self.left = MAX_MOVES;
        match round {
            Round::Updates(updates) | Round::Interrupted(updates) => {
                if let Some(update) = &updates[label] {
                    self.send_update(update);
                }
            }
            Round::Task(update) => self.send_update(update),
            Round::Suspended(update) => {
                self.facts.extend(update);
                self.look_if_informed();
            }
            Round::Version(names) => self.change(names),
        }
    }

    fn go(&mut self, to: usize) {
        if self.left > 0 {
            self.left -= 1;
            self.at = to;
            if !self.stays() {
                self.names = self.active.clone();
            }
            self.path.push((to, self.names.of(to)));
            self.enter();
        }
    }

    /// Whether it stays on its version where it is: the state keeps it there, or the active version does not have the state.
    fn stays(&self) -> bool {
        self.kept.contains(&self.at) || self.active.of(self.at) != self.names.of(self.at)
    }

    fn enter(&mut self) {
        let is_gate = !matches!(
            self.states[self.at],
            State::Action { .. }
                | State::Result { .. }
                | State::Refused { .. }
                | State::Hopeless { .. }
                | State::End
        );
        let informed = is_gate && std::mem::take(&mut self.pending);
        match &self.states[self.at] {
            State::Gate { entry, .. } if *entry || informed => self.look(),
            State::Timer { next, .. } | State::Feed { next } => self.go(next.goes(&self.facts)),
            State::At { next } if self.due => self.go(next.goes(&self.facts)),
            State::Daily { key, value, next, .. } if self.facts.get(key) == Some(value) => {
                self.go(next.goes(&self.facts));
            }
            State::Limited { key, value, next, .. } if informed && self.facts.get(key) == Some(value) => {
                self.go(next.goes(&self.facts));
            }
            State::Limited { late, .. } | State::Hopeless { late, .. } => self.go(*late),
            State::Action { by_feed, next } => match by_feed {
                Some(to) if self.way => self.go(*to),
                Some(_) => self.go(next.otherwise),
                None => self.go(next.goes(&self.facts)),
            },
            State::Result { key, value, next } => {
                self.facts.insert(*key, *value);
                self.pending = true;
                self.go(next.goes(&self.facts));
            }
            State::Refused { stored, failed, .. } => {
                self.pending |= stored;
                self.failed |= stored;
                self.go(*failed);
            }
            _ => {}
        }
    }

    fn look(&mut self) {
        if let State::Gate { key, value, next, .. } = &self.states[self.at]
            && self.facts.get(key) == Some(value)
        {
            self.go(next.goes(&self.facts));
        }
    }

    fn send_update(&mut self, facts: &Facts) {
        self.facts.extend(facts);
        match &self.states[self.at] {
            State::Gate { key, also, .. }
                if facts.keys().any(|updated| updated == key || updated == also) =>
            {
                self.look()
            }
            // Its time of day returns.
            State::Daily { .. } => self.enter(),
            _ => {}
        }
    }

    /// The gate is evaluated if updates of metadata concern it.
    fn look_if_informed(&mut self) {
        match &self.states[self.at] {
            State::Gate { .. } => self.look(),
            State::Daily { .. } => self.enter(),
            _ => {}
        }
    }

    /// Another version: a label in a state that has another name there moves; a gate with another text is evaluated.
    fn change(&mut self, names: &Names) {
        let was_active = self.names == self.active;
        self.active = names.clone();
        if self.kept.contains(&self.at) || !was_active {
            if !self.stays() {
                self.names = names.clone();
                self.look_if_informed();
            }
            return;
        }
        let before = std::mem::replace(&mut self.names, names.clone());
        let state = &self.states[self.at];
        if before.of(self.at) != names.of(self.at) {
            self.path.push((self.at, names.of(self.at)));
            self.pending |= !matches!(state, State::End);
            self.enter();
        } else if state.yaml(self.at, "", &before) != state.yaml(self.at, "", names) {
            self.look_if_informed();
        }
    }

    pub(super) fn metadata(&self) -> Value {
        as_metadata(&self.facts)
    }

    /// The visits that are actions, with the names of their states, and whether an attempt is certain.
    pub(super) fn acts(&self) -> impl Iterator<Item = (u64, &str, bool)> {
        self.path.iter().enumerate().filter_map(|(place, (state, name))| {
            let certain = match self.states[*state] {
                State::Action { .. } | State::Result { .. } | State::Refused { .. } => true,
                State::Hopeless { .. } => false,
                _ => return None,
            };
            Some((place as u64 + 1, &**name, certain))
        })
    }
}
