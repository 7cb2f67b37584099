//! Why a condition has its value: every test with its operands, including those that the evaluation never
//! reached.

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::{
    Condition, Truth,
    evaluate::Run,
    facts::{Facts, Feed},
    fewest::{Formula, Wish},
    tree::{self, Program, Root, Test},
    value::Value,
};

/// A full evaluation with the value of every part.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The value of the condition.
    #[serde(skip)]
    pub truth: Truth,
    /// The condition as a tree.
    pub tree: Node,
    /// The tests that keep it from being true. Empty when it is true.
    pub blocking: Vec<Change>,
    /// The fewest tests whose results would have to change for the condition to be true: preferably those that time changes,
    /// then feeds and the label's history, and metadata only if there is no other way. `None` if no such set exists, or if there
    /// are more than 64 different tests. Tests are assumed to be independent of each other.
    pub fewest: Option<Vec<Change>>,
}

/// A test whose result would have to change, and the result it would need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The test, without any `not` in front of it.
    pub text: String,
    /// Its current value.
    pub is: Truth,
    /// The required value.
    pub should_be: bool,
}

/// A part of a condition that has a truth value.
#[derive(Debug, Clone, Serialize)]
pub struct Node {
    /// The kind of part.
    #[serde(rename = "kind")]
    pub shape: Shape,
    /// The part as it is written.
    pub text: String,
    /// Its value.
    #[serde(rename = "result")]
    pub truth: Truth,
    /// Whether the evaluation needed this part, or was decided before it.
    pub reached: bool,
    /// Its parts; empty for a test.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Node>,
    /// The operands of a test: one or two.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operands: Vec<Operand>,
    /// Why the test could not be evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The kind of a [`Node`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// True when all parts are.
    And,
    /// True when any part is.
    Or,
    /// True when its part is false.
    Not,
    /// A leaf.
    Test,
}

/// One side of a test.
#[derive(Debug, Clone, Serialize)]
pub struct Operand {
    /// The operand as it is written.
    pub text: String,
    /// Its value; null when it is missing or unknown.
    pub value: Json,
    /// Where the value came from.
    pub source: Source,
    /// Why the value is null, unless the value itself is null: `missing`, `feed_failed`, `feed_not_asked`,
    /// `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
    /// The condition in parentheses, if the operand is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<Node>,
}

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The condition itself.
    Literal,
    /// The label's metadata.
    Metadata,
    /// A feed.
    Feed,
    /// The label's history.
    History,
    /// The clock, the calendar, or the name of the label or its machine.
    System,
    /// A condition in parentheses.
    Tests,
}

impl Condition {
    /// Evaluates the condition in full and returns every value; tests of feeds that were not queried are unknown.
    pub fn explain(&self, facts: &Facts<'_>) -> Explanation {
        let tree = Explainer { condition: self, facts }.program(&self.program, true);
        let formula = Formula::of(&self.program, facts);
        let fewest = formula.fewest().map(|wishes| changes(&formula, wishes));
        let blocking = changes(&formula, formula.blocking());
        Explanation { truth: tree.truth, tree, blocking, fewest }
    }

    /// The fewest changes after which this condition and `other` are true, if they need no change of metadata.
    pub fn fewest_with(&self, other: &Self, facts: &Facts<'_>) -> Option<Vec<Change>> {
        let formula = Formula::of_all(&[&self.program, &other.program], facts);
        let wishes = formula.fewest().filter(|wishes| !formula.needs_metadata(wishes))?;
        Some(changes(&formula, wishes))
    }
}

fn changes(formula: &Formula<'_>, wishes: Vec<Wish>) -> Vec<Change> {
    let change = |(leaf, should_be)| {
        let (text, is) = formula.show(leaf);
        Change { text, is, should_be }
    };
    wishes.into_iter().map(change).collect()
}

struct Explainer<'a> {
    condition: &'a Condition,
    facts: &'a Facts<'a>,
}

impl<'a> Explainer<'a> {
    fn program(&self, program: &'a Program, reached: bool) -> Node {
        let (shape, neutral, join): (_, _, fn(Truth, Truth) -> Truth) = match program {
            Program::One(test) => return self.test(test, reached),
            Program::All(_) => (Shape::And, Truth::True, Truth::and),
            Program::Any(_) => (Shape::Or, Truth::False, Truth::or),
        };
        let mut truth = neutral;
        let parts = program.tests().iter().map(|test| {
            let part = self.test(test, reached && truth != !neutral);
            truth = join(truth, part.truth);
            part
        });
        let parts = parts.collect();
        Node { shape, text: program.to_string(), truth, reached, parts, operands: Vec::new(), error: None }
    }

    fn test(&self, test: &'a Test, reached: bool) -> Node {
        let text = test.to_string();
        if let Some(program) = test.group() {
            let inner = self.program(program, reached);
            if test.nots == 0 {
                // Parentheses alone do not add a level.
                return inner;
            }
            let truth = inner.truth.negated(test.nots);
            let shape = if test.nots % 2 == 1 { Shape::Not } else { Shape::And };
            return Node {
                shape,
                text,
                truth,
                reached,
                parts: vec![inner],
                operands: Vec::new(),
                error: None,
            };
        }
        let mut run = Run::new(self.facts);
        let truth = run.test(test).truth();
        let operands = test.operands().map(|operand| self.operand(operand, reached)).collect();
        let error = run.mishap.map(|mishap| self.condition.describe(mishap));
        Node { shape: Shape::Test, text, truth, reached, parts: Vec::new(), operands, error }
    }

    fn operand(&self, operand: &'a tree::Operand, reached: bool) -> Operand {
        let value = Run::new(self.facts).operand(operand);
        let (source, note, tree) = match operand.bare() {
            tree::Operand::Literal(_) | tree::Operand::List(_) => (Source::Literal, None, None),
            tree::Operand::Group(program) => {
                let note = matches!(value, Value::Unknown).then_some("unknown");
                (Source::Tests, note, Some(self.program(program, reached)))
            }
            tree::Operand::Path(path) => (source(&path.root), self.note(&path.root, value), None),
        };
        Operand { text: operand.to_string(), value: value.to_json(), source, note, tree }
    }

    fn note(&self, root: &Root, value: Value<'_>) -> Option<&'static str> {
        match (root, value) {
            (Root::Feed(name), Value::Unknown) => match self.facts.feeds.feed(name) {
                Feed::NotAsked => Some("feed_not_asked"),
                _ => Some("feed_failed"),
            },
            (_, Value::Null) => Some("missing"),
            _ => None,
        }
    }
}

fn source(root: &Root) -> Source {
    match root {
        Root::Metadata => Source::Metadata,
        Root::Feed(_) => Source::Feed,
        Root::PreviousState => Source::History,
        Root::System(_) => Source::System,
    }
}

impl Explanation {
    /// `{"tree", "blocking", "fewest"}`, as in `docs/conditions.md`.
    pub fn to_json(&self) -> Json {
        json!(self)
    }
}
