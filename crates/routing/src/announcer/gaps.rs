//! The events to publish, and the gaps between them. Pure.

use crate::store::{Changes, Entry, Place};

/// Something to publish.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News<'a> {
    /// A change that the list describes.
    Change(&'a Entry),
    /// Changes without an entry, by the first and the last of their serials.
    Resync { from: u64, to: u64, reason: ResyncReason },
}

/// Why changes are not described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResyncReason {
    /// The table was seeded again.
    Reseeded,
    /// The table was changed by other means, or the list does not reach back far enough.
    Gap,
}

impl ResyncReason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Reseeded => "reseeded",
            Self::Gap => "gap",
        }
    }
}

/// Kinds of entries, as the scripts write them.
const BEGUN: &str = "begun";
const RESEEDED: &str = "reseeded";
/// Happens under a serial and makes none.
const UNHEALTHY: &str = "unhealthy";
/// The events to publish after `before`, and the place after them. `complete` when `changes` holds all entries
/// that there are; only then a serial at the end can be one that no entry describes.
pub(super) fn find<'a>(before: &Place, changes: &'a Changes, complete: bool) -> (Vec<News<'a>>, Place) {
    let mut news = Vec::new();
    if changes.epoch.is_empty() {
        return (news, before.clone());
    }
    let mut place = Place { epoch: changes.epoch.clone(), ..before.clone() };
    let mut entries = changes.entries.iter();
    if before.epoch != changes.epoch {
        // The list of a lineage begins with the lineage itself, unless its beginning is gone.
        let begins = |entry: &&Entry| [BEGUN, RESEEDED].contains(&entry.text("kind"));
        if !changes.entries.first().is_some_and(|entry| begins(&entry)) {
            news.push(resync(before.serial, changes.serial, ResyncReason::Gap));
            let (serial, entry) = (changes.serial, changes.last.clone());
            return (news, Place { serial, entry, ..place });
        }
        place.entry.clear();
    }
    for entry in entries.by_ref() {
        let serial = entry.serial();
        match entry.text("kind") {
            // Nothing was published before; entries that an operator wrote until then already existed.
            BEGUN => place.serial = serial,
            RESEEDED => {
                news.push(resync(place.serial, serial, ResyncReason::Reseeded));
                place.serial = serial;
            }
            UNHEALTHY => news.push(News::Change(entry)),
            _ => {
                if serial > place.serial + 1 {
                    news.push(resync(place.serial, serial - 1, ResyncReason::Gap));
                }
                news.push(News::Change(entry));
                place.serial = place.serial.max(serial);
            }
        }
        place.entry.clone_from(&entry.id);
    }
    if complete && changes.serial > place.serial {
        news.push(resync(place.serial, changes.serial, ResyncReason::Gap));
        place.serial = changes.serial;
    }
    (news, place)
}

