//! The event bus: topics, subscribers, batches and jobs.
//!
//! A publisher posts events to a topic; every subscriber of the topic gets them over HTTP, in batches, at least once,
//! and for each object in the order in which they were accepted. The names of keys, the life of a batch and the life of
//! a job are those of Routemaster (its `INTERNALS` document), behind `bus:`.
//!
//! ```text
//!  Handle::publish ─▶ commit.rs ─▶ publish.lua ──┬─▶ bus:log:<segment>     each body once
//!   (many at once)    one call at  one atomic    ├─▶ lanes of subscribers  only ids: batches, jobs
//!                     a time       call          └─▶ PUBLISH environment:type:topic
//!
//!  worker.rs ─ acquire.lua ─▶ Deliverer ─▶ ack.lua │ nack.lua (wait, halve) │ bury.lua (dead letter, gap)
//!  housekeeping.rs: scrub, purge, limits, trim, memory      replay.rs, dead.rs: events put into lanes again
//! ```
//!
//! # Data
//!
//! `docs/keys.md` has the rows. What matters for understanding:
//!
//! * **Ids** rise within a shard: `max(last + 64, (now − 2024) · 6400 + shard)`. They are numbers below 2^53, and Lua
//!   prints them with `%.0f` only. `bus:objects` holds the last id of each object and of each object and topic, so
//!   `prev` and `tprev` cost one read and one write for a whole call. It is two hashes that are exchanged, so an object
//!   that was quiet for long is forgotten, at the earliest after `object_seconds` or `objects` others, which is
//!   longer than any batch lives.
//! * **The log** holds each body once, in segments of ten seconds of ids, `bus:log:<segment>`. A segment's name follows
//!   from an id by a division, so nothing has to be looked up. Events put into a lane again are stored again in the
//!   present segment and written `id@segment`; therefore no batch needs a segment older than its creation, and a
//!   segment older than the oldest batch can go.
//! * **A lane** is a subscriber's part of the objects, by hash modulo `concurrency`. It has at most one batch that fills
//!   (`current`), a list of full ones (`ready`) whose head is in flight, one job, and the gaps that it still has to tell.
//!   Lanes belong to a **generation**, which changes with `concurrency`. The lanes of a newer one wait until the older
//!   one is empty, because an object may have changed its lane.
//! * **The registry** (topics with their claims, subscriptions, tokens) is pure Rust (`registry.rs`). It is stored as one
//!   snapshot with a stamp in every shard and, in the first, also key by key as the original did. A change is computed
//!   from the snapshot and written if the stamp still stands. A publish brings the stamp its fan-out was computed from:
//!   if the shard has another, nothing happens and the pacemaker reads again. So no event misses a subscription that
//!   was confirmed before it, and none is fanned out to one that ended.
//!
//! # Life of a lane
//!
//! ```text
//!            publish (first event: now + timeout)            full, or due
//!   no job ───────────────────────────────────▶ scheduled ───────────────▶ instant ◀──────────┐
//!     ▲                                          ▲     ▲                     │ acquire: the    │
//!     │ nothing left                             │     │ nack: a pause       │ head of ready,  │ scrub:
//!     │                                          │     │ nothing shortens    │ or the current  │ its worker
//!     │        something fills: created+timeout  │     │                     ▼                 │ died
//!     └────────────────── ack, bury ─────────────┴─────┴───────────────── pending ─────────────┘
//!                         (a full batch waits: instant)                  (or waiting: for an older generation)
//! ```
//!
//! A job is the MessagePack of `["lane", [token, generation, lane]]` and is in exactly one of these states while its lane
//! has a batch, and in none otherwise. A publish makes a job only for a lane without batches; otherwise there is one,
//! and who settles it looks at the lane again in the same script. So no wake-up is lost and nothing is queued twice.
//!
//! Acknowledging names worker, job *and* batch. A worker whose job was taken away (scrubbed) holds nothing and commits
//! nothing; one that repeats an acknowledgement whose reply was lost finds another batch at the head, and nothing
//! happens; one that repeats an acquisition gets what it holds already.
//!
//! # Invariants
//!
//! 1. An accepted event is in the log and in a batch of every subscriber, until it is delivered, a dead letter with a
//!    gap, or dropped with a gap.
//! 2. Per object, first deliveries are in id order: one lane, one job, one batch in flight, the head stays the head.
//! 3. `prev` and `tprev` name the event before, or what is older than anything that can still be delivered.
//! 4. Gauges are the truth: the sum over the batches that are there.
//! 5. Every script reads and checks all it needs before its first write; a publish at the memory limit does nothing, and
//!    what frees memory begins with a write that is allowed then.
//!
//! # What happens when…
//!
//! * **a pacemaker dies**: before its call arrived, nothing happened. After it, the events are accepted and its client
//!   does not know; `Idempotency-Key` is for that. Its deliveries are scrubbed by another after `dead_after_ms` without
//!   a heartbeat, counted as attempts, and made again.
//! * **a reply is lost**: the same call is sent again. Publishing compares `bus:call:<pacemaker>:<slot>`; everything
//!   else is made so that a repeat finds nothing left to do. A call that was given up is refused if it arrives later.
//! * **Redis restarts**: publishers get [`Refusal::Unavailable`], workers keep their outcomes and settle them when it is
//!   back. Nobody is scrubbed for having been silent meanwhile: a worker is dead when a *living* pacemaker has watched
//!   it without a beat, on its own clock, through an uninterrupted time.
//! * **Redis is replaced by an empty one**: [`Refusal::Uninitialised`], an error in the log, until an operator calls
//!   [`Handle::initialise`]. Accepting events that nobody is subscribed to would be losing them politely.
//! * **Redis is full**: publishers get [`Refusal::Full`] and nothing is half done. Housekeeping forgets what is only
//!   kept for replay, then the oldest batches of the noisiest subscriber, each with a gap.
//! * **a subscriber is gone** (410): nothing new is put into its lanes; what waits stays until it subscribes again or
//!   becomes too old.
//! * **a delivery panics, hangs, or takes long**: it is a failed attempt; a slow one stops counting as a worker.
//! * **a subscription ends**: from the next publish on nothing is fanned out to it. Its lanes are cleared away part by
//!   part, by whoever comes first, and their generation's number never comes back.

