//! From bytes on disk to a fold: large reads, whole lines, and a second look at whose bytes they were.

use std::io;

use super::file::{LogFile, id};
use crate::{
    fold::{Fold, Limits},
    place::{FileId, Fingerprint},
};

/// One system call for about three thousand lines.
const READ_BYTES: usize = 1 << 20;

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Whole lines up to this position are in the fold.
    Lines {
        /// Where the next line begins.
        to: u64,
    },
    /// There is no complete line.
    Nothing,
    /// The file is not the one it was; the fold is empty again.
    Changed,
}

/// How far to read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    /// The window is full, or the file ends.
    Full(Limits),
    /// Exactly here, where a window ended that was folded before.
    End(u64),
}

/// Reads log files in large pieces. A piece that was read but did not fit into the window is kept for the next.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Vec<u8>,
    /// The inode alone is not enough: a file that was deleted gives it to the next.
    of: Option<(FileId, Fingerprint)>,
    start: u64,
    filled: usize,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; READ_BYTES], of: None, start: 0, filled: 0 }
    }

    /// Forgets what was read ahead.
    pub(super) fn forget(&mut self) {
        self.of = None;
    }

    /// Folds the whole lines from `from` on.
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
        // Truncation can happen between any two system calls. Looking again *after* the reading, before anything is
        // committed, is what makes it certain that these lines came from the file that the position speaks of.
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
        // What an earlier call left in the buffer may end where the file ended then.
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
                // The piece ended within this line: read again from its beginning.
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

    /// Where a line ends that is longer than the buffer; nothing like that is written by nginx, so it counts as bad
    /// unread. `None` while the line is not complete, which for a shorter one is always.
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

    /// The moment between looking at a file and reading it cannot be met from outside.
    #[test]
    fn lines_of_another_file_are_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntwo\n").unwrap();
        let log = LogFile::open(&path).unwrap();
        let (mut reader, mut fold) = (Reader::new(), Fold::default());
        let all = Until::Full(Limits::default());
        let looked_at = log.fingerprint().unwrap().unwrap();
        assert_eq!(reader.read(&log, looked_at, 4, all, &mut fold).unwrap(), Found::Lines { to: 8 });
        assert_eq!(fold.bad_lines(), 1);
        fold.clear();
        // Cut, and written again further than before.
        fs::write(&path, "three\nfour\nfive\n").unwrap();
        assert_eq!(reader.read(&log, looked_at, 6, all, &mut fold).unwrap(), Found::Changed);
        assert!(fold.is_empty(), "what was folded of it is forgotten");
    }

    /// What was read ahead of a deleted file was folded once more as the beginning of the file that got its inode.
    #[test]
    fn what_was_read_ahead_is_not_taken_for_another_file_with_its_inode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\n").unwrap();
        let log = LogFile::open(&path).unwrap();
        let (mut reader, mut fold) = (Reader::new(), Fold::default());
        // A window that ends before the piece that was read does.
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
        // An end that is none is not reached, whatever stands there by now.
        assert_eq!(read(&mut reader, &mut fold, 10), Found::Lines { to: 8 });
        fold.clear();
        assert_eq!(read(&mut reader, &mut fold, 99), Found::Lines { to: 14 });
    }

    #[test]
    fn what_was_read_ahead_is_not_taken_for_all_there_is() {
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
