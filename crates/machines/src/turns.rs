//! Which machines get how much of a page of due entries.
//!
//! Each client with something due gets an equal part of a page, and each of its machines an equal part of that. So what one client
//! has due, however much, is in another's way for about one page. A client with more machines than its part has entries gets one
//! entry for each of as many machines, and the next page continues after them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound::{Excluded, Included, Unbounded},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::fair::Payer;

/// Shard and client → the last of the client's machines that had a turn.
type Last = HashMap<(usize, Arc<str>), Arc<str>>;

/// Where the next page continues. If it is lost, the turns begin with the first machine.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Last>);

impl Turns {
    /// Divides a page of `entries` between the machines that have something due in a shard. Each client gets at least one.
    pub(crate) fn shares(
        &self,
        shard: usize,
        due: impl IntoIterator<Item = Payer>,
        entries: usize,
    ) -> Vec<(Arc<str>, usize)> {
        let mut clients: BTreeMap<Arc<str>, BTreeSet<Arc<str>>> = BTreeMap::new();
        for Payer { client, machine } in due {
            clients.entry(client).or_default().insert(machine);
        }
        let part = (entries / clients.len().max(1)).max(1);
        let mut last = self.0.lock();
        last.retain(|(of, client), _| {
            *of != shard || clients.get(client).is_some_and(|machines| machines.len() > part)
        });
        let mut shares = Vec::new();
        for (client, machines) in clients {
            let key = (shard, client);
            let after = last.get(&key).cloned().unwrap_or_default();
            let later = machines.range::<str, _>((Excluded(&*after), Unbounded));
            let from_begin = machines.range::<str, _>((Unbounded, Included(&*after)));
            let chosen: Vec<Arc<str>> = later.chain(from_begin).take(part).cloned().collect();
            if let Some(end) = chosen.last().filter(|_| machines.len() > part) {
                last.insert(key, Arc::clone(end));
            }
            let each = part / chosen.len().max(1);
            shares.extend(chosen.into_iter().map(|machine| (machine, each)));
        }
        shares
    }
}

/// The entries of several machines, the first of each, then the second of each, and so on.
pub(crate) fn in_turn<T>(of_machines: Vec<Vec<T>>) -> Vec<T> {
    let numbered = of_machines.into_iter().flat_map(|entries| entries.into_iter().enumerate());
    let mut all: Vec<(usize, T)> = numbered.collect();
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(turns: &Turns, due: &[(&str, &str)], entries: usize) -> String {
        let payers = due
            .iter()
            .map(|(client, machine)| Payer { client: (*client).into(), machine: (*machine).into() });
        let shares = turns.shares(0, payers, entries);
        shares.iter().map(|(machine, share)| format!("{machine}{share} ")).collect()
    }

    #[test]
    fn clients_share_a_page_and_then_their_machines() {
        let turns = Turns::default();
        assert_eq!(shares(&turns, &[], 10), "");
        assert_eq!(shares(&turns, &[("a", "m")], 10), "m10 ");
        assert_eq!(shares(&turns, &[("b", "x"), ("a", "m"), ("a", "n")], 10), "m2 n2 x5 ");
        // More clients than entries.
        assert_eq!(shares(&turns, &[("a", "m"), ("b", "n"), ("c", "o")], 2), "m1 n1 o1 ");
    }

    #[test]
    fn every_machine_has_a_turn() {
        let turns = Turns::default();
        let due = [("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("a", "5"), ("b", "x")];
        let pages: Vec<String> = (0..4).map(|_| shares(&turns, &due, 4)).collect();
        assert_eq!(pages, ["11 21 x2 ", "31 41 x2 ", "51 11 x2 ", "21 31 x2 "]);
        // Others are due by now, and one of those that had a turn is not.
        assert_eq!(shares(&turns, &[("a", "2"), ("a", "4"), ("a", "6"), ("b", "x")], 4), "41 61 x2 ");
        // Nothing is kept of a client whose machines all have a part.
        assert_eq!(shares(&turns, &[("a", "2"), ("b", "x")], 4), "22 x2 ");
        assert_eq!(shares(&turns, &due, 4), "11 21 x2 ");
    }

    #[test]
    fn entries_of_machines_alternate() {
        assert_eq!(in_turn(vec![vec![1, 2, 3], vec![], vec![4], vec![5, 6]]), [1, 4, 5, 2, 6, 3]);
    }
}
