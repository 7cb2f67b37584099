//! The route table: which instances serve which host.
//!
//! **Purpose.** Clients register instances over HTTP with the *pacemaker*, Signalbox's control plane, which runs this
//! crate. The registrations are the *desired state*. They are stored in the *fabric*, the Redis that also has events
//! and the labels of state machines. The route table is the *projection* of the desired state: a copy on another Redis,
//! the *routes primary*, in the form that the *edge* (the nginx data plane) reads. Each router (a machine of the edge)
//! has a replica of it. The table can be rebuilt from the desired state at any time.
//!
//! Each change increments the *serial* of the table. A table that was filled again from the desired state gets a new
//! *epoch*, and serials can be compared only within one epoch. The list of a table's epochs is its *lineage*.
//!
//! **Data.** In the fabric: `routes:instances` (ID → record with revision), `routes:addresses` (address → owner),
//! `routes:hosts` (host names, known until their host is deleted), `routes:policies`, `routes:promotions` and
//! `routes:certificates` (by name), `routes:unprojected` (changes that the table may not have yet), `routes:unreported` (registrations that the
//! stats Redis, which stores the instances of each version type, may not have yet), `routes:table` (the lineage and the
//! highest serial of the routes primary), `routes:announced` (the last change that was published as an event),
//! `routes:revision`.
//!
//! On the routes primary, read by nginx: `instances:`, `logkey:` and `policy:` per host, `cert:` per server name,
//! `challenge:` per token, `serial`, and `epoch` (the lineage). Not read by nginx: `instance_ids:` per host,
//! `instance:<id>`, `rules:<host>`, `promotion:<host>`, `certificate:<server name>`, `addresses`, `leases`, `drains`, `checks`, `revision`,
//! `fencing`, `changes`.
//!
//! **A change** has three steps. One script in the fabric compares the stored state with the state that was read,
//! assigns a revision, and marks the change as unprojected. Then one script on the primary compares revisions, changes
//! everything, and increments the serial last. Then the mark is removed. Each step can be repeated, and the reconciler
//! completes interrupted changes. The script on the primary also records the change under the same serial, and the
//! announcer publishes it as an event. Policies, promotions and certificates are called resources, and use the same code
//! (`store/resource.rs`).
//!
//! ```text
//!            PUT             POST drain            deadline, DELETE
//! (nothing) ─────▶ active ───────────────▶ draining ───────────────▶ tombstone ──1 h──▶ (nothing)
//!                    │  ◀───────────────      │                          ▲
//!                    │   PUT, new address     │                          │
//!                    └────────────────────────┴── lease ended, address ──┘
//!                                                 taken over, DELETE
//! ```
//!
//! An instance that a promotion replaces drains, is on *standby* for the time in which the promotion can be undone, and is
//! then removed. An instance of a replaced version type that registers again begins on standby (`promotion.rs`). Routers
//! send neither of them new requests.
//!
//! **Invariants.** An address has one owner: the newest registration. If projections arrive in another order, the one
//! with the higher revision wins. The serial increases only with changes that routers can observe, and with each of
//! them. Entries that an operator wrote to the routes primary directly are never changed, unless their host is deleted.
//! Nothing is written to a table of an unexpected lineage.
//!
//! **Behavior under failure.**
//!
//! * Fabric unavailable: changes are rejected; heartbeats and routing continue.
//! * Routes primary unavailable: changes are recorded, answered with 503, and projected when it is available again.
//! * Routes primary empty or older than the desired state: the reconciler fills it again, under a new epoch.
//! * Fabric lost, or older than the table: the newer records of the table are copied to the fabric.
//! * No pacemaker running: nothing expires. When one runs again, each lease gets a full period.
//! * Stats Redis unavailable: only waiting until routers have acknowledged a change fails.

mod announcer;
mod change;
mod error;
mod health;
mod in_flight;
mod metrics;
mod promotion;
mod propagation;
mod reconciler;
mod registry;
mod routers;
mod state;
mod store;
mod sweeper;
#[cfg(test)]
mod tests;

pub use announcer::{Announce, Announcer, EventKind, RouteEvent};
pub use change::{ChangeKind, RouteChange};
pub use error::Error;
pub use health::Prober;
pub use in_flight::in_flight;
pub use metrics::Metrics;
pub use promotion::{Before, Promotion, Undone};
pub use reconciler::Reconciler;
pub use registry::{AlteredPolicy, Limits, NotPromoted, PromotionTimes, Registry, ResourceChange};
pub use routers::{Convergence, KNOWN_MS, LIVE_MS, Routers, has_acknowledged, liveness};
pub use state::{HostTable, ejected, host_state};
pub use store::{
    Certificate, InstanceState, Live, RouterReport, Store, Stored, TableState, Wanted, host_pace,
};
pub use sweeper::Sweeper;
