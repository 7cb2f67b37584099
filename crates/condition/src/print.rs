//! The tree as text again: one line, a space around every operator, quotes only where they are needed.

use std::fmt::{self, Display, Formatter, Write as _};

use crate::{
    Condition,
    number::Number,
    tree::{Check, Comparison, Literal, Operand, Path, Program, Property, Test, needs_no_quotes},
};

impl Display for Condition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let joint = if matches!(self, Self::Any(_)) { " or " } else { " and " };
        joined(f, self.tests(), joint)
    }
}

fn joined(f: &mut Formatter<'_>, parts: &[impl Display], joint: &str) -> fmt::Result {
    for (n, part) in parts.iter().enumerate() {
        f.write_str(if n > 0 { joint } else { "" })?;
        part.fmt(f)?;
    }
    Ok(())
}

impl Display for Test {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for _ in 0..self.nots {
            f.write_str("not ")?;
        }
        self.value.fmt(f)?;
        match &self.check {
            Check::Bare => Ok(()),
            Check::Compare(comparison, right) => write!(f, " {comparison} {right}"),
            Check::Property { verb, not, property } => {
                write!(f, " {}{} ", verb.word(), if *not { " not" } else { "" })?;
                match property {
                    Property::Defined => f.write_str("defined"),
                    Property::In(right) => write!(f, "in {right}"),
                    Property::PassedSince(right) => write!(f, "passed since {right}"),
                }
            }
        }
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "=",
            Self::Unequal => "/=",
            Self::Less => "<",
            Self::Greater => ">",
            Self::AtMost => "<=",
            Self::AtLeast => ">=",
        })
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(program) => write!(f, "({program})"),
            Self::Path(path) => path.fmt(f),
            Self::Literal(literal) => literal.fmt(f),
            Self::List(literals) => {
                f.write_char('[')?;
                joined(f, literals, ", ")?;
                f.write_char(']')
            }
        }
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Number(Number::Integer(value)) => value.fmt(f),
            // The Debug format keeps the decimal point, which distinguishes 1.0 from 1, and writes 1e300 in
            // this form.
            Self::Number(Number::Float(value)) => write!(f, "{value:?}"),
            Self::Duration(seconds) => duration(f, *seconds),
            Self::Time(time) => time.fmt(f),
            Self::Text(text) => quoted(f, text),
        }
    }
}

fn duration(f: &mut Formatter<'_>, seconds: i64) -> fmt::Result {
    if seconds == 0 {
        return f.write_str("0s");
    }
    let parts =
        [(seconds / 86_400, 'd'), (seconds / 3600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    parts.iter().filter(|(count, _)| *count > 0).try_for_each(|(count, unit)| write!(f, "{count}{unit}"))
}

/// Writes a text with JSON's escapes.
pub(crate) fn quoted(f: &mut impl fmt::Write, text: &str) -> fmt::Result {
    write!(f, "{}", serde_json::Value::from(text))
}

/// Formats a path with quotes only where they are necessary.
pub fn path_text(segments: &[impl AsRef<str>]) -> String {
    let mut text = String::new();
    for (n, segment) in segments.iter().map(AsRef::as_ref).enumerate() {
        text.push_str(if n > 0 { "." } else { "" });
        if needs_no_quotes(segment) {
            text.push_str(segment);
        } else {
            // Writing to a string cannot fail.
            let _written = quoted(&mut text, segment);
        }
    }
    text
}
