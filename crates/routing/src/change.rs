//! The result of an operation, for the response to the client. Events for subscribers are made from what the table
//! recorded itself, because that survives the process that made the change (`announcer`).

use signalbox_route_table::{InstanceId, Record};

/// A change of the route table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteChange {
    /// The kind of change.
    pub kind: ChangeKind,
    /// The instance's id, or the host name.
    pub subject: String,
    /// The table's serial with the change in it.
    pub serial: u64,
    /// The newest token of the table's lineage; a serial means something only within it.
    pub epoch: String,
    /// The instance before the change, when there was one.
    pub before: Option<Record>,
    /// The instance after the change, when there is one.
    pub record: Option<Record>,
    /// The instance that lost its address to this one and is gone.
    pub displaced: Option<InstanceId>,
}

/// The kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// An instance was registered.
    Registered,
    /// The description of a registered instance changed.
    Altered,
    /// A repetition: nothing changed.
    Unchanged,
    /// A drain began.
    Draining,
    /// A drain was called off.
    Resumed,
    /// An instance was removed on request.
    Removed,
    /// A host was removed with everything that served it.
    HostRemoved,
    /// A host got a policy or lost it.
    HostAltered,
    /// A server name got a certificate or lost it.
    CertificateAltered,
    /// An instance was removed because its lease expired.
    LeaseEnded,
    /// An instance was removed at the deadline of its drain.
    DrainEnded,
}

impl ChangeKind {
    /// The name in logs and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Altered => "altered",
            Self::Unchanged => "unchanged",
            Self::Draining => "draining",
            Self::Resumed => "resumed",
            Self::Removed => "removed",
            Self::HostRemoved => "host_removed",
            Self::HostAltered => "host_altered",
            Self::CertificateAltered => "certificate_altered",
            Self::LeaseEnded => "lease_ended",
            Self::DrainEnded => "drain_ended",
        }
    }
}
