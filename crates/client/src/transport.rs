//! Sends one request over HTTP or HTTPS and reads its answer.
//!
//! hyper and rustls with ring, which the pacemaker's deliveries use, too, so that the product has one TLS stack. reqwest was
//! rejected: Cargo unifies its TLS features into programs that need plain HTTP only, where each client then panics without
//! an installed provider, and its URL parser resolves the segments `%2E%2E` that [`crate::segment`] protects.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::time;
use url::Url;

use crate::{Builder, Error, Problem};

/// Larger answers are rejected. The largest one is a dump of the route table.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;
/// The time limit for connecting. A running server accepts immediately.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A successful answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Bytes,
    /// The revision of what the body shows.
    pub(crate) etag: Option<String>,
}

/// When the server makes a change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conditions<'a> {
    /// Only if the target still has this revision.
    pub(crate) etag: Option<&'a str>,
    /// Once under this idempotency key.
    pub(crate) key: Option<&'a HeaderValue>,
}

#[derive(Debug)]
pub(crate) struct Transport {
    /// Without a slash at its end.
    base: String,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Transport {
    pub(crate) fn new(builder: Builder) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Address { url: builder.url.clone(), why: why.to_owned() };
        let url = Url::parse(&builder.url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(wrong("it must begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("it must not have a user name, a query or a fragment"));
        }
        let authorization = builder.token.as_deref().map(authorization).transpose()?;
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        // Reading the system's certificates takes time, and most addresses use plain HTTP.
        let config = if url.scheme() == "https" { trust(builder.ca_file.as_deref())? } else { no_trust() };
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self {
            base: builder.url.trim_end_matches('/').to_owned(),
            authorization,
            timeout: builder.timeout,
            http: Client::builder(TokioExecutor::new()).build(connector),
        })
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Sends a request and reads the whole answer. `body` contains its type and bytes.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
        conditions: Conditions<'_>,
    ) -> Result<Answer, Error> {
        let work = async {
            let response = self.send(method, path, body, conditions).await?;
            self.read(path, response).await
        };
        time::timeout(self.timeout, work).await.unwrap_or_else(|_| Err(self.late(path)))
    }

    /// Sends a request and returns the body of a successful answer, to be read in pieces.
    pub(crate) async fn open(&self, path: &str) -> Result<Incoming, Error> {
        let work = async {
            let response = self.send("GET", path, None, Conditions::default()).await?;
            if response.status().is_success() {
                return Ok(response.into_body());
            }
            Err(self.read(path, response).await.err().unwrap_or_else(|| self.late(path)))
        };
        time::timeout(self.timeout, work).await.unwrap_or_else(|_| Err(self.late(path)))
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
        conditions: Conditions<'_>,
    ) -> Result<http::Response<Incoming>, Error> {
        let url = self.address(path);
        let mut request = Request::builder().uri(&url).method(method);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if let Some(etag) = conditions.etag {
            request = request.header(header::IF_MATCH, etag);
        }
        if let Some(key) = conditions.key {
            request = request.header("idempotency-key", key);
        }
        let (kind, body) = body.unzip();
        if let Some(kind) = kind {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let request = request
            .body(Full::from(body.unwrap_or_default()))
            .map_err(|error| Error::Address { url: url.clone(), why: error.to_string() })?;
        self.http.request(request).await.map_err(|error| Error::Silent { url, why: innermost(&error) })
    }

    async fn read(&self, path: &str, response: http::Response<Incoming>) -> Result<Answer, Error> {
        let (status, url) = (response.status(), self.address(path));
        let etag =
            response.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        let body = match Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return Err(Error::Silent { url, why: innermost(&*error) }),
        };
        if status.is_success() {
            return Ok(Answer { body, etag });
        }
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Err(Error::Refused { url, problem: Box::new(problem) }),
            Err(_) => Err(Error::Foreign { url, status: status.as_u16() }),
        }
    }

    fn late(&self, path: &str) -> Error {
        Error::Late { url: self.address(path), seconds: self.timeout.as_secs() }
    }
}

fn authorization(token: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| Error::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

fn config(roots: RootCertStore) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    #[expect(clippy::expect_used, reason = "ring has the cipher suites of both versions of TLS")]
    let builder = builder.with_safe_default_protocol_versions().expect("ring knows TLS 1.2 and 1.3");
    builder.with_root_certificates(roots).with_no_client_auth()
}

/// For an address without TLS.
fn no_trust() -> ClientConfig {
    config(RootCertStore::empty())
}

/// The authorities of the operating system, and the certificates of `file`.
fn trust(file: Option<&Path>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    // A few unreadable system certificates do not matter.
    let _counts = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = file {
        let failed = |error: String| Error::Trust { path: path.to_owned(), why: error };
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))? {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
    }
    Ok(config(roots))
}

/// hyper's own error reports only that sending failed. An operator can act on the innermost cause.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
