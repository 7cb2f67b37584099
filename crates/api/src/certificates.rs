//! Certificates of server names. A private key is sent to the server and never returned.

use serde::{Deserialize, Serialize};

use crate::Time;

/// A certificate and its private key.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewCertificate {
    /// PEM: the server's certificate, then each one's authority. The last authority may be left out. At most 64 KiB.
    #[cfg_attr(feature = "schema", schema(example = "-----BEGIN CERTIFICATE-----\n…"))]
    pub chain: String,
    /// PEM of the private key, not encrypted: RSA, ECDSA (P-256, P-384) or Ed25519. At most 16 KiB.
    #[cfg_attr(feature = "schema", schema(example = "-----BEGIN PRIVATE KEY-----\n…", write_only))]
    pub key: String,
}

/// A certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = CertificateView))]
pub struct Certificate {
    /// The handshakes that it is used for: this name; every name one label below a `*.` name; `*` for all names without
    /// a certificate.
    #[cfg_attr(feature = "schema", schema(example = "shop.example"))]
    pub server_name: String,
    /// The DNS names that it is valid for.
    pub names: Vec<String>,
    /// Its subject.
    #[cfg_attr(feature = "schema", schema(example = "CN=shop.example"))]
    pub subject: String,
    /// The authority that signed it.
    #[cfg_attr(feature = "schema", schema(example = "C=US, O=Example Trust, CN=E5"))]
    pub issuer: String,
    /// When it begins to be valid.
    pub not_before: Time,
    /// When it expires.
    pub not_after: Time,
    /// Whole days until it expires, negative afterwards.
    pub days_left: i64,
    /// SHA-256 of the certificate, in hexadecimal.
    pub fingerprint_sha256: String,
    /// PEM; of a single certificate only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
}

/// A certificate after it was uploaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangedCertificate {
    /// The certificate.
    #[serde(flatten)]
    pub certificate: Certificate,
    /// The serial of the route table with this change in it.
    pub serial: u64,
    /// The newest token of the table's lineage. Serials of different epochs cannot be compared.
    pub epoch: String,
    /// Whether anything changed.
    pub changed: bool,
}

/// A page of certificates, in the order of their server names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CertificateList {
    /// The certificates.
    pub certificates: Vec<Certificate>,
    /// The cursor of the next page; absent on the last one. A page whose chains have about 4 MiB ends before its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
