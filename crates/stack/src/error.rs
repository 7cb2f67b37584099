//! What can keep a stack from standing.

use std::{io, path::PathBuf};

use crate::Part;

/// Why a stack, or a part of it, does not run. Display says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option has a value that cannot work.
    #[error("{key}: {reason}")]
    Option {
        /// The key, as in `signalbox.toml` (`ports.edge`).
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody listens where a part is to listen. Nothing was started.
    #[error(
        "port {port} is taken{holder}; {part} wants to listen there. \
         End that process, or give {part} another port: {remedy}"
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// The part that was to have it.
        part: Part,
        /// ` by redis-server (pid 123)`, or empty when that cannot be seen.
        holder: String,
        /// The option's flag, environment variable and key.
        remedy: String,
    },
    /// A part may not listen at its port, taken or not.
    #[error("{part} cannot listen on {address}; other ports are set by {remedy}")]
    PortRefused {
        /// The part that was to have it.
        part: Part,
        /// The address.
        address: String,
        /// The option's flag, environment variable and key.
        remedy: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another copy runs on the same data folder.
    #[error(
        "{} is in use by another copy{holder}; end that copy, or start this one with another --data-dir and \
         other ports (--port-offset)", data_dir.display()
    )]
    Locked {
        /// The folder.
        data_dir: PathBuf,
        /// ` (pid 123)`, or empty when the lock does not say.
        holder: String,
    },
    /// A program that a part needs is not installed.
    #[error("{program} was not found: {hint}")]
    ProgramMissing {
        /// What was looked for.
        program: String,
        /// What to install or set.
        hint: String,
    },
    /// A file or folder of the stack cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried: `write`, `create`, ….
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A process could not be started.
    #[error("cannot start {part} ({})", program.display())]
    Spawn {
        /// The part.
        part: Part,
        /// Its program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A part ended before everything was ready.
    #[error("{part} ended while the stack was starting ({how}); the end of {}:\n{tail}", log.display())]
    Died {
        /// The part.
        part: Part,
        /// Its exit status in words.
        how: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A part runs but did not answer in time.
    #[error("{part} did not get ready in {seconds} s (last: {last}); the end of {}:\n{tail}", log.display())]
    NotReady {
        /// The part.
        part: Part,
        /// How long it was given.
        seconds: u64,
        /// What the last probe saw.
        last: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// The stack is coming down and takes no commands any more.
    #[error("{part} is coming down")]
    ComingDown {
        /// The part that was asked for something.
        part: Part,
    },
}

/// What kind of trouble an [`Error`] is; decides the exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The configuration has to change.
    Configuration,
    /// Something that the stack needs is taken, missing or not answering.
    Unavailable,
    /// A defect, or a machine that refuses files and processes.
    Internal,
}

impl Error {
    pub(crate) fn option(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Option { key: key.into(), reason: reason.into() }
    }

    /// The same error, for an option that is a member of `table`.
    pub(crate) fn within(self, table: &str) -> Self {
        match self {
            Self::Option { key, reason } => Self::Option { key: format!("{table}.{key}"), reason },
            other => other,
        }
    }

    /// For `map_err` on file operations.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// What kind of trouble this is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Option { .. } => Kind::Configuration,
            // What a daemon says of its own configuration, in words of `ExitStatus`.
            Self::Died { how, .. } if how == "exit status: 64" => Kind::Configuration,
            Self::File { .. } | Self::Spawn { .. } => Kind::Internal,
            _ => Kind::Unavailable,
        }
    }
}
