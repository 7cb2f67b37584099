//! Reading a configuration so that a mistake can be found.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Why a configuration cannot be used. The message names the place.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read.
    #[error("{path}: cannot be read")]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A mistake in a file: its syntax, an unknown key, or a value that does not do.
    #[error("{path}:{line}:{column}: {message}")]
    Syntax {
        /// Which one.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A key whose value does not do, wherever it came from.
    #[error("{key}: {message}")]
    Value {
        /// Which one.
        key: &'static str,
        /// What is wrong, and what to do.
        message: String,
    },
}

impl Error {
    /// An [`Error::Value`].
    pub fn value(key: &'static str, message: impl Into<String>) -> Self {
        Self::Value { key, message: message.into() }
    }
}

/// The text of a file.
///
/// # Errors
/// [`Error::Read`].
pub fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// A `T` out of TOML. `path` is where the text came from.
///
/// # Errors
/// [`Error::Syntax`].
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, Error> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.get(..start).unwrap_or_default();
        Error::Syntax {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1,
            message: error.message().to_owned(),
        }
    })
}

/// The value of a key that must have one.
///
/// # Errors
/// [`Error::Value`].
pub fn required<T>(key: &'static str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::value(key, "is not set"))
}
