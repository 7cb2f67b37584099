//! The sequencer: many producers, one order for each object.
//!
//! A producer sends a *group*: the new state of an object and the events that describe the change. Both are accepted
//! together. Each event has its ID from that moment, and the ID of the object's previous event. The object's name
//! decides where the events go:
//!
//! ```text
//!                                     ┌─▶ the bus: lanes of subscribers, queues, live streams     (no prefix matches)
//!  POST /objects/{object}/events ─▶ publish.lua
//!  POST /topics/{name}                └─▶ object:<OBJ>:events ─▶ worker ─▶ POST to the backend     (its prefix matches)
//! ```
//!
//! The upper branch does not involve this crate: one script does all of it. This crate is the lower branch: a queue for
//! each object, and workers that send one event of an object at a time, in order, under a lease.
//!
//! # Data
//!
//! `docs/keys.md` lists the keys. Their names come from the published algorithm "Event ordering" (`OBJ:events`,
//! `OBJ:last.event.id`, `OBJ:event.worker`, `objects.with.events`), with the prefix `object:`. An entry of a
//! queue is the event's JSON, numbers included. Backends are part of the bus's registry, so a publish that was computed
//! without a new backend is rejected and computed again. An object with a queue keeps its backend until the queue is
//! empty, even if backends are defined or removed in the meantime: `object:queued` names the backend, and the publish
//! script checks it first. So no event overtakes another.
//!
//! # Life of an object with a backend
//!
//! ```text
//!           accept                take: head ─▶ flight, a new epoch
//!   idle ───────────▶ ready ─────────────────────────────────────▶ leased ──┐ commit: the next event of the visit
//!    ▲                 ▲ ▲ ▲                                       │ │ │ ▲────┘
//!    │                 │ │ └─────────── lease ended: swept ─────────┘ │ │
//!    │                 │ └──── due ──── retry ◀──── failed ───────────┘ │ commit, skip: nothing left, or the visit
//!    │                 └─ unpark, skip ─ parked ◀── failed, parked ─────┤ is over
//!    └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A *visit* is the time for which a worker has an object. It sends at most `quantum` events; then the object moves
//! behind all others that are ready. So a busy object delays another by no more than one visit of each object that is
//! ahead of it.
//!
//! # Invariants
//!
//! 1. Events of an object are committed in id order, one at a time; the event in flight is not in the list.
//! 2. An object with a queue is in exactly one of ready, leased, retry, parked; ready holds it once.
//! 3. A commit names worker and epoch. Epochs increase, also after a failover, so a worker that lost its lease cannot
//!    commit. The backend receives the epoch too, and can reject one that is lower than it has seen.
//! 4. A worker holds at most one object. A worker that asks again gets the object that it holds.
//! 5. An accepted event is sent, waiting, in flight, or a dead letter with a gap, and never two of them.
//!
//! # Behavior under failure
//!
//! * **The fabric does not answer.** Calls of [`Handle`] fail, and may be repeated.
//! * **A pacemaker dies.** Its leases expire `lease_ms` after its last heartbeat (heartbeats are a third of that apart).
//!   Then the next pacemaker that checks for expired leases takes over its objects. An event that was
//!   in flight may be sent twice, with the same ID.
//! * **A reply is lost.** The call is made again. A repeated take returns the same object, a repeated commit returns
//!   what is in flight now, and a repeated failure changes nothing.
//! * **Redis restarts.** Workers keep the outcomes of their attempts in memory, and record them when Redis is available
//!   again, if the lease has not expired.
//! * **A backend is unavailable.** Its objects wait, each with its own pause. Other backends are not affected, because
//!   every backend has its own workers.
//! * **A backend answers 410.** It is stopped, and its queues fill up to their limit (429), until it is defined again.
//! * **A poison event** ([`signalbox_bus::OnFailure`]) blocks its object, is skipped, or parks its object. Other objects
//!   are not affected.
//! * **A backend is removed** ([`signalbox_bus::Queued`]). It takes no new objects. Queued events are sent,
//!   dead-lettered or dropped, a part in each call, and then the backend is removed. The registry records the decision
//!   first, so any pacemaker can continue where another died.
//! * **Dead letters are redriven.** They are queued behind the waiting events of their objects and marked as redriven,
//!   because their IDs are lower than those before them.

mod check;
mod delivery;
mod handle;
mod metrics;
mod options;
mod redrive;
mod removal;
mod service;
mod store;
#[cfg(test)]
mod tests;
mod verdict;
mod worker;

pub use delivery::{Call, Http, Sink};
pub use handle::{BackendStatus, Decided, Decision, Handle, Numbers, Removed};
pub use metrics::Calls;
pub use options::Options;
pub use service::Sequencer;
