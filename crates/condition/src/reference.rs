//! Parts of the language that are also used outside of conditions: a single path, a duration, a time of day.

use jiff::civil;
use serde_json::Value as Json;

use crate::{
    Error, KnownFeeds, NeedsFeed, Truth,
    error::{Fault, Span},
    evaluate::Run,
    facts::Facts,
    instant::TimeOfDay,
    lexer::{Lexer, Token},
    literal, roots,
    tree::{Operand, Path, Root, System},
    value::Value,
};

/// A single path, such as the one that a transition reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    operand: Operand,
    path: Path,
}

impl Reference {
    /// Parses one path without anything after it.
    ///
    /// # Errors
    /// The first problem.
    pub fn parse(text: &str, feeds: KnownFeeds<'_>) -> Result<Self, Error> {
        Self::read(text, feeds).map_err(|fault| fault.in_text(text))
    }

    fn read(text: &str, feeds: KnownFeeds<'_>) -> Result<Self, Fault> {
        let mut lexer = Lexer::new(text);
        let (token, span) = lexer.next()?;
        let Token::Path(segments) = token else {
            return Err(Fault::new(span, "a path is expected here, like metadata.plan"));
        };
        let (behind, rest) = lexer.next()?;
        if behind != Token::End {
            return Err(Fault::new(rest, "nothing may follow a path here").hint("keys are joined by dots"));
        }
        let (path, fault) = roots::resolve(&segments, span, feeds);
        match fault {
            Some(fault) => Err(fault),
            None => Ok(Self { operand: Operand::Path(path.clone()), path }),
        }
    }

    /// The path with quotes only where they are necessary.
    pub fn text(&self) -> &str {
        &self.path.text
    }

    /// The keys below `metadata`, if it is a metadata path.
    pub fn metadata_keys(&self) -> Option<Vec<Box<str>>> {
        let keys = || self.path.keys.iter().map(|key| key.name.clone()).collect();
        (self.path.root == Root::Metadata).then(keys)
    }

    /// The feed that it reads, if any.
    pub fn feed(&self) -> Option<&str> {
        match &self.path.root {
            Root::Feed(name) => Some(name),
            _ => None,
        }
    }

    /// Whether its value changes merely because time passes.
    pub fn reads_clock(&self) -> bool {
        matches!(self.path.root, Root::System(System::Time | System::Date | System::Now | System::Weekday))
    }

    /// Whether the value at the path equals another value, by the rules of `=`.
    ///
    /// # Errors
    /// If its feed was not queried yet.
    pub fn equals<'a>(&'a self, facts: &'a Facts<'_>, other: &Json) -> Result<Truth, NeedsFeed<'a>> {
        let mut run = Run::new(facts);
        let value = run.operand(&self.operand);
        match run.needs {
            Some(name) => Err(NeedsFeed(name)),
            None if matches!(value, Value::Unknown) => Ok(Truth::Unknown),
            None => Ok(value.equals(other.into()).into()),
        }
    }
}

/// Whether two values are equal by the rules of `=`: numbers by value, all others by type and content.
pub fn same(left: &Json, right: &Json) -> bool {
    Value::from(left).equals(right.into())
}

/// The seconds of a duration like `1d2h30m5s`. `None` for an invalid duration, or one that is too long.
pub fn duration(text: &str) -> Option<u64> {
    literal::duration(text).flatten().and_then(|seconds| u64::try_from(seconds).ok())
}

/// Parses a time of day in the notation of conditions: `9:05`, `18:30` or `18:30:15`.
pub fn time_of_day(text: &str) -> Option<civil::Time> {
    TimeOfDay::parse_literal(text).map(TimeOfDay::civil)
}

/// The position and length of the condition's first comment, in bytes. `None` also if a syntax error precedes
/// it.
pub fn comment(text: &str) -> Option<(usize, usize)> {
    let mut lexer = Lexer::new(text);
    let mut behind = 0;
    loop {
        let (token, Span { start, end }) = lexer.next().ok()?;
        // Only whitespace and comments can be between two tokens.
        if let Some(at) = text[behind..start].find('#').map(|at| behind + at) {
            let length = text[at..].find(['\n', '\r']).unwrap_or(text.len() - at);
            return Some((at, length));
        }
        if token == Token::End {
            return None;
        }
        behind = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_alone_is_read_and_nothing_else() {
        let path = Reference::parse("metadata.a.\"b c\".0", KnownFeeds::Only(&[])).unwrap();
        assert_eq!(path.text(), "metadata.a.\"b c\".0");
        assert_eq!(path.metadata_keys().unwrap().len(), 3);
        for text in ["", "1", "a", "metadata.a = 1", "metadata.", "feeds.x", "metadata a", "\"metadata\""] {
            assert!(Reference::parse(text, KnownFeeds::Only(&[])).is_err(), "{text}");
        }
    }

    #[test]
    fn comments_are_found_but_not_in_texts() {
        assert_eq!(comment("metadata.a = '#1' # why\nand true"), Some((18, 5)));
        assert_eq!(comment("metadata.a#x"), Some((10, 2)));
        assert_eq!(comment("metadata.\"#\" = '#'"), None);
        assert_eq!(comment("# all"), Some((0, 5)));
    }
}
