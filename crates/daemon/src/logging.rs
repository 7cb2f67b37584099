//! Logging to standard error, and the setup of traces.

use std::io::IsTerminal as _;

use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{FilterExt as _, FilterFn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::traces::{self, Exporter, Options, Service};

/// Logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is not valid.
    #[error("log: `{filter}` is not a tracing filter such as `info` or `signalbox_sidecar=debug,warn`")]
    Filter {
        /// The configured filter.
        filter: String,
        /// The error of the parser.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The exporter cannot be created.
    #[error("traces.endpoint")]
    Traces(#[from] traces::Error),
}

/// Starts logging: lines for a person at a terminal, otherwise one JSON object per line. Returns the exporter of spans, which
/// does nothing before it is run, or `None` if traces are off.
///
/// # Errors
/// If the filter or the collector's address is invalid.
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
    // Spans are never logged, and log lines are never sent to the collector: see `traces`.
    let is_span = |metadata: &tracing::Metadata<'_>| metadata.target() == traces::TARGET;
    let only_spans = FilterFn::new(is_span);
    let no_spans = FilterFn::new(move |metadata| !is_span(metadata));
    let spans = spans.map(|tracer| traces::layer(tracer).with_filter(only_spans));
    let log = log.with_filter(lines.and(no_spans));
    tracing_subscriber::registry().with(log).with(spans).init();
    Ok(exporter)
}
