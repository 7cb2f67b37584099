//! An HTTP client for servers of this machine.

use std::{sync::Arc, time::Duration};

use rustls::{ClientConfig, RootCertStore, crypto::ring};

/// A client for plain HTTP. It uses no proxy of the environment and trusts no certificate.
///
/// reqwest builds a TLS configuration for every client. This one is given an empty one, because reading the
/// certificates of the system would take longer than most requests.
///
/// # Errors
/// When the client cannot be built.
pub fn local_client(timeout: Duration) -> Result<reqwest::Client, reqwest::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    #[expect(clippy::expect_used, reason = "ring has the cipher suites of both versions of TLS")]
    let builder = builder.with_safe_default_protocol_versions().expect("ring knows TLS 1.2 and 1.3");
    let tls = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().timeout(timeout).build()
}
