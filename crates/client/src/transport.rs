//! One request and its answer, over HTTP or HTTPS.
//!
//! reqwest with rustls and ring, so that the product has one TLS stack.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use reqwest::{
    Client, Method, Response,
    header::{self, HeaderMap, HeaderValue},
    redirect, retry,
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
/// How long connecting may take. A server that runs accepts immediately.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A successful answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Bytes,
}

#[derive(Debug)]
pub(crate) struct Transport {
    /// Without a slash at its end.
    base: String,
    timeout: Duration,
    http: Client,
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
        let mut headers = HeaderMap::new();
        if let Some(token) = &builder.token {
            headers.insert(header::AUTHORIZATION, authorization(token)?);
        }
        // Reading the system's certificates takes a moment, and most addresses are of this machine.
        let tls = if url.scheme() == "https" {
            trust(builder.ca_file.as_deref())?
        } else {
            config(RootCertStore::empty())
        };
        let http = Client::builder()
            .tls_backend_preconfigured(tls)
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            // The API is called where it is configured: no proxy of the environment, no redirect, no repeated request.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .build()
            .map_err(|error| wrong(&innermost(&error)))?;
        Ok(Self { base: builder.url.trim_end_matches('/').to_owned(), timeout: builder.timeout, http })
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Sends, and reads the whole answer. A body comes with its type.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Answer, Error> {
        let work = async {
            let response = self.send(method, path, body, &[]).await?;
            self.read(path, response).await
        };
        time::timeout(self.timeout, work).await.unwrap_or_else(|_| Err(self.late(path)))
    }

    /// Gets an answer whose body is the same for every status.
    pub(crate) async fn call_any(&self, path: &str) -> Result<Answer, Error> {
        let work = async {
            let response = self.send("GET", path, None, &[]).await?;
            self.collect(path, response).await
        };
        time::timeout(self.timeout, work).await.unwrap_or_else(|_| Err(self.late(path)))
    }

    /// Sends, and returns a successful answer whose body is read piece by piece.
    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)]) -> Result<Response, Error> {
        let work = async {
            let response = self.send("GET", path, None, headers).await?;
            if response.status().is_success() {
                return Ok(response);
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
        headers: &[(&str, &str)],
    ) -> Result<Response, Error> {
        let url = self.address(path);
        let wrong = |why: String| Error::Address { url: url.clone(), why };
        if has_dot_segment(path) {
            return Err(wrong("`.` and `..` are not valid names".to_owned()));
        }
        let verb =
            Method::from_bytes(method.as_bytes()).map_err(|error| wrong(format!("{method}: {error}")))?;
        let mut request = self.http.request(verb, &url);
        if let Some((kind, body)) = body {
            request = request.header(header::CONTENT_TYPE, kind).body(body);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.map_err(|error| {
            if error.is_builder() {
                wrong(innermost(&error))
            } else {
                Error::Silent { url: url.clone(), why: innermost(&error) }
            }
        })
    }

    async fn read(&self, path: &str, response: Response) -> Result<Answer, Error> {
        let status = response.status();
        let answer = self.collect(path, response).await?;
        if status.is_success() {
            return Ok(answer);
        }
        let url = self.address(path);
        match serde_json::from_slice::<Problem>(&answer.body) {
            Ok(problem) => Err(Error::Refused { url, problem: Box::new(problem) }),
            Err(_) => Err(Error::Foreign { url, status: status.as_u16() }),
        }
    }

    async fn collect(&self, path: &str, mut response: Response) -> Result<Answer, Error> {
        let silent = |why| Error::Silent { url: self.address(path), why };
        let mut body = BytesMut::new();
        while let Some(piece) = response.chunk().await.map_err(|error| silent(innermost(&error)))? {
            if body.len() + piece.len() > MAX_ANSWER_BYTES {
                return Err(silent(format!("the answer exceeds {MAX_ANSWER_BYTES} bytes")));
            }
            body.extend_from_slice(&piece);
        }
        Ok(Answer { body: body.freeze() })
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

/// The authorities of the operating system, and the certificates of `file`.
fn trust(file: Option<&Path>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    // One unreadable certificate of the system among a hundred does not matter.
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

/// Whether an address with this path would lead to another folder, encoded or not.
fn has_dot_segment(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase().replace("%2e", ".");
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// The outer errors report only that sending failed. An operator can act on the cause.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_changes_the_folder_of_a_request() {
        for path in ["/instances/..", "/instances/%2E%2e", "/a/./b", "/a/%2E"] {
            assert!(has_dot_segment(path), "{path}");
        }
        for path in ["/instances/a..b", "/hosts/a.example", "/a/...", "/a?b=../c"] {
            assert!(!has_dot_segment(path), "{path}");
        }
    }
}
