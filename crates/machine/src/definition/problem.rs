//! The problems of a file, in a form for people and for programs.

use std::{fmt, sync::Arc};

use serde_json::{Value as Json, json};

/// An error in a definition, or a warning about it.
///
/// ```text
/// drip.yaml:12:15: unknown state `sent_first`
///         next: sent_first
///               ^^^^^^^^^^
/// hint: did you mean `send_first`?
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The name of the file, as it was given.
    pub file: Arc<str>,
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// The number of characters that the problem covers in its line, at least 1.
    pub length: usize,
    /// The problem.
    pub message: String,
    /// A suggestion.
    pub hint: Option<String>,
    /// The line itself.
    pub source: String,
}

impl Problem {
    /// `{"file", "line", "column", "length", "message", "hint"}`; the hint may be null.
    pub fn to_json(&self) -> Json {
        json!({
            "file": &*self.file, "line": self.line, "column": self.column, "length": self.length,
            "message": self.message, "hint": self.hint,
        })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, length, message, hint, source } = self;
        write!(f, "{file}:{line}:{column}: {message}")?;
        if !source.is_empty() {
            // Tabs are kept, so that both lines have the same width in any editor.
            let indent = source.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' });
            write!(f, "\n{source}\n{}{}", indent.collect::<String>(), "^".repeat(*length))?;
        }
        match hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Why a file was rejected: every problem that was found, in the order of the file; at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refused {
    /// The problems.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if n > 0 { "\n\n" } else { "" })?;
        }
        Ok(())
    }
}
