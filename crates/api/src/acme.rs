//! Automatic HTTPS: certificates that Signalbox obtains and renews itself.

use serde::{Deserialize, Serialize};

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
    /// When the present certificate expires, unix seconds.
    pub not_after: Option<u64>,
    /// When it is renewed, unix seconds.
    pub renews_at: Option<u64>,
    /// When it was obtained, unix seconds.
    pub issued_at: Option<u64>,
    /// Failed attempts since the last certificate.
    pub failures: u32,
    /// Why the latest attempt failed.
    pub last_error: Option<String>,
    /// When the latest attempt failed, unix seconds.
    pub last_error_at: Option<u64>,
    /// When the next attempt is made after a failure, unix seconds.
    pub next_attempt_at: Option<u64>,
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
