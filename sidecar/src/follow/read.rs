//! Reads bytes from disk into a fold: large reads, whole lines, and a second check of the file's identity.

use std::io;

use super::file::{LogFile, id};
use crate::{
    fold::{Fold, Limits},
    place::{FileId, Fingerprint},
};

/// One system call for about three thousand lines.
const READ_BYTES: usize = 1 << 20;

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Whole lines up to this position are in the fold.
    Lines {
        /// The start of the next line.
        to: u64,
    },
    /// There is no complete line.
    Nothing,
    /// The file was replaced. The fold is empty again.
    Changed,
}

/// How far to read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    /// The window is full, or the file ends.
    Full(Limits),
    /// This position, where an earlier folded window ended.
    End(u64),
}

/// Reads log files in large pieces. Bytes that did not fit into the window are kept for the next one.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Vec<u8>,
    /// The inode alone is not sufficient: a new file can reuse the inode of a deleted one.
    of: Option<(FileId, Fingerprint)>,
    start: u64,
    filled: usize,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; READ_BYTES], of: None, start: 0, filled: 0 }
    }

    /// Discards bytes that were read ahead.
    pub(super) fn forget(&mut self) {
        self.of = None;
    }

    /// Folds the whole lines from `from`.
    pub(super) fn read(
        &mut self,
        log: &LogFile,
        fingerprint: Fingerprint,
        from: u64,
        until: Until,
        fold: &mut Fold,
    ) -> io::Result<Found> {
        if self.of != Some((log.id(), fingerprint)) {
            self.forget();
        }
        let to = self.fold_lines(log, fingerprint, from, until, fold)?;
        if to == from {
            return Ok(Found::Nothing);
        }
        // Truncation can happen between any two system calls. The second check *after* reading and before the commit
        // ensures that these lines came from the file of the position.
        let metadata = log.metadata()?;
        debug_assert_eq!(id(&metadata), log.id());
        if metadata.len() < to || log.fingerprint()? != Some(fingerprint) {
            fold.clear();
            self.forget();
            return Ok(Found::Changed);
        }
        Ok(Found::Lines { to })
    }

    fn fold_lines(
        &mut self,
        log: &LogFile,
        fingerprint: Fingerprint,
        from: u64,
        until: Until,
        fold: &mut Fold,
    ) -> io::Result<u64> {
        let (end, increments, most) = match until {
            Until::Full(limits) => (u64::MAX, limits.window, from.saturating_add(limits.window_bytes)),
            Until::End(end) => (end, usize::MAX, end),
        };
        let mut at = from;
        // Bytes from an earlier call may end where the file ended at that time.
        let mut fresh = false;
        while at < most {
            if !self.holds(at) {
                self.fill(log, fingerprint, at)?;
                fresh = true;
            }
            let filled = self.filled.min(usize::try_from(end - self.start).unwrap_or(usize::MAX));
            let bytes = &self.buffer[(at - self.start) as usize..filled];
            let absorbed = fold.absorb(bytes, increments);
            at += absorbed.consumed as u64;
            if absorbed.full {
                break;
            }
            if absorbed.consumed > 0 {
                continue;
            }
            if !fresh || self.start < at {
                // The piece ended within this line: read again from the beginning of the line.
                self.fill(log, fingerprint, at)?;
                fresh = true;
                continue;
            }
            match self.end_of_long_line(log, at)? {
                Some(end) => {
                    fold.bad_line(&self.buffer[..self.filled]);
                    at = end;
                    self.forget();
                }
                None => break,
            }
        }
        Ok(at)
    }

    fn holds(&self, at: u64) -> bool {
        self.of.is_some() && (self.start..self.start + self.filled as u64).contains(&at)
    }

    fn fill(&mut self, log: &LogFile, fingerprint: Fingerprint, at: u64) -> io::Result<()> {
        self.of = None;
        self.filled = log.read_at(&mut self.buffer, at)?;
        self.start = at;
        self.of = Some((log.id(), fingerprint));
        Ok(())
    }

    /// The end of a line that is longer than the buffer. nginx does not write such lines, so the line is counted as bad
    /// without being read. `None` if the line is not complete.
    fn end_of_long_line(&self, log: &LogFile, start: u64) -> io::Result<Option<u64>> {
        if self.filled < self.buffer.len() {
            return Ok(None);
        }
        let mut piece = vec![0; READ_BYTES];
        let mut at = start + self.filled as u64;
        loop {
            let read = log.read_at(&mut piece, at)?;
            if let Some(newline) = memchr::memchr(b'\n', &piece[..read]) {
                return Ok(Some(at + newline as u64 + 1));
            }
            if read < piece.len() {
                return Ok(None);
            }
            at += read as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// An integration test could not change the file exactly between its check and its reading.
    #[test]
    fn lines_of_a_replaced_file_are_not_folded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntwo\n").unwrap();
        let log = LogFile::open(&path).unwrap();
        let (mut reader, mut fold) = (Reader::new(), Fold::default());
        let all = Until::Full(Limits::default());
        let fingerprint = log.fingerprint().unwrap().unwrap();
        assert_eq!(reader.read(&log, fingerprint, 4, all, &mut fold).unwrap(), Found::Lines { to: 8 });
        assert_eq!(fold.bad_lines(), 1);
        fold.clear();
        // Truncated, and then longer than before.
        fs::write(&path, "three\nfour\nfive\n").unwrap();
        assert_eq!(reader.read(&log, fingerprint, 6, all, &mut fold).unwrap(), Found::Changed);
        assert!(fold.is_empty(), "its folded lines are discarded");
    }

    /// Bytes that were read ahead from a deleted file were once folded as the beginning of the file that reused its inode.
    #[test]
    fn bytes_read_ahead_are_not_used_for_another_file_with_the_same_inode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\n").unwrap();
        let log = LogFile::open(&path).unwrap();
        let (mut reader, mut fold) = (Reader::new(), Fold::default());
        // A window that ends before the end of the read piece.
        let all = Until::Full(Limits { window_bytes: 1, ..Limits::default() });
        for line in ["one\n", "two\n"] {
            fs::write(&path, line).unwrap();
            let fingerprint = log.fingerprint().unwrap().unwrap();
            fold.clear();
            assert_eq!(reader.read(&log, fingerprint, 0, all, &mut fold).unwrap(), Found::Lines { to: 4 });
            assert_eq!(fold.bad_sample(), Some(line.trim_end()));
        }
    }

    #[test]
    fn a_window_is_read_again_to_its_end_and_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntwo\nthree\nfo").unwrap();
        let log = LogFile::open(&path).unwrap();
        let (mut reader, mut fold) = (Reader::new(), Fold::default());
        let fingerprint = log.fingerprint().unwrap().unwrap();
        let read = |reader: &mut Reader, fold: &mut Fold, end| {
            reader.read(&log, fingerprint, 4, Until::End(end), fold).unwrap()
        };
        assert_eq!(read(&mut reader, &mut fold, 8), Found::Lines { to: 8 });
        assert_eq!(fold.bad_lines(), 1);
        fold.clear();
        // A position that is not the end of a line is not reached.
        assert_eq!(read(&mut reader, &mut fold, 10), Found::Lines { to: 8 });
        fold.clear();
        assert_eq!(read(&mut reader, &mut fold, 99), Found::Lines { to: 14 });
    }

    #[test]
    fn bytes_read_ahead_do_not_hide_newer_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntw").unwrap();
        let log = LogFile::open(&path).unwrap();
        let (mut reader, mut fold) = (Reader::new(), Fold::default());
        let all = Until::Full(Limits::default());
        let fingerprint = log.fingerprint().unwrap().unwrap();
        assert_eq!(reader.read(&log, fingerprint, 0, all, &mut fold).unwrap(), Found::Lines { to: 4 });
        assert_eq!(reader.read(&log, fingerprint, 4, all, &mut fold).unwrap(), Found::Nothing);
        fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(reader.read(&log, fingerprint, 4, all, &mut fold).unwrap(), Found::Lines { to: 8 });
    }
}
