//! Kleene's three truths.

use std::ops::Not;

use serde::{Serialize, Serializer};

/// The value of an evaluation. Only [`Truth::True`] opens a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// A value that it depends on is missing, has the wrong type, or could not be fetched.
    Unknown,
}

impl Truth {
    /// True or unknown is true; false or unknown is unknown.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::True, _) | (_, Self::True) => Self::True,
            (Self::False, Self::False) => Self::False,
            _ => Self::Unknown,
        }
    }

    /// False and unknown is false; true and unknown is unknown.
    pub fn and(self, other: Self) -> Self {
        !((!self).or(!other))
    }

    /// Whether the value opens a gate.
    pub fn holds(self) -> bool {
        self == Self::True
    }

    /// The value after this number of negations.
    pub(crate) fn negated(self, nots: u16) -> Self {
        if nots % 2 == 1 { !self } else { self }
    }
}

impl Not for Truth {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::True => Self::False,
            Self::False => Self::True,
            Self::Unknown => Self::Unknown,
        }
    }
}

/// Unknown has its own word, because null would mean "no result".
impl Serialize for Truth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::True | Self::False => serializer.serialize_bool(self.holds()),
            Self::Unknown => serializer.serialize_str("unknown"),
        }
    }
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}
