//! Values while a condition is evaluated: borrowed, small enough to be copied.

use std::cmp::Ordering;

use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use crate::{
    instant::{TimeOfDay, instant},
    number::Number,
    tree::{Key, Literal},
    truth::Truth,
};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    /// The value of a failed feed, or of a test that could not be evaluated.
    Unknown,
    Null,
    Bool(bool),
    Number(Number),
    Text(&'a str),
    Time(TimeOfDay),
    Instant(Timestamp),
    List(List<'a>),
    Object(&'a Map<String, Json>),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum List<'a> {
    Facts(&'a [Json]),
    Literals(&'a [Literal]),
}

impl<'a> List<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Facts(values) => values.len(),
            Self::Literals(values) => values.len(),
        }
    }

    /// Whether `is` accepts any element.
    pub(crate) fn any(self, mut is: impl FnMut(Value<'a>) -> bool) -> bool {
        match self {
            Self::Facts(values) => values.iter().any(|value| is(value.into())),
            Self::Literals(values) => values.iter().any(|value| is(value.into())),
        }
    }

    fn get(self, n: usize) -> Option<Value<'a>> {
        match self {
            Self::Facts(values) => values.get(n).map(Into::into),
            Self::Literals(values) => values.get(n).map(Into::into),
        }
    }
}

/// The type of a value, for messages and for checks that do not need the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Bool,
    Number,
    Text,
    Time,
    Instant,
    List,
    Object,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::Text => "a string",
            Self::Time => "a time of day",
            Self::Instant => "an instant",
            Self::List => "a list",
            Self::Object => "an object",
        }
    }

    /// Whether values of this kind can be ordered at all.
    pub(crate) fn has_order(self) -> bool {
        matches!(self, Self::Number | Self::Text | Self::Time | Self::Instant)
    }

    /// Whether values of both kinds can be ordered; a string may have to be parsed as the other kind for
    /// that.
    pub(crate) fn has_order_with(self, other: Self) -> bool {
        self.has_order()
            && other.has_order()
            && (self == other || self.reads_text(other) || other.reads_text(self))
    }

    fn reads_text(self, other: Self) -> bool {
        matches!(self, Self::Time | Self::Instant) && other == Self::Text
    }
}

impl<'a> Value<'a> {
    /// The kind of the value; `None` if it is unknown.
    pub(crate) fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Unknown => return None,
            Self::Null => Kind::Null,
            Self::Bool(_) => Kind::Bool,
            Self::Number(_) => Kind::Number,
            Self::Text(_) => Kind::Text,
            Self::Time(_) => Kind::Time,
            Self::Instant(_) => Kind::Instant,
            Self::List(_) => Kind::List,
            Self::Object(_) => Kind::Object,
        })
    }

    /// The truth value of a test that consists of this value alone.
    pub(crate) fn truth(self) -> Truth {
        match self {
            Self::Unknown => Truth::Unknown,
            Self::Null => Truth::False,
            Self::Bool(value) => value.into(),
            Self::Number(number) => (!number.is_zero()).into(),
            Self::Text(text) => (!text.is_empty()).into(),
            Self::List(list) => (list.len() > 0).into(),
            Self::Object(object) => (!object.is_empty()).into(),
            Self::Time(_) | Self::Instant(_) => Truth::True,
        }
    }

    /// The value below `keys`. A missing key, or any key below a scalar, gives null.
    pub(crate) fn below(json: &'a Json, keys: &[Key]) -> Self {
        let mut found = json;
        for key in keys {
            let next = match found {
                Json::Object(object) => object.get(&*key.name),
                Json::Array(list) => key.index.and_then(|index| list.get(index)),
                _ => None,
            };
            match next {
                Some(value) => found = value,
                None => return Self::Null,
            }
        }
        found.into()
    }

    /// `=`: it never fails, because values of different types are unequal. Neither side may be unknown.
    pub(crate) fn equals(self, other: Self) -> bool {
        self.equals_counted(other, &mut 0)
    }

    /// As [`Self::equals`]; adds how many values were compared.
    pub(crate) fn equals_counted(self, other: Self, compared: &mut usize) -> bool {
        *compared += 1;
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::List(left), Self::List(right)) => {
                left.len() == right.len()
                    && (0..left.len()).all(|n| match (left.get(n), right.get(n)) {
                        (Some(left), Some(right)) => left.equals_counted(right, compared),
                        _ => false,
                    })
            }
            (Self::Object(left), Self::Object(right)) => {
                left.len() == right.len()
                    && left.iter().all(|(key, value)| {
                        right
                            .get(key)
                            .is_some_and(|other| Value::from(value).equals_counted(other.into(), compared))
                    })
            }
            _ => self.order(other) == Some(Ordering::Equal),
        }
    }

    /// The order of two values; `None` if they cannot be ordered.
    pub(crate) fn order(self, other: Self) -> Option<Ordering> {
        Some(match (self, other) {
            (Self::Number(left), Self::Number(right)) => left.compare(right),
            // The byte order of UTF-8 is the order of its code points.
            (Self::Text(left), Self::Text(right)) => left.cmp(right),
            (Self::Instant(left), Self::Instant(right)) => left.cmp(&right),
            (Self::Instant(left), Self::Text(right)) => left.cmp(&instant(right)?),
            (Self::Text(left), Self::Instant(right)) => instant(left)?.cmp(&right),
            (Self::Time(left), Self::Time(right)) => left.cmp(&right),
            (Self::Time(left), Self::Text(right)) => left.cmp(&TimeOfDay::parse(right)?),
            (Self::Text(left), Self::Time(right)) => TimeOfDay::parse(left)?.cmp(&right),
            _ => return None,
        })
    }

    /// The value as an instant, if it is one or a text in RFC 3339.
    pub(crate) fn instant(self) -> Option<Timestamp> {
        match self {
            Self::Instant(instant) => Some(instant),
            Self::Text(text) => instant(text),
            _ => None,
        }
    }

    /// The value for output: times and instants as text, unknown as null.
    pub(crate) fn to_json(self) -> Json {
        match self {
            Self::Unknown | Self::Null => Json::Null,
            Self::Bool(value) => value.into(),
            Self::Number(number) => number.to_json(),
            Self::Text(text) => text.into(),
            Self::Time(time) => time.to_string().into(),
            Self::Instant(instant) => instant.to_string().into(),
            Self::List(List::Facts(values)) => values.into(),
            Self::List(List::Literals(values)) => {
                values.iter().map(|literal| Value::from(literal).to_json()).collect()
            }
            Self::Object(object) => Json::Object(object.clone()),
        }
    }
}

impl<'a> From<&'a Json> for Value<'a> {
    fn from(json: &'a Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => Self::Number(Number::of(number)),
            Json::String(text) => Self::Text(text),
            Json::Array(values) => Self::List(List::Facts(values)),
            Json::Object(object) => Self::Object(object),
        }
    }
}

impl<'a> From<&'a Literal> for Value<'a> {
    fn from(literal: &'a Literal) -> Self {
        match literal {
            Literal::Null => Self::Null,
            Literal::Bool(value) => Self::Bool(*value),
            Literal::Number(number) => Self::Number(*number),
            Literal::Duration(seconds) => Self::Number(Number::Integer((*seconds).into())),
            Literal::Time(time) => Self::Time(*time),
            Literal::Text(text) => Self::Text(text),
        }
    }
}

impl From<Truth> for Value<'_> {
    fn from(truth: Truth) -> Self {
        match truth {
            Truth::True => Self::Bool(true),
            Truth::False => Self::Bool(false),
            Truth::Unknown => Self::Unknown,
        }
    }
}
