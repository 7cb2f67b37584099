//! The tests that keep a condition from being true, and the smallest set that would have to change.

use crate::{
    evaluate::Run,
    facts::Facts,
    reads::any_path,
    tree::{Check, Program, Property, Test},
    truth::Truth,
};

/// Maximum number of distinct tests. With more, the search would be slow and its result not useful.
pub(crate) const MAX_LEAVES: usize = 64;
/// Maximum number of steps in the search for a smaller answer.
const STEPS: usize = 50_000;

/// A leaf by its number, and the value that it should have.
pub(crate) type Wish = (usize, bool);

/// A condition over its distinct tests: equal tests are one leaf, and `not x` is the negation of leaf x.
#[derive(Debug)]
pub(crate) struct Formula<'a> {
    root: Junction,
    leaves: Vec<Leaf<'a>>,
    /// Whether a leaf occurs in several places.
    shared: bool,
}

#[derive(Debug)]
struct Leaf<'a> {
    test: &'a Test,
    /// The value without the leading `not`s.
    truth: Truth,
    /// False if the test reads neither metadata, a feed, nor a clock.
    can_change: bool,
}

#[derive(Debug)]
enum Junction {
    Leaf(usize),
    Not(Box<Junction>),
    All(Vec<Junction>),
    Any(Vec<Junction>),
}

impl<'a> Formula<'a> {
    pub(crate) fn of(program: &'a Program, facts: &Facts<'_>) -> Self {
        let mut formula = Self { root: Junction::All(Vec::new()), leaves: Vec::new(), shared: false };
        formula.root = formula.junction(program, facts);
        formula
    }

    fn junction(&mut self, program: &'a Program, facts: &Facts<'_>) -> Junction {
        let parts = program.tests().iter().map(|test| {
            let inner = match test.group() {
                Some(program) => self.junction(program, facts),
                None => Junction::Leaf(self.leaf(test, facts)),
            };
            if test.nots % 2 == 1 { Junction::Not(Box::new(inner)) } else { inner }
        });
        match program {
            Program::Any(_) => Junction::Any(parts.collect()),
            Program::All(_) | Program::One(_) => Junction::All(parts.collect()),
        }
    }

    fn leaf(&mut self, test: &'a Test, facts: &Facts<'_>) -> usize {
        let same = |leaf: &Leaf<'_>| leaf.test.value == test.value && leaf.test.check == test.check;
        if let Some(known) = self.leaves.iter().position(same) {
            self.shared = true;
            return known;
        }
        let since = matches!(test.check, Check::Property { property: Property::PassedSince(_), .. });
        let truth = Run::new(facts).test(test).truth().negated(test.nots);
        self.leaves.push(Leaf { test, truth, can_change: since || any_path(test, &mut |_| true) });
        self.leaves.len() - 1
    }

    /// The test of a leaf without its leading `not`s, and its value.
    pub(crate) fn show(&self, leaf: usize) -> (String, Truth) {
        let leaf = &self.leaves[leaf];
        (Test { nots: 0, ..leaf.test.clone() }.to_string(), leaf.truth)
    }

    /// The leaves whose value blocks the condition: those that are false or unknown, and below a `not` those
    /// that are true or unknown.
    pub(crate) fn blocking(&self) -> Vec<Wish> {
        let mut found = Vec::new();
        self.collect_blocking(&self.root, true, &mut found);
        found
    }

    fn collect_blocking(&self, junction: &Junction, wish: bool, found: &mut Vec<Wish>) {
        match junction {
            // A part that already has the required value blocks nothing, whatever the values of its parts.
            _ if self.truth(junction) == wish.into() => {}
            Junction::Leaf(leaf) if !found.contains(&(*leaf, wish)) => found.push((*leaf, wish)),
            Junction::Leaf(_) => {}
            Junction::Not(inner) => self.collect_blocking(inner, !wish, found),
            Junction::All(parts) | Junction::Any(parts) => {
                parts.iter().for_each(|part| self.collect_blocking(part, wish, found));
            }
        }
    }

    fn truth(&self, junction: &Junction) -> Truth {
        match junction {
            Junction::Leaf(leaf) => self.leaves[*leaf].truth,
            Junction::Not(inner) => !self.truth(inner),
            Junction::All(parts) => parts.iter().map(|part| self.truth(part)).fold(Truth::True, Truth::and),
            Junction::Any(parts) => parts.iter().map(|part| self.truth(part)).fold(Truth::False, Truth::or),
        }
    }

