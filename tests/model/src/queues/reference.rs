//! One queue, as the scripts must leave it.
//!
//! Each method is one atomic script. Decisions that the protocol leaves open are fixed here:
//!
//! * A facet is **eligible** iff its weight is above 0, it has waiting messages, and fewer than the limit are in
//!   flight. Eligible facets are in the ring, others are not. Each call evaluates the facets that it touched, in the
//!   order in which it first touched them; a facet that becomes eligible enters at the tail.
//! * **Deficit round robin**: the facet at the head keeps its turn until it has been pulled `weight` times, and moves
//!   to the tail in the same call. A facet that ceases to be eligible leaves the ring and loses the rest of its turn.
//!   A changed weight applies to the running turn: a turn that has used it up ends immediately.
//! * **Returned** messages (nack without delay, lease expired, delay over) go to the head of their facet, in order of
//!   acceptance, also if several calls return them: they precede those that were never delivered.
//! * A receipt is valid while its message is in flight under it. An expired lease ends with the sweep that detects it,
//!   not before: a slow consumer's work counts if no other consumer has the message yet.
//! * Calls that settle many messages process them in sequence and evaluate the facets at the end.
//! * A message that is **delayed when it is accepted** joins the tail of its facet when its delay is over, as if it had
//!   been accepted then.
//! * A facet with a **rate** has a bucket of one second of it, at least one message. One that has used it up is
//!   *throttled*: it is not eligible until a sweep at the moment at which the bucket has a message again.
//! * Attempts are counted at the pull. A message that is returned after `max_attempts` of them is dead instead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use super::{Counts, Facet, Message, Part, Place, Pulled, Receipt, Settings, Verdict};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FacetState {
    pub(super) waiting: VecDeque<Message>,
    pub(super) delayed: usize,
    pub(super) in_flight: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) facet: Facet,
    pub(super) attempts: u32,
    pub(super) deliveries: u32,
    pub(super) place: Place,
    /// The newest message of the facet when this one joined it: its place among those that were not pulled.
    pub(super) joined: Message,
}

/// A message, in the unit of buckets.
const MESSAGE: i64 = 1_000_000;

