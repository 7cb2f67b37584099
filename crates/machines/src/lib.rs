//! State machines: labels that move when facts change.
//!
//! A machine is a definition (`signalbox_machine`); a label is a name that stands in one of its states, with metadata that
//! clients tell and a history. Nobody moves a label; whoever knows something says it, and the definition decides.
//!
//! ```text
//!  PATCH facts ─┐                           ┌─ not true: stays ─┐
//!  due, waves ──┼─▶ engine: read ─▶ judge ──┤                   ├─▶ commit: record, indexes, times, events: one step
//!  bus topics ──┘        ▲   (step::decide) └─ moves, attempts ─┘        │ (bus::Handle::change, labels.lua)
//!                        └───────────── refused: somebody was faster ────┤
//!                                                                        ▼
//!                             actions: webhook, route, publish ◀── follow ──▶ feeds, and judged again
//! ```
//!
//! # Data
//!
//! `docs/keys.md` has the rows. A label's record is one packed string (`record/packed.rs`) where an object's state stands; its
//! events are the object's events, so they have an order of their own and `prev`. `machine:<m>:in:<state>` and its like are
//! sorted sets of names: lists, counts and waves walk them. `machine:due` has one entry for each label with a time of its
//! own (a retry, a feed to be asked again, an interval, an attempt that is under way) and one for each gate, time of day
//! and zone: a *wave*, which walks the gate's labels page by page, and keeps how far it came.
//!
//! # Invariants
//!
//! 1. A move and its event are one step, and a move that was computed from an older record, or under a definition that does
//!    not count in the shard any more, is refused (the script compares incarnation, visit, revision and version).
//! 2. An attempt is counted before it is made; all attempts of a visit carry one token.
//! 3. A label that waits for something that only a clock or this process knows has a time in the due set at which any
//!    pacemaker takes it up, or is at a gate with a wave.
//! 4. A change of definition that began is finished: the note of it stays until every shard is done (`definitions.rs`).
//!
//! # What happens when…
//!
//! * **a pacemaker dies** after a commit and before what follows it: the label's time in the due set comes (for an attempt its
//!   timeout and five seconds, for a feed half a minute), and whoever holds the shard's lease goes on.
//! * **a reply is lost**: the bus sends the same call again and gets the first reply; if the outcome stays unknown, the
//!   client gets 503 and may repeat it under its idempotency key, and everything else looks at the label again.
//! * **a record cannot be read** (it is damaged, or of a later build): the label stays, everybody else goes on, and the check
//!   and a number of the metrics tell of it.
//! * **Redis has lost its last second**: what this process took for certain is doubted, and a gate's time of day that is not
//!   in the due set any more is put back (`reconcile.rs`).
//! * **Redis restarts**: an outcome of an action is kept in memory and written when it is back, for a quarter of an hour.
//! * **a label is deleted during an attempt**: the outcome goes to its history, and nothing follows.
//! * **an event is read twice**, or by a pacemaker that slept meanwhile: the label knows the last one that it took of each shard.
//! * **a day's wave was missed**: the last instant is made up for if it is within the trigger's grace, for all who were there then.
//! * **two pacemakers judge one label**: one commit is refused and judged again from what the other wrote.

mod actions;

mod apply;
mod check;
mod clock;
mod commit;
pub mod definitions;
mod engine;
mod error;
pub mod explain;
mod fate;
mod feeds;
mod glance;
mod inputs;
pub mod judge;
pub mod labels;
mod metrics;
mod open;
mod options;
mod reconcile;
pub mod record;
mod service;
mod store;
#[cfg(test)]
mod tests;
mod wave;

/// The name of the lease under which one pacemaker looks after the labels of a shard.
pub fn lease_name(shard: usize) -> String {
    format!("machines-{shard}")
}

pub use check::Cursor as CheckCursor;
pub use definitions::{StoredVersion, Version};
pub use engine::Engine;
pub use error::Error;
pub use explain::Counts;
pub use feeds::Health;
pub use glance::{Wake, Waking};
pub use open::Around;
pub use options::Options;
pub use record::{Cause, Record, Row, Status};
