//! The route table: who serves which host.
//!
//! **Purpose.** Clients register instances over HTTP ([`api`]). What they want is *desired state* in the fabric; the
//! route table on the routes master, which routers replicate and nginx reads, is its *projection* and can be made anew
//! at any time.
//!
//! **Data.** Fabric: `routes:instances` (id → record with revision), `routes:addresses` (address → owner),
//! `routes:hosts` (names that stay known), `routes:policies` (what is wanted of the edge for a host), `routes:certificates` (of server names), `routes:unprojected` and `routes:unreported` (what may not have reached the
//! table, or the membership sets), `routes:table` (lineage and serial that the master was given), `routes:announced` (up
//! to where changes were told as events), `routes:revision`.
//! Routes master: `instances:`, `logkey:`, `instance_ids:`, `policy:` per host, `cert:` per server name and `serial`, which the edge reads;
//! `instance:<id>`, `rules:<host>`, `certificate:<server name>`, `addresses`, `leases`, `drains`, `checks`, `revision`, `duties`, `changes`, which it
//! does not; `epoch`.
//!
//! **A change** is one script in the fabric (compare with what was read, give a revision, note as unprojected), then
//! one script on the master (compare revisions, change everything, raise the serial last), then the note is taken
//! away. Each of them can be repeated, and the reconciler completes what was interrupted. What a change did is written
//! down by the same script under the same serial, and [`announcer`] tells it to subscribers.
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
//! hand are never touched, unless their host is deleted. Nothing is written to a table whose lineage is not the one
//! that was meant.
//!
//! **Failure.** Fabric away: changes are refused, heartbeats and routing go on. Master away: changes are recorded,
//! answered 503, and projected when it is back. Master back but empty or older: [`reconciler`] seeds it again under a
//! new epoch. Fabric lost or older: the master's newer records are taken over. Pacemakers away: nothing expires, and
//! leases get a full period when one is back. Stats Redis away: only waiting for routers fails.

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
pub use routers::{Convergence, KNOWN_MS, LIVE_MS, Liveness, Routers, has_acknowledged};
pub use store::{Certificate, Heartbeat, Live, Noted, RouterReport, Store, Stored, TableState, Wanted};
pub use sweeper::Sweeper;
