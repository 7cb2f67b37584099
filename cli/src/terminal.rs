//! Output for the operator. If the reader is gone (`signalbox up | head`), the command continues.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;
use serde_json::json;

/// Whether a write to standard output failed.
static READER_IS_GONE: AtomicBool = AtomicBool::new(false);

/// Writes a line to standard output.
pub(crate) fn line(text: &str) {
    if writeln!(io::stdout(), "{text}").is_err() {
        READER_IS_GONE.store(true, Ordering::Relaxed);
    }
}

/// Writes a line to standard output, as `println!` does, which would panic without a reader.
macro_rules! out {
    ($($text:tt)+) => {
        $crate::terminal::line(&format!($($text)+))
    };
}

pub(crate) use out;

/// Whether the reader of standard output is gone. Commands without an end then end.
pub(crate) fn reader_is_gone() -> bool {
    let flushed = io::stdout().flush();
    flushed.is_err() || READER_IS_GONE.load(Ordering::Relaxed)
}

/// Writes a line to standard output, and returns whether the reader still exists. For commands without an end.
pub(crate) fn line_is_read(text: &str) -> bool {
    let mut out = io::stdout();
    writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
}

/// Writes a line to standard error.
pub(crate) fn error(text: &str) {
    let _unwritten = writeln!(io::stderr(), "{text}");
}

/// Writes unchanged text to standard output.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether standard output is a terminal.
pub(crate) fn is_watched() -> bool {
    io::stdout().is_terminal()
}

/// The columns of the terminal; nothing if standard output is not one.
pub(crate) fn width() -> Option<usize> {
    rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| size.ws_col.into()).filter(|width| *width > 0)
}

/// The rows of the terminal; nothing if standard output is not one.
pub(crate) fn height() -> Option<usize> {
    rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| size.ws_row.into())
        .filter(|height| *height > 0)
}

/// Clears the screen, if standard output is a terminal.
pub(crate) fn clear() {
    if is_watched() {
        let _unwritten = text("\x1b[H\x1b[2J");
    }
}

/// When output is colored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    // On a terminal, unless `NO_COLOR` is set.
    Auto,
    Always,
    Never,
}

static COLOR: OnceLock<Color> = OnceLock::new();

/// Applies `--color` to everything that the command prints.
pub(crate) fn set_color(color: Color) {
    let _set_before = COLOR.set(color);
}

/// Whether output is colored: by default on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
pub(crate) fn is_colored() -> bool {
    match COLOR.get() {
        Some(Color::Always) => return true,
        Some(Color::Never) => return false,
        Some(Color::Auto) | None => {}
    }
    let unset = |name: &str| std::env::var_os(name).is_none_or(|value| value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    is_watched() && unset("NO_COLOR") && !dumb
}

/// A progress line on standard error for long operations. Without a terminal nothing is written.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { shown: io::stderr().is_terminal() }
    }

    /// Replaces the line with `text`.
    pub(crate) fn say(&self, text: &str) {
        if self.shown {
            let mut out = io::stderr();
            let _unwritten = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
        }
    }
}

impl Drop for Progress {
    /// Erases the line.
    fn drop(&mut self) {
        self.say("");
    }
}

/// Names side by side; `-` for none.
pub(crate) fn list<T: AsRef<str>>(names: &[T]) -> String {
    if names.is_empty() {
        return "-".to_owned();
    }
    names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(",")
}

/// A value that may be missing; `-` for none.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The word of a value, as in JSON.
pub(crate) fn word(value: impl Serialize) -> String {
    json!(value).as_str().unwrap_or("-").to_owned()
}

/// Milliseconds in readable form.
pub(crate) fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} days", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_words() {
        let spans = [5, 1_500, 119_999, 120_000, 7_200_000, 172_800_000].map(span);
        assert_eq!(spans, ["5 ms", "1.5 s", "119.9 s", "2 min", "2 h", "2 days"]);
    }
}
