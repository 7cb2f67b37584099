//! The event bus: topics, subscribers, batches and jobs.
//!
//! A publisher posts events to a topic. Every subscriber of the topic receives them over HTTP, in batches, at least
//! once. An event belongs to an *object*, its ordering key: events of one object arrive in the order in which they were
//! accepted. The names of keys, and the states of batches and jobs, are those of Routemaster, the event bus that this
//! one replaces (its `INTERNALS` document). The prefix of the keys is `bus:`.
//!
//! The daemon that runs this crate is the *pacemaker*, Signalbox's control plane. All data is in the *fabric*, the
//! Redis that stores desired state, events and the labels of state machines. The fabric can be divided into *shards*:
//! each has its part of the objects, and all its keys are on one Redis node, so that a script can change them in one
//! step.
//!
//! ```text
//!  Handle::publish ─▶ commit.rs ─▶ publish.lua ──┬─▶ bus:log:<segment>     each body once
//!   (concurrently)    one call at  one atomic    ├─▶ lanes of subscribers  only ids: batches, jobs
//!                     a time       call          └─▶ PUBLISH tenant:type:topic
//!
//!  worker.rs ─ acquire.lua ─▶ Deliverer ─▶ ack.lua │ nack.lua (wait, halve) │ bury.lua (dead letter, gap)
//!  housekeeping.rs, idle.rs: scrub, purge, limits, trim, memory      replay.rs, dead.rs: append events to lanes again
//! ```
//!
//! A *gap* is a record that names events which a subscriber will not receive. A *scrub* takes the job of a dead worker
//! away from it, so that another worker can take the job.
//!
//! # Data
//!
//! `docs/keys.md` lists the keys. The concepts are:
//!
//! * **IDs** increase within a shard: `max(last + 64, ms · 6400 + shard)`, where `ms` counts milliseconds since 2024. They
//!   are numbers below 2^53, and Lua prints them with `%.0f` only. Each event names the previous event of its object
//!   (`prev`) and the previous one of its object in the same topic (`tprev`). `bus:objects` has these last ids, so that
//!   both cost one read and one write for a whole call. (The last ID of a label is in its record.) It consists of two hashes that rotate. An object
//!   without new events is removed only after `object_seconds`, or after `objects` other objects have had events. Both
//!   are longer than the maximum age of a batch.
//! * **The log** holds each body once, in segments of ten seconds of IDs, `bus:log:<segment>`. Dividing an ID yields
//!   its segment, so no lookup is needed. If an event is appended to a lane again, its body is stored again in the
//!   current segment, and the batch refers to it as `id@segment`. Each segment counts the items that subscribers still
//!   need. One without any can be removed, even if older ones are needed. When the log is full, bodies that subscribers wait
//!   for to which nothing can be delivered are moved to segment 0 (`id:0`), so that a few of them do not keep segments full of
//!   other events. Segment 0 counts the items that need each of its events, and removes an event with the last of them.
//! * **A lane** is one of the `concurrency` parallel sequences of batches of a subscriber. The hash of an object
//!   selects its lane. A lane has at most one batch that is being filled (`current`), a list of full batches (`ready`)
//!   whose head is in flight, one job, and the gaps that it still has to report. Lanes belong to a **generation**. When
//!   `concurrency` changes, a new generation begins. Its lanes wait until the older generation is empty, because an
//!   object may be in another lane than before.
//! * **The registry** contains topics with their owners, subscriptions and tokens (`registry.rs`, without I/O). Every
//!   shard stores it as one snapshot with a stamp; the first shard also stores it key by key, as in Routemaster. A
//!   change is computed from the snapshot and written if the stamp is unchanged. A publish call contains the stamp of
//!   the registry from which its list of subscribers was computed. If the shard has another stamp, nothing is written,
//!   and the pacemaker reads the registry again. So an event reaches every subscription that was confirmed before the
//!   event was accepted, and none that had ended.
//!
//! # Life of a lane
//!
//! ```text
//!            publish (first event: now + timeout)            full, or due
//!   no job ───────────────────────────────────▶ scheduled ───────────────▶ instant ◀──────────┐
//!     ▲                                          ▲     ▲                     │ acquire: the    │
//!     │ nothing left                             │     │ nack: a fixed       │ head of ready,  │ scrub:
//!     │                                          │     │ pause               │ or the current  │ its worker
//!     │        something fills: created+timeout  │     │                     ▼                 │ died
//!     └────────────────── ack, bury ─────────────┴─────┴───────────────── pending ─────────────┘
//!                         (a full batch waits: instant)                  (or waiting: for an older generation)
//! ```
//!
//! A job that was taken and gets no place (`shares.rs`) is put back by `refuse.lua`. It is *behind* until a delivery to its
//! subscriber ends, or *slow* until a pacemaker has a place for another slow delivery. Neither is polled: the script that ends
//! the delivery makes the next one ready, and a pacemaker takes as many slow ones as it has places.
//!
//! Whatever ends the pauses of a subscriber (`kick.lua`: it subscribed again, was changed, or is retried) also counts them, in
//! `kicks`. A job remembers the count of the time when it was taken. If it is settled under another count, its lane does not
//! pause, because the failure may be that of a former receiver. The script that stores a change of a subscription also notes it
//! in `bus:changed`, and housekeeping ends the pauses if the process that made the change did not get as far as that.
//!
//! A job is the MessagePack of `["lane", [token, generation, lane]]`. It is in exactly one of these states while its
//! lane has a batch. While the lane has none, the job does not exist. A publish creates a job only for a lane without
//! batches. Any other lane already has a job, and the script that settles this job checks the lane again. So no wake-up
//! is lost and no job is queued twice.
//!
//! An acknowledgement names worker, job *and* batch. A worker that was scrubbed no longer holds the job, so its
//! acknowledgement is rejected. If a worker repeats an acknowledgement after a lost reply, another batch is at the
//! head, and nothing changes. A worker that repeats an acquisition gets the job that it already holds.
//!
//! # Invariants
//!
//! 1. An accepted event is in the log and in a batch of every subscriber, until it is delivered, dead-lettered with a
//!    gap, or dropped with a gap.
//! 2. First deliveries of an object's events are in id order: an object has one lane, a lane has one job, and a job has one
//!    batch in flight, which stays at the head until it is settled.
//! 3. `prev` and `tprev` name the previous event, or one that is older than every event that can still be delivered.
//! 4. Each gauge equals the sum over the existing batches.
//! 5. Every script reads and checks everything it needs before its first write. A publish at the memory limit changes
//!    nothing, and a script that frees memory starts with a write that Redis allows at the limit.
//!
//! # Behavior under failure
//!
//! * **A pacemaker dies.** If its publish call had not reached Redis, nothing happened. Otherwise the events are
//!   accepted, although the publisher gets no answer; an `Idempotency-Key` makes a retry safe. After `dead_after_ms`
//!   without a heartbeat, another pacemaker scrubs the workers of the dead one. It counts each of their jobs as an
//!   attempt, and the batches are delivered again.
//! * **A reply is lost.** The same call is sent again. A publish script recognizes a repeated call by the sequence
//!   number in `bus:call:<pacemaker>:<slot>`, and returns the first reply. Repeating any other script changes nothing.
//!   A call that its sender abandoned is rejected if it arrives later.
//! * **Redis restarts.** Publishers get [`Refusal::Unavailable`]. Workers remember the outcomes of their deliveries,
//!   and settle them when Redis is available again. No worker is scrubbed because of an outage: a worker is dead only
//!   after a *running* pacemaker has observed no heartbeat of it, on its own clock, for an uninterrupted period.
//! * **A replica without the latest acknowledged calls is promoted.** Each shard stores the sequence number of the last
//!   call of each pacemaker. The next call finds that this number is too old. The lost events are counted
//!   (`events.lost`) and logged, and the call is sent again (`acknowledged.rs`).
//! * **Redis is replaced by an empty one.** Publishers get [`Refusal::Uninitialized`], and an error is logged, until an
//!   operator calls [`Handle::initialize`]. The empty server has no subscriptions, so accepted events would be lost.
//! * **Redis is full.** Publishers get [`Refusal::Full`], and no publish is applied in part. Before that,
//!   housekeeping removes events that are retained only for replay, and then rejects new data of the owners that use most:
//!   tenants, clients with many tenants or idempotency keys, and labels of machines ([`Refusal::MemoryShort`]). If that
//!   is not enough, it drops the oldest batches of the largest subscriber, if that frees memory, and stores a gap for each.
//! * **A subscriber answers 410.** Its lanes receive no new events. Waiting events stay until it subscribes again or they
//!   exceed their maximum age.
//! * **A delivery panics, hangs, or takes long.** A panic or a timeout is a failed attempt. A delivery that takes
//!   long releases its worker, so it does not delay other subscribers.
//! * **A subscription ends.** It receives no events that are published later. Its lanes are removed in parts, by any
//!   pacemaker, and the number of their generation is never used again. From then on, nothing of these lanes is delivered,
//!   counted, buried, or reported as a gap: the client may have subscribed again (`lanes.has_ended`).

