//! Certificates of server names.

use std::time::Duration;

use serde_json::json;
use signalbox_api::{acme::AutomaticCertificateList, certificates::CertificateList};

pub use signalbox_api::{
    acme::{AutomaticCertificate, AutomaticState},
    certificates::{Certificate, ChangedCertificate, NewCertificate},
};

use crate::{Client, Error, routes::waiting, segment};

/// The calls about certificates.
#[derive(Debug, Clone, Copy)]
pub struct Certificates<'a>(pub(crate) &'a Client);

impl Certificates<'_> {
    /// All certificates, without their chains.
    pub async fn list(&self) -> Result<Vec<Certificate>, Error> {
        self.0.all("/certificates", &[], |page: CertificateList| (page.certificates, page.next)).await
    }

    /// Uploads a certificate with its private key. With `wait`, it returns when every router uses the certificate.
    ///
    /// Codes: `invalid_hostname`, `invalid_chain`, `chain_order`, `invalid_key`, `key_mismatch`, `name_not_covered`,
    /// `certificate_expired`, `certificate_not_yet_valid`, `host_not_allowed`, `no_edge_key`, `not_converged`.
    pub async fn upload(
        &self,
        server_name: &str,
        certificate: &NewCertificate,
        wait: Option<Duration>,
    ) -> Result<ChangedCertificate, Error> {
        self.0
            .put(&waiting(&format!("/certificates/{}", segment(server_name)), wait), &json!(certificate))
            .await
    }

    /// All names with automatic HTTPS.
    pub async fn automatic(&self) -> Result<Vec<AutomaticCertificate>, Error> {
        self.0.all("/acme/names", &[], |page: AutomaticCertificateList| (page.names, page.next)).await
    }

    /// Requests an attempt to renew the automatic certificate of a name now. Codes: `no_automatic_https`,
    /// `automatic_https_off`, `host_not_allowed`.
    pub async fn renew(&self, server_name: &str) -> Result<(), Error> {
        self.0.post(&format!("/acme/names/{}/renew", segment(server_name)), None).await
    }
}
