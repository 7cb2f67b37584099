//! What to do next, decided from what is on disk. No I/O, so every situation can be written down and tested.

use crate::place::{FileId, Fingerprint, Known, Place};

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
    /// Whether this is the file that something is known of.
    pub fn is(&self, known: &Known) -> bool {
        self.id.inode == known.inode && self.fingerprint == Some(known.fingerprint)
    }
}

/// Where to read on in the file at `index`; `None` when its lines are those of another file that is there.
pub fn position(place: &Place, files: &[Seen], index: usize) -> Option<u64> {
    let file = &files[index];
    if let Some(known) = place.known().find(|known| file.is(known)) {
        return Some(known.position);
    }
    // Files that begin alike are copies, made by copy-truncate or by hand. The active one never is: it is what others
    // are copied from, so if an older one is still there, two files happen to begin with the same line.
    let alike = || place.known().filter(|known| Some(known.fingerprint) == file.fingerprint);
    if alike().any(|known| files.iter().any(|other| other.is(&known))) {
        return file.active.then_some(0);
    }
    // The original is cut or gone: its copy is read where the original was left. So is a file that was moved here from
    // another filesystem.
    Some(alike().map(|known| known.position).max().unwrap_or(0))
}

/// Bytes of the file at `index` that are not counted. A file without a complete line has none.
pub fn unread(place: &Place, files: &[Seen], index: usize) -> u64 {
    let file = &files[index];
    if file.fingerprint.is_none() {
        return 0;
    }
    position(place, files, index).map_or(0, |position| file.size.saturating_sub(position))
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
    let current = place.current().and_then(|current| files.iter().position(|file| file.is(&current)));
    let readable = |index: &usize| !files[*index].barren && unread(place, files, *index) > 0;
    if let Some(current) = current.filter(readable) {
        return Action::Read(current);
    }
    // Oldest first is only kind to readers of the live counters; nothing depends on the order.
    if let Some(oldest) = (0..files.len()).filter(readable).min_by_key(|index| files[*index].modified_ns) {
        // Of files that begin alike the one that has the most comes first, which makes the others its copies.
        let alike = |index: &usize| files[*index].fingerprint == files[oldest].fingerprint && readable(index);
        let most = |index: &usize| (files[*index].active, files[*index].size);
        let first = (0..files.len()).filter(alike).max_by_key(most);
        return Action::Read(first.unwrap_or(oldest));
    }
    let away = current.is_some_and(|current| !files[current].active);
    match files.iter().position(|file| file.active) {
        Some(active) if place.position > 0 && away && rested => Action::Settle(active),
        _ => Action::Wait,
    }
}

/// Whether the current file still holds what was counted of it.
fn gap(place: &Place, files: &[Seen]) -> Option<Gap> {
    let current = place.current()?;
    if let Some(file) = files.iter().find(|file| file.is(&current)) {
        return (file.size < current.position).then_some(Gap::Shrunk { size: file.size });
    }
    if files.iter().any(|file| file.id.inode == current.inode) {
        // Its copy, if one was made, is found like any other file and read from where the original was left. What was
        // written between copying and truncating is in neither, and nobody can know whether there was anything.
        return Some(Gap::Truncated);
    }
    let moved = files
        .iter()
        .any(|file| file.fingerprint == Some(current.fingerprint) && file.size >= current.position);
    (!moved).then_some(Gap::Vanished)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(line: &str) -> Option<Fingerprint> {
        Fingerprint::of(line.as_bytes())
    }

    fn file(inode: u64, line: &str, size: u64) -> Seen {
        let id = FileId { device: 1, inode };
        Seen {
            id,
            fingerprint: first(line),
            size,
            modified_ns: i128::from(inode),
            active: false,
            barren: false,
        }
    }

    fn active(file: Seen) -> Seen {
        Seen { active: true, ..file }
    }

    /// 100 bytes of the file with inode 1, which begins with "a".
    fn place() -> Place {
        let mut place = Place::default();
        place.switch(FileId { device: 1, inode: 1 }, first("a\n"), 100, |_| true);
        place
    }

    #[test]
    fn every_situation_has_its_answer() {
        use Action::{Lost, Read, Settle, Wait};
        let barren = |file: Seen| Seen { barren: true, ..file };
        for (situation, files, action) in [
            ("nothing new", vec![active(file(1, "a\n", 100))], Wait),
            ("it grew", vec![active(file(1, "a\n", 101))], Read(0)),
            ("it grew by half a line", vec![barren(active(file(1, "a\n", 101)))], Wait),
            ("rotated, the old first", vec![active(file(2, "b\n", 9)), file(1, "a\n", 101)], Read(1)),
            ("rotated and drained", vec![file(1, "a\n", 100), active(file(2, "b\n", 9))], Read(1)),
            (
                "rotated and drained, the new one empty",
                vec![file(1, "a\n", 100), active(file(2, "", 0))],
                Settle(1),
            ),
            (
                "rotated twice",
                vec![active(file(3, "c\n", 9)), file(2, "b\n", 9), file(1, "a\n", 100)],
                Read(1),
            ),
            ("renamed, not reopened", vec![file(1, "a\n", 100)], Wait),
            ("cut to nothing", vec![active(file(1, "", 0))], Lost(Gap::Truncated)),
            ("cut and written again", vec![active(file(1, "b\n", 500))], Lost(Gap::Truncated)),
            ("copied and cut", vec![file(2, "a\n", 300), active(file(1, "b\n", 9))], Lost(Gap::Truncated)),
            ("copied, not yet cut", vec![file(2, "a\n", 90), active(file(1, "a\n", 100))], Wait),
            ("its end is gone", vec![active(file(1, "a\n", 99))], Lost(Gap::Shrunk { size: 99 })),
            ("gone", vec![active(file(2, "b\n", 9))], Lost(Gap::Vanished)),
            ("no file at all", vec![], Lost(Gap::Vanished)),
            ("moved to another disk", vec![file(7, "a\n", 140)], Read(0)),
            ("two logs begin alike", vec![file(1, "a\n", 100), active(file(2, "a\n", 60))], Read(1)),
        ] {
            assert_eq!(decide(&place(), &files, true), action, "{situation}");
        }
    }

    #[test]
    fn a_copy_is_read_from_where_its_original_was_left() {
        let mut place = place();
        place.leave();
        let files = [file(2, "a\n", 300), active(file(1, "b\n", 9))];
        assert_eq!(position(&place, &files, 0), Some(100));
        assert_eq!(unread(&place, &files, 0), 200);
        place.switch(files[0].id, files[0].fingerprint, 300, |known| files.iter().any(|file| file.is(known)));
        let again = [files[0], files[1], file(3, "a\n", 300)];
        assert_eq!(position(&place, &again, 2), None, "a second copy holds nothing new");
    }

    #[test]
    fn of_unknown_copies_the_one_with_the_most_is_read() {
        let files = [file(2, "a\n", 200), file(3, "a\n", 300), file(4, "b\n", 1)];
        assert_eq!(decide(&Place::default(), &files, false), Action::Read(1));
    }

    #[test]
    fn the_grace_period_holds_on_to_the_rotated_file() {
        let files = [file(1, "a\n", 100), active(file(2, "", 0))];
        assert_eq!(decide(&place(), &files, false), Action::Wait);
    }
}
