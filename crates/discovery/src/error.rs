//! Errors of sources.

use std::{io, path::PathBuf};

/// The reason why a source could not be read. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The container engine cannot be reached.
    #[error("the container engine at {} does not respond: {why}", socket.display())]
    Engine {
        /// Its socket.
        socket: PathBuf,
        /// The problem.
        why: String,
    },
    /// The folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The problem.
        source: io::Error,
    },
    /// The folder has too many files.
    #[error("{} has more than {limit} files", path.display())]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// The name server did not answer usefully.
    #[error("the name server has no answer for {name}: {why}")]
    Dns {
        /// The name.
        name: String,
        /// The problem.
        why: String,
    },
}