// The testkit of this crate is compiled into its own unit tests as well, where it must mean this very crate.
#[cfg(test)]
extern crate self as signalbox_bus;

pub mod backend;
mod cache;
mod chance;
mod change;
mod check;
mod commit;
mod core;
mod dead;
pub mod deliver;
mod error;
pub mod event;
mod handle;
mod housekeeping;
pub mod intake;
pub mod metrics;
mod options;
mod register;
mod registry;
mod replay;
mod service;
mod store;
#[cfg(test)]
pub(crate) mod tests;
pub mod verdict;
mod view;
mod window;
mod worker;

pub use backend::{Backend, OnFailure, Queued, WantedBackend};
pub use change::{Change, Index};
pub use check::Finding;
pub use deliver::{BatchContents, Deliverer, Webhooks};
pub use error::{Error, Refusal};
pub use event::shard_of;
pub use event::{Event, EventId, Gap, ID_EPOCH_MS, IDS_PER_MS, Kind, NewEvent, NewMessage};
pub use handle::{
    DeadLetter, Gauges, Handle, NewGroup, Page, SubscriberGauges, SubscriptionStatus, TopicStatus,
};
pub use options::Options;
pub use registry::{
    ApiToken, OnExhausted, RESERVED, Registry, Subscription, Wanted, is_reserved_topic, is_topic_name,
};
pub use service::Bus;
pub use store::{FabricMemory, OBJECTS_LUA};
pub use window::{Logged, Window};
