//! Which requests pass, and how they are sent to instances.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::{check_name, check_value, require, within};
use crate::Invalid;

const MAX_METHODS: usize = 32;
const MAX_HEADERS: usize = 50;
const MAX_TEXT: usize = 8192;
const MAX_YEAR_SECONDS: u64 = 365 * 86_400;

/// Headers of the connection or the framing (RFC 9110, 7.6.1), and headers that the edge itself sets. A
/// policy cannot change them. The edge also ignores them in a table that was written manually.
pub(super) const RESERVED: [&str; 23] = [
    "cdn-loop",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
    "x-signalbox-error",
    "x-signalbox-target",
];

/// Limits for the clients of a host.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    requests: Option<RequestLimit>,
    connections: Option<ConnectionLimit>,
}

/// Rate limit.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestLimit {
    /// Requests per second, 0.001 to 1,000,000.
    #[schema(value_type = f64, example = 100)]
    per_second: Number,
    /// Requests allowed in a burst above the rate, 0 to 1,000,000. Default: the requests of one second.
    burst: Option<u64>,
    by: Option<By>,
}

/// Limit of concurrent requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConnectionLimit {
    /// Concurrent requests, 1 to 1,000,000.
    most: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<By>,
}

/// The key by which a limit counts separately: each client address (default), the whole host, or each value of a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = r#"`by` must be "address", "host" or {"header": "X-Key"}"#)]
pub(crate) enum By {
    Client(Whole),
    Header(ByHeader),
}

/// The whole of a client or of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Whole {
    Address,
    Host,
}

/// Each value of a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ByHeader {
    #[schema(example = "X-Key")]
    header: String,
    /// Whether each address has a limit of its own for the same value, so that no client can use up the limit of another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    address: bool,
}

fn check_by(by: Option<&By>, field: &'static str) -> Result<(), Invalid> {
    match by {
        Some(By::Header(by)) => check_name(&by.header, field),
        _ => Ok(()),
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if let Some(requests) = &self.requests {
            let per_second = requests.per_second.as_f64().unwrap_or(f64::NAN);
            let fits = (0.001..=1e6).contains(&per_second);
            require(fits, "limits.requests.per_second", "per_second must be 0.001 to 1000000")?;
            within(requests.burst, 0..=1_000_000, "limits.requests.burst")?;
            check_by(requests.by.as_ref(), "limits.requests.by")?;
        }
        if let Some(connections) = &self.connections {
            within(Some(connections.most), 1..=1_000_000, "limits.connections.most")?;
            check_by(connections.by.as_ref(), "limits.connections.by")?;
        }
        Ok(())
    }
}

/// Validates the methods, converts them to upper case, sorts them and removes repeats.
pub(super) fn check_methods(methods: &mut Vec<String>) -> Result<(), Invalid> {
    let plain = |name: &String| {
        name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.len() <= 32
            && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-')
    };
    let fits = (1..=MAX_METHODS).contains(&methods.len()) && methods.iter().all(plain);
    let detail = format!("methods must be a list of 1 to {MAX_METHODS} names that match [A-Za-z][A-Za-z-]*");
    require(fits, "methods", detail)?;
    for method in methods.iter_mut() {
        method.make_ascii_uppercase();
    }
    methods.sort_unstable();
    methods.dedup();
    Ok(())
}

/// Header changes.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Headers {
    /// Changes of the request that the instance receives.
    request: Option<HeaderChanges>,
    /// Changes of the response that the client receives.
    response: Option<HeaderChanges>,
}

/// Headers to set (replacing existing values) and headers to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderChanges {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(example = json!({"X-Env": "live"}))]
    set: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    remove: Vec<String>,
}

impl Headers {
    pub(super) fn check(&mut self) -> Result<(), Invalid> {
        self.request.iter_mut().try_for_each(|changes| changes.check("headers.request"))?;
        self.response.iter_mut().try_for_each(|changes| changes.check("headers.response"))
    }
}

