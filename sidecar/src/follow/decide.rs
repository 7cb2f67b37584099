//! Decides the next action from the files on disk. No I/O, so every situation can be tested.

use crate::place::{FileId, Fingerprint, Known, Place};

/// A log file as it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Device and inode.
    pub id: FileId,
    /// The fingerprint of its first line. `None` if it has no complete line, so that nothing can be read.
    pub fingerprint: Option<Fingerprint>,
    /// Size in bytes.
    pub size: u64,
    /// The time of the last write, in nanoseconds.
    pub modified_ns: i128,
    /// Whether nginx opens it under the configured name. The others were rotated.
    pub active: bool,
    /// Whether it contains no complete uncounted line at this size.
    pub barren: bool,
}

impl Seen {
    /// Whether this is the known file.
    pub fn is(&self, known: &Known) -> bool {
        self.id.inode == known.inode && self.fingerprint == Some(known.fingerprint)
    }
}

/// The position to continue from in the file at `index`. `None` if its lines are those of another existing file.
pub fn position(place: &Place, files: &[Seen], index: usize) -> Option<u64> {
    let file = &files[index];
    if let Some(known) = place.known().find(|known| file.is(known)) {
        return Some(known.position);
    }
    // Files with the same first line are copies, made by copy-truncate or manually. The active file is never a copy: others
    // are copied from it. If an older one still exists, two files happen to begin with the same line.
    let alike = || place.known().filter(|known| Some(known.fingerprint) == file.fingerprint);
    if alike().any(|known| files.iter().any(|other| other.is(&known))) {
        return file.active.then_some(0);
    }
    // The original is truncated or missing: its copy is read from where the original was left. The same applies to a file
    // that was moved from another filesystem.
    Some(alike().map(|known| known.position).max().unwrap_or(0))
}

/// The uncounted bytes of the file at `index`. 0 for a file without a complete line.
pub fn unread(place: &Place, files: &[Seen], index: usize) -> u64 {
    let file = &files[index];
    if file.fingerprint.is_none() {
        return 0;
    }
    position(place, files, index).map_or(0, |position| file.size.saturating_sub(position))
}

/// The way in which unread data was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// The file has another first line: it was truncated and written again.
    Truncated,
    /// The file kept its first line but lost its end.
    Shrunk {
        /// The remaining size.
        size: u64,
    },
    /// No file has the first line of the current one.
    Vanished,
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Data is lost. Record it and decide again.
    Lost(Gap),
    /// Continue reading this file, given by its index.
    Read(usize),
    /// Nothing is unread, and the current file was rotated some time ago: make the active one current. This must happen
    /// before the old file is deleted, or the next start would treat the deletion as a loss.
    Settle(usize),
    /// Wait for more.
    Wait,
}

/// Decides the next action from `place` and the existing files. `rested` means that the current file was neither active nor
/// growing for the grace period.
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
    // Reading the oldest file first is better for clients that read the counters live. Correctness does not
    // depend on the order.
    if let Some(oldest) = (0..files.len()).filter(readable).min_by_key(|index| files[*index].modified_ns) {
        // Of files with the same first line, the largest comes first, so that the others are its copies.
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

/// Whether counted data of the current file is missing.
fn gap(place: &Place, files: &[Seen]) -> Option<Gap> {
    let current = place.current()?;
    if let Some(file) = files.iter().find(|file| file.is(&current)) {
        return (file.size < current.position).then_some(Gap::Shrunk { size: file.size });
    }
    if files.iter().any(|file| file.id.inode == current.inode) {
        // Its copy, if there is one, is found like any other file and read from where the original was left. Lines that were
        // written between copying and truncating are in neither file, and it is unknown whether there were any.
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
    fn every_situation_leads_to_its_action() {
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
            (
                "two logs with the same beginning",
                vec![file(1, "a\n", 100), active(file(2, "a\n", 60))],
                Read(1),
            ),
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
        assert_eq!(position(&place, &again, 2), None, "a second copy contains nothing new");
    }

    #[test]
    fn the_largest_of_several_unknown_copies_is_read() {
        let files = [file(2, "a\n", 200), file(3, "a\n", 300), file(4, "b\n", 1)];
        assert_eq!(decide(&Place::default(), &files, false), Action::Read(1));
    }

    #[test]
    fn the_rotated_file_stays_current_during_the_grace_period() {
        let files = [file(1, "a\n", 100), active(file(2, "", 0))];
        assert_eq!(decide(&place(), &files, false), Action::Wait);
    }
}
