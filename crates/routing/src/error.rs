//! Errors of the route table.

use signalbox_store as redis;

use super::registry::NotPromoted;
use signalbox_route_table::{InstanceId, Invalid};

/// A failed operation on the route table. `recorded` reports whether the fabric has the change. If it has, the
/// reconciler brings the change to the table, whatever the caller does.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The fabric failed, or did not answer.
    #[error("the fabric did not answer")]
    Fabric(#[source] redis::Error),
    /// The routes primary failed, or did not answer.
    #[error("the routes primary did not answer")]
    Table {
        /// Whether the fabric has the change.
        recorded: bool,
        /// The error of the connection.
        #[source]
        source: redis::Error,
    },
    /// The stats Redis failed, or did not answer.
    #[error("the stats Redis did not answer")]
    Stats(#[source] redis::Error),
    /// The fabric and the table disagree, and the reconciler did not finish in time.
    #[error("the route table is being brought in line with the desired state")]
    Resyncing {
        /// Whether the fabric has the change.
        recorded: bool,
    },
    /// A key that an operator made prevents the change.
    #[error("the key {key} has an unexpected type")]
    Blocked {
        /// The key on the routes primary.
        key: String,
        /// Whether the fabric has the change.
        recorded: bool,
    },
    /// Another pacemaker holds the lease under which the caller worked.
    #[error("another pacemaker took the lease over")]
    Fenced {
        /// The fencing epoch of the other one.
        epoch: u64,
    },
    /// The compare-and-set lost against other clients too often.
    #[error("too many concurrent changes to the same instance or address")]
    Contended,
    /// The policy does not have the revision that the client has read.
    #[error("the policy of the host has the revision {revision}; read it again")]
    PolicyChanged {
        /// The current revision; 0 without a policy.
        revision: u64,
    },
    /// The stored policy of the host cannot be read, and the change depends on it.
    #[error(
        "the stored policy of {hostname} cannot be read, because a later version stored it or it is damaged. Remove it, or set \
         a whole policy without `(hidden)`, `pause` and `maintenance`, and without `If-Match` and `If-None-Match`"
    )]
    PolicyUnreadable {
        /// The host.
        hostname: String,
        /// The problem.
        #[source]
        source: serde_json::Error,
    },
    /// The instance does not have the revision that the client has read.
    #[error("the instance has the revision {revision}; read it again")]
    InstanceChanged {
        /// The current revision; 0 without an instance.
        revision: u64,
    },
    /// The instance is not registered.
    #[error("unknown instance {0}")]
    NoInstance(InstanceId),
    /// No instance was ever registered for the host.
    #[error("unknown host: no instance was ever registered for it")]
    NoHost,
    /// The caller's token is confined to other hosts.
    #[error("the token does not cover {hostname}")]
    HostNotAllowed {
        /// The host that is not covered.
        hostname: String,
    },
    /// The instance serves hosts that the caller's token does not cover. They are not named, because they may belong to another
    /// tenant.
    #[error("the token does not cover all hosts of the instance")]
    InstanceNotAllowed,
    /// The caller may register instances of other IDs only.
    #[error("the ID {0} belongs to another owner")]
    IdNotAllowed(InstanceId),
    /// The caller may register instances under other version types only.
    #[error("the token may not register instances under the version type `{0}`")]
    VersionTypeNotAllowed(String),
    /// Another instance has the address, and the caller may not remove that instance.
    #[error("the address belongs to an instance of hosts that the token does not cover")]
    AddressTaken,
    /// The host has the maximum number of instances.
    #[error("instance limit of {hostname} reached")]
    HostFull {
        /// The host at its limit.
        hostname: String,
    },
    /// The caller's token has the maximum number of instances.
    #[error(
        "instance limit of the token reached ({instances}); remove some, or raise `limits.token_instances`"
    )]
    TokenFull {
        /// The limit.
        instances: u64,
    },
    /// The caller's token has registered the maximum number of new names.
    #[error(
        "limit of new host names and version types of the token within a day reached ({names}); register names that exist, or \
         raise `limits.token_new_names_per_day`"
    )]
    TokenNames {
        /// The limit.
        names: u64,
        /// Seconds until the token may register new names again.
        seconds: u32,
    },
    /// The version type cannot be promoted.
    #[error("the version type {version_type} cannot be promoted for {hostname}: {reason}")]
    CannotPromote {
        /// The host.
        hostname: String,
        /// The version type.
        version_type: String,
        /// The reason.
        reason: NotPromoted,
    },
    /// The promotion cannot be undone.
    #[error("{hostname} has no promotion of the version type {version_type} that can be undone: {reason}")]
    NothingToUndo {
        /// The host.
        hostname: String,
        /// The version type whose promotion is to be undone.
        version_type: String,
        /// The reason.
        reason: &'static str,
    },
    /// A traffic split names version types that no instance of the host has.
    #[error("no instance of {hostname} has the version type {}", .version_types.join(", "))]
    UnknownShares {
        /// The host.
        hostname: String,
        /// The version types.
        version_types: Vec<String>,
    },
    /// A value in the request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A record in Redis is not the expected JSON.
    #[error("a record in Redis is not readable")]
    Record(#[source] serde_json::Error),
    /// A script returned something that its header does not list.
    #[error("the script {script} returned {reply}")]
    Reply {
        /// The name of the script.
        script: &'static str,
        /// The reply.
        reply: String,
    },
}

impl Error {
    pub(crate) fn table(source: redis::Error) -> Self {
        Self::Table { recorded: false, source }
    }

    /// Whether the fabric has the change, so that it is made whatever the caller does.
    pub fn is_recorded(&self) -> bool {
        matches!(
            self,
            Self::Table { recorded: true, .. }
                | Self::Resyncing { recorded: true }
                | Self::Blocked { recorded: true, .. }
        )
    }

    /// Marks the error as one that followed after the fabric accepted the change.
    pub(crate) fn after_recording(self) -> Self {
        match self {
            Self::Table { source, .. } => Self::Table { recorded: true, source },
            Self::Resyncing { .. } => Self::Resyncing { recorded: true },
            Self::Blocked { key, .. } => Self::Blocked { key, recorded: true },
            other => other,
        }
    }
}
