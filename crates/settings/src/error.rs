//! Errors that name the place to change.

use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{path}: cannot be read")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A key is unknown or missing, or a value is not valid.
    #[error("{place}: {message}")]
    Invalid {
        /// File, line, column and key; or environment variable; or flag; or only the key.
        place: String,
        /// What is wrong, with the accepted values. It never shows a secret.
        message: String,
    },
}

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { place: place.into(), message: message.into() }
    }
}
