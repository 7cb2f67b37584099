//! The place in the log up to which everything is counted.
//!
//! Rotation renames files, copies them, truncates them and reuses their inodes, so a byte offset means nothing without the
//! file's identity. A file is recognized by its inode together with the [`Fingerprint`] of its first complete line. That
//! line contains a request ID and the time in milliseconds, so it is as good as a name. The device number is stored only
//! for operators, because it may change with a reboot.
//!
//! A [`Place`] is one position in one file, plus how far every *other* file was read. Because of that list no line is lost
//! if rotated files are read in an unexpected order: a file that was not read to its end is unread, whatever its name and
//! whenever it appears, and a file that grows later is read further.

use std::{fmt, str::FromStr};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// The identity of a file in the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// The first 128 bits of the SHA-256 of a file's first complete line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The number of bytes of the first line that are used. A longer first line is treated as complete at this length,
    /// because its beginning does not change any more.
    pub const SPAN: usize = 64 << 10;

    /// The fingerprint of a file that begins with `bytes`, or `None` if it has no complete line yet.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let bytes = &bytes[..bytes.len().min(Self::SPAN)];
        let end = match memchr::memchr(b'\n', bytes) {
            Some(newline) => newline + 1,
            None if bytes.len() == Self::SPAN => Self::SPAN,
            None => return None,
        };
        let digest = Sha256::digest(&bytes[..end]);
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        Some(Self(first))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let value = u128::from_str_radix(text, 16).map_err(|_| Unreadable)?;
        if text.len() == 32 { Ok(Self(value.to_be_bytes())) } else { Err(Unreadable) }
    }
}

/// A stored place in an unknown format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse the stored place in the log")]
pub struct Unreadable;

/// A file, and how far it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Its inode when it was read.
    pub inode: u64,
    /// The fingerprint of its first line.
    pub fingerprint: Fingerprint,
    /// Bytes that are counted.
    pub position: u64,
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.inode, self.fingerprint, self.position)
    }
}

impl FromStr for Known {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let mut fields = text.splitn(3, ':');
        let mut field = || fields.next().ok_or(Unreadable);
        Ok(Self {
            inode: field()?.parse().map_err(|_| Unreadable)?,
            fingerprint: field()?.parse()?,
            position: field()?.parse().map_err(|_| Unreadable)?,
        })
    }
}

/// How far files other than the current one were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finished(Vec<Known>);

impl Finished {
    /// The maximum number of removed files in the list, which are kept in case one returns.
    const MAX_REMOVED: usize = 64;

    /// Drops the oldest removed files from the list. A file that still exists always remains in it, or it would be counted
    /// again.
    pub fn prune(&mut self, exists: impl Fn(&Known) -> bool) {
        let mut surplus = self.0.len().saturating_sub(Self::MAX_REMOVED);
        self.0.retain(|known| {
            let forget = surplus > 0 && !exists(known);
            surplus -= usize::from(forget);
            !forget
        });
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, known) in self.0.iter().enumerate() {
            write!(f, "{}{known}", if at > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Finished {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        text.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// Everything before this place is counted, and nothing after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Rises whenever the current file changes, so that positions in different files are never confused.
    pub generation: u64,
    /// The current file, as it was last seen.
    pub file: Option<FileId>,
    /// The fingerprint of its first line. Absent until some of it is counted.
    pub fingerprint: Option<Fingerprint>,
    /// The counted bytes of it. Always the start of a line.
    pub position: u64,
    /// All other files.
    pub finished: Finished,
}

impl Place {
    /// The current file, if some of it is counted.
    pub fn current(&self) -> Option<Known> {
        let (file, fingerprint) = self.file.zip(self.fingerprint)?;
        (self.position > 0).then_some(Known { inode: file.inode, fingerprint, position: self.position })
    }

    /// Every file of which some lines are counted.
    pub fn known(&self) -> impl Iterator<Item = Known> {
        self.current().into_iter().chain(self.finished.0.iter().copied())
    }

    /// Makes another file the current one. `exists` returns whether a known file still exists.
    pub fn switch(
        &mut self,
        file: FileId,
        fingerprint: Option<Fingerprint>,
        position: u64,
        exists: impl Fn(&Known) -> bool,
    ) {
        self.leave();
        self.file = Some(file);
        self.fingerprint = fingerprint;
        self.position = position;
        // The file itself is current now. A removed file with the same first line was this one, or this one is its copy.
        self.finished.0.retain(|known| {
            Some(known.fingerprint) != fingerprint || (known.inode != file.inode && exists(known))
        });
        self.finished.prune(exists);
    }

    /// Leaves the current file and records how far it was read, because it or a copy of it may appear again.
    pub fn leave(&mut self) {
        if let Some(current) = self.current() {
            self.finished.0.push(current);
        }
        self.generation += 1;
        self.file = None;
        self.fingerprint = None;
        self.position = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_files_survives_being_written_down() {
        let known = |inode: u64| Known {
            inode,
            fingerprint: Fingerprint::of(format!("line {inode}\n").as_bytes()).unwrap(),
            position: inode * 10,
        };
        for list in [vec![], vec![known(1)], vec![known(7), known(u64::MAX / 10)]] {
            let finished = Finished(list);
            assert_eq!(finished.to_string().parse(), Ok(finished));
        }
        for bad in [
            "1",
            "1:2",
            "1:00:3",
            "x:0123456789abcdef0123456789abcdef:1",
            "1:0123456789abcdef0123456789abcdef:",
        ] {
            assert_eq!(bad.parse::<Finished>(), Err(Unreadable), "{bad}");
        }
    }

    #[test]
    fn files_that_exist_are_never_forgotten() {
        let mut place = Place::default();
        let line = |inode: u64| Fingerprint::of(format!("{inode}\n").as_bytes());
        for inode in 0..200 {
            place.switch(FileId { device: 1, inode }, line(inode), 5, |known| known.inode < 100);
        }
        let remembered: Vec<_> = place.known().map(|known| known.inode).collect();
        assert!((0..100).all(|inode| remembered.contains(&inode)));
        assert!(remembered.len() <= 102, "{}", remembered.len());
    }

    #[test]
    fn a_fingerprint_needs_a_whole_line_or_a_long_beginning() {
        assert_eq!(Fingerprint::of(b""), None);
        assert_eq!(Fingerprint::of(b"no end"), None);
        assert_eq!(Fingerprint::of(b"a\nb"), Fingerprint::of(b"a\nc"));
        assert_ne!(Fingerprint::of(b"a\n"), Fingerprint::of(b"b\n"));
        let long = vec![b'x'; Fingerprint::SPAN + 1];
        assert_eq!(Fingerprint::of(&long[..Fingerprint::SPAN - 1]), None);
        assert_eq!(Fingerprint::of(&long), Fingerprint::of(&long[..Fingerprint::SPAN]));
    }
}
