//! Evaluation: from left to right, until it is decided, without allocating anything.

use std::cmp::Ordering;

use crate::{
    Condition,
    error::line_of,
    facts::{Facts, Feed},
    tree::{Check, Comparison, Operand, Path, Program, Property, Root, System, Test},
    truth::Truth,
    value::{Kind, List, Value},
};

/// Maximum number of values that one evaluation compares. A condition may have hundreds of tests, and each of them may search a
/// list of thousands of values, which must not occupy a worker for seconds.
pub(crate) const MAX_COMPARED: usize = 1_000_000;

/// Searching this many bytes of a text takes about as long as comparing two values.
const BYTES_OF_A_VALUE: usize = 16;

/// The result of an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    /// Only [`Truth::True`] opens a gate.
    pub truth: Truth,
    mishap: Option<Mishap>,
}

/// The evaluation needs a feed that was not queried yet: query it, and evaluate again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the feed {0} must be queried first")]
pub struct NeedsFeed<'a>(pub &'a str);

/// Operands that cannot be compared. The type is small, because an invalid value may be evaluated a million
/// times; the message is created only on request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mishap {
    /// The position of the test, in bytes.
    at: usize,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// Values of this kind have no order.
    NoOrder(Kind),
    /// Values of these kinds cannot be ordered.
    NoOrderBetween(Kind, Kind),
    /// The string is not a valid time of day or instant.
    Unreadable(Kind),
    NotIn(Kind),
    NoKey(Kind, Kind),
    NoSeconds(Kind),
    NoInstant(Kind),
    /// [`MAX_COMPARED`] values were compared before this test.
    TooMuch,
}

impl Condition {
    /// Evaluates the condition.
    ///
    /// # Errors
    /// If it needs a feed that is [`Feed::NotAsked`]. Feeds that cannot change the result are never
    /// requested.
    pub fn evaluate<'a>(&'a self, facts: &'a Facts<'_>) -> Result<Verdict, NeedsFeed<'a>> {
        let mut run = Run::new(facts);
        let truth = run.program(&self.program).truth();
        match run.needs {
            None => Ok(Verdict { truth, mishap: run.mishap }),
            Some(name) => Err(NeedsFeed(name)),
        }
    }

    /// The first part that could not be evaluated: `line 2: a string and a number have no order`.
    pub fn error_of(&self, verdict: &Verdict) -> Option<String> {
        verdict.mishap.map(|mishap| self.describe(mishap))
    }

    pub(crate) fn describe(&self, mishap: Mishap) -> String {
        let what = match mishap.what {
            What::NoOrder(kind) => format!("{} is neither less nor more than anything", kind.name()),
            What::NoOrderBetween(left, right) => {
                format!("{} and {} have no order", left.name(), right.name())
            }
            What::Unreadable(Kind::Time) => {
                "a string that is not HH:MM or HH:MM:SS has no order with a time of day".into()
            }
            What::Unreadable(_) => "a string that is not RFC 3339 has no order with an instant".into(),
            What::NotIn(kind) => {
                format!("nothing is in {}: `in` asks a list, an object or a string", kind.name())
            }
            What::NoKey(kind, of) => format!("{} cannot be in {}, only a string can", kind.name(), of.name()),
            What::NoSeconds(kind) => {
                format!("`passed since` needs a number of seconds on its left, not {}", kind.name())
            }
            What::NoInstant(Kind::Text) => {
                "`passed since` needs an instant on its right, and the string is not RFC 3339".into()
            }
            What::NoInstant(kind) => {
                format!("`passed since` needs an instant on its right, not {}", kind.name())
            }
            What::TooMuch => format!("more than {MAX_COMPARED} values were compared before it"),
        };
        format!("line {}: {what}", line_of(self.text(), mishap.at))
    }
}

/// One evaluation, of a condition or of a part of it.
pub(crate) struct Run<'a> {
    facts: &'a Facts<'a>,
    /// The first test that could not be evaluated.
    pub(crate) mishap: Option<Mishap>,
    /// The feed that was not queried yet. If there is one, the result is meaningless.
    pub(crate) needs: Option<&'a str>,
    /// The number of values that were compared.
    pub(crate) compared: usize,
}

