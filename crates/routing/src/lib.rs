//! The route table: which instances serve which host.
//!
//! **Purpose.** Clients register instances over HTTP. Their registrations are the *desired state*, stored in the fabric. The
//! route table is its *projection* on the routes primary: routers replicate it, nginx reads it, and it can be rebuilt at
//! any time.
//!
//! **Data.** Fabric: `routes:instances` (ID → record with revision), `routes:addresses` (address → owner), `routes:hosts`
//! (names that remain known), `routes:policies` and `routes:certificates` (resources of names), `routes:unprojected`
//! (changes that the table may not have yet), `routes:unreported` (registrations that the stats Redis may not have yet: it
//! stores which instances a version type has), `routes:table` (lineage and serial that the primary was given),
//! `routes:announced` (the last change that was published as an event),
//! `routes:revision`.
//! Routes primary, read by the edge: `instances:`, `logkey:`, `instance_ids:` and `policy:` per host, `cert:` per server
//! name, and `serial`. Not read by the edge: `instance:<id>`, `rules:<host>`, `certificate:<server name>`, `addresses`,
//! `leases`, `drains`, `checks`, `revision`, `fencing`, `changes`, `epoch`.
//!
//! **A change** is one script in the fabric (compare with the state that was read, assign a revision, mark as
//! unprojected), then one script on the primary (compare revisions, change everything, raise the serial last), then
//! the mark is removed. Each step can be repeated, and the reconciler completes interrupted changes. The script on the
//! primary also records the change under the same serial, and the announcer publishes it to subscribers. Policies and
//! certificates are resources, which all use the same code (`store/resource.rs`).
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
//! **Invariants.** An address has one owner: the newest registration. The higher revision wins, whatever order
//! projections arrive in. The serial rises exactly when routers can see a difference. Entries that an operator made by
//! hand are never changed, unless their host is deleted. Nothing is written to a table of an unexpected lineage.
//!
//! **Failure.** Fabric unavailable: changes are rejected; heartbeats and routing continue. Primary unavailable: changes are
//! recorded, answered with 503, and projected when it is available again. Primary empty or older: the reconciler seeds it
//! under a new epoch. Fabric lost or older: the primary's newer records are copied to it. No pacemaker running: nothing
//! expires, and leases get a full period when one runs again. Stats Redis unavailable: only waiting for routers fails.

mod announcer;
mod change;
mod error;
mod health;
mod in_flight;
mod metrics;
mod propagation;
mod reconciler;
mod registry;
mod routers;
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
pub use propagation::{PROPAGATION_BOUNDS_MS, Percentiles};
pub use reconciler::Reconciler;
pub use registry::{DrainedNode, NotSwitched, Registry, ResourceChange, Switched};
pub use routers::{Convergence, KNOWN_MS, LIVE_MS, Routers, has_acknowledged, liveness};
pub use store::{
    Certificate, Heartbeat, InstanceState, Live, Noted, RouterReport, Store, Stored, TableState, Wanted,
};
pub use sweeper::Sweeper;
