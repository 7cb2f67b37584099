//! State machines: labels that move from state to state when their metadata changes.
//!
//! A machine is defined in YAML, which the crate `signalbox_machine` reads. A *label* is an entity that the machine
//! tracks: a name that is in one of the machine's states, with metadata from clients and a history. Clients update
//! metadata, and the definition decides which state the label enters next. A state is a *gate*, which waits until its
//! condition is true, or an *action*, which does something, or an end state.
//!
//! The daemon that runs this crate is the *pacemaker*, Signalbox's control plane. Labels are stored in the *fabric*,
//! the Redis that also has the desired state and the events of the bus (`signalbox_bus`). The fabric can be divided
//! into *shards*, each with its part of the labels.
//!
//! ```text
//!  PATCH metadata ─┐                               ┌─ not true: nothing ─┐
//!  due, sweeps ────┼─▶ LabelStore: read ─▶ Evaluator ──┤                 ├─▶ commit: record, indexes, times, events: one step
//!  bus topics ─────┘     ▲   (step::decide)        └─ moves, attempts ───┘       │ (bus::Handle::change, labels.lua)
//!                        └──────── refused: the label has changed ───────────────┤
//!                                                                                ▼
//!                       actions: webhook, route, publish ◀── Runner ──▶ feeds, then evaluated again
//! ```
//!
//! # Modules
//!
//! Each module uses only modules above it.
//!
//! | module | contents |
//! |---|---|
//! | `options`, `faults` | configuration; fault injection |
//! | `log`, `error` | the lines of a label's log; errors (its record is in `crates/label`) |
//! | `answer` | answers to clients, and idempotency keys |
//! | `store` | every access to the fabric, one small type per kind of data |
//! | `clock`, `secrets` | the fabric's clock; values for headers and signatures |
//! | `definitions` | versions of definitions, cached |
//! | `fair`, `effort` | places for work that may take long; evaluations that take long |
//! | `evaluator` | applies an update, a time or an event to a record; without I/O |
//! | `actions`, `metrics`, `feeds` | one attempt of an action; counters; one request to a feed |
//! | `flow` | counts of transitions, times in states, and conversions |
//! | `commit`, `sweep_entries` | parts of a change: commit, sweeps to add |
//! | `label_store` | [`LabelStore`]: reads, and compare-and-set changes |
//! | `limits` | limits of addresses: which waiting labels may begin an attempt |
//! | `runner` | `Runner`: what follows a change in the background: attempts of actions, requests to feeds |
//! | `labels`, `sweeps`, `apply` | the changes themselves: by clients, by times of day, by definitions |
//! | `search`, `tasks` | finds labels by a filter; operations on all of them, in the background |
//! | `old_tasks` | moves tasks that earlier versions have stored |
//! | `background` | work on entries of the due set that may take long |
//! | `turns` | which machines get how much of a page of due entries |
//! | `due_times`, `inputs`, `reconcile` | what causes changes without a request: due times, events, lost sweeps |
//! | `recount` | counts the bytes of labels again, after an upgrade |
//! | `inspector` | [`Inspector`]: read-only requests, such as counts, explanations, predictions and checks |
//! | `handle` | [`Handle`]: the interface for request handlers |
//! | `assembly` | puts the parts together |
//! | `service` | [`Service`]: runs everything that happens without a request |
//!
//! # Data
//!
//! `docs/keys.md` describes the keys. A label's record is one packed string (`crates/label`). A label is also an
//! object of the bus, that is, the ordering key of its events. So its events are ordered, and each names the previous
//! one (`prev`). `machine:<m>:in:<state>` and similar keys are sorted sets of names, used for lists, counts and sweeps.
//! `machine:<m>:due`, the *due set* of a machine, has two kinds of entries above all. One kind is for a label with a pending time:
//! a retry, a repeated feed request, an interval, an attempt in progress. The other kind is a *sweep*, one for each gate, time of
//! day and zone: it evaluates the gate's labels page by page and stores its progress. `machine:next` has each machine at the time
//! of its first entry, so that what one machine has due is not in the way of others.
//!
//! # Invariants
//!
//! 1. A transition and its event are stored in one step. A transition that was computed from an older record, or under a
//!    definition that is no longer active in the shard, is rejected. The script compares four numbers: the label's
//!    incarnation (incremented when a deleted label is created again), visit (incremented with each transition) and
//!    revision (incremented with each change), and the definition's version.
//! 2. An attempt is counted before it is made. All attempts of one visit carry the same idempotency token.
//! 3. Every label that waits for a time has an entry in the due set, or is at a gate that has a sweep. A label with an
//!    action or a feed request in progress also has an entry. If this process dies, another one continues when the
//!    entry is due.
//! 4. Once a change of a definition has begun, it is completed: the record of the change stays until every shard has
//!    the new version (`apply.rs`).
//!
//! # Behavior under failure
//!
//! * **A pacemaker dies** after a commit and before the attempt or request that follows. The pacemaker that
//!   holds the shard's lease continues when the label's entry in the due set is due: five seconds after the timeout of
//!   the attempt, or half a minute after the feed request began.
//!   A sweep and a page of a task continue ten seconds after they were last postponed.
//! * **A reply is lost**: the bus repeats the call and gets the first reply. If the outcome stays unknown, the client
//!   gets 503 and can repeat the request with its idempotency key. If no client requested the change, the pacemaker
//!   reads the label again and repeats the change if it is still needed.
//! * **A record cannot be read** (damaged, or written by a later version): the label is skipped, all others continue,
//!   and the check and a metric report it.
//! * **Redis lost the writes of its last second** in a crash: sweeps that are missing in the due set are added again
//!   (`reconcile.rs`).
//! * **Redis restarts**: an outcome of an action is kept in memory for up to a quarter of an hour, and written when
//!   Redis answers.
//! * **A label is deleted during an attempt**: the outcome is added to its history, and has no other effect.
//! * **An event is read twice**, or by a pacemaker that was paused: the label stores the last event that it applied
//!   from each shard, and ignores older ones.
//! * **A day's sweep was missed**: the last missed time is handled later, if it is within the trigger's grace period,
//!   for all labels that were at the gate at that time.
//! * **Two pacemakers evaluate one label**: the second commit is rejected. Its pacemaker reads the new record and
//!   evaluates the label again.

