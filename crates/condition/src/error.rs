//! Errors of a text, with their places.

use std::fmt;

use serde_json::{Value as Json, json};

/// A byte range of the source text.
///
/// Any two are equal, because positions are not part of the content. Trees can therefore be compared
/// directly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn to(self, last: Self) -> Self {
        Self { start: self.start, end: last.end }
    }
}

impl PartialEq for Span {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

/// An error without the text that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) span: Span,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Fault {
    pub(crate) fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = self.hint.or(hint);
        self
    }

    pub(crate) fn in_text(self, text: &str) -> Error {
        let place = Place::of(text, self.span);
        Error { place, message: self.message.into(), hint: self.hint.map(Into::into) }
    }
}

/// An error or a warning about a condition. `Display` is for terminals:
///
/// ```text
/// line 1: `==` is not a valid operator
/// metadata.plan == "pro"
///               ^^
/// hint: did you mean `=`?
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    place: Place,
    message: Box<str>,
    hint: Option<Box<str>>,
}

impl Error {
    /// The line, counted from 1. CR, LF and CR LF each end one.
    pub fn line(&self) -> usize {
        self.place.line
    }

    /// The column, counted from 1 in characters.
    pub fn column(&self) -> usize {
        self.place.column
    }

    /// The number of characters that the problem covers in its line, at least 1.
    pub fn length(&self) -> usize {
        self.place.length
    }

    /// The problem.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// A suggestion.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// `{"line", "column", "length", "message", "hint"}`; the hint may be null.
    pub fn to_json(&self) -> Json {
        json!({
            "line": self.line(), "column": self.column(), "length": self.length(),
            "message": self.message(), "hint": self.hint(),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, source, indent, length, .. } = &self.place;
        write!(f, "line {line}: {}\n{source}\n{indent}{}", self.message, "^".repeat(*length))?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
    length: usize,
    source: Box<str>,
    /// The text before the caret. Tabs are kept, so that both lines have the same width in any editor.
    indent: Box<str>,
}

impl Place {
    fn of(text: &str, span: Span) -> Self {
        let (before, rest) = text.split_at(span.start);
        let start = before.rfind(['\n', '\r']).map_or(0, |end| end + 1);
        let end = rest.find(['\n', '\r']).map_or(text.len(), |end| span.start + end);
        // A range of several lines is underlined on its first line.
        let marked = &text[span.start..span.end.clamp(span.start, end)];
        let indent = text[start..span.start].chars().map(|c| if c == '\t' { '\t' } else { ' ' });
        Self {
            line: line_of(text, span.start),
            column: text[start..span.start].chars().count() + 1,
            length: marked.chars().count().max(1),
            source: text[start..end].into(),
            indent: indent.collect::<String>().into(),
        }
    }
}

/// The line of a byte, counted from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    let before = &text.as_bytes()[..at];
    let ends = before.iter().enumerate().filter(|(n, byte)| match byte {
        b'\n' => true,
        // A CR LF is counted at its LF, even if the text ends between the two.
        b'\r' => text.as_bytes().get(n + 1) != Some(&b'\n'),
        _ => false,
    });
    ends.count() + 1
}
