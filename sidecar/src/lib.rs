//! The log agent of a router: counts nginx's access log into the statistics Redis, exactly once, and serves `/stats`.
//!
//! ```text
//!  access.log ─▶ follow ─▶ line ─▶ fold ─▶ commit ─▶ statistics Redis ─▶ api ─▶ /stats
//!                  │ rotate (rename, USR1)                 ▲
//!                  ▼                                       │ router:<node>
//!                nginx ──────── acknowledgements ────────▶ edge ─▶ routes.snapshot on disk
//! ```
//!
//! Modules: [`follow`] (which bytes of which file), [`line`] (parses a line), [`fold`] (adds many lines up to few
//! increments), [`commit`] (counters and position in one script), [`rotate`], [`edge`] (acknowledged serials, the snapshot
//! of the route table, lost lines), [`api`] (HTTP) and [`metrics`].

pub mod api;
pub mod clock;
pub mod commit;
pub mod config;
pub mod edge;
pub mod fold;
pub mod follow;
pub mod line;
pub mod metrics;
pub mod place;
pub mod rotate;
