//! The predicates F1, F2, F4, F5, F6, F7 and F8, as far as one state shows them. F3 is about a history: see the model.

use std::collections::BTreeMap;

use super::reference::Reference;
use super::{Message, Place, Tenant};
use crate::{Violation, ensure};

impl Reference {
    /// Checks everything that a single state can show.
    ///
    /// # Errors
    /// The first predicate that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        self.check_places()?;
        self.check_active()?;
        self.check_ring()?;
        self.check_counts()?;
        self.check_rates()?;
        self.check_order()
    }

    /// F8: a tenant with a rate is never pulled beyond it.
    fn check_rates(&self) -> Result<(), Violation> {
        for (tenant, (tokens, _)) in &self.buckets {
            ensure(*tokens >= 0, "F8", || {
                format!("tenant {tenant} has {tokens} millionths of a message left")
            })?;
        }
        Ok(())
    }

    fn expected_active(&self) -> BTreeMap<Tenant, [usize; 3]> {
        let mut active: BTreeMap<Tenant, [usize; 3]> = BTreeMap::new();
        for entry in self.messages.values() {
            let column = match entry.place {
                Place::Waiting => 0,
                Place::Delayed(_) => 1,
                Place::InFlight(_) => 2,
                _ => continue,
            };
            active.entry(entry.tenant).or_default()[column] += 1;
        }
        active
    }

    /// F7: a message is in exactly one place, and it is the one it is meant to be in.
    fn check_places(&self) -> Result<(), Violation> {
        for (message, entry) in &self.messages {
            let found = self.places_found(*message);
            let expected: &[&str] = match entry.place {
                Place::Waiting => &["waiting"],
                Place::Delayed(_) => &["delayed"],
                Place::InFlight(_) => &["in flight"],
                Place::Dead => &["dead"],
                Place::Acked | Place::Dropped => &[],
            };
            ensure(found == expected, "F7", || {
                format!("message {message} should be {:?} and is found in {found:?}", entry.place)
            })?;
        }
        Ok(())
    }

    fn places_found(&self, message: Message) -> Vec<&'static str> {
        let mut found = Vec::new();
        for state in self.tenants.values() {
            found.extend(state.waiting.iter().filter(|other| **other == message).map(|_| "waiting"));
        }
        found.extend(self.delayed.iter().filter(|(_, other)| *other == message).map(|_| "delayed"));
        found.extend(self.leases.iter().filter(|(_, other)| *other == message).map(|_| "in flight"));
        found.extend(self.dead.iter().filter(|other| **other == message).map(|_| "dead"));
        found
    }

    /// F1: a tenant is active exactly when something of it waits, is delayed or in flight.
    fn check_active(&self) -> Result<(), Violation> {
        let expected = self.expected_active();
        ensure(self.tenants.keys().eq(expected.keys()), "F1", || {
            format!(
                "active are {:?}, messages are in {:?}",
                self.active(),
                expected.keys().collect::<Vec<_>>()
            )
        })
    }

    /// F2: a tenant is in the ring exactly once iff it is eligible. F6 follows: without an eligible tenant, a pull
    /// returns nothing.
    fn check_ring(&self) -> Result<(), Violation> {
        let expected = self.expected_active();
        let tenants: Vec<Tenant> = expected.keys().chain(&self.ring).copied().collect();
        for tenant in tenants {
            let [waiting, _, in_flight] = expected.get(&tenant).copied().unwrap_or_default();
            let below = self.settings.limit(tenant).is_none_or(|limit| in_flight < limit as usize);
            let may = below && !self.is_throttled(tenant);
            let eligible = self.settings.weight(tenant) > 0 && waiting > 0 && may;
            let times = self.ring.iter().filter(|other| **other == tenant).count();
            ensure(times == usize::from(eligible), "F2", || {
                let ring = self.ring();
                format!(
                    "tenant {tenant} (waiting {waiting}, in flight {in_flight}) is {times} times in ring {ring:?}"
                )
            })?;
        }
        Ok(())
    }

    /// F5: each count is the sum over the tenants, in total and per tenant.
    fn check_counts(&self) -> Result<(), Violation> {
        let mut sums = [0; 3];
        for (tenant, expected) in self.expected_active() {
            let kept = self.tenants.get(&tenant).cloned().unwrap_or_default();
            let kept = [kept.waiting.len(), kept.delayed, kept.in_flight];
            ensure(kept == expected, "F5", || {
                format!("tenant {tenant} counts {kept:?} and has {expected:?} (waiting, delayed, in flight)")
            })?;
            for (sum, part) in sums.iter_mut().zip(expected) {
                *sum += part;
            }
        }
        let counts = [self.counts.waiting, self.counts.delayed, self.counts.in_flight];
        ensure(counts == sums, "F5", || {
            format!("the queue counts {counts:?} and has {sums:?} (waiting, delayed, in flight)")
        })
    }

    /// F4: messages that were pulled before precede those that were not, in the order in which they became available.
    fn check_order(&self) -> Result<(), Violation> {
        for (tenant, state) in &self.tenants {
            let fresh =
                |message: &&Message| self.messages.get(message).is_some_and(|entry| entry.deliveries == 0);
            let tail: Vec<_> = state.waiting.iter().skip_while(|message| !fresh(message)).collect();
            let joined = |message: &&Message| self.messages.get(message).map(|entry| entry.joined);
            let in_order = tail.iter().all(fresh) && tail.is_sorted_by_key(joined);
            ensure(in_order, "F4", || format!("tenant {tenant} waits as {:?}", state.waiting))?;
        }
        Ok(())
    }
}
