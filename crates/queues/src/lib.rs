//! Queues: messages that consumers pull, fair between tenants.
//!
//! A queue has a name and a pattern. It receives every message whose `tenant:type:name` matches the pattern, and
//! every event of the bus (`signalbox_bus`) whose `tenant:type:topic` matches it. The script that accepts a
//! message also puts it into its queues, so an accepted message is never missing from them. A queue has one list for
//! each *tenant*. Tenants take turns, so a tenant with a million messages
//! delays another tenant by no more than one turn. All key names begin with `queue:`.
//!
//! The daemon that runs this crate is the *pacemaker*, Signalbox's control plane. Queues are stored in the *fabric*,
//! the Redis that has the desired state, the events and the labels of state machines. The fabric can be divided into
//! *shards*, each with its part of the messages.
//!
//! ```text
//!  bus: publish.lua ── slices.lua ──▶ queue:<q>:<tenant>  ids only; bodies are in the bus's log
//!                                     queue:<q>|ring   tenants that can be pulled from
//!  consumer ─▶ Handle::pull ── shared_calls.rs ── pull.lua ──▶ messages with receipts, held by leases
//!           ─▶ ack.lua │ nack.lua (again, later, or dead) │ extend.lua
//!  sweeper.rs ── sweep.lua: requeues messages whose lease expired; sleeps until one is due
//!  bus/queue_admin.rs: definitions are part of the registry ── configure.lua, clear.lua, drop.lua (retention)
//! ```
//!
//! # Fairness
//!
//! The algorithm is deficit round robin, counted in messages. The tenants that can be pulled from form a ring. The tenant
//! at the head keeps its turn until the number of its delivered messages equals its weight; then it moves to the tail.
//! Weight 0 pauses a tenant. A tenant is in the ring exactly while it can be pulled from: its weight is not 0, it has
//! waiting messages, fewer of its messages are in flight than `in_flight_limit`, and its rate limit is not reached. So
//! between two turns of a tenant, each other tenant that is in the ring all that time has one turn. This holds in each
//! shard; pulls rotate over the shards.
//!
//! # Life of a message
//!
//! ```text
//!             pull                        ack, auto-ack
//!  waiting ─────────▶ in flight ─────────────────────────▶ removed
//!     ▲  ▲               │ │ └── nack, lease over, and delivered max_attempts times ──▶ dead ──redrive──┐
//!     │  └─ lease over, nack ┘                                                                          │
//!     │                  └── nack with a delay ──▶ delayed                                              │
//!     └──────── delay over ───────────────────────────┴─────────────────────────────────────────────────┘
//! ```
//!
//! A message's ID is in exactly one of these places. When a message is dropped, its ID is removed from the place where
//! it is. If a delivered message is requeued, because its lease expired or it was nacked, it goes to the head of its
//! tenant, in the order of IDs. All other messages are delivered first in, first out.
//!
//! # Invariants
//!
//! 1. A tenant exists exactly while it has messages that are waiting, delayed or in flight.
//! 2. A tenant is in the ring exactly once while it can be pulled from, and not otherwise.
//! 3. A queue's `|count` is the sum over its tenants. `queue:|held` counts, for each segment of the bus's log, the
//!    messages whose bodies are stored there. The bus retains these segments.
//! 4. Every script reads and checks everything it needs before its first write. A script that frees memory starts with a
//!    write that Redis allows at the memory limit.
//! 5. `|depths` ranks the tenants with two or more waiting and delayed messages by their number, exact below 8 and otherwise
//!    within an eighth. A full queue finds in it the tenant that has most.
//! 6. The cost of a call depends on the messages it moves, never on the number of tenants or queues.
//!
//! # Behavior under failure
//!
//! * **The fabric does not answer.** The call fails with [`Error::Store`]. It may be repeated.
//! * **A consumer dies.** Its messages are requeued when their leases expire. The attempt counts, so a message that
//!   crashes its consumers becomes a dead letter.
//! * **A reply is lost** between Redis and the consumer. The messages are in flight although no consumer has them. They
//!   are also requeued when their leases expire. Using a receipt twice changes nothing.
//! * **A pacemaker dies.** It holds no state. Any other pacemaker sweeps the messages that are due.
//! * **A lease expires while its consumer still works.** The receipt stays valid until a sweep requeues the message.
//!   Then the receipt is rejected, because another consumer may have the message.
//! * **A queue is deleted.** It receives no more messages. It is removed in parts; if the removal is interrupted,
//!   housekeeping continues it. The name can be used again when the removal is complete.

mod check;
mod dead_cursor;
mod definition;
mod error;
mod handle;
mod matcher;
mod message;
mod metrics;
mod numbers;
mod options;
mod pattern;
mod pull;
mod receipt;
mod settle;
mod shared_calls;
mod store;
mod sweeper;
mod waiting;

pub use dead_cursor::{DeadCursor, DeadKey};
pub use definition::{DEFAULT_WEIGHT, Definition, Flaw, MAX_LEASE_MS, Tenant, is_part, thousandths};
pub use error::Error;
pub use handle::{DeadLetters, Handle, Page};
pub use matcher::{Matchable, Matcher};
pub use numbers::{QueueNumbers, TenantStatus};
pub use options::Options;
pub use pattern::Flaw as PatternFlaw;
pub use pull::{Handed, PullRequest, Source};
pub use receipt::{Malformed, Receipt};
pub use settle::Settled;
pub use store::{Act, Cleared, Configured, SLICES_LUA, Store, Stored, Taken};
