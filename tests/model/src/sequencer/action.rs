//! The possible actions around a shard.

use std::fmt;

use super::{Id, Object};

/// How the backend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has the event and confirms it.
    Confirmed,
    /// It rejects the event.
    Refused,
    /// It has the event, but its answer is lost.
    Unconfirmed,
    /// It will receive the event later.
    Slow,
}

/// How a call to the shard goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// As it should.
    Answered,
    /// It runs, and the reply is lost.
    Lost,
    /// It will run.
    Late,
}

/// The actor: a worker or a ghost, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A worker.
    Worker(usize),
    /// One that froze.
    Ghost(usize),
}

/// One step of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A producer makes its next call.
    Offer(Object),
    /// The next object without a backend is drained by one event.
    Drain,
    /// A worker takes an object.
    Take(usize, Call),
    /// The event is sent.
    Send(Who, Answer),
    /// The outcome is reported to the shard.
    Settle(Who, Call),
    /// A worker freezes, and another replaces it.
    Freeze(usize),
    /// A request whose sender stopped waiting arrives.
    RequestArrives(usize),
    /// A call whose sender stopped waiting arrives.
    CallArrives(usize),
    /// The sweep detects an expired lease.
    Expire(Object),
    /// It does, and the holder is at work and does not know.
    Overrun(Object),
    /// The sweep sees a retry that has come.
    Wake(Object),
    /// An operator unparks an object.
    Unpark(Object),
    /// An operator skips the head of an object.
    Skip(Object, Id),
    /// An operator does so, and the reply is lost.
    SkipLost(Object, Id),
    /// A skip whose reply was lost is repeated.
    SkipAgain(usize),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |who: &Who| match who {
            Who::Worker(place) => format!("worker {place}"),
            Who::Ghost(place) => format!("ghost {place}"),
        };
        match self {
            Self::Offer(object) => write!(formatter, "a producer calls for {object}"),
            Self::Drain => write!(formatter, "drain"),
            Self::Take(place, Call::Answered) => write!(formatter, "worker {place} takes"),
            Self::Take(place, call) => write!(formatter, "worker {place} takes ({call:?})"),
            Self::Send(who, answer) => write!(formatter, "{} sends: {answer:?}", name(who)),
            Self::Settle(who, Call::Answered) => write!(formatter, "{} settles", name(who)),
            Self::Settle(who, call) => write!(formatter, "{} settles ({call:?})", name(who)),
            Self::Freeze(place) => write!(formatter, "worker {place} freezes"),
            Self::RequestArrives(_) => write!(formatter, "a slow request arrives"),
            Self::CallArrives(_) => write!(formatter, "a late call arrives"),
            Self::Expire(object) => write!(formatter, "the lease of {object} runs out"),
            Self::Overrun(object) => write!(formatter, "the lease of {object} runs out under its holder"),
            Self::Wake(object) => write!(formatter, "the retry of {object} has come"),
            Self::Unpark(object) => write!(formatter, "an operator unparks {object}"),
            Self::Skip(object, id) => write!(formatter, "an operator skips {id} of {object}"),
            Self::SkipLost(object, id) => write!(formatter, "an operator skips {id} of {object} (Lost)"),
            Self::SkipAgain(_) => write!(formatter, "the operator repeats the skip"),
        }
    }
}
