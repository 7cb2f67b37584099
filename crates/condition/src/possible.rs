//! The possible values of a condition when some of its tests are open.

use crate::{
    tree::{Program, Test},
    truth::Truth,
};

/// A set of possible truth values, never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Possible(u8);

const ALL: [Truth; 3] = [Truth::True, Truth::False, Truth::Unknown];

impl Possible {
    pub(crate) const ANY: Self = Self(0b111);

    pub(crate) fn can_be(self, truth: Truth) -> bool {
        self.0 & Self::from(truth).0 != 0
    }

    fn with(self, other: Self, join: fn(Truth, Truth) -> Truth) -> Self {
        let mut joined = 0;
        for left in ALL.into_iter().filter(|truth| self.can_be(*truth)) {
            for right in ALL.into_iter().filter(|truth| other.can_be(*truth)) {
                joined |= Self::from(join(left, right)).0;
            }
        }
        Self(joined)
    }

    /// The possible values of a program. `leaf` returns those of a test, including its leading `not`s.
    ///
    /// Tests are assumed to be independent. The set may therefore be too large (`x and not x`), but it is
    /// never too small.
    pub(crate) fn of<'a>(program: &'a Program, leaf: &mut impl FnMut(&'a Test) -> Self) -> Self {
        let (neutral, join): (_, fn(Truth, Truth) -> Truth) = match program {
            Program::One(test) => return Self::of_test(test, leaf),
            Program::All(_) => (Truth::True, Truth::and),
            Program::Any(_) => (Truth::False, Truth::or),
        };
        program
            .tests()
            .iter()
            .fold(neutral.into(), |so_far, test| so_far.with(Self::of_test(test, leaf), join))
    }

    fn of_test<'a>(test: &'a Test, leaf: &mut impl FnMut(&'a Test) -> Self) -> Self {
        match test.group() {
            None => leaf(test),
            Some(program) => {
                let within = Self::of(program, leaf);
                let truths = ALL.into_iter().filter(|truth| within.can_be(*truth));
                Self(truths.fold(0, |set, truth| set | Self::from(truth.negated(test.nots)).0))
            }
        }
    }
}

impl From<Truth> for Possible {
    fn from(truth: Truth) -> Self {
        Self(match truth {
            Truth::True => 0b001,
            Truth::False => 0b010,
            Truth::Unknown => 0b100,
        })
    }
}
