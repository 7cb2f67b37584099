//! Hosts: their entries in the route table, their policies, and the promoted version type.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::text;
use crate::Time;

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
    /// The promoted version type and what was served before; of a single host only, and absent if nothing was promoted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion: Option<Promotion>,
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
    /// `healthy`, `paused`, `redirects`, `maintenance`, `paths_only` (only paths with a rule are served), `unknown` (the statistics cannot
    /// be read, the token may not see them, or a list does not check so many path rules), `share_without_instance` (a version type
    /// without an active instance has a share of the requests), `degraded` (some instances are unhealthy), `ejected` (routers have
    /// ejected instances), `rule_without_instance` (a path is routed to a host without an active instance), `failing` (many requests
    /// fail), `unhealthy` (more than half of the instances are) or `no_instance`.
    pub condition: String,
    /// A few words, such as `2 of 3 ejected`.
    pub short: String,
    /// A sentence, or two.
    pub summary: String,
    /// Version types with a share of the requests and without an active instance; absent if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unserved_shares: Vec<String>,
    /// Hosts without an active instance to which paths are routed; absent if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unserved_services: Vec<String>,
}

/// A page of hosts.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostList {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The cursor of the next page; absent on the last one. A page that has about 4 MiB ends before its limit.
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

/// The promotion of a host.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PromotionView))]
pub struct Promotion {
    /// The promoted version type; absent after the first promotion of the host was undone.
    #[cfg_attr(feature = "schema", schema(example = "18"))]
    pub version_type_id: Option<String>,
    /// When it was promoted, by the clock of the routes primary.
    pub at: Time,
    /// Version types that were replaced. An instance of one of them is on standby when it is registered again.
    pub superseded: Vec<String>,
    /// What an undo serves again; absent if the promotion cannot be undone.
    pub undo: Option<Undoable>,
}

/// What a host served before a promotion.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Undoable {
    /// The version types with active instances.
    pub version_types: Vec<String>,
    /// The traffic split in percent, by version type.
    pub shares: Option<BTreeMap<String, f64>>,
    /// Until when the promotion can be undone.
    pub until: Time,
}

/// Which version type is promoted.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Promote {
    /// The version type.
    #[serde(deserialize_with = "text")]
    #[cfg_attr(feature = "schema", schema(example = "18"))]
    pub version_type_id: String,
    /// Seconds in which the instances of other versions finish their requests and sessions, 0 to 86,400 (30).
    #[cfg_attr(feature = "schema", schema(example = 30))]
    pub drain_seconds: Option<u32>,
    /// Seconds in which the promotion can be undone, 0 to 604,800 (3600). The instances of other versions are on standby for
    /// that time, and removed after it.
    #[cfg_attr(feature = "schema", schema(example = 3600))]
    pub undo_seconds: Option<u32>,
}

/// Which promotion is undone.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UndoPromotion {
    /// The promoted version type.
    #[serde(deserialize_with = "text")]
    #[cfg_attr(feature = "schema", schema(example = "18"))]
    pub version_type_id: String,
    /// The `at` of the promotion. With it, no later promotion of the same version type is undone.
    pub at: Option<Time>,
    /// Seconds in which the instances that are replaced finish their requests and sessions, 0 to 86,400 (30).
    #[cfg_attr(feature = "schema", schema(example = 30))]
    pub drain_seconds: Option<u32>,
}

/// A host after a promotion, or after one was undone.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PromotedView))]
pub struct PromotedHost {
    /// Its name.
    pub hostname: String,
    /// The promoted version type; absent after the first promotion of the host was undone.
    pub version_type_id: Option<String>,
    /// The version types that serve the host.
    pub version_types: Vec<String>,
    /// Instances that were draining or on standby, and serve from now on.
    pub resumed: Vec<String>,
    /// Instances that drain from now on, and are then on standby.
    pub drained: Vec<String>,
    /// Until when it can be undone; absent if it cannot.
    pub undo_until: Option<Time>,
    /// The serial of the route table with these changes in it.
    pub serial: u64,
    /// The newest token of the table's lineage. Serials of different epochs cannot be compared.
    pub epoch: String,
    /// Whether anything changed.
    pub changed: bool,
}
