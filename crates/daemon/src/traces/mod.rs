//! Traces: the duration of requests and of the work that they cause, sent to an OpenTelemetry collector (OTLP over HTTP).
//!
//! ```text
//!  span ends ──▶ bounded queue ──▶ Exporter ── batches ──▶ collector
//!                    │ full: lost      │ rejected, or no answer in time: lost
//!                    ╰────────┬────────╯
//!                          [`Counts`]
//! ```
//!
//! * Off unless an endpoint is configured; a span is then one atomic load, and nothing is kept in memory.
//! * Spans have their own target ([`TARGET`]). Log lines are written only to the log, and spans are sent only to the
//!   collector, so a log line added later cannot leave the machine with a trace.
//! * Nothing waits for the collector. Spans that it does not accept are lost and counted. The log reports this once, and
//!   once more when the collector accepts spans again.
//! * A span contains routes, addresses, counts and outcomes: never a token, a body, a query or the path of a request.
//!
//! Any crate can record spans. The exporter, the tracer and the middleware need the feature `serve`.

mod cause;
#[cfg(feature = "serve")]
mod collector;
#[cfg(feature = "serve")]
mod export;
#[cfg(feature = "serve")]
mod provider;
#[cfg(feature = "serve")]
mod sampler;
#[cfg(feature = "serve")]
mod server;

use std::fmt;

use http::Uri;
use opentelemetry::trace::TraceContextExt as _;
use serde::Deserialize;
use tracing::{Span, field, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

pub use cause::Cause;
#[cfg(feature = "serve")]
pub use export::{Counts, Exporter};
#[cfg(feature = "serve")]
pub use provider::{Error, Service};
#[cfg(feature = "serve")]
pub(crate) use provider::{layer, tracer};
#[cfg(feature = "serve")]
pub use server::serve;

/// The target of spans that are sent to the collector, and of nothing else.
pub const TARGET: &str = "signalbox::trace";
/// The maximum number of causes of one span. A batch may contain more events than a trace view can usefully link.
pub const MAX_CAUSES: usize = 64;

/// The address of a collector: `http://host:port`, with or without a path.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Endpoint(Uri);

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let uri: Uri = text.parse().map_err(|_| format!("`{text}` is not a valid URL"))?;
        if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
            return Err(format!(
                "`{text}` must begin with http:// (run a collector next to this daemon if you need TLS)"
            ));
        }
        if uri.query().is_some() || uri.authority().is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err("must not have a query or a user name".to_owned());
        }
        let base = text.trim_end_matches('/');
        let whole = if uri.path() == "/" { format!("{base}/v1/traces") } else { base.to_owned() };
        whole.parse().map(Self).map_err(|_| format!("`{text}` is not a valid URL"))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The share of traces that are recorded if the client did not decide: 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Ratio(f64);

impl TryFrom<f64> for Ratio {
    type Error = &'static str;

    fn try_from(ratio: f64) -> Result<Self, Self::Error> {
        if (0.0..=1.0).contains(&ratio) { Ok(Self(ratio)) } else { Err("must be between 0 and 1") }
    }
}

/// The section `[traces]` of a daemon's configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The collector. Without it, traces are off.
    pub endpoint: Option<Endpoint>,
    /// The share of the traces that start in Signalbox and are recorded.
    pub ratio: Ratio,
}

impl Options {
    /// The section of the default file.
    pub const DEFAULTS: &str = include_str!("defaults.toml");
}

/// A span of the kind `client`, for a request that this process sends. The first of `causes` becomes its parent and the
/// others are linked. Without causes, the current span is its parent. If traces are off, the span is empty and `to` is not
/// called.
pub fn call(
    name: &'static str,
    method: &http::Method,
    to: impl FnOnce() -> Option<Uri>,
    causes: &[Cause],
) -> Span {
    if !cause::are_on() {
        return Span::none();
    }
    let to = to();
    let span = info_span!(
        target: TARGET,
        "call",
        otel.name = name,
        otel.kind = "client",
        http.request.method = method.as_str(),
        server.address = to.as_ref().and_then(Uri::host),
        server.port = to.as_ref().and_then(Uri::port_u16),
        http.response.status_code = field::Empty,
        messaging.batch.message_count = field::Empty,
        messaging.message.id = field::Empty,
        signalbox.attempt = field::Empty,
        otel.status_code = field::Empty,
        otel.status_description = field::Empty,
    );
    because(&span, causes);
    span
}

/// A span for one pull from a queue.
pub fn pull(queue: &str) -> Span {
    info_span!(
        target: TARGET,
        "queue pull",
        otel.kind = "client",
        messaging.operation.type = "receive",
        messaging.destination.name = queue,
        messaging.batch.message_count = field::Empty,
    )
}

/// Records the result of a pull, and links it to the spans that published the messages.
pub fn pulled(span: &Span, messages: usize, causes: &[Cause]) {
    span.record("messaging.batch.message_count", messages);
    link(span, causes);
}

/// A span for one commit of log lines to the statistics.
pub fn commit(lines: u64, bytes: u64) -> Span {
    info_span!(
        target: TARGET,
        "commit lines",
        otel.kind = "client",
        db.system.name = "redis",
        signalbox.lines = lines,
        signalbox.bytes = bytes,
    )
}

/// Makes the first cause the parent of a span that has not been entered yet, and links the others.
fn because(span: &Span, causes: &[Cause]) {
    let Some((first, others)) = causes.split_first() else { return };
    // It fails if the span has been entered or is not recorded.
    let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(first.context()));
    link(span, others);
}

/// Links a span to its causes.
fn link(span: &Span, causes: &[Cause]) {
    for cause in causes.iter().take(MAX_CAUSES) {
        span.add_link(cause.context());
    }
}

/// Marks a span as failed. `reason` must not contain a secret.
pub fn failed(span: &Span, reason: &str) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", reason);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_gets_the_default_path() {
        for (given, whole) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("http://c.internal/otel/v1/traces", "http://c.internal/otel/v1/traces"),
        ] {
            assert_eq!(Endpoint::try_from(given.to_owned()).unwrap().to_string(), whole, "{given}");
        }
        for bad in ["", "4318", "https://c.internal:4318", "http://u:p@c:1/", "http://c/?key=1", "/v1/traces"]
        {
            assert!(Endpoint::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_ratio_is_between_zero_and_one() {
        assert!(Ratio::try_from(0.25).is_ok() && Ratio::try_from(1.0).is_ok());
        for bad in [-0.1, 1.1, f64::NAN] {
            assert!(Ratio::try_from(bad).is_err(), "{bad}");
        }
    }
}
