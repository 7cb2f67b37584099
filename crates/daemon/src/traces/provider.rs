//! Connects the spans of this process with the exporter.

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracerProvider, SpanLimits, Tracer},
};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

use super::{Exporter, MAX_CAUSES, Options, export, sampler::ParentOrRatio};

/// The program that sends spans.
#[derive(Debug, Clone, Copy)]
pub struct Service<'a> {
    /// The program: `signalbox-pacemaker`.
    pub name: &'static str,
    /// The node name, which distinguishes several copies of the program.
    pub instance: &'a str,
    /// Its version.
    pub version: &'static str,
}

/// The exporter cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the exporter of traces")]
pub struct Error(#[source] pub(super) Box<dyn std::error::Error + Send + Sync>);

/// The tracer, and the exporter that receives its spans. `None` if traces are off.
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
    let limits = SpanLimits { max_links_per_span: MAX_CAUSES as u32, ..SpanLimits::default() };
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_sampler(ParentOrRatio::new(options.ratio.0))
        .with_span_limits(limits)
        .with_resource(resource)
        .build();
    let tracer = provider.tracer("signalbox");
    Ok(Some((tracer, exporter.holding(provider))))
}

/// The layer that turns spans of [`super::TARGET`] into spans of `tracer`.
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