mod actions;
mod answer;
mod apply;
mod assembly;
mod audit;
mod background;
mod clock;
mod commit;
mod definitions;
mod due_times;
mod effort;
mod error;
mod evaluator;
mod fair;
mod faults;
mod feeds;
mod flow;
mod handle;
mod inputs;
mod inspector;
mod label_store;
mod labels;
mod limits;
mod log;
mod metrics;
mod old_tasks;
mod options;
mod places;
mod population;
mod reconcile;
mod recount;
mod runner;
mod search;
mod secrets;
mod service;
mod store;
mod sweep_entries;
mod sweeps;
mod tasks;
#[cfg(test)]
mod tests;
mod turns;

/// The name of the lease under which one pacemaker works on the due times of a shard.
pub fn lease_name(shard: usize) -> String {
    format!("machines-{shard}")
}

pub use actions::route::hosts;
pub use answer::Answer;
pub use apply::{Applied, Applier};
pub use assembly::Dependencies;
pub use audit::{Audit, AuditLog, Change};
pub use definitions::{Definitions, StoredPlan, StoredVersion, Version, parse_stored};
pub use error::Error;
pub use evaluator::instant;
pub use feeds::Health;
pub use flow::{FlowReader, KEPT_HOURS};
pub use handle::Handle;
pub use inspector::{
    Assumptions, CheckCursor, CheckPage, Checker, Counts, Explainer, Inspector, Overview, Planner, Wake,
    Waking,
};
pub use label_store::LabelStore;
pub use labels::{Labels, Operated, Operation, Update, is_label_name};
pub use log::{Activity, Entry, Line};
pub use options::Options;
pub use search::{Filter, Found, Search, Total};
pub use secrets::Secrets;
pub use service::Service;
use signalbox_label as record;
pub use signalbox_label::{Cause, Record, Row, Status, Work};
pub use tasks::{HasEnded, Job, MAX_RATE, Task, TaskRunner, TaskState};
