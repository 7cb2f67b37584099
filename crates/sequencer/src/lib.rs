//! The sequencer: many producers, one order for each object.
//!
//! A producer sends a *group*: the new state of an object and the events that tell of it. Both are accepted together,
//! and the events have their ids from that moment, each with the id of the object's event before. Where they go depends
//! on the object's name:
//!
//! ```text
//!                                     ┌─▶ the bus: lanes of subscribers, queues, live streams     (no backend fits)
//!  POST /objects/{object}/events ─▶ publish.lua
//!  POST /topics/{name}                └─▶ object:<OBJ>:events ─▶ worker ─▶ POST to the backend     (its prefix fits)
//! ```
//!
//! The first needs nothing of this crate: state, ids and fan-out are one script. The second is what is here: a queue for
//! each object, and workers that send one event of an object at a time, in order, under a lease.
//!
//! # Data
//!
//! `docs/keys.md` has the rows; names are those of the algorithm this follows ("Event ordering": `OBJ:events`,
//! `OBJ:last.event.id`, `OBJ:event.worker`, `objects.with.events`), behind `object:`. An entry of a queue is the event's
//! JSON, numbers included. Backends are part of the bus' registry, so a publish that does not know of one is refused
//! and repeated. An object with a queue keeps its backend until the queue is empty, whatever was defined or removed
//! meanwhile: `object:queued` says which, and the publish script looks there first. So nothing overtakes.
//!
//! # Life of an object with a backend
//!
//! ```text
//!           accept                take: head ─▶ flight, a new epoch
//!   idle ───────────▶ ready ─────────────────────────────────────▶ leased ──┐ commit: the next event of the visit
//!    ▲                 ▲ ▲ ▲                                       │ │ │ ▲────┘
//!    │                 │ │ └─────────── lease ended: swept ─────────┘ │ │
//!    │                 │ └──── due ──── retry ◀──── failed ───────────┘ │ commit, skip: nothing left, or the visit
//!    │                 └─ unpark, skip ─ parked ◀── failed, given up ───┤ is over
//!    └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A visit serves at most `quantum` events; then the object goes behind all others that are ready. So a hot object
//! delays another by no more than one visit of each object before it in the line.
//!
//! # Invariants
//!
//! 1. Events of an object are committed in id order, one at a time; what is in flight is not in the list.
//! 2. An object with a queue is in exactly one of ready, leased, retry, parked; ready holds it once.
//! 3. A commit names worker and epoch. Epochs rise, also after a failover, so whoever lost its lease commits nothing.
//!    The backend gets the epoch too, and can refuse one that is lower than it has seen.
//! 4. A worker holds at most one object; one that asks again gets the one that it holds.
//! 5. An accepted event is sent, waiting, in flight, a dead letter with a gap, and never two of them.
//!
//! # What happens when…
//!
//! * **a pacemaker dies**: its leases end `lease_ms` after its last heartbeat (a third of that apart), and whichever
//!   pacemaker wakes next sweeps them: within `lease_ms` its objects are with others. What was in flight may be sent
//!   twice, with the same id.
//! * **a reply is lost**: the call is made again. A repeated take gets the same object, a repeated commit what is in
//!   flight now, a repeated failure finds nothing.
//! * **Redis restarts**: outcomes are kept and settled when it is back, if the lease still stands.
//! * **a backend is away**: its objects wait, each with its own pause; those of other backends are not touched, since
//!   every backend has its own workers.
//! * **a backend answers 410**: it is stopped, its queues fill up to their limit (429), until it is defined again.
//! * **a poison event** ([`crate::bus::OnFailure`]): blocks its object, is skipped, or parks its object. Others go on.
//! * **a backend is removed** ([`crate::bus::Queued`]): it takes no new objects; what is queued is sent, made dead
//!   letters, or dropped, a part in each call, and then it is forgotten. The registry says so before anything is
//!   done, so any pacemaker goes on where another died.
//! * **dead letters are redriven**: they go behind what is queued for their objects, marked, so an id that is lower than
//!   the one before is no surprise.

mod check;
mod delivery;
mod desk;
mod handle;
pub mod metrics;
mod options;
mod redrive;
mod removal;
mod service;
mod store;
#[cfg(test)]
mod tests;
mod verdict;
mod worker;

pub use delivery::Http;
pub use delivery::{Call, Sink};
pub use handle::{BackendStatus, DeadEvent, Decided, Decision, Handle, Numbers, ObjectStatus, Removed};
pub use options::Options;
pub use service::Sequencer;
