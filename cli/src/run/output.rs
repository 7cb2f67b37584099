//! The output of children, each line with the name of its copy.

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    task::JoinHandle,
};

use crate::terminal;

/// Lines beyond this length are divided, so that a child that writes none cannot fill the memory.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// Colors of names, in turn. Red is left for errors.
const COLORS: [u8; 5] = [36, 33, 32, 35, 34];
/// The name of this program's own messages.
const OWN: &str = "signalbox";

/// Where a line is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Out,
    Error,
}

/// Writes lines with a prefix.
#[derive(Debug, Clone)]
pub(super) struct Output {
    width: usize,
    colored: bool,
}

impl Output {
    /// `longest` is the longest name of a copy.
    pub(super) fn new(longest: usize) -> Self {
        Self { width: longest.max(OWN.len()), colored: terminal::is_colored() }
    }

    /// A message of this program.
    pub(super) fn say(&self, text: &str) {
        terminal::error(&self.line(OWN, None, text));
    }

    /// Copies the lines of `from`. `color` distinguishes the copies.
    pub(super) fn copy(
        &self,
        name: String,
        color: usize,
        from: impl AsyncRead + Unpin + Send + 'static,
        to: Target,
    ) -> JoinHandle<()> {
        let output = self.clone();
        tokio::spawn(async move {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            loop {
                line.clear();
                let mut part = tokio::io::AsyncReadExt::take(&mut from, MAX_LINE_BYTES);
                match part.read_until(b'\n', &mut line).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
                let text = String::from_utf8_lossy(&line);
                let line = output.line(&name, Some(color), text.trim_end_matches(['\n', '\r']));
                match to {
                    Target::Out => terminal::line(&line),
                    Target::Error => terminal::error(&line),
                }
            }
        })
    }

    fn line(&self, name: &str, color: Option<usize>, text: &str) -> String {
        let prefix = format!("{name:<width$} |", width = self.width);
        match color {
            Some(color) if self.colored => {
                format!("\x1b[{}m{prefix}\x1b[0m {text}", COLORS[color % COLORS.len()])
            }
            _ => format!("{prefix} {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_one_width() {
        let output = Output { width: 9, colored: false };
        assert_eq!(output.line("web.1", Some(0), "hello"), "web.1     | hello");
        assert_eq!(output.line("signalbox", None, "x"), "signalbox | x");
        let output = Output { width: 5, colored: true };
        assert_eq!(output.line("web.1", Some(1), "x"), "\u{1b}[33mweb.1 |\u{1b}[0m x");
    }
}
