//! The route table's entries of a name and of an address.

/// The keys of one host name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableHost {
    /// The addresses, sorted.
    pub addresses: Vec<String>,
    /// The instance IDs, sorted.
    pub instance_ids: Vec<String>,
    /// The version type under which the edge counts requests for this name.
    pub log_key: Option<String>,
    /// The policy in the JSON form that the edge reads.
    pub policy: Option<String>,
}

impl TableHost {
    /// Whether any of the name's keys exists.
    pub fn exists(&self) -> bool {
        !self.addresses.is_empty() || self.log_key.is_some() || self.policy.is_some()
    }

    /// About how many bytes it has.
    pub fn bytes(&self) -> usize {
        let lists = self.addresses.iter().chain(&self.instance_ids);
        lists.chain(&self.log_key).chain(&self.policy).map(String::len).sum()
    }
}

/// The instance behind an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The instance ID.
    pub id: String,
    /// The version type of the instance; absent if the entry was written manually.
    pub version_type_id: Option<String>,
    /// Whether the instance is draining.
    pub draining: bool,
}
