//! The audit log.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Time, words::words};

/// The kind of an audit record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AuditKind))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A change, or a request whose outcome is unknown (status 5xx).
    Change,
    /// A log-in to the dashboard.
    Login,
    /// A log-out.
    Logout,
    /// A request that was refused, or a failed log-in.
    Refused,
}

words!(Kind { Change: "change", Login: "login", Logout: "logout", Refused: "refused" });

/// A record of the audit log: who changed what, and when.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AuditRecord))]
pub struct Record {
    /// When the request was answered.
    #[serde(alias = "at_ms", deserialize_with = "Time::stored")]
    pub at: Time,
    /// The kind of this record.
    pub kind: Kind,
    /// The name of the caller's token, `root`, or `machine:NAME` for an action of a state machine. Absent for a log-in with an
    /// unknown token.
    pub who: Option<String>,
    /// The label whose action it is, if a state machine made the change. Method, route and target are then those of the call that
    /// has the same effect.
    pub label: Option<String>,
    /// The person for whom an authenticating proxy sent the request.
    pub person: Option<String>,
    /// The address of the client. Absent for a change by a state machine.
    #[cfg_attr(feature = "schema", schema(example = "10.0.0.7"))]
    pub address: Option<String>,
    /// The ID of the request, as in the access log.
    pub request_id: Option<String>,
    /// The method of the request.
    #[cfg_attr(feature = "schema", schema(example = "DELETE"))]
    pub method: String,
    /// The route, as in the description of the API.
    #[cfg_attr(feature = "schema", schema(example = "/instances/{id}"))]
    pub route: String,
    /// The path of the request, without its query.
    #[cfg_attr(feature = "schema", schema(example = "/instances/i-7"))]
    pub target: String,
    /// The status of the answer.
    pub status: u16,
    /// The code of a refusal.
    pub code: Option<String>,
    /// The number of this record, from 1, if a request that changes many instances has several records.
    pub part: Option<u32>,
    /// The value before the change, without secrets, if the route reports it.
    pub before: Option<Value>,
    /// The value after the change, without secrets, as the answer shows it. Of a long answer, the number of its bytes and their
    /// SHA-256.
    pub after: Option<Value>,
}

/// A part of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AuditPage))]
pub struct Page {
    /// The records: newest first, or with `after` oldest first.
    pub records: Vec<Record>,
    /// The value of `before` for the next older part. Absent if there is none. A part that has about 4 MiB ends before its limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The value of `after` for what is recorded later.
    pub newest: String,
}
