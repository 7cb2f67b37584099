//! Where in the log everything before is counted.
//!
//! Rotation renames files, copies them, truncates them and reuses their inodes; so a byte offset means nothing without
//! saying in *what*. A file is recognised by the [`Fingerprint`] of its first complete line, which carries a request
//! id and a time and is therefore as good as a name. Device and inode only break ties (a copy has the same first line).
//!
//! A [`Place`] is one position in one file, plus how far every *other* file was read. That list is what makes the order
//! of rotated files a nicety instead of a matter of loss: any file that is not read to its end is unread, whatever it
//! is called and whenever it turns up, and a file that grows after it was left is simply read on.

use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};

/// Which file, as the filesystem sees it.
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
    /// How much of the first line is looked at. A longer first line counts as complete at this length: its beginning
    /// will not change any more.
    pub const SPAN: usize = 64 << 10;

    /// The fingerprint of a file that begins with `bytes`, or `None` while it has no complete line.
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
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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

/// A stored place that nobody of us wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stored place in the log cannot be read")]
pub struct Unreadable;

/// How far files other than the current one were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finished(Vec<(Fingerprint, u64)>);

impl Finished {
    /// How many files that are gone are remembered, in case one comes back.
    const REMEMBERED: usize = 64;

    /// How far the file with this first line was read; 0 when never.
    pub fn position(&self, fingerprint: Fingerprint) -> u64 {
        self.0.iter().find(|(seen, _)| *seen == fingerprint).map_or(0, |(_, position)| *position)
    }

    fn insert(&mut self, fingerprint: Fingerprint, position: u64) {
        self.remove(fingerprint);
        self.0.push((fingerprint, position));
    }

    fn remove(&mut self, fingerprint: Fingerprint) {
        self.0.retain(|(seen, _)| *seen != fingerprint);
    }

    /// Forgets the oldest of the files that are gone. One that still exists is never forgotten, or it would be
    /// counted again.
    pub fn prune(&mut self, exists: impl Fn(Fingerprint) -> bool) {
        let mut surplus = self.0.len().saturating_sub(Self::REMEMBERED);
        self.0.retain(|(fingerprint, _)| {
            let forget = surplus > 0 && !exists(*fingerprint);
            surplus -= usize::from(forget);
            !forget
        });
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (fingerprint, position)) in self.0.iter().enumerate() {
            write!(f, "{}{fingerprint}:{position}", if at > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Finished {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let entry = |entry: &str| {
            let (fingerprint, position) = entry.split_once(':').ok_or(Unreadable)?;
            Ok((fingerprint.parse()?, position.parse().map_err(|_| Unreadable)?))
        };
        text.split_ascii_whitespace().map(entry).collect::<Result<_, _>>().map(Self)
    }
}

/// Everything before this place is counted, nothing after it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Rises whenever the current file changes, so that two positions in two files are never mistaken for each other.
    pub generation: u64,
    /// The current file, when it was last seen.
    pub file: Option<FileId>,
    /// Its first line. Absent as long as nothing of it is counted.
    pub fingerprint: Option<Fingerprint>,
    /// Bytes of it that are counted. Always the start of a line.
    pub position: u64,
    /// All the other files.
    pub finished: Finished,
}

impl Place {
    /// How far a file with this first line was read.
    pub fn position_in(&self, fingerprint: Fingerprint) -> u64 {
        if self.fingerprint == Some(fingerprint) {
            self.position
        } else {
            self.finished.position(fingerprint)
        }
    }

    /// Makes another file the current one, at the position where it was left.
    pub fn switch(&mut self, file: FileId, fingerprint: Option<Fingerprint>) {
        self.leave();
        self.file = Some(file);
        self.fingerprint = fingerprint;
        self.position = fingerprint.map_or(0, |fingerprint| self.finished.position(fingerprint));
        if let Some(fingerprint) = fingerprint {
            self.finished.remove(fingerprint);
        }
    }

    /// Gives up the current file, remembering how far it was read: it may come back, or a copy of it turn up.
    pub fn leave(&mut self) {
        if let Some(fingerprint) = self.fingerprint.take()
            && self.position > 0
        {
            self.finished.insert(fingerprint, self.position);
        }
        self.generation += 1;
        self.file = None;
        self.position = 0;
    }
}
