//! What the route table holds for a name and for an address.

/// The keys of one host name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableHost {
    /// Sorted.
    pub addresses: Vec<String>,
    /// Sorted.
    pub instance_ids: Vec<String>,
    pub log_key: Option<String>,
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
    pub id: String,
    pub version_type_id: Option<String>,
    pub draining: bool,
}
