//! Logs, and where spans go.

use std::io::IsTerminal as _;

use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{FilterExt as _, FilterFn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::traces::{self, Exporter, Options, Service};

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is not valid.
    #[error("log: `{filter}` is not a tracing filter such as `info` or `signalbox_sidecar=debug,warn`")]
    Filter {
        /// What was given.
        filter: String,
        /// Why.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Nothing can be sent to the collector.
    #[error("traces.endpoint")]
    Traces(#[from] traces::Error),
}

/// Starts logging: lines for a person at a terminal, one JSON object a line for everything else. Also what sends spans,
/// which does nothing before it is run; `None` when traces are off.
///
/// # Errors
/// When the filter or the collector's address cannot be used.
pub fn log_to_stderr(
    filter: &str,
    traces: &Options,
    service: Service<'_>,
) -> Result<Option<Exporter>, Error> {
    let lines = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| Error::Filter { filter: filter.to_owned(), source })?;
    let terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let log = if terminal { log.boxed() } else { log.json().flatten_event(true).boxed() };
    let (spans, exporter) = traces::tracer(traces, service)?.unzip();
    // Each to its own: see `traces`.
    let is_span = |metadata: &tracing::Metadata<'_>| metadata.target() == traces::TARGET;
    let only_spans = FilterFn::new(is_span);
    let no_spans = FilterFn::new(move |metadata| !is_span(metadata));
    let spans = spans.map(|tracer| traces::layer(tracer).with_filter(only_spans));
    let log = log.with_filter(lines.and(no_spans));
    tracing_subscriber::registry().with(log).with(spans).init();
    Ok(exporter)
}