// The testkit is also compiled into the unit tests of this crate (`tests/mod.rs`). This makes `signalbox_bus` in its
// source refer to the crate under test.
#[cfg(test)]
extern crate self as signalbox_bus;

mod acknowledged;
mod attempts;
mod backend;
mod cache;
mod change;
mod check;
mod clients;
mod commit;
mod core;
mod dead;
mod deliver;
mod error;
mod event;
mod gauges;
mod handle;
mod housekeeping;
mod idle;
pub mod intake;
mod metrics;
mod options;
mod queue_admin;
mod registry;
mod replay;
mod retry;
mod rng;
mod sealed;
mod service;
mod shares;
mod store;
mod subscriptions;
#[cfg(test)]
pub(crate) mod tests;
mod topics;
mod verdict;
mod view;
mod window;
mod worker;

pub use backend::{Backend, WantedBackend};
pub use change::{Change, Index, Log};
pub use clients::{ApiToken, is_reserved_tenant, tenant_of_machine};
pub use dead::{DeadLetter, Page};
pub use deliver::{BatchContents, Delivered, Deliverer, Webhooks, rendered_for};
pub use error::{Error, Limit, Refusal};
pub use event::{Delay, Event, EventId, Gap, ID_EPOCH_MS, IDS_PER_MS, Kind, NewEvent, NewMessage, shard_of};
pub use handle::{Handle, NewGroup};
pub use metrics::Metrics;
pub use options::Options;
pub use registry::Registry;
pub use retry::Retry;
pub use sealed::{Credentials, LOCKED};
pub use service::Bus;
pub use signalbox_api::health::Finding;
pub use signalbox_api::objects::{OnFailure, Queued};
pub use store::{FabricMemory, OBJECTS_LUA, SETTLE_LUA};
pub use subscriptions::{Alteration, OnExhausted, Subscription, SubscriptionStatus, Wanted};
use topics::is_own_topic;
pub use topics::{AUDIT, RESERVED, is_audit_topic, is_reserved_topic, is_topic_name};
pub use window::{Logged, Window};
