//! Random machines with all features of definitions, and random definitions that could replace them.

use std::fmt::Write as _;

use rand::{RngExt as _, rngs::StdRng};
use serde_json::{Map, Value, json};

const KEYS: [&str; 4] = ["x", "y", "z", "wait"];
const ZONES: [&str; 4] = ["Asia/Tokyo", "Europe/London", "America/New_York", "Mars/Olympus"];

/// A definition. Every gate is also evaluated on updates of `look`, and states follow one another, so that each is reached.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    zone: &'static str,
    pub(super) states: Vec<State>,
}

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) name: String,
    kind: Kind,
    /// In addition to the state after it.
    next: Next,
}

#[derive(Debug, Clone)]
enum Kind {
    Gate { condition: String, triggers: Vec<String> },
    Webhook { of: String, attempts: u32, quiet: String },
    Publish,
}

#[derive(Debug, Clone)]
enum Next {
    On,
    Value { key: &'static str, value: u8, to: usize },
    When { condition: String, to: usize },
}

fn pick<T: Copy>(random: &mut StdRng, of: &[T]) -> T {
    of[random.random_range(0..of.len())]
}

/// A test, and whether it depends on a clock or a feed.
fn leaf(random: &mut StdRng, keys: &mut Vec<&'static str>) -> (String, bool) {
    let fact = match random.random_range(0..12) {
        0..6 => keys.pop(),
        _ => None,
    };
    if let Some(key) = fact {
        let value = random.random_range(0..3);
        let compared = pick(random, &["=", "=", "/=", ">", "<"]);
        return (format!("metadata.{key} {compared} {value}"), false);
    }
    let seconds = random.random_range(1..100);
    let hour = random.random_range(0..24);
    let updated = match random.random_range(0..9) {
        0..3 => format!("{seconds}s has passed since system.entered_state"),
        3 => "metadata.wait has passed since system.entered_state".to_owned(),
        4 => format!("system.time {} {hour}:30", pick(random, &["<", ">="])),
        5 => "feeds.held.open".to_owned(),
        6 => format!("feeds.stood_in_for.n > {}", random.random_range(0..3)),
        7 => "system.weekday /= 'friday'".to_owned(),
        _ => "history.previous_state = 's1'".to_owned(),
    };
    (updated, true)
}

/// A condition, and whether a part of it depends on a clock or a feed.
fn condition(random: &mut StdRng) -> (String, bool) {
    let mut keys = vec!["x", "y", "z"];
    let (mut tests, mut open) = (Vec::new(), false);
    for _ in 0..random.random_range(1..4) {
        let (test, by_itself) = leaf(random, &mut keys);
        open |= by_itself;
        let not = if random.random_bool(0.2) { "not " } else { "" };
        tests.push(format!("{not}{test}"));
    }
    let text = match (tests.len(), random.random_range(0..3)) {
        (3, 0) => format!("{} and ({} or {})", tests[0], tests[1], tests[2]),
        (3, 1) => format!("{} or ({} and {})", tests[0], tests[1], tests[2]),
        (_, 2) => tests.join(" or "),
        _ => tests.join(" and "),
    };
    (text, open)
}

impl State {
    fn random(random: &mut StdRng, name: String, states: usize) -> Self {
        let kind = match random.random_range(0..10) {
            0..2 => {
                // A label without `y` has no URL.
                let of = if random.random_bool(0.2) { "<metadata.y>" } else { "<label>" }.to_owned();
                let attempts = random.random_range(1..4);
                // A random pause before a retry may end before or in the quiet hours.
                let is_quiet = attempts == 1 && random.random_bool(0.4);
                let (from, hours) = (random.random_range(0..24), random.random_range(1..20));
                let zone = pick(random, &["", ", timezone: Asia/Tokyo", ", timezone: metadata.zone"]);
                let quiet = format!(", quiet: {{from: {from}h20m, to: {}h{zone}}}", (from + hours) % 24);
                Kind::Webhook { of, attempts, quiet: if is_quiet { quiet } else { String::new() } }
            }
            2 => Kind::Publish,
            _ => {
                let (condition, by_itself) = condition(random);
                let mut triggers = vec!["{metadata: look}".to_owned()];
                for key in KEYS {
                    if condition.contains(&format!("metadata.{key}")) && random.random_bool(0.7) {
                        triggers.push(format!("{{metadata: {key}}}"));
                    }
                }
                if random.random_bool(0.4) {
                    triggers.push("{event: entry}".to_owned());
                }
                // A feed is asked at each of them.
                let asks = condition.contains("feeds.");
                let every = if asks { "17m" } else { pick(random, &["7s", "31s", "61s", "11m", "3601s"]) };
                if random.random_bool(if by_itself { 0.6 } else { 0.1 }) {
                    triggers.push(format!("{{interval: {every}}}"));
                }
                if random.random_bool(if by_itself { 0.5 } else { 0.1 }) {
                    let zone = pick(random, &["", ", timezone: Asia/Tokyo", ", timezone: metadata.zone"]);
                    let hour = random.random_range(0..24);
                    triggers.push(match random.random_range(0..6) {
                        0 => format!("{{time: {hour}h30m, days: [monday, thursday, saturday]{zone}}}"),
                        1 => format!("{{time: {hour}h30m, days: [1, 9, 10, 11, 12, last]{zone}}}"),
                        2 => format!("{{cron: \"*/20 {hour} * * mon-fri\"{zone}}}"),
                        3 => format!("{{cron: \"7 */6 10-20 * *\"{zone}}}"),
                        _ => format!("{{time: {hour}h30m{zone}}}"),
                    });
                }
                Kind::Gate { condition, triggers }
            }
        };
        let to = random.random_range(0..states);
        let next = match random.random_range(0..6) {
            0 => Next::Value { key: pick(random, &KEYS), value: random.random_range(0..3), to },
            1 => Next::When { condition: condition(random).0, to },
            _ => Next::On,
        };
        Self { name, kind, next }
    }