impl<'a> Run<'a> {
    pub(crate) fn new(facts: &'a Facts<'a>) -> Self {
        Self { facts, mishap: None, needs: None, compared: 0 }
    }

    pub(crate) fn program(&mut self, program: &'a Program) -> Value<'a> {
        match program {
            Program::One(test) => self.test(test),
            Program::All(tests) => self.series(tests, Truth::True, Truth::and).into(),
            Program::Any(tests) => self.series(tests, Truth::False, Truth::or).into(),
        }
    }

    /// Evaluates tests, beginning with the neutral truth, until one yields its opposite: no later test can
    /// change the result then.
    fn series(&mut self, tests: &'a [Test], neutral: Truth, join: fn(Truth, Truth) -> Truth) -> Truth {
        let mut so_far = neutral;
        for test in tests {
            so_far = join(so_far, self.test(test).truth());
            if so_far == !neutral || self.needs.is_some() {
                break;
            }
        }
        so_far
    }

    pub(crate) fn test(&mut self, test: &'a Test) -> Value<'a> {
        let value = match &test.check {
            Check::Bare => self.operand(&test.value),
            Check::Compare(comparison, right) => self.compare(test, *comparison, right).into(),
            Check::Property { not, property, .. } => {
                self.property(test, property).negated(u16::from(*not)).into()
            }
        };
        // Without `not`, `(x)` is `x`, whatever its value.
        if test.nots == 0 { value } else { value.truth().negated(test.nots).into() }
    }

    pub(crate) fn operand(&mut self, operand: &'a Operand) -> Value<'a> {
        match operand {
            Operand::Path(path) => self.path(path),
            Operand::Literal(literal) => literal.into(),
            Operand::Group(program) => self.program(program),
            Operand::List(literals) => Value::List(List::Literals(literals)),
        }
    }

    fn path(&mut self, path: &'a Path) -> Value<'a> {
        let facts = self.facts;
        let text = |text: Option<&'a str>| text.map_or(Value::Null, Value::Text);
        let value = match &path.root {
            Root::Metadata => return Value::below(facts.metadata, &path.keys),
            Root::Feed(name) => {
                return match facts.feeds.feed(name) {
                    Feed::Value(json) => Value::below(json, &path.keys),
                    Feed::Failed => Value::Unknown,
                    Feed::NotAsked => {
                        self.needs = self.needs.or(Some(name));
                        Value::Unknown
                    }
                };
            }
            Root::PreviousState => text(facts.visit.previous_state),
            Root::System(System::Time) => Value::Time(facts.local().time),
            Root::System(System::Date) => Value::Text(facts.local().date()),
            Root::System(System::Weekday) => Value::Text(facts.local().weekday()),
            Root::System(System::Now) => Value::Instant(facts.now),
            Root::System(System::EnteredState) => Value::Instant(facts.visit.entered),
            Root::System(System::StateMachine) => text(facts.visit.state_machine),
            Root::System(System::Label) => text(facts.visit.label),
        };
        // These roots are scalars, and any key below a scalar is null.
        if path.keys.is_empty() { value } else { Value::Null }
    }

    fn fail(&mut self, test: &Test, what: What) -> Truth {
        self.mishap = self.mishap.or(Some(Mishap { at: test.span.start, what }));
        Truth::Unknown
    }

    fn compare(&mut self, test: &'a Test, comparison: Comparison, right: &'a Operand) -> Truth {
        if self.compared > MAX_COMPARED {
            return self.fail(test, What::TooMuch);
        }
        let left = self.operand(&test.value);
        let Some(left_kind) = left.kind() else { return Truth::Unknown };
        let equality = matches!(comparison, Comparison::Equal | Comparison::Unequal);
        if !equality {
            match left_kind {
                Kind::Null => return Truth::Unknown,
                // The right side does not matter, because the result is decided.
                kind if !kind.has_order() => return self.fail(test, What::NoOrder(kind)),
                _ => {}
            }
        }
        let right = self.operand(right);
        let Some(right_kind) = right.kind() else { return Truth::Unknown };
        let order = match comparison {
            Comparison::Equal => return left.equals_counted(right, &mut self.compared).into(),
            Comparison::Unequal => return (!left.equals_counted(right, &mut self.compared)).into(),
            _ if right_kind == Kind::Null => return Truth::Unknown,
            _ if !right_kind.has_order() => return self.fail(test, What::NoOrder(right_kind)),
            _ if !left_kind.has_order_with(right_kind) => {
                return self.fail(test, What::NoOrderBetween(left_kind, right_kind));
            }
            _ => left.order(right),
        };
        let other_kind = if left_kind == Kind::Text { right_kind } else { left_kind };
        let Some(order) = order else { return self.fail(test, What::Unreadable(other_kind)) };
        Truth::from(match comparison {
            Comparison::Less => order == Ordering::Less,
            Comparison::Greater => order == Ordering::Greater,
            Comparison::AtMost => order != Ordering::Greater,
            _ => order != Ordering::Less,
        })
    }

    fn property(&mut self, test: &'a Test, property: &'a Property) -> Truth {
        let left = self.operand(&test.value);
        let Some(left_kind) = left.kind() else { return Truth::Unknown };
        match property {
            Property::Defined => (left_kind != Kind::Null).into(),
            Property::In(right) => self.is_in(test, left, right),
            Property::PassedSince(right) => self.passed_since(test, left, right),
        }
    }

    fn is_in(&mut self, test: &'a Test, left: Value<'a>, right: &'a Operand) -> Truth {
        if self.compared > MAX_COMPARED {
            return self.fail(test, What::TooMuch);
        }
        let right = self.operand(right);
        let no_key = |of| left.kind().map_or(What::NotIn(of), |kind| What::NoKey(kind, of));
        match (left, right) {
            (_, Value::Unknown | Value::Null) => Truth::Unknown,
            (_, Value::List(list)) => {
                list.any(|element| element.equals_counted(left, &mut self.compared)).into()
            }
            (Value::Text(key), Value::Object(object)) => object.contains_key(key).into(),
            (Value::Text(part), Value::Text(text)) => {
                self.compared += text.len() / BYTES_OF_A_VALUE;
                text.contains(part).into()
            }
            (_, Value::Object(_)) => self.fail(test, no_key(Kind::Object)),
            (_, Value::Text(_)) => self.fail(test, no_key(Kind::Text)),
            (_, Value::Bool(_)) => self.fail(test, What::NotIn(Kind::Bool)),
            (_, Value::Number(_)) => self.fail(test, What::NotIn(Kind::Number)),
            (_, Value::Time(_)) => self.fail(test, What::NotIn(Kind::Time)),
            (_, Value::Instant(_)) => self.fail(test, What::NotIn(Kind::Instant)),
        }
    }

    /// The bound is inclusive: `passed since` is true after exactly that many seconds.
    fn passed_since(&mut self, test: &'a Test, left: Value<'a>, right: &'a Operand) -> Truth {
        let seconds = match left {
            Value::Number(seconds) => seconds,
            Value::Null => return Truth::Unknown,
            other => return self.fail(test, What::NoSeconds(other.kind().unwrap_or(Kind::Null))),
        };
        let right = self.operand(right);
        match (right.kind(), right.instant()) {
            (None | Some(Kind::Null), _) => Truth::Unknown,
            (_, Some(since)) => {
                let passed = self.facts.now.as_nanosecond() - since.as_nanosecond();
                (passed >= seconds.seconds_to_nanos()).into()
            }
            (Some(kind), None) => self.fail(test, What::NoInstant(kind)),
        }
    }
}

/// The time from which this many seconds have passed, if it can be represented.
pub(crate) fn passed_at(seconds: crate::number::Number, since: jiff::Timestamp) -> Option<jiff::Timestamp> {
    let at = since.as_nanosecond().checked_add(seconds.seconds_to_nanos())?;
    jiff::Timestamp::from_nanosecond(at).ok()
}
