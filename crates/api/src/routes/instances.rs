//! Instances: their registration, their health checks, and their state.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Time, words::words};

/// An instance to be registered.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewInstance {
    /// IP with port, or `unix:/path`.
    #[cfg_attr(feature = "schema", schema(example = "127.0.0.1:9001"))]
    pub address: String,
    /// The names it serves: `shop.example`, `*.shop.example`, or `*`.
    #[cfg_attr(feature = "schema", schema(example = json!(["shop.example"])))]
    pub hostnames: Vec<String>,
    /// The key under which its requests are counted. A number is read as its text, as in the ids below.
    #[serde(deserialize_with = "text")]
    #[cfg_attr(feature = "schema", schema(example = "17"))]
    pub version_type_id: String,
    /// The version that it runs.
    #[serde(default, deserialize_with = "optional_text")]
    pub version_id: Option<String>,
    /// The application that it is a copy of.
    #[serde(default, deserialize_with = "optional_text")]
    pub application_id: Option<String>,
    /// The workspace of its application.
    #[serde(default, deserialize_with = "optional_text")]
    pub workspace_id: Option<String>,
    /// The machine that it runs on.
    #[serde(default, deserialize_with = "optional_text")]
    pub node_id: Option<String>,
    /// Its share of the requests relative to other instances, 0 to 1000; with 0 it gets none unless all have 0 (1).
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub weight: Option<u32>,
    /// The instance is removed after this many seconds without a heartbeat, 1 to 86,400.
    pub lease_seconds: Option<u32>,
    /// Its health check.
    pub health: Option<Health>,
    /// Whether a new instance gets no requests until it is resumed or its version type is promoted. With a health check it
    /// is unhealthy until its first checks have passed. An instance that is registered again stays as it is. A new instance is
    /// also on standby if a promotion of its host replaced its version type.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby: bool,
}

impl NewInstance {
    /// An instance without optional fields.
    pub fn new(
        address: impl Into<String>,
        hostnames: impl IntoIterator<Item = impl Into<String>>,
        version_type_id: impl Into<String>,
    ) -> Self {
        Self {
            address: address.into(),
            hostnames: hostnames.into_iter().map(Into::into).collect(),
            version_type_id: version_type_id.into(),
            ..Self::default()
        }
    }
}

/// Reads the name that another system gave something. A number is read as its text.
///
/// # Errors
/// Any other value.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string or a whole number")
        }
        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
        fn visit_u64<E>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }
        fn visit_i64<E>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }
    }
    deserializer.deserialize_any(Visitor)
}

fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct Text(#[serde(deserialize_with = "text")] String);
    Ok(Option::<Text>::deserialize(deserializer)?.map(|Text(text)| text))
}

/// An active health check: of HTTP by `path`, or whether a connection is accepted by `tcp`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// The path that is requested with GET.
    #[cfg_attr(feature = "schema", schema(example = "/health"))]
    pub path: Option<String>,
    /// Whether accepting a connection is enough. Then there is no `path`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tcp: bool,
    /// The statuses that are good: numbers, and ranges as text (`"200-399"`, the default).
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<Object>>, example = json!(["200-299", 304])))]
    pub status: Option<Vec<Statuses>>,
    /// A text that the first 64 KiB of the answer must contain, 1 to 256 bytes.
    pub body: Option<String>,
    /// Seconds between two checks, 1 to 3600.
    #[serde(default = "Health::default_interval_seconds")]
    pub interval_seconds: u32,
    /// Milliseconds until a check has failed, 1 to 60,000.
    #[serde(default = "Health::default_timeout_ms")]
    pub timeout_ms: u32,
    /// Failures in a row until the instance is unhealthy, 1 to 100.
    #[serde(default = "Health::default_unhealthy_after")]
    pub unhealthy_after: u32,
    /// Successes in a row until it is healthy again, 1 to 100.
    #[serde(default = "Health::default_healthy_after")]
    pub healthy_after: u32,
}

impl Default for Health {
    /// A check without a kind, with the default times.
    fn default() -> Self {
        Self {
            path: None,
            tcp: false,
            status: None,
            body: None,
            interval_seconds: Self::default_interval_seconds(),
            timeout_ms: Self::default_timeout_ms(),
            unhealthy_after: Self::default_unhealthy_after(),
            healthy_after: Self::default_healthy_after(),
        }
    }
}

impl Health {
    fn default_interval_seconds() -> u32 {
        5
    }
    fn default_timeout_ms() -> u32 {
        2000
    }
    fn default_unhealthy_after() -> u32 {
        3
    }
    fn default_healthy_after() -> u32 {
        2
    }

    /// The statuses that are good.
    pub fn statuses(&self) -> &[Statuses] {
        self.status.as_deref().unwrap_or(&[Statuses { first: 200, last: 399 }])
    }
}

/// A range of statuses. In JSON, a single one is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statuses {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl Serialize for Statuses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last {
            serializer.serialize_u16(self.first)
        } else {
            serializer.collect_str(&format_args!("{}-{}", self.first, self.last))
        }
    }
}

