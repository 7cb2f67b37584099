//! Certificates of server names.

use signalbox_api::{acme::AutomaticCertificateList, certificates::CertificateList};

pub use signalbox_api::{
    acme::{AutomaticCertificate, AutomaticState},
    certificates::Certificate,
};

use crate::{Client, Error, segment};

/// The calls about certificates.
#[derive(Debug, Clone, Copy)]
pub struct Certificates<'a>(pub(crate) &'a Client);

impl Certificates<'_> {
    /// All certificates, without their chains.
    pub async fn list(&self) -> Result<Vec<Certificate>, Error> {
        self.0.all("/certificates", &[], |page: CertificateList| (page.certificates, page.next)).await
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
