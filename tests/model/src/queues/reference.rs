//! One queue, as the scripts must leave it.
//!
//! Each method is one atomic script. Decisions that the protocol leaves open are fixed here:
//!
//! * A tenant is **eligible** iff its weight is above 0, it has waiting messages, and fewer than the limit are in
//!   flight. Eligible tenants are in the ring, others are not. Each call evaluates the tenants that it touched, in the
//!   order in which it first touched them; a tenant that becomes eligible enters at the tail.
//! * **Deficit round robin**: the tenant at the head keeps its turn until it has been pulled `weight` times, and moves
//!   to the tail in the same call. A tenant that ceases to be eligible leaves the ring and loses the rest of its turn.
//!   A changed weight applies to the running turn: a turn that has used it up ends immediately.
//! * **Returned** messages (nack without delay, lease expired, delay over) go to the head of their tenant, in order of
//!   acceptance, even if several calls return them: they precede those that were never delivered.
//! * A receipt is valid while its message is in flight under it. An expired lease ends with the sweep that detects it,
//!   not before: a slow consumer's work counts if no other consumer has the message yet.
//! * Calls that settle many messages process them in sequence and evaluate the tenants at the end.
//! * A message that is **delayed when it is accepted** joins the tail of its tenant when its delay is over, as if it had
//!   been accepted then.
//! * A tenant with a **rate** has a bucket of one second of it, at least one message. One that has used it up is
//!   *throttled*: it is not eligible until a sweep at the moment at which the bucket has a message again.
//! * Attempts are counted at the pull. A message that is returned after `max_attempts` of them is dead instead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use super::{Counts, Message, Part, Place, Pulled, Receipt, Settings, Tenant, Verdict};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TenantState {
    pub(super) waiting: VecDeque<Message>,
    pub(super) delayed: usize,
    pub(super) in_flight: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) tenant: Tenant,
    pub(super) attempts: u32,
    pub(super) deliveries: u32,
    pub(super) place: Place,
    /// The newest message of the tenant when this one joined it: its place among those that were not pulled.
    pub(super) joined: Message,
}

/// A message, in the unit of buckets.
const MESSAGE: i64 = 1_000_000;

/// How many tenants the last call added to the ring. No part of the state: two queues that differ only in it are equal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entered(pub(super) usize);

