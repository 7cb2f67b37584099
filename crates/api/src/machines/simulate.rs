//! Assumptions of a simulation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Time;

/// The assumed answer to an action: a status, or status and body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum AssumedAnswer {
    /// This status.
    Status(u16),
    /// This status and JSON body.
    Full(AssumedResponse),
}

/// A status with a body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AssumedResponse {
    /// The status (200).
    #[serde(default = "ok")]
    pub status: u16,
    /// The body.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub body: Option<Value>,
}

fn ok() -> u16 {
    200
}

/// Assumptions of a simulation.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Simulate {
    /// How far to look ahead: `30d`.
    #[serde(rename = "for")]
    pub span: Option<String>,
    /// Or until when.
    pub until: Option<Time>,
    /// A metadata update at the start.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Value>,
    /// Values of feeds; null for one that fails.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub feeds: BTreeMap<String, Option<Value>>,
    /// Answers to actions, by state: an HTTP status, or `{"status", "body"}` (200).
    #[serde(default)]
    pub webhooks: BTreeMap<String, AssumedAnswer>,
}