/// How many facets the last call added to the ring. No part of the state: two queues that differ only in it are equal.
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
/// for (facet, message) in [(1, 10), (1, 11), (2, 12)] {
///     queue.push(facet, message);
/// }
/// let order: Vec<_> = queue.pull(3, false, 0).into_iter().map(|pulled| pulled.message).collect();
/// assert_eq!(order, [10, 12, 11]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    pub(super) settings: Settings,
    /// The active facets: those of which anything waits, is delayed or in flight.
    pub(super) facets: BTreeMap<Facet, FacetState>,
    pub(super) ring: VecDeque<Facet>,
    /// Pulls of the head in the turn that runs.
    pub(super) used: u32,
    pub(super) leases: BTreeSet<(i64, Message)>,
    pub(super) delayed: BTreeSet<(i64, Message)>,
    /// Facets that have used up their rates, by when they allow messages again.
    pub(super) throttled: BTreeSet<(i64, Facet)>,
    /// Remaining budgets of the rates, in millionths of a message, as of a time in milliseconds.
    pub(super) buckets: BTreeMap<Facet, (i64, i64)>,
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
            facets: BTreeMap::new(),
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

    /// Accepts a message at the tail of its facet.
    ///
    /// # Panics
    /// If `message` was there before, or is not above all before it in its facet.
    pub fn push(&mut self, facet: Facet, message: Message) {
        self.accept(facet, message, Place::Waiting);
        self.facets.entry(facet).or_default().waiting.push_back(message);
        self.counts.waiting += 1;
        if self.has(Part::Enter) {
            self.look(facet);
        }
    }

    /// Accepts a message that becomes available at `due_ms`.
    ///
    /// # Panics
    /// As [`Self::push`].
    pub fn push_later(&mut self, facet: Facet, message: Message, due_ms: i64) {
        self.accept(facet, message, Place::Delayed(due_ms));
        self.delayed.insert((due_ms, message));
        self.facets.entry(facet).or_default().delayed += 1;
        self.counts.delayed += 1;
    }

    /// Whether a queue that rejects messages beyond its limit takes one more of `facet`.
    #[must_use]
    pub fn takes(&self, facet: Facet) -> bool {
        let size = self.facets.get(&facet).map_or(0, |state| state.waiting.len() + state.delayed);
        self.settings.drops || self.settings.max_waiting.is_none_or(|most| size < most)
    }

    /// Whether the queue takes one more of `facet` that is delayed. It drops waiting messages only, so delayed ones of the
    /// facet must stay within the limit.
    #[must_use]
    pub fn takes_later(&self, facet: Facet) -> bool {
        let delayed = self.facets.get(&facet).map_or(0, |state| state.delayed);
        self.takes(facet) && self.settings.max_waiting.is_none_or(|most| delayed < most)
    }

    /// Drops the oldest waiting messages of a facet beyond the limit, after messages were accepted.
    pub fn keep_bounds(&mut self, facet: Facet) {
        let Some(most) = self.settings.max_waiting.filter(|_| self.settings.drops) else { return };
        while let Some(state) = self.facets.get_mut(&facet)
            && state.waiting.len() + state.delayed > most
            && let Some(oldest) = state.waiting.pop_front()
        {
            self.counts.waiting -= 1;
            self.place(oldest, Place::Dropped);
        }
        self.look(facet);
    }

    fn accept(&mut self, facet: Facet, message: Message, place: Place) {
        let newest = self.messages.iter().rev().find(|(_, entry)| entry.facet == facet);
        let rises = newest.is_none_or(|(newest, _)| *newest < message);
        assert!(
            rises && !self.messages.contains_key(&message),
            "{message} of {facet} is not above {newest:?}"
        );
        self.entered = Entered(0);
        self.messages.insert(message, Entry { facet, attempts: 0, deliveries: 0, place, joined: message });
    }

    /// Takes up to `max` messages, each from the facet whose turn it is.
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
            touched.retain(|facet| self.is_idle(*facet));
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
        let ready: Vec<Facet> =
            self.throttled.iter().take_while(|(due, _)| *due <= now_ms).map(|(_, facet)| *facet).collect();
        let mut entered = 0;
        for facet in ready {
            self.go_on(facet);
            entered += self.entered.0;
        }
        self.bring_back(&messages, now_ms);
        self.entered.0 += entered;
        messages.len()
    }

    /// The effect of a sweep on a throttled facet once its bucket has a message again.
    pub fn go_on(&mut self, facet: Facet) {
        let Some(&(due, _)) = self.throttled.iter().find(|(_, other)| *other == facet) else { return };
        self.throttled.remove(&(due, facet));
        let tokens = self.tokens(facet, due);
        self.buckets.insert(facet, (tokens, due));
        self.look_at(&[facet]);
    }

    /// The remaining budget of a facet's rate, in millionths of a message.
    fn tokens(&self, facet: Facet, now_ms: i64) -> i64 {
        let Some(rate) = self.settings.rates.get(&facet) else { return i64::MAX };
        let full = MESSAGE.max(rate * 1000);
        let (tokens, at) = self.buckets.get(&facet).copied().unwrap_or((full, now_ms));
        full.min(tokens.saturating_add((now_ms - at).max(0).saturating_mul(*rate)))
    }

    /// Takes a message from the bucket of a facet, or only looks whether it has one.
    fn spend(&mut self, facet: Facet, messages: i64, now_ms: i64) {
        let Some(&rate) = self.settings.rates.get(&facet) else { return };
        let tokens = self.tokens(facet, now_ms) - messages * MESSAGE;
        self.buckets.insert(facet, (tokens, now_ms));
        if tokens < MESSAGE && self.has(Part::Throttle) {
            let wait = (MESSAGE - tokens + rate - 1) / rate;
            self.throttled.insert((now_ms + wait.max(1), facet));
        }
    }

    pub(super) fn is_throttled(&self, facet: Facet) -> bool {
        self.throttled.iter().any(|(_, other)| *other == facet)
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
            let (facet, is_fresh) = (entry.facet, entry.deliveries == 0);
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
            touched.push(facet);
        }
        self.put_back(returned);
        self.join(fresh);
        self.look_at(&touched);
    }

    /// Puts messages that were never pulled at the end of their facets.
    fn join(&mut self, messages: Vec<Message>) {
        self.counts.waiting += messages.len();
        for message in messages {
            let Some(facet) = self.messages.get(&message).map(|entry| entry.facet) else { continue };
            let of_facet = self.messages.iter().rev().find(|(_, entry)| entry.facet == facet);
            let newest = of_facet.map_or(message, |(newest, _)| *newest);
            if let Some(entry) = self.messages.get_mut(&message) {
                entry.joined = newest;
            }
            let to_tail = self.has(Part::LaterTail);
            let state = self.facets.entry(facet).or_default();
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

    /// Replaces the settings. Leases that run keep their time. Facets that become eligible enter in ascending order.
    ///
    /// A throttled facet with other rules returns to the ring. A bucket is deleted with its rate.
    pub fn configure(&mut self, settings: Settings) {
        let rules = |settings: &Settings, facet: Facet| {
            (settings.limits.get(&facet).copied(), settings.rates.get(&facet).copied())
        };
        let (before, facets) = (&self.settings, &self.facets);
        self.throttled.retain(|(_, facet)| {
            let same = rules(before, *facet) == rules(&settings, *facet);
            settings.rates.contains_key(facet) && (same || !facets.contains_key(facet))
        });
        self.buckets.retain(|facet, _| settings.rates.contains_key(facet));
        self.settings = settings;
        self.end_turn_if_used();
        let active: Vec<_> = self.facets.keys().copied().collect();
        if self.has(Part::EvaluateAfterConfigure) {
            self.look_at(&active);
        }
    }

    /// Deletes all messages of a facet, including those in flight; returns their number.
    pub fn drop_facet(&mut self, facet: Facet) -> usize {
        let with_flight = self.has(Part::DropInFlight);
        self.throw_away(facet, |place| match place {
            Place::Waiting | Place::Delayed(_) => true,
            Place::InFlight(_) => with_flight,
            _ => false,
        })
    }

    /// Deletes the waiting and delayed messages of a facet, not those in flight; returns their number.
    pub fn purge(&mut self, facet: Facet) -> usize {
        self.throw_away(facet, |place| matches!(place, Place::Waiting | Place::Delayed(_)))
    }

    /// Deletes one message that waits, is delayed or in flight. False if it is none of these.
    pub fn drop_message(&mut self, message: Message) -> bool {
        let Some(place @ (Place::Waiting | Place::Delayed(_) | Place::InFlight(_))) = self.place_of(message)
        else {
            return false;
        };
        self.take_out(message);
        self.place(message, Place::Dropped);
        let Some(facet) = self.messages.get(&message).map(|entry| entry.facet) else { return false };
        if let Some(state) = self.facets.get_mut(&facet).filter(|_| place == Place::Waiting) {
            state.waiting.retain(|other| *other != message);
            self.counts.waiting -= 1;
        }
        self.look_at(&[facet]);
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
        let facet = loop {
            let head = *self.ring.front()?;
            if self.tokens(head, now_ms) >= MESSAGE || !self.has(Part::Throttle) {
                break head;
            }
            // The rate was changed to one that allows nothing yet.
            self.spend(head, 0, now_ms);
            self.look(head);
        };
        let Some(message) = self.facets.get_mut(&facet).and_then(|state| state.waiting.pop_front()) else {
            // Possible only when a part is left out: the ring lists a facet that has no message.
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
            self.facets.entry(facet).or_default().in_flight += 1;
        }
        let entry = self.messages.get_mut(&message)?;
        entry.attempts += 1;
        entry.deliveries += 1;
        let pulled = Pulled {
            facet,
            message,
            receipt: Receipt { message, delivery: entry.deliveries },
            attempts: entry.attempts,
            lease_until_ms: (!auto_ack).then_some(until),
        };
        self.used += 1;
        self.spend(facet, 1, now_ms);
        self.look(facet);
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

    /// Moves a message out of flight; to the facet's head it comes with the others of the call, in `put_back`.
    fn settle(&mut self, receipt: Receipt, to: Place, touched: &mut Vec<Facet>) -> Verdict {
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
        touched.extend(self.messages.get(&message).map(|entry| entry.facet));
        Verdict::Done
    }

    fn state_of(&mut self, message: Message) -> Option<&mut FacetState> {
        let facet = self.messages.get(&message)?.facet;
        Some(self.facets.entry(facet).or_default())
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

    /// Puts messages before everything else of their facets, in order of acceptance: also among those at the head that were returned
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

    fn throw_away(&mut self, facet: Facet, wanted: impl Fn(Place) -> bool) -> usize {
        let of_facet = self.messages.iter().filter(|(_, entry)| entry.facet == facet && wanted(entry.place));
        let messages: Vec<_> = of_facet.map(|(message, _)| *message).collect();
        for &message in &messages {
            self.take_out(message);
            self.place(message, Place::Dropped);
        }
        if let Some(state) = self.facets.get_mut(&facet) {
            self.counts.waiting -= state.waiting.len();
            state.waiting.clear();
        }
        if !self.has(Part::DropInFlight) {
            // The behavior of an incorrect script: it removes the facet despite its messages in flight.
            self.facets.remove(&facet);
        }
        self.look_at(&[facet]);
        messages.len()
    }

    fn is_idle(&self, facet: Facet) -> bool {
        self.facets
            .get(&facet)
            .is_none_or(|state| state.waiting.is_empty() && state.delayed == 0 && state.in_flight == 0)
    }

    fn look_at(&mut self, facets: &[Facet]) {
        self.entered = Entered(0);
        for facet in facets {
            self.look(*facet);
        }
    }

    /// Adds a facet to the ring or removes it, and forgets one that is idle.
    fn look(&mut self, facet: Facet) {
        let place = self.ring.iter().position(|other| *other == facet);
        match (self.is_eligible(facet), place) {
            (true, None) if self.has(Part::Tail) => {
                self.ring.push_back(facet);
                self.entered.0 += 1;
            }
            (true, None) => self.ring.push_front(facet),
            (false, Some(place)) if self.has(Part::Leave) => {
                self.ring.remove(place);
                if place == 0 && self.has(Part::TurnReset) {
                    self.used = 0;
                }
            }
            _ => {}
        }
        if self.is_idle(facet) {
            self.facets.remove(&facet);
        }
    }
}
