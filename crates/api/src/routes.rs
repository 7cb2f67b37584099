//! The route table: instances, hosts, routing decisions and routers.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Value, value::RawValue};

/// An instance to be registered.
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
    #[serde(default, deserialize_with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// The application that it is a copy of.
    #[serde(default, deserialize_with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub application_id: Option<String>,
    /// The workspace of its application.
    #[serde(default, deserialize_with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// The machine that it runs on.
    #[serde(default, deserialize_with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Its share of the requests relative to other instances, 0 to 1000; with 0 it gets none unless all have 0 (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub weight: Option<u32>,
    /// The instance is removed after this many seconds without a heartbeat, 1 to 86,400.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// Its health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Whether a new instance gets no requests until it is resumed or its version type is promoted. With a health check it
    /// is unhealthy until its first checks have passed. An instance that is registered again stays as it is.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// The path that is requested with GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "/health"))]
    pub path: Option<String>,
    /// Whether accepting a connection is enough. Then there is no `path`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tcp: bool,
    /// The statuses that are good: numbers, and ranges as text (`"200-399"`, the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<Object>>, example = json!(["200-299", 304])))]
    pub status: Option<Vec<Statuses>>,
    /// A text that the first 64 KiB of the answer must contain, 1 to 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    /// It was registered to get no requests until it is resumed or its version type is promoted.
    Standby,
    /// It finishes its requests; at its deadline it is removed.
    Draining,
}

impl State {
    /// The name in JSON and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Draining => "draining",
        }
    }
}

/// An instance. What the route table knows of it is absent while the routes primary does not answer.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// The application that it is a copy of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_id: Option<String>,
    /// The workspace of its application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// The machine that it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Its share of the requests relative to other instances.
    pub weight: u32,
    /// The instance is removed after this many seconds without a heartbeat; absent without a lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// Its health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Whether it gets new requests.
    pub state: State,
    /// When a draining instance is removed, in unix milliseconds of the routes primary's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_deadline_ms: Option<u64>,
    /// Rises with each change of any instance.
    pub revision: u64,
    /// Its open requests, as the routers reported within the last seconds. Absent where the edge does not count them:
    /// they are counted for hosts whose policy has p2c, or anything else that takes requests off the hot path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Whether this revision is in the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed: Option<bool>,
    /// When the lease expires without a heartbeat, in unix milliseconds of the routes primary's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_ms: Option<u64>,
    /// Whether its checks pass. Absent without a health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,
    /// The result of the check that made it unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy_because: Option<String>,
    /// When its health changed last, in unix milliseconds of the routes primary's clock; absent until the first change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_since_ms: Option<u64>,
    /// Faults reported since it was registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<u64>,
    /// The message of the latest fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_fault: Option<String>,
    /// When it was reported, in unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_fault_ms: Option<u64>,
}

/// A page of instances, in the order of their ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InstanceList {
    /// The instances.
    pub instances: Vec<Instance>,
    /// The cursor of the next page; absent on the last one.
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
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = HeartbeatView))]
pub struct Heartbeat {
    /// The length of the lease; absent when the instance has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u64>,
    /// When it expires, in unix milliseconds of the routes primary's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_ms: Option<u64>,
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
    #[serde(default, deserialize_with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub fault_id: Option<String>,
}

/// The number of faults so far.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = FaultView))]
pub struct Faults {
    /// How many.
    pub faults: u64,
}

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
}

/// A page of hosts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostList {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The cursor of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// How many items match the search, on all pages together; absent if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// The routing decision for a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The host.
    pub host: String,
    /// The name in the table that decides; null when none does.
    pub matched: Option<String>,
    /// The result of a request.
    pub answer: Answer,
    /// The key under which it is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_key: Option<String>,
    /// The candidate names, most specific first. The first that exists decides, whatever it contains.
    pub candidates: Vec<Candidate>,
    /// How one of the usable addresses is chosen.
    pub algorithm: String,
    /// Whether more than half of the addresses are unhealthy, so that health checks are ignored.
    pub fail_open: bool,
    /// The traffic split between version types, when the policy has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<ExplainedShare>,
    /// The addresses of the name that decides.
    pub instances: Vec<Explained>,
    /// The result of the request that was described by `header`, `cookie` or `address`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Choice>,
    /// What the `path` leads to, if one was given. Answer, instances, shares and algorithm are those of its service then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<ExplainedPath>,
    /// What the edge checks before it chooses an instance, in this order: `pause`, `addresses`, `https`, `redirect`, `maintenance`,
    /// `methods`, `limits`, `basic`, `forward`, `body_bytes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<String>,
    /// What each check decides for the request, up to the first that ends it. Only with `method` or `scheme`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// The table's serial.
    pub serial: u64,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is routed to one of the usable addresses.
    Proxied,
    /// 503: the name exists and no address is usable.
    NoInstance,
    /// 404: no name exists.
    NoRoute,
}

