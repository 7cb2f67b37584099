//! The route table's entries of a name and of an address.

/// The keys of one host name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableHost {
    /// Sorted.
    pub addresses: Vec<String>,
    /// Sorted.
    pub instance_ids: Vec<String>,
    /// The version type under which the edge counts requests for this name.
    pub log_key: Option<String>,
    /// The policy as JSON, as the edge reads it.
    pub policy: Option<String>,
}

impl TableHost {
    /// A name exists when any of these keys does.
    pub fn exists(&self) -> bool {
        !self.addresses.is_empty() || self.log_key.is_some() || self.policy.is_some()
    }
}

/// The instance behind an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The instance ID.
    pub id: String,
    /// The version type of the instance; absent for an entry made by hand.
    pub version_type_id: Option<String>,
    /// Whether the instance is draining.
    pub draining: bool,
}
