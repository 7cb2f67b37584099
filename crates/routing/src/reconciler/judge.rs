//! Decides whether the fabric or the table lost changes, by their serials and revisions. Pure.

use crate::store::TableState;

/// How the two sides compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Situation {
    InStep,
    /// The fabric has no table: a first start, or a fabric that was replaced.
    FabricEmpty,
    /// The table has seen changes or an epoch that the fabric does not know: it was restored from older data.
    FabricBehind,
    /// The table is gone, older than it was, or its seeding was interrupted.
    TableBehind,
    /// The table is seeded, and only the note that it is not is left.
    SeedingEnded,
    /// A table of another installation. Nothing is written to it.
    Foreign,
}

/// The head of the table, as it is read from the primary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) lineage: String,
    pub(super) serial: u64,
    pub(super) revision: u64,
}

/// Decides from both heads alone. `witnessed` is the highest serial that a router has acknowledged in our epoch.
pub(super) fn judge(fabric: &TableState, table: &Head, witnessed: u64) -> Situation {
    let newest = |lineage: &str| lineage.split(' ').next().unwrap_or("").to_owned();
    let contains = |lineage: &str, token: &str| lineage.split(' ').any(|other| other == token);
    if fabric.lineage.is_empty() {
        return Situation::FabricEmpty;
    }
    if table.lineage.is_empty() {
        return Situation::TableBehind;
    }
    let (ours, theirs) = (newest(&fabric.lineage), newest(&table.lineage));
    if ours == theirs {
        return if table.serial < fabric.serial.max(witnessed) {
            Situation::TableBehind
        } else if table.revision > fabric.revision {
            Situation::FabricBehind
        } else if fabric.seeding {
            Situation::SeedingEnded
        } else {
            Situation::InStep
        };
    }
    if contains(&table.lineage, &ours) {
        Situation::FabricBehind
    } else if contains(&fabric.lineage, &theirs) {
        Situation::TableBehind
    } else {
        Situation::Foreign
    }
}

/// How to make both sides agree on one instance or resource.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fix {
    Nothing,
    /// The fabric has the later change.
    Project,
    /// The table has the later change: its record, or its removal.
    Adopt,
}

/// Decides by revisions. `standing` is the table's revision, and `alive` whether the table has more than a tombstone.
pub(super) fn fix(wanted: u64, standing: u64, alive: bool) -> Fix {
    match standing.cmp(&wanted) {
        std::cmp::Ordering::Less => Fix::Project,
        std::cmp::Ordering::Equal if alive => Fix::Nothing,
        _ => Fix::Adopt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(lineage: &str, serial: u64, revision: u64) -> TableState {
        TableState { lineage: lineage.to_owned(), serial, seeding: false, revision }
    }

    fn head(lineage: &str, serial: u64, revision: u64) -> Head {
        Head { lineage: lineage.to_owned(), serial, revision }
    }

    #[test]
    fn the_heads_show_which_side_lost_changes() {
        let ours = fabric("b a", 10, 5);
        for (table, witnessed, situation) in [
            (head("b a", 10, 5), 0, Situation::InStep),
            (head("b a", 12, 4), 11, Situation::InStep),
            (head("", 0, 0), 0, Situation::TableBehind),
            (head("", 99, 9), 0, Situation::TableBehind),
            (head("b a", 9, 5), 0, Situation::TableBehind),
            (head("b a", 10, 5), 11, Situation::TableBehind),
            (head("a", 50, 5), 0, Situation::TableBehind),
            (head("b a", 11, 6), 0, Situation::FabricBehind),
            (head("c b a", 11, 6), 0, Situation::FabricBehind),
            (head("x", 11, 6), 0, Situation::Foreign),
        ] {
            assert_eq!(judge(&ours, &table, witnessed), situation, "{table:?} {witnessed}");
        }
        assert_eq!(judge(&fabric("", 0, 0), &head("a", 5, 5), 0), Situation::FabricEmpty);
        assert_eq!(judge(&fabric("", 0, 0), &head("", 0, 0), 0), Situation::FabricEmpty);
        let seeding = TableState { seeding: true, ..fabric("b a", 10, 5) };
        assert_eq!(judge(&seeding, &head("b a", 11, 5), 0), Situation::SeedingEnded);
        assert_eq!(judge(&seeding, &head("a", 11, 5), 0), Situation::TableBehind);
    }

    #[test]
    fn the_later_revision_wins() {
        assert_eq!(fix(5, 0, false), Fix::Project);
        assert_eq!(fix(5, 4, true), Fix::Project);
        assert_eq!(fix(5, 5, true), Fix::Nothing);
        assert_eq!(fix(5, 5, false), Fix::Adopt);
        assert_eq!(fix(5, 6, true), Fix::Adopt);
        assert_eq!(fix(5, 6, false), Fix::Adopt);
    }
}
