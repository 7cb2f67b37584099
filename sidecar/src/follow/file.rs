//! One open log file.

use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use crate::place::{FileId, Fingerprint};

/// An open log file. It can be read to its end even if it is renamed or deleted.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    id: FileId,
}

impl LogFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let id = id(&file.metadata()?);
        Ok(Self { file, id })
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Reads at `offset` until `buffer` is full or the file ends.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// The fingerprint of the first line, or `None` if there is no complete line.
    pub(super) fn fingerprint(&self) -> io::Result<Option<Fingerprint>> {
        // Nearly every first line fits into the small buffer.
        let mut small = [0; 1024];
        let read = self.read_at(&mut small, 0)?;
        if let Some(fingerprint) = Fingerprint::of(&small[..read]) {
            return Ok(Some(fingerprint));
        }
        if read < small.len() {
            return Ok(None);
        }
        let mut large = vec![0; Fingerprint::SPAN];
        let read = self.read_at(&mut large, 0)?;
        Ok(Fingerprint::of(&large[..read]))
    }
}

pub(super) fn id(metadata: &Metadata) -> FileId {
    FileId { device: metadata.dev(), inode: metadata.ino() }
}

pub(super) fn modified_ns(metadata: &Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}
