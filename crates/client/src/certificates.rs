//! Certificates of server names.

use signalbox_api::certificates::CertificateList;

pub use signalbox_api::certificates::Certificate;

use crate::{Client, Error};

/// The calls about certificates.
#[derive(Debug, Clone, Copy)]
pub struct Certificates<'a>(pub(crate) &'a Client);

impl Certificates<'_> {
    /// All certificates, without their chains.
    pub async fn list(&self) -> Result<Vec<Certificate>, Error> {
        self.0.all("/certificates", &[], |page: CertificateList| (page.certificates, page.next)).await
    }
}
