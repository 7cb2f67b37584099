//! The view that a driver of the real scripts compares.

use std::collections::BTreeSet;

use super::reference::Reference;
use super::{Counts, Message, Place, Receipt, Settings, Tenant, TenantView};

impl Reference {
    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The eligible tenants, the one whose turn it is first.
    #[must_use]
    pub fn ring(&self) -> Vec<Tenant> {
        self.ring.iter().copied().collect()
    }

    /// How often the tenant at the head of the ring was pulled in its turn.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The active tenants in ascending order.
    #[must_use]
    pub fn active(&self) -> Vec<Tenant> {
        self.tenants.keys().copied().collect()
    }

    /// The content of a tenant; empty if it is not active.
    #[must_use]
    pub fn tenant(&self, tenant: Tenant) -> TenantView {
        let of = |wanted: fn(Place) -> bool| {
            let of_tenant = self.messages.iter().filter(|(_, entry)| entry.tenant == tenant);
            of_tenant.filter(|(_, entry)| wanted(entry.place)).map(|(message, _)| *message).collect()
        };
        TenantView {
            waiting: self
                .tenants
                .get(&tenant)
                .map(|state| state.waiting.iter().copied().collect())
                .unwrap_or_default(),
            delayed: of(|place| matches!(place, Place::Delayed(_))),
            in_flight: of(|place| matches!(place, Place::InFlight(_))),
        }
    }

    /// Where a message is; `None` if it was never pushed.
    #[must_use]
    pub fn place_of(&self, message: Message) -> Option<Place> {
        self.messages.get(&message).map(|entry| entry.place)
    }

    /// The receipt under which a message is in flight.
    #[must_use]
    pub fn receipt_of(&self, message: Message) -> Option<Receipt> {
        let entry = self.messages.get(&message)?;
        matches!(entry.place, Place::InFlight(_)).then_some(Receipt { message, delivery: entry.deliveries })
    }

    /// Dead letters, oldest first.
    #[must_use]
    pub fn dead(&self) -> &[Message] {
        &self.dead
    }

    /// How many messages are where.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// When a sweep has something to do next, in milliseconds.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<i64> {
        let first = |set: &BTreeSet<(i64, Message)>| set.first().map(|(due, _)| *due);
        let throttled = self.throttled.first().map(|(due, _)| *due);
        [first(&self.leases), first(&self.delayed), throttled].into_iter().flatten().min()
    }

    /// Whether a tenant may be in the ring.
    #[must_use]
    pub fn is_eligible(&self, tenant: Tenant) -> bool {
        let Some(state) = self.tenants.get(&tenant) else { return false };
        let below = self.settings.limit(tenant).is_none_or(|limit| state.in_flight < limit as usize);
        let may = below && !self.is_throttled(tenant);
        self.settings.weight(tenant) > 0 && !state.waiting.is_empty() && may
    }

    /// Takes over the ring of a real queue, if it differs only in the order of the tenants that the last call added.
    ///
    /// A script that makes several tenants eligible (a sweep, a configuration) may add them in any order.
    ///
    /// # Errors
    /// The observed ring, if it is not such a ring.
    pub fn agree(&mut self, observed: &[Tenant]) -> Result<(), String> {
        let stayed = self.ring.len() - self.entered.0;
        let mine = self.ring();
        let sorted = |tenants: &[Tenant]| tenants.iter().copied().collect::<BTreeSet<_>>();
        let fits = observed.len() == mine.len()
            && observed[..stayed] == mine[..stayed]
            && sorted(&observed[stayed..]) == sorted(&mine[stayed..]);
        if !fits {
            return Err(format!(
                "ring {observed:?}, expected {mine:?}, the last {} in any order",
                self.entered.0
            ));
        }
        // A tenant that entered an empty ring has not been pulled, so whose turn it is makes no difference to `used`.
        self.ring = observed.iter().copied().collect();
        Ok(())
    }
}