    pub(super) fn is_webhook(&self) -> bool {
        matches!(self.kind, Kind::Webhook { .. })
    }

    fn yaml(&self, shape: &Shape, on: &str, outside: &str) -> String {
        let next = match &self.next {
            Next::On => on.to_owned(),
            Next::Value { key, value, to } => format!(
                "{{type: context, path: metadata.{key}, destinations: [{{value: {value}, state: {}}}], default: {on}}}",
                shape.name(*to)
            ),
            Next::When { condition, to } => format!(
                "{{type: condition, branches: [{{when: \"{condition}\", state: {}}}], default: {on}}}",
                shape.name(*to)
            ),
        };
        let name = &self.name;
        match &self.kind {
            Kind::Gate { condition, triggers } => format!(
                "{{gate: {name}, exit_condition: \"{condition}\", triggers: [{}], next: {next}}}",
                triggers.join(", ")
            ),
            Kind::Webhook { of, attempts, quiet } => format!(
                "{{action: {name}, webhook: '{outside}/act/{name}/{of}'{quiet}, retry: {{attempts: {attempts}, first: 1s, factor: 1, longest: 1s}}, next: {next}}}"
            ),
            Kind::Publish => format!(
                "{{action: {name}, publish: {{topic: updated, url: 'https://shop.test/<label>'}}, next: {next}}}"
            ),
        }
    }
}

impl Shape {
    pub(super) fn random(random: &mut StdRng) -> Self {
        let count = random.random_range(2..6);
        let states = (0..count).map(|n| State::random(random, format!("s{n}"), count + 1)).collect();
        Self { zone: pick(random, &["Europe/London", "{metadata: zone, default: Asia/Tokyo}"]), states }
    }

    fn name(&self, place: usize) -> &str {
        self.states.get(place).map_or("end", |state| &state.name)
    }

    pub(super) fn yaml(&self, outside: &str) -> String {
        let mut text = format!(
            "state_machines:\n  m:\n    timezone: {}\n    feeds:\n      - {{name: held, url: '{outside}/feed/held/<label>'}}\n      \
             - {{name: stood_in_for, url: '{outside}/feed/stood_in_for/<label>', on_error: {{default: {{n: 1}}}}}}\n    states:\n",
            self.zone
        );
        for (place, state) in self.states.iter().enumerate() {
            let _written = writeln!(text, "      - {}", state.yaml(self, self.name(place + 1), outside));
        }
        text + "      - {gate: end}\n"
    }

    /// A possible replacement: a state or two are changed, become another kind, or are removed.
    pub(super) fn changed(&self, random: &mut StdRng) -> Self {
        let mut changed = self.clone();
        let count = changed.states.len();
        for _ in 0..random.random_range(1..3) {
            let place = random.random_range(0..count);
            match random.random_range(0..4) {
                0 => {
                    let name = format!("t{place}");
                    changed.states[place].name = name;
                }
                1 => changed.zone = "America/New_York",
                _ => {
                    let name = changed.states[place].name.clone();
                    changed.states[place] = State::random(random, name, count + 1);
                }
            }
        }
        changed
    }
}

/// Some facts, and sometimes a zone.
pub(super) fn facts(random: &mut StdRng) -> Value {
    let mut facts = Map::new();
    for _ in 0..random.random_range(0..4) {
        facts.insert(pick(random, &KEYS).to_owned(), json!(random.random_range(0..3)));
    }
    if random.random_bool(0.2) {
        facts.insert("zone".to_owned(), json!(pick(random, &ZONES)));
    }
    if random.random_bool(0.2) {
        facts.insert("look".to_owned(), json!(1));
    }
    Value::Object(facts)
}

/// Metadata with which a test of a random condition has the wanted result; `None` if no metadata decides it.
pub(super) fn fulfil(test: &str, wish: bool, facts: &mut Map<String, Value>) -> Option<()> {
    let (key, rest) = test.strip_prefix("metadata.")?.split_once(' ')?;
    let (compared, value) = rest.split_once(' ')?;
    let value: i64 = value.parse().ok()?;
    let updated = match (compared, wish) {
        ("=", true) | ("/=", false) => value,
        ("=", false) | ("/=", true) | (">", true) => value + 1,
        ("<", true) => value - 1,
        (">", false) | ("<", false) => value,
        _ => return None,
    };
    facts.insert(key.to_owned(), json!(updated)).is_none().then_some(())
}
