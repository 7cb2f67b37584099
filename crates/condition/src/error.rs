//! Errors of a text, with their places.

use std::fmt;

use serde::Serialize;

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
        let Self { span, message, hint } = self;
        let (before, rest) = text.split_at(span.start);
        let start = before.rfind(['\n', '\r']).map_or(0, |end| end + 1);
        let end = rest.find(['\n', '\r']).map_or(text.len(), |end| span.start + end);
        // A range of several lines is underlined on its first line.
        let marked = &text[span.start..span.end.clamp(span.start, end)];
        Error {
            line: line_of(text, span.start),
            column: before[start..].chars().count() + 1,
            length: marked.chars().count().max(1),
            message,
            hint,
            text: text[start..end].into(),
        }
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
pub struct Error {
    /// The line, counted from 1. CR, LF and CR LF each end one.
    pub line: usize,
    /// The column, counted from 1 in characters.
    pub column: usize,
    /// The number of characters that the problem covers in its line, at least 1.
    pub length: usize,
    /// The problem.
    pub message: String,
    /// A suggestion.
    pub hint: Option<String>,
    /// The line itself.
    #[serde(skip)]
    text: Box<str>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, length, message, hint, text } = self;
        // Tabs are kept, so that both lines have the same width in any editor.
        let indent = text.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' });
        let indent: String = indent.collect();
        write!(f, "line {line}: {message}\n{text}\n{indent}{}", "^".repeat(*length))?;
        match hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
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
