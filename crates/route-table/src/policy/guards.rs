//! Which requests are allowed, and how they are handled.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::{check_name, check_value, invalid, within};
use crate::Invalid;

const MAX_METHODS: usize = 32;
const MAX_HEADERS: usize = 50;
const MAX_TEXT: usize = 8192;
const MAX_YEAR_SECONDS: u64 = 365 * 86_400;

/// Headers that belong to the connection or to the framing (RFC 9110, 7.6.1), or that the edge itself stands for. The
/// edge leaves the same out of a table that was written by hand.
const RESERVED: [&str; 22] = [
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

/// Limits of a host's clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requests: Option<RequestLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    connections: Option<ConnectionLimit>,
}

/// A rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestLimit {
    /// 0.001 to 1,000,000.
    #[schema(value_type = f64, example = 100)]
    per_second: Number,
    /// Maximum burst beyond it, 0 to 1,000,000; default: one second's worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<By>,
}

/// A number of requests at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConnectionLimit {
    /// 1 to 1,000,000.
    most: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<By>,
}

/// The scope of the counters: each client address (default), each value of a header, or all together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    Address,
    Host,
    Header(String),
}

fn check_by(by: Option<&By>, field: &'static str) -> Result<(), Invalid> {
    match by {
        Some(By::Header(name)) => check_name(name, field),
        _ => Ok(()),
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if let Some(requests) = &self.requests {
            let per_second = requests.per_second.as_f64().unwrap_or(f64::NAN);
            if !(0.001..=1e6).contains(&per_second) {
                return Err(invalid("limits.requests.per_second", "per_second is 0.001 to 1000000"));
            }
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

/// Methods in upper case, sorted.
pub(super) fn check_methods(methods: &mut Vec<String>) -> Result<(), Invalid> {
    let plain = |name: &String| {
        name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.len() <= 32
            && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-')
    };
    if methods.is_empty() || methods.len() > MAX_METHODS || !methods.iter().all(plain) {
        return Err(invalid("methods", format!("there are 1 to {MAX_METHODS} methods, of letters and -")));
    }
    for method in methods.iter_mut() {
        method.make_ascii_uppercase();
    }
    methods.sort_unstable();
    methods.dedup();
    Ok(())
}

/// Changes of headers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Headers {
    /// On the way to the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<HeaderChanges>,
    /// On the way to the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<HeaderChanges>,
}

/// Headers that are set, replacing existing ones, and headers that are removed.
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
        for (changes, field) in
            [(&mut self.request, "headers.request"), (&mut self.response, "headers.response")]
        {
            if let Some(changes) = changes {
                changes.check(field)?;
            }
        }
        Ok(())
    }
}

impl HeaderChanges {
    fn check(&mut self, field: &'static str) -> Result<(), Invalid> {
        if self.set.len() + self.remove.len() > MAX_HEADERS {
            return Err(invalid(field, format!("at most {MAX_HEADERS} headers are changed")));
        }
        let mut seen = BTreeSet::new();
        for name in self.set.keys().chain(&self.remove) {
            check_name(name, field)?;
            let lower = name.to_ascii_lowercase();
            if RESERVED.contains(&&*lower) {
                let detail = format!("{name} belongs to the connection or to the edge and cannot be changed");
                return Err(invalid(field, detail));
            }
            if !seen.insert(lower) {
                return Err(invalid(field, format!("{name} is changed twice")));
            }
        }
        self.remove.sort_unstable();
        self.set.values().try_for_each(|value| check_value(value, field))
    }
}

/// An answer that every request gets instead of an instance's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Maintenance {
    /// 200 to 599 (503).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u64>,
    /// At most 8192 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// Default `text/plain; charset=utf-8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    /// Seconds, 0 to 31,536,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    except_header: Option<Except>,
}

/// The exception: requests with this value of this header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Except {
    name: String,
    value: String,
}

impl Maintenance {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        within(self.status, 200..=599, "maintenance.status")?;
        within(self.retry_after, 0..=MAX_YEAR_SECONDS, "maintenance.retry_after")?;
        if self.body.as_ref().is_some_and(|body| body.len() > MAX_TEXT) {
            return Err(invalid("maintenance.body", format!("a body has at most {MAX_TEXT} bytes")));
        }
        let content_type = self.content_type.as_ref();
        content_type.map_or(Ok(()), |value| check_value(value, "maintenance.content_type"))?;
        self.except_header.as_ref().map_or(Ok(()), |except| {
            check_name(&except.name, "maintenance.except_header")?;
            check_value(&except.value, "maintenance.except_header")
        })
    }
}

/// The handling of requests without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Https {
    /// They are sent to the https URL.
    Redirect,
    /// They are refused.
    Only,
    /// They are served.
    Any,
}

/// How instances are spoken to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upstream {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<bool>,
    /// The name that is requested and verified; default: the request's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server_name: Option<String>,
    /// Whether the certificate must be valid; default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verify: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
}

/// The protocol towards instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

impl Upstream {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.server_name {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
            if name.is_empty() || name.len() > 253 || !name.bytes().all(plain) {
                return Err(invalid("upstream.server_name", "a server name is a host name"));
            }
        }
        // Without tls these settings would wrongly appear to protect something.
        let pointless = self.tls != Some(true) && (self.server_name.is_some() || self.verify.is_some());
        let detail = "server_name and verify need tls";
        (!pointless).then_some(()).ok_or_else(|| invalid("upstream.tls", detail))
    }
}
