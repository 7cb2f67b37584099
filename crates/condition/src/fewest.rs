//! The tests that keep a condition from being true, and the smallest set that would have to change.
//!
//! A set that time alone makes true is preferred, then one that also needs values that no client sets (feeds, the label's
//! history). Only if there is neither, metadata is part of the answer: a reader who asks why a label waits must not be
//! advised to set `metadata.abort`.

use crate::{
    evaluate::{Run, passed_at},
    facts::Facts,
    reads::any_path,
    tree::{Check, Path, Program, Property, Root, System, Test},
    truth::Truth,
    value::Value,
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
    /// What changes it to true, and what to false; `None` if nothing does.
    changed_by: [Option<By>; 2],
}

/// What changes the value of a test, the preferred one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// Time alone.
    Time,
    /// A feed, or the label's own history.
    Progress,
    /// A client that sets metadata.
    Metadata,
}

impl By {
    const ALL: [Self; 3] = [Self::Time, Self::Progress, Self::Metadata];

    /// What changes a test to true, and what to false. A leading `not` is not part of the test.
    fn of(test: &Test, facts: &Facts<'_>) -> [Option<Self>; 2] {
        let reads = |is: &dyn Fn(&Path) -> bool| any_path(test, &mut |path| is(path));
        let clock = |path: &Path| {
            matches!(path.root, Root::System(System::Now | System::Time | System::Date | System::Weekday))
        };
        let progress =
            |path: &Path| matches!(path.root, Root::Feed(_) | Root::PreviousState | Root::System(_));
        let by_value =
            if reads(&|path| path.root == Root::Metadata) { Self::Metadata } else { Self::Progress };
        if let Check::Property { property: Property::PassedSince(since), .. } = &test.check {
            let value = |operand| Run::new(facts).operand(operand);
            let comes = match (value(&test.value), value(since).instant()) {
                (Value::Number(seconds), Some(since)) => passed_at(seconds, since).is_some(),
                _ => false,
            };
            return [Some(if comes { Self::Time } else { by_value }), Some(by_value)];
        }
        let is_known = Run::new(facts).test(test).truth() != Truth::Unknown;
        match () {
            () if reads(&clock) && is_known && !reads(&|path| matches!(path.root, Root::Feed(_))) => {
                [Some(Self::Time); 2]
            }
            () if reads(&|path| path.root == Root::Metadata) => [Some(Self::Metadata); 2],
            () if reads(&progress) => [Some(Self::Progress); 2],
            () => [None; 2],
        }
    }
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
        Self::of_all(&[program], facts)
    }

    /// That all of these are true.
    pub(crate) fn of_all(programs: &[&'a Program], facts: &Facts<'_>) -> Self {
        let mut formula = Self { root: Junction::All(Vec::new()), leaves: Vec::new(), shared: false };
        let mut parts: Vec<Junction> =
            programs.iter().map(|program| formula.junction(program, facts)).collect();
        formula.root = if parts.len() == 1 { parts.remove(0) } else { Junction::All(parts) };
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
        let truth = Run::new(facts).test(test).truth().negated(test.nots);
        self.leaves.push(Leaf { test, truth, changed_by: By::of(test, facts) });
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
    /// of the others. Metadata changes only if there is no other way. `None` if no change makes it true, or if there are too
    /// many leaves.
    pub(crate) fn fewest(&self) -> Option<Vec<Wish>> {
        By::ALL.into_iter().find_map(|by| self.fewest_by(by))
    }

    /// Whether a change needs a client that sets metadata.
    pub(crate) fn needs_metadata(&self, changes: &[Wish]) -> bool {
        changes.iter().any(|(leaf, wish)| self.leaves[*leaf].by(*wish) == Some(By::Metadata))
    }

    /// The fewest leaves among those that `by`, or what is preferred to it, changes.
    fn fewest_by(&self, by: By) -> Option<Vec<Wish>> {
        if self.leaves.len() > MAX_LEAVES {
            return None;
        }
        let guess = self.apart(&self.root, true, by);
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
            let mut search = Search { formula: self, by, pinned: vec![None; self.leaves.len()], steps };
            match search.all(&mut vec![(&self.root, true)], changes) {
                Some(true) => return Some(search.changed()),
                Some(false) => steps = search.steps,
                None => break,
            }
        }
        guess
    }

    /// The smallest set of changes under the assumption that every leaf occurs only once.
    fn apart(&self, junction: &Junction, wish: bool, by: By) -> Option<Vec<Wish>> {
        let parts = match (junction, wish) {
            (Junction::Leaf(leaf), _) => {
                let one = &self.leaves[*leaf];
                return (one.can_change(wish, by) || one.truth == wish.into()).then(|| vec![(*leaf, wish)]);
            }
            (Junction::Not(inner), _) => return self.apart(inner, !wish, by),
            (Junction::All(parts), true) | (Junction::Any(parts), false) => {
                let mut all: Vec<Wish> = Vec::new();
                for part in parts {
                    let more = self.apart(part, wish, by)?;
                    all.extend(more.into_iter().filter(|need| !all.contains(need)).collect::<Vec<_>>());
                }
                return Some(all);
            }
            (Junction::All(parts) | Junction::Any(parts), _) => parts,
        };
        let ways = parts.iter().filter_map(|part| self.apart(part, wish, by));
        ways.min_by_key(|needs| self.changes(needs).len())
    }

    /// The needs that are not met yet.
    fn changes(&self, needs: &[Wish]) -> Vec<Wish> {
        needs.iter().copied().filter(|(leaf, wish)| self.leaves[*leaf].truth != (*wish).into()).collect()
    }
}

impl Leaf<'_> {
    /// What changes it to `wish`.
    fn by(&self, wish: bool) -> Option<By> {
        self.changed_by[usize::from(!wish)]
    }

    fn can_change(&self, wish: bool, by: By) -> bool {
        self.by(wish).is_some_and(|own| own <= by)
    }
}

/// A depth-first search through the ways in which the condition can become true.
struct Search<'f, 'a> {
    formula: &'f Formula<'a>,
    by: By,
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
        let one = &self.formula.leaves[leaf];
        let changes = if one.truth == wish.into() {
            changes
        } else if one.can_change(wish, self.by) && changes > 0 {
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
