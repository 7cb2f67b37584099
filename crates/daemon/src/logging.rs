//! Logs.

use std::io::IsTerminal as _;

use tracing_subscriber::{EnvFilter, filter::ParseError};

/// Starts logging: lines for a person at a terminal, one JSON object a line for everything else.
///
/// # Errors
/// When `filter` is no tracing filter, like `info` or `signalbox_sidecar=debug,warn`.
pub fn log_to_stderr(filter: &str) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(filter)?;
    let terminal = std::io::stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal);
    if terminal {
        log.init();
    } else {
        log.json().flatten_event(true).init();
    }
    Ok(())
}
