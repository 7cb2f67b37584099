//! The objects of one shard, as the scripts are meant to leave them.
//!
//! Each method is one atomic script. Ids are given by the caller, because the real ones come from the clock of Redis; a
//! driver passes on those that the real script answered.
//!
//! ```text
//!            accept               take                    commit: nothing left
//!   idle ───────────▶ ready ─────────────▶ leased ───────────────────────────────▶ idle
//!                      ▲ ▲ ▲                │ │ │  commit: quantum left → the next event, leased
//!                      │ │ │ commit: quantum│ │ │
//!                      │ │ └── used ────────┘ │ │ lease ran out (sweep): flight back to the head
//!                      │ └────────────────────┘ │
//!                      │        due             │ fail: flight back to the head
//!                      ├─────────────── retry ◀─┤ exhausted, block
//!                      │   unpark, skip         │
//!                      └────────────── parked ◀─┤ exhausted, park
//!                                               └ exhausted, skip: dead, gap → ready or idle
//! ```
//!
//! Decisions that the protocol leaves open are fixed here:
//!
//! * Objects are taken in the order in which they became ready; one whose visit ends enters at the tail.
//! * An expired lease ends with the sweep that detects it, not before: until then no other worker has the object.
//! * Attempts are counted when an event goes into flight, so one that kills its worker is counted as well; they
//!   restart with the next event, and after an operator's unpark.
//! * Settling an event names worker, epoch and event. A repeat after a lost reply finds another event or no lease, is
//!   rejected, and a take then returns what the worker holds.
//! * A gap is reported with every attempt of the next event, and is settled by that event's commit.

use std::collections::{BTreeMap, VecDeque};

use super::{
    Committed, Event, Gap, Id, NewEvent, Object, Part, Place, Refused, Settings, Sink, Skipped, Taken, Topic,
    Visit, Worker,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) worker: Worker,
    pub(super) until_ms: i64,
    pub(super) served: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ObjectState {
    pub(super) sink: Sink,
    pub(super) last: Option<Id>,
    pub(super) last_of_topic: BTreeMap<Topic, Id>,
    pub(super) queue: VecDeque<Event>,
    pub(super) flight: Option<Event>,
    /// Of the event in flight, or at the head.
    pub(super) attempts: u32,
    pub(super) epoch: u64,
    pub(super) lease: Option<Lease>,
    pub(super) retry_at_ms: Option<i64>,
    pub(super) parked: bool,
    /// Not reported yet.
    pub(super) gap: Option<Gap>,
}

impl ObjectState {
    pub(super) fn has_backlog(&self) -> bool {
        !self.queue.is_empty() || self.flight.is_some()
    }
}

/// All objects of a shard. See the head of this file for what it fixes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    pub(super) settings: Settings,
    pub(super) objects: BTreeMap<Object, ObjectState>,
    /// Objects with a backend that wait for a worker.
    pub(super) ready: VecDeque<Object>,
    /// Objects without one, of which something waits to be fanned out.
    pub(super) outbox: VecDeque<Object>,
    /// Every accepted event, with the place it is meant to be in.
    pub(super) accepted: BTreeMap<Id, (Object, Place)>,
    pub(super) without: Option<Part>,
}

