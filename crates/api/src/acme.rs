//! Automatic HTTPS: certificates that Signalbox obtains and renews itself.

use serde::{Deserialize, Serialize};

use crate::Time;

/// The state of an automatic certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AutomaticState {
    /// The certificate is being obtained.
    Ordering,
    /// The certificate is served, and will be renewed.
    Issued,
    /// The latest attempt failed. A certificate that was obtained before is served until it expires.
    Failing,
    /// The pacemaker has no ACME server (`acme.directory`).
    Off,
}

/// The automatic certificate of a name.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AutomaticCertificate {
    /// The name.
    #[cfg_attr(feature = "schema", schema(example = "shop.example"))]
    pub server_name: String,
    /// Its state.
    pub state: AutomaticState,
    /// Whether a client asked for the name and `acme.check_url` allowed it; otherwise a host has it.
    pub on_demand: bool,
    /// When the present certificate expires.
    pub not_after: Option<Time>,
    /// When it is renewed.
    pub renews_at: Option<Time>,
    /// When it was obtained.
    pub issued_at: Option<Time>,
    /// Failed attempts since the last certificate.
    pub failures: u32,
    /// Why the latest attempt failed.
    pub last_error: Option<String>,
    /// When the latest attempt failed.
    pub last_error_at: Option<Time>,
    /// When the next attempt is made after a failure.
    pub next_attempt_at: Option<Time>,
}

/// A page of names with automatic HTTPS, in order.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AutomaticCertificateList {
    /// The URL of the ACME server's directory; absent if automatic HTTPS is off.
    pub directory: Option<String>,
    /// The names.
    pub names: Vec<AutomaticCertificate>,
    /// The cursor of the next page; absent on the last one.
    pub next: Option<String>,
}