impl PartialEq for Entered {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Entered {}

impl Hash for Entered {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// One queue. See the head of this file for what it fixes.
///
/// ```
/// use signalbox_protocol_model::queues::{Reference, Settings};
///
/// let mut queue = Reference::new(Settings::default());
/// for (tenant, message) in [(1, 10), (1, 11), (2, 12)] {
///     queue.push(tenant, message);
/// }
/// let order: Vec<_> = queue.pull(3, false, 0).into_iter().map(|pulled| pulled.message).collect();
/// assert_eq!(order, [10, 12, 11]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    pub(super) settings: Settings,
    /// The active tenants: those of which anything waits, is delayed or in flight.
    pub(super) tenants: BTreeMap<Tenant, TenantState>,
    pub(super) ring: VecDeque<Tenant>,
    /// Pulls of the head in the turn that runs.
    pub(super) used: u32,
    pub(super) leases: BTreeSet<(i64, Message)>,
    pub(super) delayed: BTreeSet<(i64, Message)>,
    /// Tenants that have used up their rates, by when they allow messages again.
    pub(super) throttled: BTreeSet<(i64, Tenant)>,
    /// Remaining budgets of the rates, in millionths of a message, as of a time in milliseconds.
    pub(super) buckets: BTreeMap<Tenant, (i64, i64)>,
    pub(super) dead: Vec<Message>,
    pub(super) counts: Counts,
    /// Every message that ever was, with the place it is meant to be in.
    pub(super) messages: BTreeMap<Message, Entry>,
    pub(super) entered: Entered,
    pub(super) without: Option<Part>,
}

impl Reference {
    /// An empty queue.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            tenants: BTreeMap::new(),
            ring: VecDeque::new(),
            used: 0,
            leases: BTreeSet::new(),
            delayed: BTreeSet::new(),
            throttled: BTreeSet::new(),
            buckets: BTreeMap::new(),
            dead: Vec::new(),
            counts: Counts::default(),
            messages: BTreeMap::new(),
            entered: Entered(0),
            without: None,
        }
    }

    /// The same queue with a part of the protocol left out.
    #[must_use]
    pub fn without(mut self, part: Option<Part>) -> Self {
        self.without = part;
        self
    }

    fn has(&self, part: Part) -> bool {
        self.without != Some(part)
    }

    /// Accepts a message at the tail of its tenant.
    ///
    /// # Panics
    /// If `message` was there before, or is not above all before it in its tenant.
    pub fn push(&mut self, tenant: Tenant, message: Message) {
        self.accept(tenant, message, Place::Waiting);
        self.tenants.entry(tenant).or_default().waiting.push_back(message);
        self.counts.waiting += 1;
        if self.has(Part::Enter) {
            self.look(tenant);
        }
    }

    /// Accepts a message that becomes available at `due_ms`.
    ///
    /// # Panics
    /// As [`Self::push`].
    pub fn push_later(&mut self, tenant: Tenant, message: Message, due_ms: i64) {
        self.accept(tenant, message, Place::Delayed(due_ms));
        self.delayed.insert((due_ms, message));
        self.tenants.entry(tenant).or_default().delayed += 1;
        self.counts.delayed += 1;
    }

    /// Whether a queue that rejects messages beyond its limit takes one more of `tenant`.
    #[must_use]
    pub fn takes(&self, tenant: Tenant) -> bool {
        let size = self.tenants.get(&tenant).map_or(0, |state| state.waiting.len() + state.delayed);
        self.settings.drops || self.settings.max_waiting.is_none_or(|most| size < most)
    }

    /// Whether the queue takes one more of `tenant` that is delayed. It drops waiting messages only, so delayed ones of the
    /// tenant must stay within the limit.
    #[must_use]
    pub fn takes_later(&self, tenant: Tenant) -> bool {
        let delayed = self.tenants.get(&tenant).map_or(0, |state| state.delayed);
        self.takes(tenant) && self.settings.max_waiting.is_none_or(|most| delayed < most)
    }

    /// Drops the oldest waiting messages of a tenant beyond the limit, after messages were accepted.
    pub fn keep_bounds(&mut self, tenant: Tenant) {
        let Some(most) = self.settings.max_waiting.filter(|_| self.settings.drops) else { return };
        while let Some(state) = self.tenants.get_mut(&tenant)
            && state.waiting.len() + state.delayed > most
            && let Some(oldest) = state.waiting.pop_front()
        {
            self.counts.waiting -= 1;
            self.place(oldest, Place::Dropped);
        }
        self.look(tenant);
    }

    fn accept(&mut self, tenant: Tenant, message: Message, place: Place) {
        let newest = self.messages.iter().rev().find(|(_, entry)| entry.tenant == tenant);
        let rises = newest.is_none_or(|(newest, _)| *newest < message);
        assert!(
            rises && !self.messages.contains_key(&message),
            "{message} of {tenant} is not above {newest:?}"
        );
        self.entered = Entered(0);
        self.messages.insert(message, Entry { tenant, attempts: 0, deliveries: 0, place, joined: message });
    }

    /// Takes up to `max` messages, each from the tenant whose turn it is.
    pub fn pull(&mut self, max: usize, auto_ack: bool, now_ms: i64) -> Vec<Pulled> {
        self.entered = Entered(0);
        let mut pulled = Vec::new();
        while pulled.len() < max {
            let Some(one) = self.pull_one(auto_ack, now_ms) else { break };
            pulled.push(one);
        }
        pulled
    }

    /// Settles messages for good.
    pub fn ack(&mut self, receipts: &[Receipt]) -> Vec<Verdict> {
        let mut touched = Vec::new();
        let verdicts =
            receipts.iter().map(|receipt| self.settle(*receipt, Place::Acked, &mut touched)).collect();
        if !self.has(Part::EvaluateAfterAck) {
            touched.retain(|tenant| self.is_idle(*tenant));
        }
        self.look_at(&touched);
        verdicts
    }

    /// Makes messages dead, however often they were pulled.
    pub fn reject(&mut self, receipts: &[Receipt]) -> Vec<Verdict> {
        let mut touched = Vec::new();
        let verdicts =
            receipts.iter().map(|receipt| self.settle(*receipt, Place::Dead, &mut touched)).collect();
        self.look_at(&touched);
        verdicts
    }

    /// Returns messages, to be pulled again after `delay_ms`, or immediately if it is 0; after the backoff of the queue if
    /// it is `None`.
    pub fn nack(
        &mut self,
        receipts: &[Receipt],
        delay_ms: impl Into<Option<i64>>,
        now_ms: i64,
    ) -> Vec<Verdict> {
        let delay_ms = delay_ms.into();
        let (mut touched, mut returned) = (Vec::new(), Vec::new());
        let mut verdicts = Vec::with_capacity(receipts.len());
        for receipt in receipts {
            let place = self.place_after(receipt.message, delay_ms, now_ms);
            let verdict = self.settle(*receipt, place, &mut touched);
            if verdict == Verdict::Done && place == Place::Waiting {
                returned.push(receipt.message);
            }
            verdicts.push(verdict);
        }
        self.put_back(returned);
        self.look_at(&touched);
        verdicts
    }

    /// Lets the leases run until `lease_ms` from now.
    pub fn extend(&mut self, receipts: &[Receipt], lease_ms: i64, now_ms: i64) -> Vec<Verdict> {
        self.entered = Entered(0);
        receipts
            .iter()
            .map(|receipt| {
                let Some(until) = self.lease_of(*receipt) else { return Verdict::Stale };
                self.leases.remove(&(until, receipt.message));
                self.leases.insert((now_ms + lease_ms, receipt.message));
                self.place(receipt.message, Place::InFlight(now_ms + lease_ms));
                Verdict::Done
            })
            .collect()
    }

    /// Returns what is due: leases that ran out and delays that are over, in order of their time.
    pub fn sweep(&mut self, now_ms: i64) -> usize {
        let due = |set: &BTreeSet<(i64, Message)>| {
            set.iter().copied().take_while(|(due, _)| *due <= now_ms).collect::<Vec<_>>()
        };
        let mut all = due(&self.leases);
        all.extend(due(&self.delayed));
        all.sort_unstable();
        let messages: Vec<_> = all.into_iter().map(|(_, message)| message).collect();
        let ready: Vec<Tenant> =
            self.throttled.iter().take_while(|(due, _)| *due <= now_ms).map(|(_, tenant)| *tenant).collect();
        let mut entered = 0;
        for tenant in ready {
            self.go_on(tenant);
            entered += self.entered.0;
        }
        self.bring_back(&messages, now_ms);
        self.entered.0 += entered;
        messages.len()
    }

    /// The effect of a sweep on a throttled tenant once its bucket has a message again.
    pub fn go_on(&mut self, tenant: Tenant) {
        let Some(&(due, _)) = self.throttled.iter().find(|(_, other)| *other == tenant) else { return };
        self.throttled.remove(&(due, tenant));
        let tokens = self.tokens(tenant, due);
        self.buckets.insert(tenant, (tokens, due));
        self.look_at(&[tenant]);
    }

    /// The remaining budget of a tenant's rate, in millionths of a message.
    fn tokens(&self, tenant: Tenant, now_ms: i64) -> i64 {
        let Some(rate) = self.settings.rates.get(&tenant) else { return i64::MAX };
        let full = MESSAGE.max(rate * 1000);
        let (tokens, at) = self.buckets.get(&tenant).copied().unwrap_or((full, now_ms));
        full.min(tokens.saturating_add((now_ms - at).max(0).saturating_mul(*rate)))
    }

    /// Takes a message from the bucket of a tenant, or only looks whether it has one.
    fn spend(&mut self, tenant: Tenant, messages: i64, now_ms: i64) {
        let Some(&rate) = self.settings.rates.get(&tenant) else { return };
        let tokens = self.tokens(tenant, now_ms) - messages * MESSAGE;
        self.buckets.insert(tenant, (tokens, now_ms));
        if tokens < MESSAGE && self.has(Part::Throttle) {
            let wait = (MESSAGE - tokens + rate - 1) / rate;
            self.throttled.insert((now_ms + wait.max(1), tenant));
        }
    }

    pub(super) fn is_throttled(&self, tenant: Tenant) -> bool {
        self.throttled.iter().any(|(_, other)| *other == tenant)
    }

    /// Where a message goes that is returned.
    fn place_after(&self, message: Message, delay_ms: Option<i64>, now_ms: i64) -> Place {
        let attempts = self.messages.get(&message).map_or(0, |entry| entry.attempts);
        match delay_ms.unwrap_or_else(|| self.settings.backoff(attempts)) {
            _ if self.is_exhausted(message) => Place::Dead,
            0 => Place::Waiting,
            delay => Place::Delayed(now_ms + delay),
        }
    }

    /// The effect of a sweep on these messages once they are due: it returns each that is in flight or delayed.
    pub fn bring_back(&mut self, messages: &[Message], now_ms: i64) {
        let (mut touched, mut returned, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
        for &message in messages {
            let Some(entry) = self.messages.get(&message) else { continue };
            let (tenant, is_fresh) = (entry.tenant, entry.deliveries == 0);
            let to = match entry.place {
                Place::InFlight(_) if !self.has(Part::Sweep) => continue,
                Place::Delayed(_) if !self.has(Part::Due) => continue,
                Place::InFlight(_) => self.place_after(message, None, now_ms),
                Place::Delayed(_) => Place::Waiting,
                _ => continue,
            };
            self.take_out(message);
            match to {
                Place::Dead => self.bury(message),
                Place::Delayed(due) => self.put_off(message, due),
                _ if is_fresh => fresh.push(message),
                _ => returned.push(message),
            }
            self.place(message, to);
            touched.push(tenant);
        }
        self.put_back(returned);
        self.join(fresh);
        self.look_at(&touched);
    }

    /// Puts messages that were never pulled at the end of their tenants.
    fn join(&mut self, messages: Vec<Message>) {
        self.counts.waiting += messages.len();
        for message in messages {
            let Some(tenant) = self.messages.get(&message).map(|entry| entry.tenant) else { continue };
            let of_tenant = self.messages.iter().rev().find(|(_, entry)| entry.tenant == tenant);
            let newest = of_tenant.map_or(message, |(newest, _)| *newest);
            if let Some(entry) = self.messages.get_mut(&message) {
                entry.joined = newest;
            }
            let to_tail = self.has(Part::LaterTail);
            let state = self.tenants.entry(tenant).or_default();
            if to_tail {
                state.waiting.push_back(message);
            } else {
                state.waiting.push_front(message);
            }
        }
    }

    /// Delays a message.
    fn put_off(&mut self, message: Message, due: i64) {
        self.delayed.insert((due, message));
        self.counts.delayed += 1;
        if let Some(state) = self.state_of(message) {
            state.delayed += 1;
        }
    }

    /// Replaces the settings. Leases that run keep their time. Tenants that become eligible enter in ascending order.
    ///
    /// A throttled tenant with other rules returns to the ring. A bucket is deleted with its rate.
    pub fn configure(&mut self, settings: Settings) {
        let rules = |settings: &Settings, tenant: Tenant| {
            (settings.limits.get(&tenant).copied(), settings.rates.get(&tenant).copied())
        };
        let (before, tenants) = (&self.settings, &self.tenants);
        self.throttled.retain(|(_, tenant)| {
            let same = rules(before, *tenant) == rules(&settings, *tenant);
            settings.rates.contains_key(tenant) && (same || !tenants.contains_key(tenant))
        });
        self.buckets.retain(|tenant, _| settings.rates.contains_key(tenant));
        self.settings = settings;
        self.end_turn_if_used();
        let active: Vec<_> = self.tenants.keys().copied().collect();
        if self.has(Part::EvaluateAfterConfigure) {
            self.look_at(&active);
        }
    }

    /// Deletes all messages of a tenant, including those in flight; returns their number.
    pub fn drop_tenant(&mut self, tenant: Tenant) -> usize {
        let with_flight = self.has(Part::DropInFlight);
        self.throw_away(tenant, |place| match place {
            Place::Waiting | Place::Delayed(_) => true,
            Place::InFlight(_) => with_flight,
            _ => false,
        })
    }

    /// Deletes the waiting and delayed messages of a tenant, not those in flight; returns their number.
    pub fn purge(&mut self, tenant: Tenant) -> usize {
        self.throw_away(tenant, |place| matches!(place, Place::Waiting | Place::Delayed(_)))
    }

    /// Deletes one message that waits, is delayed or in flight. False if it is none of these.
    pub fn drop_message(&mut self, message: Message) -> bool {
        let Some(place @ (Place::Waiting | Place::Delayed(_) | Place::InFlight(_))) = self.place_of(message)
        else {
            return false;
        };
        self.take_out(message);
        self.place(message, Place::Dropped);
        let Some(tenant) = self.messages.get(&message).map(|entry| entry.tenant) else { return false };
        if let Some(state) = self.tenants.get_mut(&tenant).filter(|_| place == Place::Waiting) {
            state.waiting.retain(|other| *other != message);
            self.counts.waiting -= 1;
        }
        self.look_at(&[tenant]);
        true
    }

    /// Ends the delay of a message: the next sweep returns it. False if it is not delayed.
    pub fn advance(&mut self, message: Message, now_ms: i64) -> bool {
        let Some(Place::Delayed(due)) = self.place_of(message) else { return false };
        self.delayed.remove(&(due, message));
        self.delayed.insert((now_ms, message));
        self.place(message, Place::Delayed(now_ms));
        true
    }

    /// Throws away dead letters; one that is to be tried again is pushed as a new message.
    pub fn forget_dead(&mut self) -> usize {
        let dead = std::mem::take(&mut self.dead);
        for message in &dead {
            self.place(*message, Place::Dropped);
        }
        dead.len()
    }

    fn pull_one(&mut self, auto_ack: bool, now_ms: i64) -> Option<Pulled> {
        let tenant = loop {
            let head = *self.ring.front()?;
            if self.tokens(head, now_ms) >= MESSAGE || !self.has(Part::Throttle) {
                break head;
            }
            // The rate was changed to one that allows nothing yet.
            self.spend(head, 0, now_ms);
            self.look(head);
        };
        let Some(message) = self.tenants.get_mut(&tenant).and_then(|state| state.waiting.pop_front()) else {
            // Possible only when a part is left out: the ring lists a tenant that has no message.
            self.ring.rotate_left(1);
            return None;
        };
        self.counts.waiting -= 1;
        let until = now_ms + self.settings.lease_ms;
        let place = if auto_ack { Place::Acked } else { Place::InFlight(until) };
        self.place(message, place);
        let leaves_lease = !auto_ack && self.has(Part::Lease);
        if leaves_lease {
            self.leases.insert((until, message));
            self.counts.in_flight += 1;
            self.tenants.entry(tenant).or_default().in_flight += 1;
        }
        let entry = self.messages.get_mut(&message)?;
        entry.attempts += 1;
        entry.deliveries += 1;
        let pulled = Pulled {
            tenant,
            message,
            receipt: Receipt { message, delivery: entry.deliveries },
            attempts: entry.attempts,
            lease_until_ms: (!auto_ack).then_some(until),
        };
        self.used += 1;
        self.spend(tenant, 1, now_ms);
        self.look(tenant);
        self.end_turn_if_used();
        Some(pulled)
    }

    fn end_turn_if_used(&mut self) {
        let Some(&head) = self.ring.front() else { return };
        if self.has(Part::Turn) && self.used > 0 && self.used >= self.settings.weight(head) {
            self.ring.rotate_left(1);
            self.used = 0;
        }
    }

    pub(super) fn lease_of(&self, receipt: Receipt) -> Option<i64> {
        let entry = self.messages.get(&receipt.message)?;
        let same = entry.deliveries == receipt.delivery || !self.has(Part::Delivery);
        match entry.place {
            Place::InFlight(until) if same => Some(until),
            _ => None,
        }
    }

    fn is_exhausted(&self, message: Message) -> bool {
        let attempts = self.messages.get(&message).map_or(0, |entry| entry.attempts);
        self.settings.max_attempts.is_some_and(|limit| attempts >= limit)
    }

    /// Moves a message out of flight; to the tenant's head it comes with the others of the call, in `put_back`.
    fn settle(&mut self, receipt: Receipt, to: Place, touched: &mut Vec<Tenant>) -> Verdict {
        if self.lease_of(receipt).is_none() {
            return Verdict::Stale;
        }
        let message = receipt.message;
        self.take_out(message);
        match to {
            Place::Dead => self.bury(message),
            Place::Delayed(due) => self.put_off(message, due),
            _ => {}
        }
        self.place(message, to);
        touched.extend(self.messages.get(&message).map(|entry| entry.tenant));
        Verdict::Done
    }

    fn state_of(&mut self, message: Message) -> Option<&mut TenantState> {
        let tenant = self.messages.get(&message)?.tenant;
        Some(self.tenants.entry(tenant).or_default())
    }

    /// Takes a message out of wherever it is, but for the waiting ones.
    fn take_out(&mut self, message: Message) {
        let Some(place) = self.place_of(message) else { return };
        let count_expiry = self.has(Part::CountExpiry);
        match place {
            Place::InFlight(until) => {
                if self.leases.remove(&(until, message)) && count_expiry {
                    self.counts.in_flight -= 1;
                }
                if let Some(state) = self.state_of(message) {
                    state.in_flight = state.in_flight.saturating_sub(1);
                }
            }
            Place::Delayed(due) => {
                self.delayed.remove(&(due, message));
                self.counts.delayed -= 1;
                if let Some(state) = self.state_of(message) {
                    state.delayed -= 1;
                }
            }
            _ => {}
        }
    }

    fn bury(&mut self, message: Message) {
        self.dead.push(message);
    }

    fn place(&mut self, message: Message, place: Place) {
        if let Some(entry) = self.messages.get_mut(&message) {
            entry.place = place;
        }
    }

    /// Puts messages before everything else of their tenants, in order of acceptance: also among those at the head that were returned
    /// before.
    fn put_back(&mut self, mut returned: Vec<Message>) {
        returned.sort_unstable();
        self.counts.waiting += returned.len();
        let to_head = self.has(Part::Head);
        let delivered: BTreeSet<Message> = self
            .messages
            .iter()
            .filter(|(_, entry)| entry.attempts > 0)
            .map(|(message, _)| *message)
            .collect();
        for message in returned.into_iter().rev() {
            let Some(state) = self.state_of(message) else { continue };
            if to_head {
                let precedes = |other: &&Message| delivered.contains(other) && **other < message;
                let preceding = state.waiting.iter().take_while(precedes).count();
                state.waiting.insert(preceding, message);
            } else {
                state.waiting.push_back(message);
            }
        }
    }

    fn throw_away(&mut self, tenant: Tenant, wanted: impl Fn(Place) -> bool) -> usize {
        let of_tenant =
            self.messages.iter().filter(|(_, entry)| entry.tenant == tenant && wanted(entry.place));
        let messages: Vec<_> = of_tenant.map(|(message, _)| *message).collect();
        for &message in &messages {
            self.take_out(message);
            self.place(message, Place::Dropped);
        }
        if let Some(state) = self.tenants.get_mut(&tenant) {
            self.counts.waiting -= state.waiting.len();
            state.waiting.clear();
        }
        if !self.has(Part::DropInFlight) {
            // The behavior of an incorrect script: it removes the tenant despite its messages in flight.
            self.tenants.remove(&tenant);
        }
        self.look_at(&[tenant]);
        messages.len()
    }

    fn is_idle(&self, tenant: Tenant) -> bool {
        self.tenants
            .get(&tenant)
            .is_none_or(|state| state.waiting.is_empty() && state.delayed == 0 && state.in_flight == 0)
    }

    fn look_at(&mut self, tenants: &[Tenant]) {
        self.entered = Entered(0);
        for tenant in tenants {
            self.look(*tenant);
        }
    }

    /// Adds a tenant to the ring or removes it, and forgets one that is idle.
    fn look(&mut self, tenant: Tenant) {
        let place = self.ring.iter().position(|other| *other == tenant);
        match (self.is_eligible(tenant), place) {
            (true, None) if self.has(Part::Tail) => {
                self.ring.push_back(tenant);
                self.entered.0 += 1;
            }
            (true, None) => self.ring.push_front(tenant),
            (false, Some(place)) if self.has(Part::Leave) => {
                self.ring.remove(place);
                if place == 0 && self.has(Part::TurnReset) {
                    self.used = 0;
                }
            }
            _ => {}
        }
        if self.is_idle(tenant) {
            self.tenants.remove(&tenant);
        }
    }
}
