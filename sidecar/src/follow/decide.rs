//! What to do next, decided from what is on disk. No I/O, so every situation can be written down and tested.

use crate::place::{FileId, Fingerprint, Place};

/// A log file as it was just seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Device and inode.
    pub id: FileId,
    /// Its first line; `None` while it has no complete one, so there is nothing to read in it either.
    pub fingerprint: Option<Fingerprint>,
    /// Bytes.
    pub size: u64,
    /// When it was last written, in nanoseconds.
    pub modified_ns: i128,
    /// Whether nginx opens it under the configured name. The others were rotated away.
    pub active: bool,
    /// Whether a look at it, at this size, found no complete line beyond what is counted.
    pub barren: bool,
}

impl Seen {
    /// Bytes of this file that are not counted.
    pub fn unread(&self, place: &Place) -> u64 {
        self.fingerprint.map_or(0, |fingerprint| self.size.saturating_sub(place.position_in(fingerprint)))
    }
}

/// What happened to data that was not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// The file begins differently than it did: truncated and written again.
    Truncated,
    /// The file kept its first line but lost its end.
    Shrunk {
        /// What is left of it.
        size: u64,
    },
    /// No file begins like the one that was being read.
    Vanished,
}

/// The next thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Data is gone. Note it and decide again.
    Lost(Gap),
    /// Read on in this file, the index into what was seen.
    Read(usize),
    /// Nothing is unread and the current file was rotated away a while ago: make the active one current. Its line is
    /// drawn before the old file is deleted, or the next start would take the deletion for a loss.
    Settle(usize),
    /// Wait for more.
    Wait,
}

/// Decides what follows from `place` and the files that exist. `rested` says that the current file was neither
/// active nor growing for the grace period.
pub fn decide(place: &Place, files: &[Seen], rested: bool) -> Action {
    if place.position > 0
        && let Some(gap) = gap(place, files)
    {
        return Action::Lost(gap);
    }
    let current = place.fingerprint.and_then(|fingerprint| original(place, files, fingerprint));
    let unread = |index: &usize| {
        let file = &files[*index];
        // Of a file and its copy only one is read: they are the same lines.
        !file.barren
            && file.unread(place) > 0
            && file.fingerprint.and_then(|fingerprint| original(place, files, fingerprint)) == Some(*index)
    };
    if let Some(current) = current.filter(unread) {
        return Action::Read(current);
    }
    // Oldest first is only kind to readers of the live counters; nothing depends on the order.
    if let Some(oldest) = (0..files.len()).filter(unread).min_by_key(|index| files[*index].modified_ns) {
        return Action::Read(oldest);
    }
    let away = current.is_some_and(|current| !files[current].active);
    match files.iter().position(|file| file.active) {
        Some(active) if place.position > 0 && away && rested => Action::Settle(active),
        _ => Action::Wait,
    }
}

/// Whether the current file still holds what was counted of it.
fn gap(place: &Place, files: &[Seen]) -> Option<Gap> {
    let same = |file: &&Seen| Some(file.id) == place.file;
    let begins_alike = |file: &&Seen| file.fingerprint == place.fingerprint;
    if let Some(file) = files.iter().filter(same).find(begins_alike) {
        return (file.size < place.position).then_some(Gap::Shrunk { size: file.size });
    }
    if files.iter().any(|file| same(&file)) {
        // Its copy, if one was made, is found like any other file and read from where the original was left. What was
        // written between copying and truncating is in neither, and nobody can know whether there was anything.
        return Some(Gap::Truncated);
    }
    // Moved to another filesystem, or restored: other ids, same lines.
    let moved = files.iter().filter(begins_alike).any(|file| file.size >= place.position);
    (!moved).then_some(Gap::Vanished)
}

/// Of the files that begin alike, the one that is read: the known one, else the growing one, else the longest.
fn original(place: &Place, files: &[Seen], fingerprint: Fingerprint) -> Option<usize> {
    let rank = |file: &Seen| (Some(file.id) == place.file, file.active, file.size);
    (0..files.len())
        .filter(|index| files[*index].fingerprint == Some(fingerprint))
        .max_by_key(|index| rank(&files[*index]))
}
