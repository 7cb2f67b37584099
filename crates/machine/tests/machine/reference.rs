//! Many seeds against a naive machine: a table of states that is walked by hand, with nothing in common with the crate
//! but the meaning. Its only condition is `metadata.k = n`, so that no part of the language is used twice.

use std::{collections::BTreeMap, fmt::Write as _};

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};
use signalbox_machine::{
    Machine, merge,
    simulate::{Assumed, Simulator, Start, What},
};

use crate::steps::{at, machine};

const KEYS: [&str; 3] = ["x", "y", "z"];

#[derive(Debug, Clone)]
enum State {
    Gate { key: usize, value: u8, listens: Vec<usize>, entry: bool, next: Where },
    Action { next: Where },
    End,
}

/// Where a label goes: by the value of a key, or there.
#[derive(Debug, Clone)]
struct Where {
    by: Option<(usize, u8, usize)>,
    otherwise: usize,
}

fn definition(states: &[State]) -> Machine {
    let mut text = String::from("    states:\n");
    for (n, state) in states.iter().enumerate() {
        let next = |next: &Where| match next.by {
            None => format!("s{}", next.otherwise),
            Some((key, value, to)) => format!(
                "{{type: context, path: metadata.{}, destinations: [{{value: {value}, state: s{to}}}], default: s{}}}",
                KEYS[key], next.otherwise
            ),
        };
        let _written = match state {
            State::End => writeln!(text, "      - gate: s{n}"),
            State::Action { next: to } => {
                writeln!(text, "      - {{action: s{n}, webhook: 'http://h/', next: {}}}", next(to))
            }
            State::Gate { key, value, listens, entry, next: to } => {
                let mut triggers: Vec<String> =
                    listens.iter().map(|key| format!("{{metadata: {}}}", KEYS[*key])).collect();
                triggers.push(format!("{{metadata: {}}}", KEYS[*key]));
                if *entry {
                    triggers.push("{event: entry}".into());
                }
                writeln!(
                    text,
                    "      - {{gate: s{n}, exit_condition: metadata.{} = {value}, triggers: [{}], next: {}}}",
                    KEYS[*key],
                    triggers.join(", "),
                    next(to)
                )
            }
        };
    }
    machine(&text)
}

/// The naive one.
struct Naive<'a> {
    states: &'a [State],
    at: usize,
    facts: BTreeMap<usize, u8>,
    path: Vec<usize>,
    moves_left: usize,
}

impl Naive<'_> {
    fn goes(&self, next: &Where) -> usize {
        match next.by {
            Some((key, value, to)) if self.facts.get(&key) == Some(&value) => to,
            _ => next.otherwise,
        }
    }

    fn go(&mut self, to: usize) {
        self.at = to;
        self.path.push(to);
        self.moves_left = self.moves_left.saturating_sub(1);
        if self.moves_left > 0 {
            self.enter();
        }
    }

    fn enter(&mut self) {
        match &self.states[self.at] {
            State::Gate { entry: true, .. } => self.try_gate(),
            State::Action { next } => {
                let to = self.goes(next);
                self.go(to);
            }
            _ => {}
        }
    }

    fn try_gate(&mut self) {
        if let State::Gate { key, value, next, .. } = &self.states[self.at]
            && self.facts.get(key) == Some(value)
        {
            let to = self.goes(next);
            self.go(to);
        }
    }

    fn facts(&mut self, update: &BTreeMap<usize, u8>) {
        self.facts.extend(update);
        if let State::Gate { key, listens, .. } = &self.states[self.at]
            && update.keys().any(|mentioned| mentioned == key || listens.contains(mentioned))
        {
            self.try_gate();
        }
    }
}

fn whither(states: usize) -> impl Strategy<Value = Where> {
    (proptest::option::of((0..3_usize, 0..3_u8, 0..states)), 0..states)
        .prop_map(|(by, otherwise)| Where { by, otherwise })
}

