//! The trusted certificate authorities: those of the operating system, and those of the operator's file.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use super::client::Error;

/// The system's authorities. They are read once: there are over a hundred, and a process has several clients.
static SYSTEM: LazyLock<RootCertStore> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    // One unreadable system certificate must not prevent all deliveries.
    let (_, unusable) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    tracing::debug!(roots = roots.len(), unusable, "certificate authorities of the system");
    roots
});

/// The TLS settings of a client that trusts the system's authorities and those of `ca_file` (PEM).
pub fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, Error> {
    let mut roots = SYSTEM.clone();
    if let Some(path) = ca_file {
        let failed = |source| Error::Certificates { path: path.to_owned(), source };
        for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
            roots.add(certificate.map_err(failed)?)?;
        }
    }
    if roots.is_empty() {
        tracing::warn!("no certificate authority known: every delivery to an https callback will fail");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