impl HeaderChanges {
    fn check(&mut self, field: &'static str) -> Result<(), Invalid> {
        let few = self.set.len() + self.remove.len() <= MAX_HEADERS;
        require(few, field, format!("a policy can change at most {MAX_HEADERS} headers"))?;
        let mut seen = BTreeSet::new();
        for name in self.set.keys().chain(&self.remove) {
            check_name(name, field)?;
            let lower = name.to_ascii_lowercase();
            let detail = "is reserved for the connection or the edge; a policy cannot change it";
            require(!RESERVED.contains(&&*lower), field, format!("{name} {detail}"))?;
            require(seen.insert(lower), field, format!("duplicate header {name}"))?;
        }
        self.remove.sort_unstable();
        self.set.values().try_for_each(|value| check_value(value, field))
    }
}

/// A fixed response to every request; no instance is called.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Maintenance {
    /// Status, 200 to 599. Default: 503.
    status: Option<u64>,
    /// Body of the response, at most 8192 bytes.
    body: Option<String>,
    /// Default: `text/plain; charset=utf-8`.
    content_type: Option<String>,
    /// `Retry-After` in seconds, 0 to 31,536,000.
    retry_after: Option<u64>,
    except_header: Option<Except>,
    /// When it began, in unix milliseconds. Set by Signalbox; what a client sends is ignored.
    pub(super) since_ms: Option<u64>,
    /// The token or the person that began it. Set by Signalbox.
    pub(super) by: Option<String>,
}

/// Requests with this header value bypass the maintenance response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Except {
    name: String,
    value: String,
}

impl Maintenance {
    /// The status of the maintenance response.
    pub(super) fn status(&self) -> u16 {
        self.status.and_then(|status| u16::try_from(status).ok()).unwrap_or(503)
    }

    /// The header that lets a request bypass the response.
    pub(super) fn exception(&self) -> Option<&str> {
        self.except_header.as_ref().map(|except| &*except.name)
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        within(self.status, 200..=599, "maintenance.status")?;
        // nginx would close the connection instead of sending one of these.
        let is_sent = !self.status.is_some_and(|status| status == 444 || (494..=499).contains(&status));
        require(is_sent, "maintenance.status", "nginx cannot send 444 and 494 to 499; use 503")?;
        within(self.retry_after, 0..=MAX_YEAR_SECONDS, "maintenance.retry_after")?;
        let fits = self.body.as_ref().is_none_or(|body| body.len() <= MAX_TEXT);
        require(fits, "maintenance.body", format!("body must have at most {MAX_TEXT} bytes"))?;
        self.content_type.iter().try_for_each(|value| check_value(value, "maintenance.content_type"))?;
        self.except_header.iter().try_for_each(|except| {
            check_name(&except.name, "maintenance.except_header")?;
            check_value(&except.value, "maintenance.except_header")
        })
    }
}

/// Handling of requests without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Https {
    /// Redirect to the `https` URL.
    Redirect,
    /// Reject.
    Only,
    /// Serve.
    Any,
}

/// How the edge connects to instances.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upstream {
    tls: Option<bool>,
    /// The name for SNI and verification. Default: the request's host.
    server_name: Option<String>,
    /// Whether to verify the certificate. Default: true.
    verify: Option<bool>,
    protocol: Option<Protocol>,
}

/// Protocol between the edge and instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

impl Upstream {
    /// Whether the edge sends calls as gRPC. With TLS, it does not.
    pub(super) fn is_grpc(&self) -> bool {
        self.protocol == Some(Protocol::Grpc) && self.tls != Some(true)
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.server_name {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
            let fits = (1..=253).contains(&name.len()) && name.bytes().all(plain);
            require(fits, "upstream.server_name", "server_name must be a host name")?;
        }
        // Without TLS, these settings would suggest a protection that does not exist.
        let pointless = self.tls != Some(true) && (self.server_name.is_some() || self.verify.is_some());
        require(!pointless, "upstream.tls", "server_name and verify require \"tls\": true")
    }
}