fn tables() -> impl Strategy<Value = Vec<State>> {
    (3..7_usize).prop_flat_map(|count| {
        let gate =
            (0..3_usize, 0..3_u8, proptest::collection::vec(0..3_usize, 0..2), any::<bool>(), whither(count))
                .prop_map(|(key, value, listens, entry, next)| State::Gate {
                    key,
                    value,
                    listens,
                    entry,
                    next,
                });
        let state = prop_oneof![
            4 => gate,
            2 => whither(count).prop_map(|next| State::Action { next }),
            1 => Just(State::End),
        ];
        proptest::collection::vec(state, count)
    })
}

/// Without unreachable states, which a definition must not have; the rest keep their order.
fn reachable(states: Vec<State>) -> Vec<State> {
    let targets = |state: &State| match state {
        State::Gate { next, .. } | State::Action { next } => {
            next.by.map(|(_, _, to)| to).into_iter().chain([next.otherwise]).collect()
        }
        State::End => Vec::new(),
    };
    let (mut reached, mut ahead) = (vec![false; states.len()], vec![0]);
    while let Some(n) = ahead.pop() {
        if !std::mem::replace(&mut reached[n], true) {
            ahead.extend(targets(&states[n]));
        }
    }
    let renamed: Vec<usize> =
        (0..states.len()).map(|n| reached[..n].iter().filter(|reached| **reached).count()).collect();
    let rename = |next: Where| Where {
        by: next.by.map(|(key, value, to)| (key, value, renamed[to])),
        otherwise: renamed[next.otherwise],
    };
    let kept = states.into_iter().enumerate().filter(|(n, _)| reached[*n]);
    kept.map(|(_, state)| match state {
        State::Gate { key, value, listens, entry, next } => {
            State::Gate { key, value, listens, entry, next: rename(next) }
        }
        State::Action { next } => State::Action { next: rename(next) },
        State::End => State::End,
    })
    .collect()
}

/// Whether labels may continue without an end and without updates: such tables are covered by the test of loops.
fn runs_for_ever(path: &[usize]) -> bool {
    path.len() >= 40
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_label_ends_where_the_naive_machine_has_it(
        table in tables(),
        start in proptest::collection::btree_map(0..3_usize, 0..3_u8, 0..4),
        updates in proptest::collection::vec(proptest::collection::btree_map(0..3_usize, 0..3_u8, 0..3), 0..12),
    ) {
        let table = reachable(table);
        let definition = definition(&table);
        let as_json = |facts: &BTreeMap<usize, u8>| {
            Json::Object(facts.iter().map(|(key, value)| (KEYS[*key].to_owned(), json!(value))).collect::<Map<_, _>>())
        };
        let mut naive = Naive { states: &table, at: 0, facts: start.clone(), path: Vec::new(), moves_left: 40 };
        naive.enter();
        let now = at("2026-01-01T00:00:00Z");
        let begin = Start::fresh(&definition, "l", as_json(&start), now);
        let mut simulator = Simulator::new(&definition, begin, &Assumed::default(), now);
        simulator.run_until(now);
        for update in &updates {
            if runs_for_ever(&naive.path) {
                return Ok(());
            }
            naive.moves_left = 40;
            naive.facts(update);
            simulator.facts(&as_json(update));
            simulator.run_until(now);
        }
        if runs_for_ever(&naive.path) {
            return Ok(());
        }
        let path: Vec<String> = simulator.steps().iter().filter_map(|step| match &step.what {
            What::Moves { to, .. } => Some(to.clone()),
            _ => None,
        }).collect();
        let expected: Vec<String> = naive.path.iter().map(|n| format!("s{n}")).collect();
        prop_assert_eq!(path, expected);
        let mut metadata = as_json(&start);
        for update in &updates {
            merge::merge(&mut metadata, &as_json(update));
        }
        prop_assert_eq!(&simulator.label().metadata, &metadata);
    }
}
