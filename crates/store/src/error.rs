//! Errors of Redis commands.

use redis::{RedisError, ServerErrorKind};

/// A failed command, with its server and operation.
#[derive(Debug, thiserror::Error)]
#[error("{operation} on the {role} Redis failed")]
pub struct Error {
    role: &'static str,
    operation: String,
    #[source]
    source: RedisError,
}

/// A caller's possible reaction to an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The server was unavailable, loading or too slow. The outcome of a write is *unknown*: repeat it, or read back.
    Unavailable,
    /// The server rejected the write: out of memory, a full disk, or not a primary. Nothing was changed.
    Refused,
    /// A wrong type, a script error or an unexpected reply: a defect of Signalbox, or a key that another program wrote.
    Broken,
}

impl Error {
    pub(crate) fn new(role: &'static str, operation: impl Into<String>, source: RedisError) -> Self {
        Self { role, operation: operation.into(), source }
    }

    /// The server's role, as in [`crate::Role::NAME`].
    pub fn role(&self) -> &'static str {
        self.role
    }

    /// A caller's possible reaction.
    pub fn kind(&self) -> Kind {
        use redis::ErrorKind;
        match self.source.kind() {
            // The login is retried with the password that the file contains then.
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound | ErrorKind::AuthenticationFailed => {
                Kind::Unavailable
            }
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::TryAgain,
            ) => Kind::Unavailable,
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Kind::Refused,
            _ => self.kind_by_code(),
        }
    }

    /// Classifies codes that redis-rs has no name for. A script's error contains the code of the command that
    /// failed in it.
    fn kind_by_code(&self) -> Kind {
        match self.source.code() {
            Some("OOM" | "MISCONF" | "NOREPLICAS") => Kind::Refused,
            Some("BUSY" | "UNKILLABLE" | "NOAUTH" | "WRONGPASS") => Kind::Unavailable,
            _ if self.source.is_timeout() || self.source.is_io_error() => Kind::Unavailable,
            _ => Kind::Broken,
        }
    }

    /// The error code that a script or the server gave, like `WRONGTYPE`.
    pub fn code(&self) -> Option<&str> {
        self.source.code()
    }
}
