//! Visits every state that a model can reach, breadth first, so that a counterexample is as short as possible.
//!
//! It checks two kinds of property. Those that must hold **always** are checked in every state and on every step.
//! Those that must **remain possible** are checked at the end: from every state, some settled state is reachable by
//! steps that are not faults. A state without such a path is a wedge: even when no further faults occur, the system
//! does not finish. (A model without time cannot check a bound in steps or seconds.)
//!
//! A state is identified by its 64-bit SipHash. A collision of two states would hide the states that are reachable
//! only from the second; for two million states the odds are one in nine million per run.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

use crate::Violation;

/// A protocol with everything around it that can act.
pub trait Model {
    /// Everything that decides what can happen next.
    type State: Clone + Hash;
    /// One step.
    type Action: Clone + fmt::Display;

    /// Where it begins.
    fn initial(&self) -> Self::State;

    /// The actions possible in `state`; always the same for the same state.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;

    /// The state after `action`.
    ///
    /// # Errors
    /// The property that the step itself violates.
    fn apply(&self, state: &Self::State, action: &Self::Action) -> Result<Self::State, Violation>;

    /// Checks the properties that hold in every state.
    ///
    /// # Errors
    /// The predicate that does not.
    fn check(&self, state: &Self::State) -> Result<(), Violation>;

    /// Whether the step is something going wrong, which stops some day.
    fn is_fault(&self, action: &Self::Action) -> bool;

    /// Whether everything is done that was asked for.
    fn is_settled(&self, state: &Self::State) -> bool;

    /// One line for a counterexample.
    fn describe(&self, state: &Self::State) -> String;

    /// The state by which equivalent ones are known: workers that differ in nothing but their number, for example.
    fn canonical(&self, state: &Self::State) -> Self::State {
        state.clone()
    }
}

/// The extent of an exploration that found no violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// Steps to the farthest state.
    pub depth: usize,
    /// States in which everything is done.
    pub settled: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, depth, settled } = self;
        write!(formatter, "{states} states, {steps} steps, depth {depth}, {settled} settled")
    }
}

/// The predicate of a state from which no settled one can be reached.
pub const WEDGE: &str = "wedge";

/// The predicate of an exploration that was stopped at its limit.
pub const LIMIT: &str = "limit";

/// A shortest way to something that must not be.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The property that is violated at its end.
    pub violation: Violation,
    /// Each step, and the state after it; the first line is where it begins.
    pub steps: Vec<(String, String)>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{} (after {} steps)", self.violation, self.steps.len() - 1)?;
        let width = self.steps.iter().map(|(step, _)| step.chars().count()).max().unwrap_or(0);
        for (number, (step, state)) in self.steps.iter().enumerate() {
            writeln!(formatter, "{number:>4}  {step:width$}  {state}")?;
        }
        Ok(())
    }
}

/// Where a state was first found: from which state, by its how-manieth action.
type Origin = (u32, u16);

struct Explorer<'a, M: Model> {
    model: &'a M,
    known: HashMap<u64, u32, BuildHasherDefault<Straight>>,
    origins: Vec<Origin>,
    depths: Vec<u16>,
    settled: Vec<u32>,
    /// Steps that are not faults, as (to, from).
    steps_back: Vec<(u32, u32)>,
    steps: usize,
}

/// Visits every state of `model`, at most `limit` of them.
///
/// # Errors
/// A shortest counterexample, also if the limit was reached (predicate [`LIMIT`]).
pub fn explore<M: Model>(model: &M, limit: usize) -> Result<Report, Box<Counterexample>> {
    let mut explorer = Explorer {
        model,
        known: HashMap::default(),
        origins: Vec::new(),
        depths: Vec::new(),
        settled: Vec::new(),
        steps_back: Vec::new(),
        steps: 0,
    };
    explorer.visit_all(limit)?;
    explorer.find_wedge()?;
    Ok(Report {
        states: explorer.origins.len(),
        steps: explorer.steps,
        depth: explorer.depths.last().copied().unwrap_or(0).into(),
        settled: explorer.settled.len(),
    })
}

