//! Secrets that webhooks and feeds use.

use serde::{Deserialize, Serialize};

use crate::Time;

/// A secret to set.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NewSecret {
    /// Its value, up to 4,096 bytes.
    pub value: String,
    /// The beginning of the addresses that it may be sent to, such as `https://warehouse.example/`.
    pub address: String,
}

/// The secrets of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineSecrets))]
pub struct Secrets {
    /// The secrets, by name.
    pub secrets: Vec<Secret>,
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MachineSecret))]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// The beginning of the addresses that it may be sent to.
    pub address: String,
    /// When it was set.
    pub at: Time,
    /// The token that set it.
    pub by: String,
}
