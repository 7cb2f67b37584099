//! Routing decisions: what the edge does with a request, and why.

use serde::{Deserialize, Serialize};

use super::HostState;

/// The routing decision for a host.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The host.
    pub host: String,
    /// The name in the table that decides; null when none does.
    #[serialize_always]
    pub matched: Option<String>,
    /// The result of a request.
    pub answer: Answer,
    /// What the requests of the name that decides get now; absent without one.
    pub state: Option<HostState>,
    /// The key under which it is counted.
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
    pub request: Option<Choice>,
    /// What the `path` leads to, if one was given. Answer, instances, shares and algorithm are those of its service then.
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
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExplainedPath {
    /// The path of the rule that applies; absent when none does, and the host itself serves the path.
    pub rule: Option<String>,
    /// Whether the rule is for this path only.
    pub exact: bool,
    /// The host that the path leads to.
    pub service: Option<String>,
    /// The name in the table that serves it; absent when none does.
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
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explained {
    /// The address.
    pub address: String,
    /// The id of its instance; absent for an entry made by hand.
    pub id: Option<String>,
    /// Its version type.
    pub version_type_id: Option<String>,
    /// Whether it gets requests.
    pub usable: bool,
    /// Why it does not: `draining`, `unhealthy`, `weight_zero`.
    pub reason: Option<String>,
    /// Its weight.
    pub weight: f64,
    /// Its part of the requests that name neither a session, a version, nor an instance, 0 to 1: the share of its version
    /// type times its part of the weights. `p2c` shifts it by load, `hash` by the keys of the requests, slow start and
    /// ejection at a router for a while; `/edge/outliers` of a router shows these.
    pub chance: f64,
    /// The active part of its weight during slow start; absent otherwise.
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
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RequestChoice))]
pub struct Choice {
    /// The rule that decides.
    pub by: By,
    /// The instance, when it is certain. A router that has ejected it chooses another in the meantime.
    pub address: Option<String>,
    /// The version type that the request names, or that its session has.
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
