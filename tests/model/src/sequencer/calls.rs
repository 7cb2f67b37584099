//! Arguments and results of the sequencer's scripts.

use super::{Id, Object, Topic};

/// The configuration of all objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How many events one visit may commit.
    pub quantum: u32,
    /// How many events may be queued for an object, the one in flight included.
    pub capacity: usize,
    /// How long a visit may go without a commit or a renewal, in milliseconds.
    pub lease_ms: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { quantum: 16, capacity: 1_000, lease_ms: 30_000 }
    }
}

/// Where the events of an object go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sink {
    /// To an HTTP backend: queued, taken by workers, one at a time.
    #[default]
    Backend,
    /// To the bus: published in the call that accepts, unless something of the object is still queued.
    Bus,
}

/// An event that is to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NewEvent {
    /// Its number.
    pub id: Id,
    /// Its topic.
    pub topic: Topic,
}

/// An accepted event: nothing of it changes any more (O2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event {
    /// Its number.
    pub id: Id,
    /// Its topic.
    pub topic: Topic,
    /// The object's event before it.
    pub prev: Option<Id>,
    /// The object's event of the same topic before it.
    pub tprev: Option<Id>,
}

/// Events that are not known to have arrived and will not be resent automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gap {
    /// The first of them.
    pub first: Id,
    /// The last of them.
    pub last: Id,
    /// How many.
    pub count: u32,
}

impl Gap {
    /// Whether it speaks of this event.
    #[must_use]
    pub fn names(&self, id: Id) -> bool {
        (self.first..=self.last).contains(&id)
    }
}

/// The lease that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Visit {
    /// The object it visits.
    pub object: Object,
    /// Which visit of the object this is.
    pub epoch: u64,
    /// The event in flight.
    pub event: Event,
    /// The gap to report with it.
    pub gap: Option<Gap>,
    /// How often the event was in flight, this time included.
    pub attempts: u32,
    /// When the lease runs out, in milliseconds.
    pub lease_until_ms: i64,
}

/// The answer to a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The worker held this already: its last reply was lost.
    Own(Visit),
    /// A new visit.
    New(Visit),
    /// No object is ready.
    Nothing,
}

impl Taken {
    /// The lease that the worker now holds.
    #[must_use]
    pub fn visit(self) -> Option<Visit> {
        match self {
            Self::Own(visit) | Self::New(visit) => Some(visit),
            Self::Nothing => None,
        }
    }
}

/// The answer to a commit, and to a failure with policy skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// Done; the visit continues with this event.
    Next(Visit),
    /// Done; the visit is over.
    Released,
    /// The worker does not hold this event under this epoch; nothing changed.
    Stale,
}

/// The result of an operator's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// Done.
    Done,
    /// The object is not in a state for it, or another event is at its head; nothing changed.
    Refused,
}

/// Why events were not accepted; none of the call was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// They do not fit into the object's queue.
    Full,
    /// An id is not above the object's last (O4).
    NotRising,
}

/// Which of its states an object is in (O6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Nothing is queued.
    Idle,
    /// It waits for a worker.
    Ready,
    /// A worker has it.
    Leased,
    /// It waits for this time, in milliseconds.
    Retry(i64),
    /// It waits for an operator.
    Parked,
}

/// Where an accepted event is: in exactly one of these (O9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In its object's queue.
    Queued,
    /// In its object's flight slot.
    InFlight,
    /// The backend confirmed it, or it was fanned out.
    Published,
    /// Dropped, and named by a gap.
    Dead,
}

/// A part of the protocol that can be left out, to show its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Settling compares the epoch.
    Epoch,
    /// Settling compares the worker.
    Holder,
    /// Settling names the event.
    EventId,
    /// A take keeps the event in the flight slot.
    Flight,
    /// A repeated take answers with what the worker holds.
    OwnLease,
    /// Leases that ran out are swept.
    Sweep,
    /// Retries come due.
    Wake,
    /// A failed event goes back to the head.
    Head,
    /// A ready object does not become ready again.
    ReadyOnce,
    /// Accepting checks whether the object is already leased or ready.
    ReadyIfIdle,
    /// A visit that leaves something behind makes the object ready again.
    ReadyAgain,
    /// Accepting makes an idle object ready.
    ReadyOnAccept,
    /// A visit ends after the quantum.
    Quantum,
    /// A skipped event leaves a gap.
    Gap,
    /// An operator names the event that is to be skipped.
    SkipNamesEvent,
    /// A direct publish goes behind what is queued.
    Behind,
    /// Ids and `prev` are fixed at acceptance, not when an event is taken.
    PrevAtAccept,
    /// A parked object waits for its operator, whatever is accepted.
    ParkedStays,
}
