//! The roles of servers.

use crate::key::{FabricSpace, RoutesSpace, StatsSpace};

mod sealed {
    pub trait Sealed {}
}

/// The role of a server. Only the four marker types of this module implement it.
pub trait Role: sealed::Sealed + Clone + Send + Sync + 'static {
    /// The key space of this server.
    type Space: Clone + Send + Sync + 'static;
    /// The name in logs, metrics and error messages.
    const NAME: &'static str;
}

macro_rules! role {
    ($(#[$doc:meta])* $marker:ident, $space:ty, $name:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub enum $marker {}
        impl sealed::Sealed for $marker {}
        impl Role for $marker {
            type Space = $space;
            const NAME: &'static str = $name;
        }
    };
}

role!(
    /// Marks [`crate::RoutesPrimary`].
    RoutesPrimaryRole, RoutesSpace, "routes primary"
);
role!(
    /// Marks [`crate::RoutesReplica`], which has the same keys as the primary.
    RoutesReplicaRole, RoutesSpace, "routes replica"
);
role!(
    /// Marks [`crate::Stats`].
    StatsRole, StatsSpace, "stats"
);
role!(
    /// Marks [`crate::Fabric`].
    FabricRole, FabricSpace, "fabric"
);
