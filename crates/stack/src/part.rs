//! The names of the parts. A name is also the stem of the part's log and pid file.

use std::{borrow::Cow, fmt};

/// A process of the stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part(Cow<'static, str>);

impl Part {
    /// The routes primary.
    pub const ROUTES_PRIMARY: Self = Self(Cow::Borrowed("routes"));
    /// The routes replica of the first router.
    pub const ROUTES_REPLICA: Self = Self(Cow::Borrowed("routes-replica"));
    /// The statistics Redis.
    pub const STATS: Self = Self(Cow::Borrowed("stats"));
    /// The fabric Redis.
    pub const FABRIC: Self = Self(Cow::Borrowed("fabric"));
    /// The first pacemaker.
    pub const PACEMAKER: Self = Self(Cow::Borrowed("pacemaker"));
    /// nginx of the first router.
    pub const NGINX: Self = Self(Cow::Borrowed("nginx"));
    /// The sidecar of the first router.
    pub const SIDECAR: Self = Self(Cow::Borrowed("sidecar"));

    /// Creates a name from lower-case letters, digits and `-`, because it is used as a file name.
    pub fn named(name: impl Into<String>) -> Self {
        Self(Cow::Owned(name.into()))
    }

    /// The `number`-th of its kind (`pacemaker-2`). The first has the plain name.
    pub(crate) fn numbered(&self, number: usize) -> Self {
        if number == 1 { self.clone() } else { Self::named(format!("{self}-{number}")) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
