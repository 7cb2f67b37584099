//! Who lost what: decisions from the heads of both sides and from revisions, without any I/O.

use crate::store::TableState;

/// How the two sides stand to each other.
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

/// The head of the table, as it is read from the master.
#[derive(Debug, Clone, Default)]
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

/// What is to be done about one instance that both sides know.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mend {
    Nothing,
    /// The fabric's word is later.
    Project,
    /// The table's word is later: its record, or its removal.
    Adopt,
}

/// Decides by revisions. `standing` is the table's revision and whether the instance is alive there.
pub(super) fn mend(wanted: u64, standing: u64, alive: bool) -> Mend {
    match standing.cmp(&wanted) {
        std::cmp::Ordering::Less => Mend::Project,
        std::cmp::Ordering::Equal if alive => Mend::Nothing,
        _ => Mend::Adopt,
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
    fn the_heads_tell_who_lost_what() {
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
        assert_eq!(mend(5, 0, false), Mend::Project);
        assert_eq!(mend(5, 4, true), Mend::Project);
        assert_eq!(mend(5, 5, true), Mend::Nothing);
        assert_eq!(mend(5, 5, false), Mend::Adopt);
        assert_eq!(mend(5, 6, true), Mend::Adopt);
        assert_eq!(mend(5, 6, false), Mend::Adopt);
    }
}
