//! Traces: what a request and what came of it took, sent to an OpenTelemetry collector (OTLP over HTTP).
//!
//! ```text
//!  span ends ──▶ bounded queue ──▶ Exporter ── batches ──▶ collector
//!                    │ full: lost      │ refused, or no answer in time: lost
//!                    ╰────────┬────────╯
//!                          [`Counts`]
//! ```
//!
//! * Off unless an endpoint is configured; a span is then one atomic load, and nothing is in memory.
//! * Spans have a target of their own ([`TARGET`]). Log lines go to the log only and spans to the collector only, so
//!   what somebody logs one day cannot leave the machine with a trace.
//! * Nothing waits for the collector. What it does not take is lost and counted, and the log says so once until it
//!   takes spans again.
//! * A span names routes, addresses, counts and outcomes: never a token, a body, a query or a path as it was asked.

mod cause;
mod collector;
mod export;
mod sampler;
mod server;

use std::{fmt, time::Duration};

use http::Uri;
use opentelemetry::{
    KeyValue,
    trace::{TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracerProvider, SpanLimits, Tracer},
};
use serde::Deserialize;
use tracing::{Span, Subscriber, field, info_span};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::registry::LookupSpan;

pub use cause::Cause;
pub use export::{Counts, Exporter};
pub use server::serve;

/// The target of spans that are sent to the collector, and of nothing else.
pub const TARGET: &str = "signalbox::trace";
/// Causes of one span. A batch may have more events than anybody looks at.
pub const MOST_CAUSES: usize = 64;

/// Where a collector listens: `http://host:port`, with or without a path.
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
            return Err("must have neither a query nor a user name".to_owned());
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
    /// The collector; without one there are no traces.
    pub endpoint: Option<Endpoint>,
    /// The share of the traces that begin here and are recorded.
    pub ratio: Ratio,
}

impl Options {
    /// The section of the default file.
    pub const DEFAULTS: &str = include_str!("defaults.toml");
}

/// Who sends spans.
#[derive(Debug, Clone, Copy)]
pub struct Service<'a> {
    /// The program: `signalbox-pacemaker`.
    pub name: &'static str,
    /// Which of several: its node.
    pub instance: &'a str,
    /// Its version.
    pub version: &'static str,
}

/// Why the collector cannot be prepared.
#[derive(Debug, thiserror::Error)]
#[error("the exporter of traces cannot be prepared")]
pub struct Error(#[source] Box<dyn std::error::Error + Send + Sync>);

/// The tracer whose spans come to the exporter, and the exporter. `None` when traces are off.
pub(crate) fn tracer(options: &Options, service: Service<'_>) -> Result<Option<(Tracer, Exporter)>, Error> {
    let Some(endpoint) = &options.endpoint else { return Ok(None) };
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", service.name),
            KeyValue::new("service.instance.id", service.instance.to_owned()),
            KeyValue::new("service.version", service.version),
        ])
        .build();
    let (processor, exporter) = export::channel(endpoint, &resource)?;
    let limits = SpanLimits { max_links_per_span: MOST_CAUSES as u32, ..SpanLimits::default() };
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_sampler(sampler::ParentOrRatio::new(options.ratio.0))
        .with_span_limits(limits)
        .with_resource(resource)
        .build();
    let tracer = provider.tracer("signalbox");
    Ok(Some((tracer, exporter.holding(provider))))
}

/// The layer that turns spans of [`TARGET`] into spans of `tracer`.
pub(crate) fn layer<S>(tracer: Tracer) -> OpenTelemetryLayer<S, Tracer>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false)
}

/// A request that this process makes, as a span of the kind `client`. What it is made because of is its parent (the
/// first) or linked (the others); without any, it belongs to what this task is doing. Nothing when traces are off, and
/// `to` is not asked then.
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

/// A look into a queue for messages, as a span.
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

/// What a pull came to: it is linked to what published the messages.
pub fn pulled(span: &Span, messages: usize, causes: &[Cause]) {
    span.record("messaging.batch.message_count", messages);
    link(span, causes);
}

/// A commit of lines to the statistics, as a span.
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

/// Makes the first cause the parent of a span that was not entered yet, and links the others.
fn because(span: &Span, causes: &[Cause]) {
    let Some((first, others)) = causes.split_first() else { return };
    // It fails for a span that has begun, or that nobody records.
    let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(first.context()));
    link(span, others);
}

/// Says of a span that it is about what `causes` began.
fn link(span: &Span, causes: &[Cause]) {
    for cause in causes.iter().take(MOST_CAUSES) {
        span.add_link(cause.context());
    }
}

/// Marks a span as failed, and says why. `why` must not hold anything secret.
pub fn failed(span: &Span, why: &str) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", why);
}

/// How long one batch of spans may take to the collector.
const EXPORT_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_gets_the_path_of_traces_unless_it_has_one() {
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
    fn a_ratio_is_a_share() {
        assert!(Ratio::try_from(0.25).is_ok() && Ratio::try_from(1.0).is_ok());
        for bad in [-0.1, 1.1, f64::NAN] {
            assert!(Ratio::try_from(bad).is_err(), "{bad}");
        }
    }
}