/// What a check decides for a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = RequestStep))]
pub struct Step {
    /// The check, as in `checks`.
    pub check: String,
    /// Its result.
    pub result: StepResult,
    /// The status with which a request that does not pass is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The reason.
    pub detail: String,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = RequestStepResult))]
#[serde(rename_all = "snake_case")]
pub enum StepResult {
    /// The request continues.
    Passes,
    /// The edge answers it.
    Ends,
    /// It depends on what is not known here, such as a password.
    Depends,
}

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExplainedPath {
    /// The path of the rule that applies; absent when none does, and the host itself serves the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Whether the rule is for this path only.
    pub exact: bool,
    /// The host that the path leads to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The name in the table that serves it; absent when none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<String>,
    /// The normalized path that the instance receives.
    pub sent: String,
}

/// A name that may decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Candidate {
    /// The name.
    pub name: String,
    /// Whether the table has it.
    pub exists: bool,
    /// The number of its addresses.
    pub instances: usize,
}

/// An address and whether it gets requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explained {
    /// The address.
    pub address: String,
    /// The id of its instance; absent for an entry made by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its version type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_type_id: Option<String>,
    /// Whether it gets requests.
    pub usable: bool,
    /// Why it does not: `draining`, `unhealthy`, `weight_zero`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its weight.
    pub weight: f64,
    /// Its part of the requests that name neither a session, a version, nor an instance, 0 to 1: the share of its version
    /// type times its part of the weights. `p2c` shifts it by load, `hash` by the keys of the requests, slow start and
    /// ejection at a router for a while; `/edge/outliers` of a router shows these.
    pub chance: f64,
    /// The active part of its weight during slow start; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<f64>,
    /// Whether its health check fails, which is ignored when the host fails open.
    pub unhealthy: bool,
}

/// The share of a version type in a traffic split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExplainedShare {
    /// The version type.
    pub version_type: String,
    /// As in the policy.
    pub percent: f64,
    /// The active share: that of a version type without a usable address goes to the others, in proportion.
    pub effective_percent: f64,
    /// Usable addresses of the version type.
    pub instances: usize,
}

/// The choice of an instance for one request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RequestChoice))]
pub struct Choice {
    /// The rule that decides.
    pub by: By,
    /// The instance, when it is certain. A router that has ejected it chooses another in the meantime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The version type that the request names, or that its session has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_type: Option<String>,
    /// Where it can go, most likely first.
    pub among: Vec<Chance>,
}

/// The rules that can decide a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RequestChosenBy))]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Its session.
    Session,
    /// The hash of its header, cookie or address.
    Hash,
    /// Only one instance is possible.
    OnlyOne,
    /// Turns or chance.
    Chance,
    /// No instance gets it.
    NoInstance,
    /// It has a session, which a pacemaker without `edge_key_file` cannot read.
    UnreadableSession,
}

/// An address, and the chance that it is chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RequestChance))]
pub struct Chance {
    /// The address.
    pub address: String,
    /// 0 to 1.
    pub chance: f64,
}

/// Which routers have the newest table.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ConvergenceView))]
pub struct Convergence {
    /// The table's serial.
    pub serial: u64,
    /// The newest token of its lineage.
    pub epoch: String,
    /// Whether every router that is waited for has acknowledged this serial. False without any router.
    pub converged: bool,
    /// Routers that stopped reporting and are not waited for.
    pub excluded: usize,
    /// The routers that reported in the last minute.
    pub routers: Vec<Router>,
}

/// A router that reported in the last minute.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RouterView))]
pub struct Router {
    /// The name of its node.
    pub node: String,
    /// The address of its admin listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The serial that all of its workers have acknowledged.
    pub serial: u64,
    /// The epoch of the table that it follows.
    pub epoch: String,
    /// Changes that it has not seen yet; absent while it follows another table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_by: Option<u64>,
    /// Milliseconds since its last report. It reports every second.
    pub age_ms: u64,
    /// Whether it reports.
    pub state: Liveness,
    /// The time from a change by this pacemaker to the router's acknowledgement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation: Option<Propagation>,
    /// Why it rejects the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alarm: Option<String>,
    /// The serial that each of its workers has acknowledged.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub workers: Value,
}

/// How a router is treated by the time since its last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// It reports.
    Live,
    /// It has not reported for three seconds, and is waited for.
    Silent,
    /// It has not reported for ten seconds, and is not waited for.
    Excluded,
}

/// Percentiles of a router's latest acknowledgements.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PropagationView))]
pub struct Propagation {
    /// The p50.
    pub p50_ms: f64,
    /// The p99.
    pub p99_ms: f64,
    /// The number of acknowledgements.
    pub samples: usize,
    /// All acknowledgements by duration.
    pub histogram: Vec<Bucket>,
}

/// A bucket of a histogram, with those of all buckets before it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PropagationBucket))]
pub struct Bucket {
    /// Its upper bound.
    pub le_ms: u64,
    /// The number of samples.
    pub count: usize,
}
