//! Hosts: their entries in the route table, their policies, and the version that they are switched to.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::text;

/// A host and its entry in the route table.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = HostView))]
pub struct Host {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(example = "shop.example"))]
    pub hostname: String,
    /// The addresses of its instances.
    pub addresses: Vec<String>,
    /// Their ids.
    pub instance_ids: Vec<String>,
    /// The key under which its requests are counted.
    pub log_key: Option<String>,
    /// Other data of the table for the edge: the policy that was set, and log keys, weights and health of single
    /// addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub policy: Option<Value>,
    /// The policy as it was set; of a single host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::policy))]
    pub rules: Option<Box<RawValue>>,
    /// Whether it was registered through this API; else it was written to the routes primary by hand.
    pub registered: bool,
    /// What its requests get now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<HostState>,
}

/// What the requests of a host get, by its policy, the health of its instances, the ejections that routers report, and the
/// last minute's requests of its version types.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = HostStateView))]
pub struct HostState {
    /// `healthy`, `paused`, `redirects`, `maintenance`, `degraded` (some instances are unhealthy), `ejected` (routers have
    /// ejected instances), `failing` (many requests fail), `unhealthy` (no instance is healthy) or `no_instance`.
    pub condition: String,
    /// A few words, such as `2 of 3 ejected`.
    pub short: String,
    /// A sentence, or two.
    pub summary: String,
}

/// A page of hosts.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostList {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The cursor of the next page; absent on the last one.
    pub next: Option<String>,
    /// How many items match the search, on all pages together; absent if they were not counted.
    pub total: Option<u64>,
}

/// A host after its policy was set.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RuledView))]
pub struct RuledHost {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(example = "shop.example"))]
    pub hostname: String,
    /// The policy as it was set; absent when it is empty, which is the same as none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::policy))]
    pub rules: Option<Box<RawValue>>,
    /// The serial of the route table with this change in it.
    pub serial: u64,
    /// The newest token of the table's lineage. Serials of different epochs cannot be compared.
    pub epoch: String,
    /// Whether anything changed.
    pub changed: bool,
}

/// Which version a host is switched to.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// The version type.
    #[serde(deserialize_with = "text")]
    #[cfg_attr(feature = "schema", schema(example = "18"))]
    pub version_type_id: String,
    /// Seconds until the instances of other versions are removed, 0 to 86,400 (30).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = 30))]
    pub deadline_seconds: Option<u32>,
}

/// A host that was switched.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = SwitchedView))]
pub struct SwitchedHost {
    /// Its name.
    pub hostname: String,
    /// The version type.
    pub version_type_id: String,
    /// Instances of the version whose drain was ended.
    pub resumed: Vec<String>,
    /// Instances of other versions that drain from now on.
    pub drained: Vec<String>,
    /// The serial of the route table with these changes in it.
    pub serial: u64,
    /// The newest token of the table's lineage. Serials of different epochs cannot be compared.
    pub epoch: String,
    /// Whether anything changed.
    pub changed: bool,
}