impl Reference {
    /// A shard without objects.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            objects: BTreeMap::new(),
            ready: VecDeque::new(),
            outbox: VecDeque::new(),
            accepted: BTreeMap::new(),
            without: None,
        }
    }

    /// The same shard with a part of the protocol left out.
    #[must_use]
    pub fn without(mut self, part: Option<Part>) -> Self {
        self.without = part;
        self
    }

    pub(super) fn has(&self, part: Part) -> bool {
        self.without != Some(part)
    }

    /// Sets where the events of an object go; a backend by default.
    pub fn set_sink(&mut self, object: Object, sink: Sink) {
        self.objects.entry(object).or_default().sink = sink;
    }

    /// `POST /objects/{object}/events`, and a direct publish: all events or none.
    ///
    /// Both must go to the same sink. If a direct publish bypassed a backend, the backend would receive a `prev` that
    /// it never gets.
    ///
    /// If the sink is the bus and no event of the object is queued, they are published immediately; otherwise they are
    /// queued behind the others.
    ///
    /// # Errors
    /// [`Refused::Full`] and [`Refused::NotRising`]; nothing changed.
    pub fn accept(&mut self, object: Object, events: &[NewEvent]) -> Result<Vec<Event>, Refused> {
        let state = self.objects.entry(object).or_default();
        let at_once = state.sink == Sink::Bus && !self.is_behind(object);
        let events = self.append(object, events, !at_once)?;
        for event in &events {
            let place = if at_once { Place::Published } else { Place::Queued };
            self.accepted.insert(event.id, (object, place));
        }
        Ok(events)
    }

    /// Queues events of an object whose sink is the bus, to be fanned out by [`Self::drain`].
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn put_out(&mut self, object: Object, events: &[NewEvent]) -> Result<Vec<Event>, Refused> {
        let events = self.append(object, events, true)?;
        for event in &events {
            self.accepted.insert(event.id, (object, Place::Queued));
        }
        Ok(events)
    }

    /// Fans out up to `max` queued events of the object that has waited longest for it, and returns them.
    pub fn drain(&mut self, max: usize) -> Option<(Object, Vec<Event>)> {
        let object = self.outbox.pop_front()?;
        let state = self.objects.get_mut(&object)?;
        let events: Vec<_> = state.queue.drain(..max.min(state.queue.len())).collect();
        if !state.queue.is_empty() {
            self.outbox.push_back(object);
        }
        for event in &events {
            self.accepted.insert(event.id, (object, Place::Published));
        }
        Some((object, events))
    }

    /// Gives the worker what it holds already, or the object that has been ready for longest.
    pub fn take(&mut self, worker: Worker, now_ms: i64) -> Taken {
        if let Some(visit) = self.held_by(worker).filter(|_| self.has(Part::OwnLease)) {
            return Taken::Own(visit);
        }
        let Some(object) = self.ready.pop_front() else { return Taken::Nothing };
        let lease = Lease { worker, until_ms: 0, served: 0 };
        match self.fly(object, lease, now_ms) {
            Some(visit) => Taken::New(visit),
            None => Taken::Nothing,
        }
    }

    /// The lease that the worker holds.
    #[must_use]
    pub fn held_by(&self, worker: Worker) -> Option<Visit> {
        let (object, _) =
            self.objects.iter().find(|(_, state)| state.lease.is_some_and(|lease| lease.worker == worker))?;
        self.visit(*object)
    }

    /// Renews the lease; `false` if the worker does not hold it.
    pub fn renew(&mut self, worker: Worker, object: Object, epoch: u64, now_ms: i64) -> bool {
        let until_ms = now_ms + self.settings.lease_ms;
        let holds = self.holds(worker, object, epoch);
        if let Some(lease) =
            self.objects.get_mut(&object).and_then(|state| state.lease.as_mut()).filter(|_| holds)
        {
            lease.until_ms = until_ms;
        }
        holds
    }

    /// The backend confirmed the event.
    pub fn commit(&mut self, worker: Worker, object: Object, epoch: u64, id: Id, now_ms: i64) -> Committed {
        let Some(event) = self.confirmed(worker, object, epoch, id) else { return Committed::Stale };
        self.accepted.insert(event.id, (object, Place::Published));
        let Some(state) = self.objects.get_mut(&object) else { return Committed::Stale };
        state.flight = None;
        state.attempts = 0;
        state.gap = None;
        self.go_on(object, now_ms)
    }

    /// The backend did not confirm it: again at `retry_at_ms`. Also what "exhausted" does with policy block.
    pub fn fail(
        &mut self,
        worker: Worker,
        object: Object,
        epoch: u64,
        id: Id,
        retry_at_ms: i64,
    ) -> Committed {
        if self.confirmed(worker, object, epoch, id).is_none() {
            return Committed::Stale;
        }
        self.back_to_head(object);
        if let Some(state) = self.objects.get_mut(&object) {
            state.retry_at_ms = Some(retry_at_ms);
        }
        Committed::Released
    }

    /// Its attempts are exhausted, and the policy is skip: a dead letter and a gap, and the visit continues.
    pub fn give_up(&mut self, worker: Worker, object: Object, epoch: u64, id: Id, now_ms: i64) -> Committed {
        let Some(event) = self.confirmed(worker, object, epoch, id) else { return Committed::Stale };
        if let Some(state) = self.objects.get_mut(&object) {
            state.flight = None;
        }
        self.bury(object, event);
        self.go_on(object, now_ms)
    }

    /// Its attempts are exhausted, and the policy is park: nothing is sent until an operator intervenes.
    pub fn park(&mut self, worker: Worker, object: Object, epoch: u64, id: Id) -> Committed {
        if self.confirmed(worker, object, epoch, id).is_none() {
            return Committed::Stale;
        }
        self.back_to_head(object);
        if let Some(state) = self.objects.get_mut(&object) {
            state.parked = true;
        }
        Committed::Released
    }

    /// Makes ready and returns the objects that are due, because their lease expired or their retry time has arrived,
    /// ordered by that time.
    pub fn sweep(&mut self, now_ms: i64) -> Vec<Object> {
        let due_of = |state: &ObjectState| state.lease.map(|lease| lease.until_ms).or(state.retry_at_ms);
        let mut due: Vec<_> =
            self.objects.iter().filter_map(|(object, state)| Some((due_of(state)?, *object))).collect();
        due.retain(|(due_ms, _)| *due_ms <= now_ms);
        due.sort_unstable();
        let objects: Vec<_> = due.into_iter().map(|(_, object)| object).collect();
        for object in &objects {
            self.expire(*object);
            self.wake(*object);
        }
        objects
    }

    /// The effect of a sweep on an object whose lease expired.
    pub fn expire(&mut self, object: Object) {
        let leased = self.objects.get(&object).is_some_and(|state| state.lease.is_some());
        if leased && self.has(Part::Sweep) {
            self.back_to_head(object);
            self.make_ready(object);
        }
    }

    /// The effect of a sweep on an object whose retry is due.
    pub fn wake(&mut self, object: Object) {
        let wakes = self.has(Part::Wake);
        let Some(state) = self.objects.get_mut(&object).filter(|_| wakes) else { return };
        if state.retry_at_ms.take().is_some() {
            self.make_ready(object);
        }
    }

    /// An operator resumes a parked object with its head.
    pub fn unpark(&mut self, object: Object) -> Skipped {
        let Some(state) = self.objects.get_mut(&object).filter(|state| state.parked) else {
            return Skipped::Refused;
        };
        state.parked = false;
        state.attempts = 0;
        self.make_ready(object);
        Skipped::Done
    }

    /// An operator skips the head of an object that is parked or waits for a retry; `id` must be that head's, so that
    /// a repeat does not skip another.
    pub fn skip(&mut self, object: Object, id: Id) -> Skipped {
        let names_event = self.has(Part::SkipNamesEvent);
        let Some(state) = self.objects.get_mut(&object) else { return Skipped::Refused };
        let waits = state.parked || state.retry_at_ms.is_some();
        let fits = state.queue.front().is_some_and(|head| head.id == id || !names_event);
        if !waits || !fits {
            return Skipped::Refused;
        }
        state.parked = false;
        state.retry_at_ms = None;
        let Some(event) = state.queue.pop_front() else { return Skipped::Refused };
        let left = !state.queue.is_empty();
        self.bury(object, event);
        if left {
            self.make_ready(object);
        } else {
            self.ready.retain(|other| *other != object);
        }
        Skipped::Done
    }

    /// Whether what is published now has to go behind something.
    fn is_behind(&self, object: Object) -> bool {
        self.has(Part::Behind) && self.objects.get(&object).is_some_and(ObjectState::has_backlog)
    }

    fn append(&mut self, object: Object, new: &[NewEvent], queue: bool) -> Result<Vec<Event>, Refused> {
        let capacity = self.settings.capacity;
        let state = self.objects.entry(object).or_default();
        let queued = state.queue.len() + usize::from(state.flight.is_some());
        if queue && queued + new.len() > capacity {
            return Err(Refused::Full);
        }
        let ids = state.last.into_iter().chain(new.iter().map(|event| event.id));
        if !ids.is_sorted_by(|before, after| before < after) {
            return Err(Refused::NotRising);
        }
        let mut events = Vec::with_capacity(new.len());
        for NewEvent { id, topic } in new.iter().copied() {
            let (prev, tprev) = (state.last.replace(id), state.last_of_topic.insert(topic, id));
            events.push(Event { id, topic, prev, tprev });
        }
        if queue && !events.is_empty() {
            state.queue.extend(&events);
            self.announce(object);
        }
        Ok(events)
    }

    /// Makes an object that was idle known to who works for it.
    fn announce(&mut self, object: Object) {
        let (parked_stays, on_accept) = (self.has(Part::ParkedStays), self.has(Part::ReadyOnAccept));
        let Some(state) = self.objects.get_mut(&object) else { return };
        let waits = (state.parked && parked_stays) || state.retry_at_ms.is_some() || state.lease.is_some();
        if state.sink == Sink::Bus {
            if !self.outbox.contains(&object) {
                self.outbox.push_back(object);
            }
        } else if on_accept && (!waits || !self.has(Part::ReadyIfIdle)) {
            self.make_ready(object);
        }
    }

    fn make_ready(&mut self, object: Object) {
        if !self.has(Part::ReadyOnce) || !self.ready.contains(&object) {
            self.ready.push_back(object);
        }
    }

    /// Moves the head into the flight slot, under a new epoch if the visit is new.
    fn fly(&mut self, object: Object, lease: Lease, now_ms: i64) -> Option<Visit> {
        let (lease_ms, keeps_flight) = (self.settings.lease_ms, self.has(Part::Flight));
        let prev_now = (!self.has(Part::PrevAtAccept)).then(|| self.last_published(object));
        let state = self.objects.get_mut(&object)?;
        let mut event = state.queue.pop_front()?;
        if let Some(prev) = prev_now {
            event.prev = prev;
        }
        state.attempts += 1;
        if state.lease.is_none() {
            state.epoch += 1;
        }
        state.lease = Some(Lease { until_ms: now_ms + lease_ms, ..lease });
        state.flight = Some(event);
        self.accepted.insert(event.id, (object, Place::InFlight));
        let visit = self.visit(object);
        if let Some(state) = self.objects.get_mut(&object).filter(|_| !keeps_flight) {
            state.flight = None;
        }
        visit
    }

    fn last_published(&self, object: Object) -> Option<Id> {
        self.events_in(object, Place::Published).last().copied()
    }

    fn holds(&self, worker: Worker, object: Object, epoch: u64) -> bool {
        let Some(state) = self.objects.get(&object) else { return false };
        let Some(lease) = state.lease else { return false };
        (lease.worker == worker || !self.has(Part::Holder))
            && (state.epoch == epoch || !self.has(Part::Epoch))
    }

    /// The event in flight, if it is the one that this worker may settle.
    fn confirmed(&self, worker: Worker, object: Object, epoch: u64, id: Id) -> Option<Event> {
        if !self.holds(worker, object, epoch) {
            return None;
        }
        let event = self.objects.get(&object)?.flight?;
        (event.id == id || !self.has(Part::EventId)).then_some(event)
    }

    /// Ends a visit without an outcome: the event in flight is the head again.
    fn back_to_head(&mut self, object: Object) {
        let to_head = self.has(Part::Head);
        let Some(state) = self.objects.get_mut(&object) else { return };
        state.lease = None;
        let Some(event) = state.flight.take() else { return };
        if to_head {
            state.queue.push_front(event);
        } else {
            state.queue.push_back(event);
        }
        self.accepted.insert(event.id, (object, Place::Queued));
    }

    fn bury(&mut self, object: Object, event: Event) {
        let leaves_gap = self.has(Part::Gap);
        self.accepted.insert(event.id, (object, Place::Dead));
        let Some(state) = self.objects.get_mut(&object) else { return };
        state.attempts = 0;
        if leaves_gap {
            let before = state.gap.unwrap_or(Gap { first: event.id, last: event.id, count: 0 });
            state.gap = Some(Gap { last: event.id, count: before.count + 1, ..before });
        }
    }

    /// After an event was settled: the next one under the same lease, or the end of the visit.
    fn go_on(&mut self, object: Object, now_ms: i64) -> Committed {
        let (quantum, bounded) = (self.settings.quantum, self.has(Part::Quantum));
        let Some(state) = self.objects.get_mut(&object) else { return Committed::Stale };
        let Some(mut lease) = state.lease else { return Committed::Stale };
        lease.served += 1;
        if !state.queue.is_empty() && (lease.served < quantum || !bounded) {
            return self.fly(object, lease, now_ms).map_or(Committed::Released, Committed::Next);
        }
        state.lease = None;
        if !state.queue.is_empty() && self.has(Part::ReadyAgain) {
            self.make_ready(object);
        }
        Committed::Released
    }
}
