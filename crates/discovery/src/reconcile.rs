//! Decides what to change, given what a source shows and what is registered. Pure.

use std::collections::{BTreeMap, BTreeSet};

use signalbox_client::routes::{NewInstance, State};

use crate::snapshot::{Entry, Snapshot};

/// An instance of this discovery in the route table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) address: String,
    pub(crate) state: State,
}

/// What is known from earlier readings.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The instance that was registered last, as JSON, by its key.
    pub(crate) sent: BTreeMap<String, String>,
    /// The instance that the pacemaker rejected last, as JSON, by its key.
    pub(crate) refused: BTreeMap<String, String>,
    /// Keys that this discovery drained, in contrast to an operator.
    pub(crate) drained: BTreeSet<String>,
    /// Keys that were absent for long enough.
    pub(crate) confirmed: BTreeSet<String>,
}

/// The changes, by key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) register: Vec<String>,
    pub(crate) resume: Vec<String>,
    pub(crate) drain: Vec<String>,
    /// Absent without a sign that they ended.
    pub(crate) absent: BTreeSet<String>,
    /// Entries that cannot be used, with the reason.
    pub(crate) unclear: Vec<(String, String)>,
}

pub(crate) fn plan(snapshot: &Snapshot, present: &BTreeMap<String, Present>, memory: &Memory) -> Plan {
    let mut plan = Plan::default();
    let owners = owners(snapshot, present, memory);
    for (key, entry) in &snapshot.entries {
        let instance = match entry {
            Entry::Instance(instance) => instance,
            Entry::Unclear(why) => {
                plan.unclear.push((key.clone(), why.clone()));
                continue;
            }
            Entry::Pending => continue,
        };
        // Registering one address under two IDs would remove the first one, and then the other, without an end.
        if let Some(owner) = owners.get(&*instance.address).filter(|owner| **owner != key) {
            plan.unclear
                .push((key.clone(), format!("{} is the address of {owner} as well", instance.address)));
            continue;
        }
        let now = present.get(key);
        if now.is_none() || memory.sent.get(key) != Some(&text(instance)) {
            plan.register.push(key.clone());
        }
        if now.is_some_and(|now| now.state == State::Draining) && memory.drained.contains(key) {
            plan.resume.push(key.clone());
        }
    }
    for (key, now) in present {
        if snapshot.entries.contains_key(key)
            || now.state == State::Draining
            || is_of_unclear_group(snapshot, key)
        {
            continue;
        }
        if snapshot.ended.contains(key) || memory.confirmed.contains(key) {
            plan.drain.push(key.clone());
        } else {
            plan.absent.insert(key.clone());
        }
    }
    plan
}

/// Whether a key belongs to a group (`file-entry`) that cannot be read now.
fn is_of_unclear_group(snapshot: &Snapshot, key: &str) -> bool {
    let mut ends = key.match_indices('-').map(|(at, _)| &key[..at]);
    ends.any(|group| matches!(snapshot.entries.get(group), Some(Entry::Unclear(_))))
}

/// The entry that has an address: the one that is registered with it, otherwise the first that was not rejected.
fn owners<'a>(
    snapshot: &'a Snapshot,
    present: &BTreeMap<String, Present>,
    memory: &Memory,
) -> BTreeMap<&'a str, &'a String> {
    let mut owners: BTreeMap<&str, &String> = BTreeMap::new();
    for (key, entry) in &snapshot.entries {
        let Entry::Instance(instance) = entry else { continue };
        if memory.refused.get(key) == Some(&text(instance)) {
            continue;
        }
        let registered = present.get(key).is_some_and(|now| now.address == instance.address);
        let owner = owners.entry(&instance.address).or_insert(key);
        let other = present.get(*owner).is_some_and(|now| now.address == instance.address);
        if registered && !other {
            *owner = key;
        }
    }
    owners
}

