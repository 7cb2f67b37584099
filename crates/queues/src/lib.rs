//! Queues: messages that consumers pull, fair between tenants.
//!
//! A queue is a name and a pattern. Every message whose `environment:type:name` the pattern matches, and every event of
//! the bus as `environment:type:topic`, is put into it by the script that accepts the message; there is no moment in
//! which it is accepted and not in its queues. A queue has one *facet* for each environment, so that a tenant with a
//! million messages keeps nobody else waiting for more than his weight. The names of keys and the idea of facets are
//! those of Driver's Redis backbone, behind `queue:`.
//!
//! ```text
//!  bus: publish.lua ── facets.lua ──▶ queue:<q>:<env>  ids only; bodies are in the bus' log
//!                                     queue:<q>|ring   who can be pulled from, by turns
//!  consumer ─▶ Handle::pull ── pull.lua ──▶ messages with receipts, held by leases
//!           ─▶ ack.lua │ nack.lua (again, later, or dead) │ extend.lua
//!  sweeper.rs ── sweep.lua: what consumers lost comes back; sleeps until something is due
//!  bus register.rs: definitions are part of the registry ── configure.lua, clear.lua
//! ```
//!
//! # Fairness
//!
//! Deficit round robin, counted in messages. The facet at the head of the ring keeps its turn until as many of its
//! messages were handed out as its weight says, then it goes to the tail. Weight 0 pauses a facet. A facet stands in the
//! ring exactly while it can be pulled from: its weight is not 0, something waits, and fewer messages are in flight than
//! `in_flight_limit`. So in any window of *w* + 1 messages of a facet of weight *w*, each other facet that could be
//! pulled from throughout is served its own weight, or all it has. This holds in each shard; pulls go round the shards.
//!
//! # Life of a message
//!
//! ```text
//!             pull                        ack, auto-ack
//!  waiting ─────────▶ in flight ─────────────────────────▶ forgotten
//!     ▲  ▲               │ │ └── nack, lease over, and handed out max_attempts times ──▶ dead ──redrive──┐
//!     │  └─ lease over, nack ┘                                                                          │
//!     │                  └── nack with a delay ──▶ delayed                                              │
//!     └──────── delay over ───────────────────────────┴─────────────────────────────────────────────────┘
//! ```
//!
//! A message's id is in exactly one of these places, and dropping takes it out of any. Messages that come back stand at
//! the head of their facet, in the order of their ids; what was never handed out is handed out first in, first out.
//!
//! # Invariants
//!
//! 1. A facet is there exactly when it has messages waiting, delayed or in flight.
//! 2. It stands in the ring exactly once while it can be pulled from, and else not.
//! 3. `|count` is the sum over the facets. `queue:|held` counts, for each segment of the log, the messages whose bodies
//!    lie there, and the bus keeps such segments.
//! 4. Every script reads and checks all it needs before its first write; those that free memory begin with a write that
//!    is allowed at the memory limit.
//! 5. What a call costs depends on the messages it moves, never on how many facets or queues there are.
//!
//! # What happens when…
//!
//! * **a consumer dies**: its messages come back when their leases end. The attempt counts, so a message that kills
//!   its consumers ends as a dead letter.
//! * **a reply is lost** between Redis and the consumer: the same, the messages are in flight and nobody knows. A receipt
//!   that is used again changes nothing.
//! * **a pacemaker dies**: nothing is kept in it. Whichever of the others sees that something is due sweeps it.
//! * **a lease ends while its consumer still works**: until the sweep the receipt is good; afterwards somebody else
//!   has the message, and the receipt says so.
//! * **a queue is deleted**: nothing more comes into it from that moment. It is cleared away part by part; if that is
//!   interrupted, housekeeping goes on. Only then can its name be used again.

mod check;
mod definition;
mod error;
mod handle;
mod matcher;
mod metrics;
mod numbers;
mod options;
pub mod pattern;
mod receipt;
mod settle;
mod store;
mod sweeper;
mod waiting;

pub use check::Finding;
pub use definition::{
    DEFAULT_WEIGHT, Definition, Flaw, LONGEST_LEASE_MS, Wanted, is_part, is_queue_name, milliseconds,
};
pub use error::Error;
pub use handle::{Handed, Handle, Page, PullRequest};
pub use matcher::{Matchable, Matcher};
pub use numbers::{FacetStatus, QueueNumbers};
pub use options::Options;
pub use receipt::{Malformed, Receipt};
pub use settle::Settled;
pub use store::{Configured, DeadLetter, FACETS_LUA, Pulled, Store, Taken};
