//! A parsed condition. Paths are split, roots are known, and literals are values, so the evaluator walks this tree and looks
//! up nothing by name except the facts.

use crate::{error::Span, instant::TimeOfDay, lexer::Keyword, number::Number};

/// Tests that are joined by `and` or by `or`, or a single test.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Program {
    One(Box<Test>),
    All(Box<[Test]>),
    Any(Box<[Test]>),
}

impl Program {
    pub(crate) fn tests(&self) -> &[Test] {
        match self {
            Self::One(test) => std::slice::from_ref(test),
            Self::All(tests) | Self::Any(tests) => tests,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Test {
    /// The number of leading `not`s. They apply to the whole test.
    pub(crate) nots: u16,
    pub(crate) value: Operand,
    pub(crate) check: Check,
    pub(crate) span: Span,
}

impl Test {
    /// The program in parentheses, if the test consists of nothing else (except `not`s).
    pub(crate) fn group(&self) -> Option<&Program> {
        match (&self.value, &self.check) {
            (Operand::Group(program), Check::Bare) => Some(program),
            _ => None,
        }
    }

    pub(crate) fn operands(&self) -> impl Iterator<Item = &Operand> {
        std::iter::once(&self.value).chain(self.check.operand())
    }
}

/// What a test checks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Check {
    /// No operator: the value itself is used as true or false.
    Bare,
    Compare(Comparison, Operand),
    Property {
        /// `is`, `has` or `was`.
        verb: Keyword,
        not: bool,
        property: Property,
    },
}

impl Check {
    pub(crate) fn operand(&self) -> Option<&Operand> {
        match self {
            Self::Compare(_, right)
            | Self::Property { property: Property::In(right) | Property::PassedSince(right), .. } => {
                Some(right)
            }
            Self::Bare | Self::Property { property: Property::Defined, .. } => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Property {
    Defined,
    In(Operand),
    PassedSince(Operand),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Unequal,
    Less,
    Greater,
    AtMost,
    AtLeast,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Group(Box<Program>),
    Path(Path),
    Literal(Literal),
    List(Box<[Literal]>),
}

impl Operand {
    /// The operand without redundant parentheses: `((x))` is `x`.
    pub(crate) fn bare(&self) -> &Self {
        match self {
            Self::Group(program) => match &**program {
                Program::One(test) if test.nots == 0 && test.check == Check::Bare => test.value.bare(),
                _ => self,
            },
            _ => self,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Number(Number),
    /// A duration such as `1d2h30m5s`, in seconds.
    Duration(i64),
    Time(TimeOfDay),
    Text(Box<str>),
}

/// A path to a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Path {
    pub(crate) root: Root,
    /// The keys after the root.
    pub(crate) keys: Box<[Key]>,
    /// The whole path with quotes only where they are necessary.
    pub(crate) text: Box<str>,
    pub(crate) span: Span,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Root {
    Metadata,
    Feed(Box<str>),
    PreviousState,
    System(System),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Time,
    Date,
    Now,
    Weekday,
    EnteredState,
    StateMachine,
    Label,
}

/// A step of a path: a key of an object, or an index of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) name: Box<str>,
    /// The name as a list index, if it is a number.
    pub(crate) index: Option<usize>,
}

impl Key {
    pub(crate) fn new(name: &str) -> Self {
        let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        Self { name: name.into(), index: digits.then(|| name.parse().ok()).flatten() }
    }
}

/// Whether a key can be written in a path without quotes.
pub(crate) fn needs_no_quotes(name: &str) -> bool {
    !name.is_empty() && name.chars().all(of_a_word)
}

pub(crate) fn of_a_word(c: char) -> bool {
    c.is_alphabetic() || c.is_ascii_digit() || c == '_' || c == '-'
}
