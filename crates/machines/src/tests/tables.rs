//! Random machines, and a naive reference machine that walks the same table and shares no code with the product.

use std::{collections::BTreeMap, fmt::Write as _};

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
    /// Calls a webhook; the next state may depend on a feed.
    Action {
        by_feed: Option<usize>,
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

    fn yaml(&self) -> String {
        match self.by {
            None => format!("s{}", self.otherwise),
            Some((key, value, to)) => format!(
                "{{type: context, path: metadata.{}, destinations: [{{value: {value}, state: s{to}}}], default: s{}}}",
                KEYS[key], self.otherwise
            ),
        }
    }
}

impl State {
    fn random(random: &mut StdRng, states: usize) -> Self {
        let next = Where::random(random, states);
        let (key, value) = (random.random_range(0..3), random.random_range(0..3));
        match random.random_range(0..13) {
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
            _ => Self::End,
        }
    }

    fn targets(&mut self) -> Vec<&mut usize> {
        match self {
            Self::Gate { next, .. }
            | Self::Timer { next, .. }
            | Self::Daily { next, .. }
            | Self::Feed { next } => next.targets(),
            Self::Action { by_feed, next } => by_feed.iter_mut().chain(next.targets()).collect(),
            Self::End => Vec::new(),
        }
    }

    fn yaml(&self, n: usize, outside: &str) -> String {
        match self {
            Self::End => format!("{{gate: s{n}}}"),
            Self::Gate { key, value, also, entry, next } => {
                let entry = if *entry { ", {event: entry}" } else { "" };
                let other =
                    if also == key { String::new() } else { format!(", {{metadata: {}}}", KEYS[*also]) };
                let key = KEYS[*key];
                format!(
                    "{{gate: s{n}, exit_condition: metadata.{key} = {value}, triggers: [{{metadata: {key}}}{other}{entry}], next: {}}}",
                    next.yaml()
                )
            }
            Self::Timer { seconds, every, next } => format!(
                "{{gate: s{n}, exit_condition: {seconds}s has passed since system.entered_state, triggers: [{{interval: {every}s}}], next: {}}}",
                next.yaml()
            ),
            Self::Daily { key, value, hour, own_zone, next } => {
                let zone = if *own_zone { ", timezone: metadata.zone" } else { "" };
                format!(
                    "{{gate: s{n}, exit_condition: metadata.{} = {value}, triggers: [{{time: {hour}h30m{zone}}}, {{metadata: never}}], next: {}}}",
                    KEYS[*key],
                    next.yaml()
                )
            }
            Self::Feed { next } => format!(
                "{{gate: s{n}, exit_condition: feeds.f.open, triggers: [{{event: entry}}, {{interval: 1h}}], next: {}}}",
                next.yaml()
            ),
            Self::Action { by_feed, next } => {
                let next = match by_feed {
                    Some(to) => {
                        let default = next.otherwise;
                        format!(
                            "{{type: context, path: feeds.f.way, destinations: [{{value: 1, state: s{to}}}], default: s{default}}}"
                        )
                    }
                    None => next.yaml(),
                };
                format!(
                    "{{action: s{n}, webhook: '{outside}/act/<label>', retry: {{attempts: 4, first: 1s, factor: 2, longest: 5s}}, next: {next}}}"
                )
            }
        }
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

pub(super) fn definition(states: &[State], outside: &str) -> String {
    let mut text = format!(
        "state_machines:\n  m:\n    feeds: [{{name: f, url: '{outside}/feed/<label>'}}]\n    states:\n"
    );
    for (n, state) in states.iter().enumerate() {
        let _written = writeln!(text, "      - {}", state.yaml(n, outside));
    }
    text
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

/// A label that is moved by hand, and never waits: time passes until nothing happens any more.
#[derive(Debug, Clone)]
pub(super) struct Naive<'a> {
    states: &'a [State],
    /// The answer of the feed.
    pub(super) way: bool,
    facts: Facts,
    pub(super) path: Vec<usize>,
    left: usize,
}

impl<'a> Naive<'a> {
    pub(super) fn new(states: &'a [State], facts: &Facts, way: bool) -> Self {
        let mut naive = Self { states, way, facts: facts.clone(), path: vec![0], left: MAX_MOVES };
        naive.enter();
        naive
    }

    /// Whether it moves too often without a rest, now or after these updates.
    pub(super) fn gets_lost<'u>(mut self, updates: impl IntoIterator<Item = &'u Facts>) -> bool {
        let mut updates = updates.into_iter();
        while self.left > 0 {
            let Some(update) = updates.next() else { return false };
            self.send_update(update);
        }
        true
    }

    fn at(&self) -> &'a State {
        &self.states[self.path[self.path.len() - 1]]
    }

    fn go(&mut self, to: usize) {
        if self.left > 0 {
            self.left -= 1;
            self.path.push(to);
            self.enter();
        }
    }

    fn enter(&mut self) {
        match self.at() {
            State::Gate { entry: true, .. } => self.look(),
            State::Timer { next, .. } | State::Feed { next } => self.go(next.goes(&self.facts)),
            State::Daily { key, value, next, .. } if self.facts.get(key) == Some(value) => {
                self.go(next.goes(&self.facts));
            }
            State::Action { by_feed, next } => match by_feed {
                Some(to) if self.way => self.go(*to),
                Some(_) => self.go(next.otherwise),
                None => self.go(next.goes(&self.facts)),
            },
            _ => {}
        }
    }

    fn look(&mut self) {
        if let State::Gate { key, value, next, .. } = self.at()
            && self.facts.get(key) == Some(value)
        {
            self.go(next.goes(&self.facts));
        }
    }

    pub(super) fn send_update(&mut self, facts: &Facts) {
        self.left = MAX_MOVES;
        self.facts.extend(facts);
        match self.at() {
            State::Gate { key, also, .. } if facts.keys().any(|told| told == key || told == also) => {
                self.look()
            }
            // Its time of day returns.
            State::Daily { .. } => self.enter(),
            _ => {}
        }
    }

    pub(super) fn metadata(&self) -> Value {
        as_metadata(&self.facts)
    }

    /// The visits that are actions.
    pub(super) fn acts(&self) -> impl Iterator<Item = (u64, usize)> {
        let visits = self.path.iter().enumerate();
        visits
            .filter(|(_, state)| matches!(self.states[**state], State::Action { .. }))
            .map(|(place, state)| (place as u64 + 1, *state))
    }
}