/// An instance as a text that differs whenever the instance does.
pub(crate) fn text(instance: &NewInstance) -> String {
    serde_json::to_string(instance).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn instance(address: &str) -> NewInstance {
        NewInstance::new(address, ["a.test"], "1")
    }

    fn entry(address: &str) -> Entry {
        Entry::Instance(Box::new(instance(address)))
    }

    fn present(address: &str, state: State) -> Present {
        Present { address: address.to_owned(), state }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn changed_instances_are_registered_and_ended_ones_drained() {
        let mut snapshot = Snapshot::default();
        for (key, address) in
            [("new", "n:1"), ("same", "s:1"), ("other", "o:2"), ("back", "b:1"), ("by-hand", "h:1")]
        {
            snapshot.add(key, entry(address));
        }
        snapshot.add("broken", Entry::Unclear("why".to_owned()));
        snapshot.add("starting", Entry::Pending);
        snapshot.add("half-written", Entry::Unclear("why".to_owned()));
        snapshot.ended = names(&["ended", "ended-before"]);
        let table = BTreeMap::from(
            [
                ("same", present("s:1", State::Active)),
                ("other", present("o:1", State::Active)),
                ("back", present("b:1", State::Draining)),
                ("by-hand", present("h:1", State::Draining)),
                ("broken", present("x:1", State::Active)),
                ("starting", present("y:1", State::Active)),
                ("ended", present("e:1", State::Active)),
                ("ended-before", present("e:2", State::Draining)),
                ("absent", present("a:1", State::Active)),
                ("half-written-one", present("w:1", State::Active)),
                ("absent-long", present("a:2", State::Active)),
            ]
            .map(|(key, one)| (key.to_owned(), one)),
        );
        let sent = [("same", "s:1"), ("other", "o:1"), ("back", "b:1"), ("by-hand", "h:1")];
        let memory = Memory {
            sent: sent.map(|(key, address)| (key.to_owned(), text(&instance(address)))).into(),
            drained: names(&["back"]),
            confirmed: names(&["absent-long", "half-written-one"]),
            ..Memory::default()
        };
        let plan = plan(&snapshot, &table, &memory);
        assert_eq!(plan.register, ["new", "other"]);
        assert_eq!(plan.resume, ["back"]);
        assert_eq!(plan.drain, ["absent-long", "ended"]);
        assert_eq!(plan.absent, names(&["absent"]));
        let unclear = |key: &str| (key.to_owned(), "why".to_owned());
        assert_eq!(plan.unclear, [unclear("broken"), unclear("half-written")]);
    }

    #[test]
    fn an_address_keeps_its_single_owner() {
        let mut snapshot = Snapshot::default();
        snapshot.add("a", entry("x:1"));
        snapshot.add("b", entry("x:1"));
        let first = plan(&snapshot, &BTreeMap::new(), &Memory::default());
        assert_eq!(first.register, ["a"]);
        let table = BTreeMap::from([("b".to_owned(), present("x:1", State::Active))]);
        let later = plan(&snapshot, &table, &Memory::default());
        assert_eq!((later.register, &*later.unclear[0].0), (vec!["b".to_owned()], "a"));
        assert_eq!(later.unclear[0].1, "x:1 is the address of b as well");
        let refused = BTreeMap::from([("a".to_owned(), text(&instance("x:1")))]);
        let memory = Memory { refused, ..Memory::default() };
        assert_eq!(plan(&snapshot, &BTreeMap::new(), &memory).register, ["b"]);
    }

    #[test]
    fn two_entries_with_one_key_are_unclear() {
        let mut snapshot = Snapshot::default();
        snapshot.add("a.b", entry("x:1"));
        snapshot.add("a_b", entry("x:2"));
        let plan = plan(&snapshot, &BTreeMap::new(), &Memory::default());
        assert_eq!((plan.register.len(), plan.unclear.len()), (0, 1));
    }

    proptest! {
        /// Whatever a source shows: only instances that ended, or were absent for long enough, are drained; and a second
        /// reading of the same changes nothing.
        #[test]
        fn nothing_that_exists_is_drained(
            shown in proptest::collection::btree_map("[a-e]", 0_u8..4, 0..5),
            table in proptest::collection::btree_map("[a-e]", (0_u8..4, any::<bool>()), 0..5),
            ended in proptest::collection::btree_set("[a-e]", 0..3),
            confirmed in proptest::collection::btree_set("[a-e]", 0..3),
        ) {
            let mut snapshot = Snapshot { ended: ended.clone(), ..Snapshot::default() };
            for (key, kind) in &shown {
                let kind = match kind {
                    0 => Entry::Unclear("x".to_owned()),
                    1 => Entry::Pending,
                    n => entry(&format!("h:{n}")),
                };
                snapshot.add(key, kind);
            }
            let of = |(address, active): (u8, bool)| {
                present(&format!("h:{address}"), if active { State::Active } else { State::Draining })
            };
            let mut table: BTreeMap<String, Present> =
                table.into_iter().map(|(key, one)| (key, of(one))).collect();
            let mut memory = Memory { confirmed: confirmed.clone(), ..Memory::default() };
            let first = plan(&snapshot, &table, &memory);
            for key in &first.drain {
                prop_assert!(!shown.contains_key(key) && (ended.contains(key) || confirmed.contains(key)));
            }
            for key in &first.register {
                let Some(Entry::Instance(instance)) = snapshot.entries.get(key) else { panic!("{key}") };
                // As the route table does: an address belongs to one instance.
                table.retain(|_, one| one.address != instance.address);
                table.insert(key.clone(), present(&instance.address, State::Active));
                memory.sent.insert(key.clone(), text(instance));
            }
            for key in &first.drain {
                if let Some(one) = table.get_mut(key) {
                    one.state = State::Draining;
                }
            }
            let second = plan(&snapshot, &table, &memory);
            prop_assert_eq!((second.register, second.drain), (vec![], vec![]));
        }
    }
}
