//! Folds a whole file without Redis, for benchmarks and for analyzing a log offline.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use super::{Fold, Limits};

/// Large reads: one system call per megabyte is cheap compared with folding it.
const READ_BYTES: usize = 1 << 20;

/// The result of folding a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Good lines.
    pub lines: u64,
    /// Bad lines.
    pub bad_lines: u64,
    /// Bytes of whole lines.
    pub bytes: u64,
    /// The number of windows.
    pub windows: u64,
    /// The total number of increments.
    pub increments: u64,
}

/// Folds the whole lines of the file at `path` into windows as the sidecar would, and passes each to `window`.
///
/// # Errors
/// If the file cannot be read.
pub fn file(path: &Path, mut window: impl FnMut(&Fold)) -> io::Result<Summary> {
    let file = File::open(path)?;
    let mut buffer = vec![0; READ_BYTES];
    let limits = Limits::default();
    let mut fold = Fold::default();
    let mut begin = 0;
    let mut summary = Summary::default();
    let mut finish = |fold: &mut Fold, summary: &mut Summary| {
        summary.lines += fold.lines();
        summary.bad_lines += fold.bad_lines();
        summary.windows += 1;
        summary.increments += fold.cost() as u64;
        window(fold);
        fold.clear();
    };
    loop {
        let read = file.read_at(&mut buffer, summary.bytes)?;
        let mut rest = &buffer[..read];
        loop {
            let absorbed = fold.absorb(rest, limits.window);
            rest = &rest[absorbed.consumed..];
            summary.bytes += absorbed.consumed as u64;
            if !absorbed.full && summary.bytes - begin < limits.window_bytes {
                break;
            }
            finish(&mut fold, &mut summary);
            begin = summary.bytes;
        }
        if rest.len() == read && read < buffer.len() {
            break;
        }
        if rest.len() == buffer.len() {
            // A line longer than the buffer is rare, so the buffer simply grows.
            buffer.resize(buffer.len() * 2, 0);
        }
    }
    if !fold.is_empty() {
        finish(&mut fold, &mut summary);
    }
    Ok(summary)
}
