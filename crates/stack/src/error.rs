//! Errors of a stack.

use std::{io, path::PathBuf};

use crate::Part;

/// A stack, or a part of it, does not run. Display describes the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option has an invalid value.
    #[error("{key}: {reason}")]
    Option {
        /// The key, as in `signalbox.toml` (`ports.edge`).
        key: String,
        /// The problem.
        reason: String,
    },
    /// Another process listens on the port of a part. Nothing was started.
    #[error(
        "port {port} is taken{holder}; {part} wants to listen there. \
         End that process, or give {part} another port: {remedy}"
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// The part that needs it.
        part: Part,
        /// ` by redis-server (pid 123)`, or empty if unknown.
        holder: String,
        /// The option's flag, environment variable and key.
        remedy: String,
    },
    /// A part cannot listen on its port, although the port may be free.
    #[error("{part} cannot listen on {address}; set another port with {remedy}")]
    PortRefused {
        /// The part that needs it.
        part: Part,
        /// The address.
        address: String,
        /// The option's flag, environment variable and key.
        remedy: String,
        /// The error of the system.
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
        /// ` (pid 123)`, or empty if the lock does not contain it.
        holder: String,
    },
    /// A program that a part needs is not installed.
    #[error("{program} was not found: {hint}")]
    ProgramMissing {
        /// The program.
        program: String,
        /// The package to install or the option to set.
        hint: String,
    },
    /// A file or folder of the stack cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation: `write`, `create`, ….
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A process cannot be started.
    #[error("cannot start {part} ({})", program.display())]
    Spawn {
        /// The part.
        part: Part,
        /// Its program.
        program: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A part ended during the start.
    #[error("{part} ended while the stack was starting ({how}); the end of {}:\n{tail}", log.display())]
    Died {
        /// The part.
        part: Part,
        /// Its exit status.
        how: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A part runs but did not respond in time.
    #[error("{part} was not ready after {seconds} s (last: {last}); the end of {}:\n{tail}", log.display())]
    NotReady {
        /// The part.
        part: Part,
        /// The time limit.
        seconds: u64,
        /// The result of the last probe.
        last: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// The stack is stopping and rejects commands.
    #[error("cannot change {part}: the system is stopping")]
    ComingDown {
        /// The part of the command.
        part: Part,
    },
}

/// The kind of an [`Error`], which determines the exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The configuration is invalid.
    Configuration,
    /// A required resource is in use, missing or does not respond.
    Unavailable,
    /// A defect, or the operating system rejects an operation.
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

    /// The kind of the error.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Option { .. } => Kind::Configuration,
            // A daemon exits with this status if its configuration is invalid.
            Self::Died { how, .. } if how == "exit status: 64" => Kind::Configuration,
            Self::File { .. } | Self::Spawn { .. } => Kind::Internal,
            _ => Kind::Unavailable,
        }
    }
}