impl<M: Model> Explorer<'_, M> {
    fn visit_all(&mut self, limit: usize) -> Result<(), Box<Counterexample>> {
        let initial = self.model.initial();
        let mut frontier = VecDeque::new();
        let (number, _) = self.enter(&initial, (u32::MAX, 0), 0);
        self.model.check(&initial).map_err(|violation| self.trace(number, None, violation))?;
        frontier.push_back((number, initial));
        while let Some((number, state)) = frontier.pop_front() {
            let depth = self.depths[number as usize];
            for (index, action) in self.model.actions(&state).iter().enumerate() {
                let index = u16::try_from(index).unwrap_or(u16::MAX);
                let next = self.model.apply(&state, action);
                let next = next.map_err(|violation| self.trace(number, Some(action), violation))?;
                self.steps += 1;
                let (to, is_new) = self.enter(&next, (number, index), depth + 1);
                if !self.model.is_fault(action) {
                    self.steps_back.push((to, number));
                }
                if is_new {
                    self.model.check(&next).map_err(|violation| self.trace(to, None, violation))?;
                    if self.origins.len() > limit {
                        let violation = Violation::new(LIMIT, format!("more than {limit} states"));
                        return Err(self.trace(to, None, violation));
                    }
                    frontier.push_back((to, next));
                }
            }
        }
        Ok(())
    }

    /// The number of a state, and whether it was met for the first time.
    fn enter(&mut self, state: &M::State, origin: Origin, depth: u16) -> (u32, bool) {
        let mut hasher = DefaultHasher::new();
        self.model.canonical(state).hash(&mut hasher);
        let next = u32::try_from(self.origins.len()).unwrap_or(u32::MAX);
        let number = *self.known.entry(hasher.finish()).or_insert(next);
        if number != next {
            return (number, false);
        }
        self.origins.push(origin);
        self.depths.push(depth);
        if self.model.is_settled(state) {
            self.settled.push(number);
        }
        (number, true)
    }

    /// Walks back from the settled states over steps that are not faults; a state it does not reach is wedged.
    fn find_wedge(&mut self) -> Result<(), Box<Counterexample>> {
        self.steps_back.sort_unstable();
        let mut reached = vec![false; self.origins.len()];
        let mut open = self.settled.clone();
        while let Some(state) = open.pop() {
            if std::mem::replace(&mut reached[state as usize], true) {
                continue;
            }
            let from = self.steps_back.partition_point(|(to, _)| *to < state);
            let before = self.steps_back[from..].iter().take_while(|(to, _)| *to == state);
            open.extend(before.map(|(_, before)| *before).filter(|before| !reached[*before as usize]));
        }
        let Some(wedged) = reached.iter().position(|reached| !reached) else { return Ok(()) };
        let violation = Violation::new(WEDGE, "no way from here to a state in which everything is settled");
        Err(self.trace(u32::try_from(wedged).unwrap_or(u32::MAX), None, violation))
    }

    /// The way to a state, and a last step that led to none.
    fn trace(&self, to: u32, last: Option<&M::Action>, violation: Violation) -> Box<Counterexample> {
        let mut way = Vec::new();
        let mut at = to;
        while at != u32::MAX {
            let (from, index) = self.origins[at as usize];
            way.push(index);
            at = from;
        }
        way.pop();
        let mut state = self.model.initial();
        let mut steps = vec![("begin".to_owned(), self.model.describe(&state))];
        for index in way.into_iter().rev() {
            let action = self.model.actions(&state).swap_remove(index.into());
            // It was applied before, to the same state.
            let Ok(next) = self.model.apply(&state, &action) else { break };
            steps.push((action.to_string(), self.model.describe(&next)));
            state = next;
        }
        if let Some(action) = last {
            steps.push((action.to_string(), violation.to_string()));
        }
        Box::new(Counterexample { violation, steps })
    }
}

/// The identity: the input is a hash already.
#[derive(Default)]
struct Straight(u64);

impl Hasher for Straight {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter to 6 that can fall into a hole at 4 and is forbidden to be 5.
    struct Counter {
        forbidden: u8,
        hole: bool,
    }

    impl Model for Counter {
        type State = u8;
        type Action = &'static str;

        fn initial(&self) -> u8 {
            0
        }

        fn actions(&self, state: &u8) -> Vec<&'static str> {
            match state {
                0..4 => vec!["one", "two"],
                4 if self.hole => vec!["fall", "one"],
                4 | 5 => vec!["one"],
                _ => vec![],
            }
        }

        fn apply(&self, state: &u8, action: &&'static str) -> Result<u8, Violation> {
            Ok(match *action {
                "one" => state + 1,
                "two" => state + 2,
                _ => 99,
            })
        }

        fn check(&self, state: &u8) -> Result<(), Violation> {
            crate::ensure(*state != self.forbidden, "forbidden", || state.to_string())
        }

        fn is_fault(&self, action: &&'static str) -> bool {
            *action == "fall"
        }

        fn is_settled(&self, state: &u8) -> bool {
            *state == 6
        }

        fn describe(&self, state: &u8) -> String {
            state.to_string()
        }
    }

    #[test]
    fn every_state_is_visited_once() {
        let report = explore(&Counter { forbidden: 100, hole: false }, 100).unwrap();
        assert_eq!(report, Report { states: 7, steps: 10, depth: 4, settled: 1 });
    }

    #[test]
    fn a_counterexample_is_a_shortest_way() {
        let found = explore(&Counter { forbidden: 4, hole: false }, 100).unwrap_err();
        assert_eq!(found.violation.predicate, "forbidden");
        let states: Vec<_> = found.steps.iter().map(|(_, state)| &**state).collect();
        assert_eq!(states, ["0", "2", "4"]);
        assert!(found.to_string().contains("   2  two    4"), "{found}");
    }

    #[test]
    fn a_state_without_a_way_out_is_a_wedge() {
        let found = explore(&Counter { forbidden: 100, hole: true }, 100).unwrap_err();
        assert_eq!(found.violation.predicate, WEDGE);
        assert_eq!(found.steps.last().unwrap().0, "fall");
    }

    #[test]
    fn an_exploration_that_is_too_large_does_not_pass() {
        assert_eq!(
            explore(&Counter { forbidden: 100, hole: false }, 3).unwrap_err().violation.predicate,
            LIMIT
        );
    }
}