/// All serials after `published`, up to and including `to`.
fn resync<'a>(published: u64, to: u64, reason: ResyncReason) -> News<'a> {
    News::Resync { from: (published + 1).min(to), to, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(id: &str, kind: &str) -> Entry {
        Entry { id: id.to_owned(), fields: [("kind".to_owned(), kind.to_owned())].into() }
    }

    fn place(epoch: &str, serial: u64, entry: &str) -> Place {
        Place { epoch: epoch.to_owned(), serial, entry: entry.to_owned() }
    }

    fn changes(epoch: &str, serial: u64, entries: &[(&str, &str)]) -> Changes {
        let entries: Vec<Entry> = entries.iter().map(|(id, kind)| entry(id, kind)).collect();
        let last = entries.last().map(|entry| entry.id.clone()).unwrap_or_default();
        Changes { epoch: epoch.to_owned(), serial, last, entries }
    }

    /// In words: `r` and a range for a resync, else the entry's id.
    fn published(news: &[News<'_>]) -> Vec<String> {
        let word = |news: &News<'_>| match news {
            News::Change(entry) => entry.id.clone(),
            News::Resync { from, to, reason } => format!("{} {from}-{to}", reason.as_str()),
        };
        news.iter().map(word).collect()
    }

    fn check(before: &Place, changes: &Changes, expected: &[&str], after: &Place) {
        let (news, place) = find(before, changes, true);
        assert_eq!((published(&news), &place), (expected.iter().map(ToString::to_string).collect(), after));
    }

    #[test]
    fn changes_with_entries_are_published_one_by_one() {
        let list = changes("a", 7, &[("6-0", "removed"), ("6-1", "registered"), ("7-0", "altered")]);
        check(&place("a", 5, "5-0"), &list, &["6-0", "6-1", "7-0"], &place("a", 7, "7-0"));
        check(&place("a", 7, "7-0"), &changes("a", 7, &[]), &[], &place("a", 7, "7-0"));
    }

    #[test]
    fn a_serial_without_an_entry_is_a_gap() {
        let list = changes("a", 12, &[("8-0", "registered"), ("9-0", "removed")]);
        check(&place("a", 5, "5-0"), &list, &["gap 6-7", "8-0", "9-0", "gap 10-12"], &place("a", 12, "9-0"));
        // A fault happens under a serial and describes none.
        let list = changes("a", 6, &[("6-0", "unhealthy")]);
        check(&place("a", 5, "5-0"), &list, &["6-0", "gap 6-6"], &place("a", 6, "6-0"));
        // The end of a page is not the end of the list.
        let list = changes("a", 99, &[("6-0", "registered")]);
        let (news, after) = find(&place("a", 5, "5-0"), &list, false);
        assert_eq!((published(&news), after), (vec!["6-0".to_owned()], place("a", 6, "6-0")));
    }

    #[test]
    fn a_table_seeded_again_is_one_event() {
        let list = changes("b", 62, &[("61-0", "reseeded"), ("62-0", "registered")]);
        check(&place("a", 57, "57-0"), &list, &["reseeded 58-61", "62-0"], &place("b", 62, "62-0"));
        // Its note was repeated under a higher serial.
        let list = changes("b", 64, &[("64-0", "reseeded")]);
        check(&place("b", 62, "62-0"), &list, &["reseeded 63-64"], &place("b", 64, "64-0"));
    }

    #[test]
    fn a_first_table_is_not_published_and_its_changes_are() {
        let list = changes("a", 4, &[("3-0", "begun"), ("4-0", "registered")]);
        check(&Place::default(), &list, &["4-0"], &place("a", 4, "4-0"));
        check(&Place::default(), &changes("", 9, &[]), &[], &Place::default());
    }

    #[test]
    fn a_lineage_without_its_beginning_is_published_as_a_whole() {
        let list = changes("b", 90, &[("80-0", "registered"), ("90-0", "removed")]);
        check(&place("a", 57, "57-0"), &list, &["gap 58-90"], &place("b", 90, "90-0"));
        check(&Place::default(), &changes("b", 90, &[]), &["gap 1-90"], &place("b", 90, ""));
    }

    #[test]
    fn a_rolled_back_table_is_not_changed_before_it_is_seeded() {
        check(&place("a", 9, "9-0"), &changes("a", 7, &[]), &[], &place("a", 9, "9-0"));
    }

    proptest! {
        /// For any division of the list into pages and any missing entries, every serial is published once, as a
        /// change or in one range, and the numbers rise.
        #[test]
        fn every_serial_is_published_once(kept in prop::collection::vec(any::<bool>(), 1..60), page in 1_usize..9) {
            let head = kept.len() as u64;
            let all: Vec<Entry> = kept
                .iter()
                .enumerate()
                .filter(|(_, kept)| **kept)
                .map(|(at, _)| entry(&format!("{}-0", at + 1), "altered"))
                .collect();
            let (mut before, mut covered) = (place("a", 0, "0-0"), Vec::new());
            loop {
                let rest: Vec<Entry> =
                    all.iter().filter(|entry| entry.serial() > before.serial).take(page).cloned().collect();
                let complete = rest.len() < page;
                let list = Changes { epoch: "a".into(), serial: head, last: String::new(), entries: rest };
                let (news, after) = find(&before, &list, complete);
                for news in news {
                    match news {
                        News::Change(entry) => covered.push(entry.serial()),
                        News::Resync { from, to, .. } => covered.extend(from..=to),
                    }
                }
                if complete { break }
                before = after;
            }
            prop_assert_eq!(covered, (1..=head).collect::<Vec<_>>());
        }
    }
}
