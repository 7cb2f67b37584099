//! Finds the log files: the active one, rotated ones next to it, and deleted ones that are still open.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    GRACE,
    decide::{Seen, unread},
    file::{LogFile, id, modified_ns},
};
use crate::{
    place::{FileId, Fingerprint, Place},
    rotate::Rotated,
};

/// Rotated files with these extensions are not text. Operators should delay compression by one rotation.
const IGNORED_EXTENSIONS: [&str; 8] = ["gz", "bz2", "xz", "zst", "lz4", "zip", "tmp", "swp"];

/// The log files, with the cached state of each.
#[derive(Debug)]
pub(super) struct Directory {
    active: PathBuf,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: FileId,
    path: PathBuf,
    /// Kept open for files that may have unread lines, so that deleting them loses nothing.
    log: Option<LogFile>,
    fingerprint: Option<Fingerprint>,
    size: u64,
    modified_ns: i128,
    active: bool,
    listed: bool,
    /// The last time when it had to be open.
    needed: Duration,
    /// The size at which it contained no complete uncounted line.
    barren: Option<u64>,
}

impl Directory {
    pub(super) fn new(active: PathBuf) -> Self {
        Self { active, entries: Vec::new() }
    }

    /// Reads the state of every file. `now` is a monotonic time.
    pub(super) fn read(&mut self, place: &Place, now: Duration) -> io::Result<Vec<Seen>> {
        for entry in &mut self.entries {
            (entry.listed, entry.active) = (false, false);
        }
        for path in self.names()? {
            let active = path == self.active;
            // The name may have disappeared, in which case the file has another name or is still open.
            let metadata = if active { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
            match metadata {
                Ok(metadata) if metadata.is_file() => self.note(path, active, &metadata, now)?,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.read_unlisted()?;
        self.hold(place, now);
        Ok(self.seen())
    }

    fn seen(&self) -> Vec<Seen> {
        self.entries.iter().map(Entry::seen).collect()
    }

    /// Lists the active file first, so that a file that is renamed during the listing is not missed. A file that is listed
    /// twice is recorded once.
    fn names(&self) -> io::Result<Vec<PathBuf>> {
        let mut names = vec![self.active.clone()];
        let (Some(folder), Some(name)) = (self.active.parent(), self.active.file_name()) else {
            return Ok(names);
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(names),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let found = entry?.file_name();
            let found_bytes = found.as_encoded_bytes();
            let suffix = found_bytes.strip_prefix(name.as_encoded_bytes());
            let rotated = suffix.is_some_and(|suffix| matches!(suffix.first(), Some(b'.' | b'-')));
            let path = self.active.with_file_name(&found);
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if rotated && !IGNORED_EXTENSIONS.contains(&ending) {
                names.push(path);
            }
        }
        Ok(names)
    }

    fn note(
        &mut self,
        path: PathBuf,
        active: bool,
        metadata: &fs::Metadata,
        now: Duration,
    ) -> io::Result<()> {
        let (id, size, modified_ns) = (id(metadata), metadata.len(), modified_ns(metadata));
        let known = self.entries.iter_mut().find(|entry| entry.id == id);
        let entry = match known {
            Some(entry) => {
                let unchanged = entry.size == size && entry.modified_ns == modified_ns && !active;
                entry.path = path;
                entry.listed = true;
                entry.active |= active;
                if unchanged {
                    return Ok(());
                }
                entry
            }
            None => {
                self.entries.push(Entry {
                    id,
                    path,
                    log: None,
                    fingerprint: None,
                    size,
                    modified_ns,
                    active,
                    listed: true,
                    needed: now,
                    barren: None,
                });
                let last = self.entries.len() - 1;
                &mut self.entries[last]
            }
        };
        (entry.size, entry.modified_ns) = (size, modified_ns);
        if entry.open()? {
            entry.fingerprint = entry.log.as_ref().map_or(Ok(None), LogFile::fingerprint)?;
        } else {
            entry.listed = false;
        }
        Ok(())
    }

    /// Updates files without a listed name, which are known only by their open handle.
    fn read_unlisted(&mut self) -> io::Result<()> {
        self.entries.retain(|entry| entry.listed || entry.log.is_some());
        for entry in self.entries.iter_mut().filter(|entry| !entry.listed) {
            if let Some(log) = &entry.log {
                let metadata = log.metadata()?;
                (entry.size, entry.modified_ns) = (metadata.len(), modified_ns(&metadata));
                entry.fingerprint = log.fingerprint()?;
            }
        }
        Ok(())
    }

    /// Closes files that are read to their end and no longer written.
    fn hold(&mut self, place: &Place, now: Duration) {
        let files = self.seen();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let current = place.current().is_some_and(|current| files[index].is(&current));
            let waits = !files[index].barren && unread(place, &files, index) > 0;
            if entry.active || current || waits {
                entry.needed = now;
            } else if now.saturating_sub(entry.needed) > GRACE {
                entry.log = None;
            }
        }
        self.entries.retain(|entry| entry.listed || entry.log.is_some());
    }

    /// The open file with this ID, or `None` if it is gone.
    pub(super) fn log(&mut self, id: FileId) -> io::Result<Option<&LogFile>> {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else { return Ok(None) };
        Ok(if entry.open()? { entry.log.as_ref() } else { None })
    }

    /// The rotated files, and whether `place` is after all their lines.
    pub(super) fn rotated(&self, place: &Place) -> Vec<Rotated> {
        let files = self.seen();
        let rotated = |(_, entry): &(usize, &Entry)| entry.listed && !entry.active;
        self.entries
            .iter()
            .enumerate()
            .filter(rotated)
            .map(|(index, entry)| Rotated {
                path: entry.path.clone(),
                modified_ms: u64::try_from(entry.modified_ns / 1_000_000).unwrap_or(0),
                counted: files[index].barren || unread(place, &files, index) == 0,
            })
            .collect()
    }

    /// Records that a file has no complete uncounted line, until it grows.
    pub(super) fn mark_barren(&mut self, seen: &Seen) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == seen.id) {
            entry.barren = Some(seen.size);
        }
    }

    /// Discards state that depends on the place, which was rolled back.
    pub(super) fn forget(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.barren = None);
    }
}

impl Entry {
    /// Opens the file unless it is open. `false` if another file has its name.
    fn open(&mut self) -> io::Result<bool> {
        if self.log.is_some() {
            return Ok(true);
        }
        match LogFile::open(&self.path) {
            Ok(log) if log.id() == self.id => self.log = Some(log),
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn seen(&self) -> Seen {
        Seen {
            id: self.id,
            fingerprint: self.fingerprint,
            size: self.size,
            modified_ns: self.modified_ns,
            active: self.active,
            barren: self.barren == Some(self.size),
        }
    }
}
