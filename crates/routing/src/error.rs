//! What can go wrong in this room.

use signalbox_store as redis;

use super::registry::NotSwitched;
use signalbox_route_table::{InstanceId, Invalid};

/// A failed operation on the route table. `recorded` says that the fabric has the change, so that it will come to
/// stand in the table whatever the caller does.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the fabric did not answer")]
    Fabric(#[source] redis::Error),
    #[error("the routes master did not answer")]
    Table {
        recorded: bool,
        #[source]
        source: redis::Error,
    },
    #[error("the stats Redis did not answer")]
    Stats(#[source] redis::Error),
    #[error("the route table is being brought in line with the desired state")]
    Resyncing { recorded: bool },
    #[error("the key {key} holds another type than it must")]
    Blocked { key: String, recorded: bool },
    #[error("others changed the same instance or address again and again")]
    Contended,
    #[error("no instance {0}")]
    NoInstance(InstanceId),
    #[error("no such host")]
    NoHost,
    #[error("the token does not cover {hostname}")]
    HostNotAllowed { hostname: String },
    #[error("the address belongs to an instance that the token does not cover")]
    AddressTaken,
    #[error("the host has as many instances as it may")]
    HostFull { hostname: String },
    #[error("the host cannot be switched to that version")]
    CannotSwitch { hostname: String, version_type: String, why: NotSwitched },
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("a record in Redis is not readable")]
    Record(#[source] serde_json::Error),
    #[error("the script {script} answered {reply}")]
    Reply { script: &'static str, reply: String },
}

impl Error {
    pub(crate) fn table(source: redis::Error) -> Self {
        Self::Table { recorded: false, source }
    }

    /// Notes that the fabric has taken the change that then failed.
    pub(crate) fn after_recording(self) -> Self {
        match self {
            Self::Table { source, .. } => Self::Table { recorded: true, source },
            Self::Resyncing { .. } => Self::Resyncing { recorded: true },
            Self::Blocked { key, .. } => Self::Blocked { key, recorded: true },
            other => other,
        }
    }
}
