//! Warnings about a condition that need no facts: it is valid, but probably unintended.

use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value as Json};

use crate::{
    Condition, Error, Truth,
    error::Fault,
    evaluate::Run,
    facts::{Facts, Visit},
    instant::{TimeOfDay, instant},
    possible::Possible,
    reads::{any_path, each_test},
    tree::{Check, Comparison, Literal, Operand, Path, Property, Root, System, Test},
    value::{Kind, Value},
};

impl Condition {
    /// The warnings, in text order: tests that are never true, paths that are always null, and a condition
    /// whose value never changes.
    pub fn warnings(&self) -> Vec<Error> {
        let mut found = Vec::new();
        each_test(&self.program, &mut |test| {
            found.extend(foregone(test).map(|(_, message)| Fault::new(test.span, message)));
            found.extend(test.operands().filter_map(beyond_a_scalar));
        });
        found.sort_by_key(|fault| fault.span.start);
        found.extend(self.constant());
        found.into_iter().map(|fault| fault.in_text(self.text())).collect()
    }

    fn constant(&self) -> Option<Fault> {
        let tests = self.program.tests();
        let span = tests.first()?.span.to(tests.last()?.span);
        let possible = Possible::of(&self.program, &mut leaf);
        if possible == Possible::from(Truth::True) {
            Some(Fault::new(span, "the condition is always true"))
        } else if !possible.can_be(Truth::True) {
            Some(Fault::new(span, "the condition can never be true"))
        } else {
            None
        }
    }
}

/// The possible values of a test for arbitrary data.
fn leaf(test: &Test) -> Possible {
    if let Some((truth, _)) = foregone(test) {
        return truth.negated(test.nots).into();
    }
    if any_path(test, &mut |_| true) || asks_the_clock(test) {
        return Possible::ANY;
    }
    let visit =
        Visit { entered: Timestamp::UNIX_EPOCH, previous_state: None, state_machine: None, label: None };
    // No data is read; a value is only needed for the type.
    let (feeds, zone) = (Map::new(), TimeZone::UTC);
    let facts = Facts::new(&Json::Null, &feeds, visit, Timestamp::UNIX_EPOCH, &zone);
    Run::new(&facts).test(test).truth().into()
}

fn asks_the_clock(test: &Test) -> bool {
    let within = |operand: &Operand| match operand {
        Operand::Group(program) => program.tests().iter().any(asks_the_clock),
        _ => false,
    };
    matches!(test.check, Check::Property { property: Property::PassedSince(_), .. })
        || test.operands().any(within)
}

/// Reports a path below a scalar, such as `system.time.hour`.
fn beyond_a_scalar(operand: &Operand) -> Option<Fault> {
    let Operand::Path(path) = operand else { return None };
    is_beyond_a_scalar(path).then(|| {
        Fault::new(
            path.span,
            format!("`{path}` is always null: nothing lies below the value before its last key"),
        )
    })
}

fn is_beyond_a_scalar(path: &Path) -> bool {
    matches!(path.root, Root::System(_) | Root::PreviousState) && !path.keys.is_empty()
}

/// The result of a test (without its `not`s), if the types of its operands determine it.
fn foregone(test: &Test) -> Option<(Truth, String)> {
    let left = &test.value;
    let (truth, why) = match &test.check {
        Check::Compare(comparison @ (Comparison::Equal | Comparison::Unequal), right) => {
            let why = never_equal(left, right)?;
            ((*comparison == Comparison::Unequal).into(), why)
        }
        Check::Compare(_, right) => (Truth::Unknown, never_ordered(left, right)?),
        Check::Property { property: Property::In(right), .. } => (Truth::Unknown, never_in(left, right)?),
        Check::Property { property: Property::PassedSince(right), .. } => {
            (Truth::Unknown, never_passed(left, right)?)
        }
        Check::Bare | Check::Property { property: Property::Defined, .. } => return None,
    };
    let always = match truth {
        Truth::True => "always true",
        Truth::False => "always false",
        Truth::Unknown => "always unknown",
    };
    Some((truth, format!("this test is {always}: {why}")))
}

/// The type of an operand, if it does not depend on data.
fn kind(operand: &Operand) -> Option<Kind> {
    match operand.bare() {
        Operand::Literal(literal) => Value::from(literal).kind(),
        Operand::List(_) => Some(Kind::List),
        Operand::Group(_) => Some(Kind::Bool),
        Operand::Path(path) if is_beyond_a_scalar(path) => Some(Kind::Null),
        Operand::Path(path) => match path.root {
            Root::System(System::Time) => Some(Kind::Time),
            Root::System(System::Now | System::EnteredState) => Some(Kind::Instant),
            Root::System(System::Date | System::Weekday) => Some(Kind::Text),
            _ => None,
        },
    }
}

/// The text, if the operand is a literal text.
fn text(operand: &Operand) -> Option<&str> {
    match operand.bare() {
        Operand::Literal(Literal::Text(text)) => Some(text),
        _ => None,
    }
}

/// Why a literal text cannot be parsed as the type of the other operand.
fn unreadable(one: &Operand, other: &Operand) -> Option<String> {
    let (kind, text) = kind(one).zip(text(other)).or_else(|| kind(other).zip(text(one)))?;
    match kind {
        Kind::Time if TimeOfDay::parse(text).is_none() => Some(format!("{text:?} is not HH:MM or HH:MM:SS")),
        Kind::Instant if instant(text).is_none() => Some(format!("{text:?} is not RFC 3339")),
        _ => None,
    }
}

fn never_equal(left: &Operand, right: &Operand) -> Option<String> {
    // A condition in parentheses may be unknown, and then this test is unknown, too.
    if [left, right].iter().any(|operand| matches!(operand.bare(), Operand::Group(_))) {
        return None;
    }
    let (one, other) = (kind(left)?, kind(right)?);
    // Two constants are compared by the evaluation, not by their types.
    let comparable = one == other || one.has_order_with(other);
    if comparable {
        unreadable(left, right)
    } else {
        Some(format!("{} never equals {}", one.name(), other.name()))
    }
}

fn never_ordered(left: &Operand, right: &Operand) -> Option<String> {
    let kinds = [kind(left), kind(right)];
    if let Some(kind) = kinds.into_iter().flatten().find(|kind| !kind.has_order()) {
        return Some(format!("{} is neither less nor more than anything", kind.name()));
    }
    let [Some(one), Some(other)] = kinds else { return None };
    if one.has_order_with(other) {
        unreadable(left, right)
    } else {
        Some(format!("{} and {} have no order", one.name(), other.name()))
    }
}

fn never_in(left: &Operand, right: &Operand) -> Option<String> {
    match (kind(left), kind(right)?) {
        (_, Kind::List) | (None | Some(Kind::Text), Kind::Text | Kind::Object) => None,
        (Some(left), of @ (Kind::Text | Kind::Object)) => {
            Some(format!("{} cannot be in {}", left.name(), of.name()))
        }
        (_, other) => Some(format!("nothing is in {}", other.name())),
    }
}

fn never_passed(left: &Operand, right: &Operand) -> Option<String> {
    match (kind(left), kind(right)) {
        (Some(kind), _) if kind != Kind::Number => {
            Some(format!("{} is not a number of seconds", kind.name()))
        }
        (_, Some(Kind::Text)) => match text(right) {
            Some(text) if instant(text).is_none() => Some(format!("{text:?} is not RFC 3339")),
            Some(_) => None,
            // A date or a weekday.
            None => Some("a date is not an instant".into()),
        },
        (_, Some(kind)) if kind != Kind::Instant => Some(format!("{} is not an instant", kind.name())),
        _ => None,
    }
}