impl<'de> Deserialize<'de> for Statuses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Statuses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a status, or a range like \"200-399\"")
            }
            fn visit_u64<E: de::Error>(self, status: u64) -> Result<Statuses, E> {
                let unfit = |_| E::invalid_value(de::Unexpected::Unsigned(status), &self);
                let status = u16::try_from(status).map_err(unfit)?;
                Ok(Statuses { first: status, last: status })
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Statuses, E> {
                let number = |text: &str| text.parse().ok().filter(|_| text.len() == 3);
                let range =
                    text.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?)));
                let (first, last) =
                    range.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Statuses { first, last })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Whether an instance gets new requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It gets new requests.
    Active,
    /// It gets no requests until it is resumed or its version type is promoted: it was registered so, or a promotion replaced
    /// its version type.
    Standby,
    /// It finishes its requests; at its deadline it is removed, or on standby if a promotion replaced it.
    Draining,
}

words!(State { Active: "active", Standby: "standby", Draining: "draining" });

/// An instance. What the route table knows of it is absent while the routes primary does not answer.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = InstanceView))]
pub struct Instance {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(example = "i-7"))]
    pub id: String,
    /// IP with port, or `unix:/path`.
    #[cfg_attr(feature = "schema", schema(example = "127.0.0.1:9001"))]
    pub address: String,
    /// The names that it serves.
    #[cfg_attr(feature = "schema", schema(example = json!(["shop.example"])))]
    pub hostnames: Vec<String>,
    /// The key under which its requests are counted.
    #[cfg_attr(feature = "schema", schema(example = "17"))]
    pub version_type_id: String,
    /// The version that it runs.
    pub version_id: Option<String>,
    /// The application that it is a copy of.
    pub application_id: Option<String>,
    /// The workspace of its application.
    pub workspace_id: Option<String>,
    /// The machine that it runs on.
    pub node_id: Option<String>,
    /// Its share of the requests relative to other instances.
    pub weight: u32,
    /// The instance is removed after this many seconds without a heartbeat; absent without a lease.
    pub lease_seconds: Option<u32>,
    /// Its health check.
    pub health: Option<Health>,
    /// Whether it gets new requests.
    pub state: State,
    /// When the drain ends.
    pub drain_deadline: Option<Time>,
    /// When an instance that a promotion replaced is removed. Until then,
    /// the promotion can be undone.
    pub standby_until: Option<Time>,
    /// Rises with each change of any instance.
    pub revision: u64,
    /// Its open requests, as the routers reported within the last seconds. Absent where the edge does not count them:
    /// they are counted for hosts whose policy has p2c, or anything else that takes requests off the hot path.
    pub in_flight: Option<u64>,
    /// Whether this revision is in the table.
    pub routed: Option<bool>,
    /// When the lease expires without a heartbeat.
    pub lease_expires_at: Option<Time>,
    /// Whether its checks pass. Absent without a health check.
    pub healthy: Option<bool>,
    /// The result of the check that made it unhealthy.
    pub unhealthy_because: Option<String>,
    /// When its health changed last; absent until the first change.
    pub health_since: Option<Time>,
    /// Faults reported since it was registered.
    pub faults: Option<u64>,
    /// The message of the latest fault.
    pub last_fault: Option<String>,
    /// When it was reported.
    pub last_fault_at: Option<Time>,
}

/// A page of instances, in the order of their ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InstanceList {
    /// The instances.
    pub instances: Vec<Instance>,
    /// The cursor of the next page; absent on the last one. A page that has about 4 MiB ends before its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An instance after a change, and the serial of the table with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangedInstance {
    /// The instance.
    #[serde(flatten)]
    pub instance: Instance,
    /// The serial of the route table with this change in it.
    pub serial: u64,
    /// The newest token of the table's lineage. Serials of different epochs cannot be compared.
    pub epoch: String,
    /// Whether anything changed.
    pub changed: bool,
    /// The instance that lost its address to this one and was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub displaced: Option<String>,
}

/// A renewed lease.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = HeartbeatView))]
pub struct Heartbeat {
    /// The length of the lease; absent when the instance has none.
    pub lease_seconds: Option<u64>,
    /// When it expires.
    pub lease_expires_at: Option<Time>,
}

/// How long a drain lasts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Seconds until the instance is removed, 0 to 86,400 (30).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = 30))]
    pub deadline_seconds: Option<u32>,
}

/// The instances of a node that were drained, or resumed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DrainedNodeView))]
pub struct DrainedNode {
    /// Their ids.
    pub instances: Vec<String>,
    /// The serial of the route table with these changes in it.
    pub serial: u64,
}

/// A fault of an instance that a client observed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The fault, at most 1000 bytes.
    #[cfg_attr(feature = "schema", schema(example = "connection refused"))]
    pub message: String,
    /// The reporter's id of this fault. The same one twice in a row is counted once, so a report can be repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_id: Option<String>,
}

/// The number of faults so far.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = FaultView))]
pub struct Faults {
    /// How many.
    pub faults: u64,
}
