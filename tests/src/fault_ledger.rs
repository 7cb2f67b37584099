//! A ledger of injected faults: which instances were healthy while a request was under way.
//!
//! An instance is **healthy** from the moment when every worker of its host has acknowledged it and it answers, until just
//! before a fault is injected: it is killed, hung, slowed, drained or removed. A request **had to succeed** if one
//! instance of its host was healthy without interruption from before the request was sent until after it ended. Instances
//! that were healthy one after the other are not enough: no balancer can know which of them is healthy next.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// An instance: the number of its host, and its number within the host.
pub type Place = (usize, usize);

#[derive(Debug, Default)]
struct Entries {
    /// The healthy instances, each with the number of the change that made it healthy.
    healthy: BTreeMap<Place, u64>,
    changes: u64,
}

/// The ledger. Fault injectors and clients use it at the same time.
#[derive(Debug, Default)]
pub struct FaultLedger(Mutex<Entries>);

/// The healthy instances of a host when a request was sent.
#[derive(Debug, Clone)]
pub struct Before(Vec<(Place, u64)>);

impl FaultLedger {
    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an instance is healthy.
    pub fn healthy(&self, place: Place) {
        let mut entries = self.entries();
        entries.changes += 1;
        let change = entries.changes;
        entries.healthy.insert(place, change);
    }

    /// Records a fault that is about to be injected.
    pub fn faulty(&self, place: Place) {
        self.entries().healthy.remove(&place);
    }

    /// As [`Self::faulty`], unless the host would have fewer than `least` healthy instances. Returns whether the fault
    /// may be injected.
    pub fn allows_fault(&self, place: Place, least: usize) -> bool {
        let mut entries = self.entries();
        let healthy = entries.healthy.range((place.0, 0)..(place.0 + 1, 0)).count();
        healthy > least && entries.healthy.remove(&place).is_some()
    }

    /// The state of a host, to be read before a request is sent.
    pub fn before(&self, host: usize) -> Before {
        let entries = self.entries();
        let healthy = entries.healthy.range((host, 0)..(host + 1, 0));
        Before(healthy.map(|(place, change)| (*place, *change)).collect())
    }

    /// Whether a request that has just ended had to succeed.
    pub fn had_to_succeed(&self, before: &Before) -> bool {
        let entries = self.entries();
        before.0.iter().any(|(place, change)| entries.healthy.get(place) == Some(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_had_to_succeed_if_one_instance_was_healthy_throughout() {
        let ledger = FaultLedger::default();
        let none = ledger.before(1);
        ledger.healthy((1, 0));
        ledger.healthy((1, 1));
        ledger.healthy((2, 0));
        assert!(!ledger.had_to_succeed(&none), "no instance was healthy when the request was sent");
        let before = ledger.before(1);
        ledger.faulty((1, 0));
        assert!(ledger.had_to_succeed(&before), "the other instance was healthy throughout");
        ledger.faulty((1, 1));
        ledger.healthy((1, 1));
        assert!(!ledger.had_to_succeed(&before), "both instances had a fault in between");
    }

    #[test]
    fn a_host_keeps_the_least_number_of_healthy_instances() {
        let ledger = FaultLedger::default();
        for number in 0..3 {
            ledger.healthy((1, number));
        }
        ledger.healthy((2, 0));
        assert!(ledger.allows_fault((1, 2), 1) && ledger.allows_fault((1, 0), 1));
        assert!(!ledger.allows_fault((1, 1), 1), "it is the last healthy instance");
        assert!(!ledger.allows_fault((1, 2), 0), "it has a fault already");
    }
}
