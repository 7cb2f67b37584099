//! Errors that name the place of the invalid value.

use std::path::PathBuf;

/// The configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// A key is unknown or missing, or a value is invalid.
    #[error("{place}: {message}")]
    Invalid {
        /// File, line, column and key; or environment variable; or flag; or only the key.
        place: String,
        /// The problem, with the accepted values. It never contains a secret.
        message: String,
    },
}

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { place: place.into(), message: message.into() }
    }
}