    /// The fewest leaves that have to change for the condition to become true, each assumed to be independent
    /// of the others. `None` if no change makes it true, or if there are too many leaves.
    pub(crate) fn fewest(&self) -> Option<Vec<Wish>> {
        if self.leaves.len() > MAX_LEAVES {
            return None;
        }
        let guess = self.apart(&self.root, true);
        // A leaf that occurs in two places may be counted twice, or be needed with both values. Then a search
        // is necessary.
        let contradicts =
            |wishes: &[Wish]| wishes.iter().any(|(leaf, wish)| wishes.contains(&(*leaf, !wish)));
        let guess = guess.filter(|needs| !contradicts(needs)).map(|needs| self.changes(&needs));
        if !self.shared {
            return guess;
        }
        let most = guess.as_ref().map_or(self.leaves.len() + 1, Vec::len);
        let mut steps = STEPS;
        for changes in 0..most {
            let mut search = Search { formula: self, pinned: vec![None; self.leaves.len()], steps };
            match search.all(&mut vec![(&self.root, true)], changes) {
                Some(true) => return Some(search.changed()),
                Some(false) => steps = search.steps,
                None => break,
            }
        }
        guess
    }

    /// The smallest set of changes under the assumption that every leaf occurs only once.
    fn apart(&self, junction: &Junction, wish: bool) -> Option<Vec<Wish>> {
        let parts = match (junction, wish) {
            (Junction::Leaf(leaf), _) => {
                let Leaf { truth, can_change, .. } = self.leaves[*leaf];
                return (can_change || truth == wish.into()).then(|| vec![(*leaf, wish)]);
            }
            (Junction::Not(inner), _) => return self.apart(inner, !wish),
            (Junction::All(parts), true) | (Junction::Any(parts), false) => {
                let mut all: Vec<Wish> = Vec::new();
                for part in parts {
                    let more = self.apart(part, wish)?;
                    all.extend(more.into_iter().filter(|need| !all.contains(need)).collect::<Vec<_>>());
                }
                return Some(all);
            }
            (Junction::All(parts) | Junction::Any(parts), _) => parts,
        };
        let ways = parts.iter().filter_map(|part| self.apart(part, wish));
        ways.min_by_key(|needs| self.changes(needs).len())
    }

    /// The needs that are not met yet.
    fn changes(&self, needs: &[Wish]) -> Vec<Wish> {
        needs.iter().copied().filter(|(leaf, wish)| self.leaves[*leaf].truth != (*wish).into()).collect()
    }
}

/// A depth-first search through the ways in which the condition can become true.
struct Search<'f, 'a> {
    formula: &'f Formula<'a>,
    /// The value that a leaf is already required to have.
    pinned: Vec<Option<bool>>,
    steps: usize,
}

impl<'f> Search<'f, '_> {
    /// Whether all goals can be reached with this number of changes. `None` if the maximum number of steps
    /// was reached.
    fn all(&mut self, goals: &mut Vec<(&'f Junction, bool)>, changes: usize) -> Option<bool> {
        self.steps = self.steps.checked_sub(1)?;
        let Some((junction, wish)) = goals.pop() else { return Some(true) };
        let met = match (junction, wish) {
            (Junction::Leaf(leaf), _) => self.leaf(*leaf, wish, goals, changes)?,
            (Junction::Not(inner), _) => self.with(&[(inner, !wish)], goals, changes)?,
            (Junction::All(parts), true) | (Junction::Any(parts), false) => {
                let parts: Vec<_> = parts.iter().map(|part| (part, wish)).collect();
                self.with(&parts, goals, changes)?
            }
            (Junction::All(parts) | Junction::Any(parts), _) => {
                let mut met = false;
                for part in parts {
                    met = self.with(&[(part, wish)], goals, changes)?;
                    if met {
                        break;
                    }
                }
                met
            }
        };
        goals.push((junction, wish));
        Some(met)
    }

    fn with(
        &mut self,
        more: &[(&'f Junction, bool)],
        goals: &mut Vec<(&'f Junction, bool)>,
        changes: usize,
    ) -> Option<bool> {
        let before = goals.len();
        goals.extend_from_slice(more);
        let met = self.all(goals, changes);
        goals.truncate(before);
        met
    }

    fn leaf(
        &mut self,
        leaf: usize,
        wish: bool,
        goals: &mut Vec<(&'f Junction, bool)>,
        changes: usize,
    ) -> Option<bool> {
        if let Some(pinned) = self.pinned[leaf] {
            return if pinned == wish { self.all(goals, changes) } else { Some(false) };
        }
        let Leaf { truth, can_change, .. } = self.formula.leaves[leaf];
        let changes = if truth == wish.into() {
            changes
        } else if can_change && changes > 0 {
            changes - 1
        } else {
            return Some(false);
        };
        self.pinned[leaf] = Some(wish);
        let met = self.all(goals, changes)?;
        if !met {
            self.pinned[leaf] = None;
        }
        Some(met)
    }

    fn changed(&self) -> Vec<Wish> {
        let pinned = self.pinned.iter().enumerate().filter_map(|(leaf, wish)| wish.map(|wish| (leaf, wish)));
        self.formula.changes(&pinned.collect::<Vec<_>>())
    }
}
