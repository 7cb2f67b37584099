//! Lines for the operator. A reader that has gone away (`signalbox up | head`) is no reason to stop.

use std::io::{self, Write as _};

/// A line to standard output.
pub(crate) fn line(text: &str) {
    let _unwritten = writeln!(io::stdout(), "{text}");
}

/// A line to standard error.
pub(crate) fn error(text: &str) {
    let _unwritten = writeln!(io::stderr(), "{text}");
}
