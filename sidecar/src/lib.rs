//! The router-local daemon: follows nginx' access log into the statistics Redis, exactly once, and answers `/stats`.
//!
//! ```text
//!  access.log ─▶ follow ─▶ line ─▶ fold ─▶ commit ─▶ statistics Redis ─▶ api ─▶ /stats
//!                  │ rotate (rename, USR1)                 ▲
//!                  ▼                                       │ router:<node>
//!                nginx ──────── acknowledgements ────────▶ edge ─▶ routes.snapshot on disk
//! ```
//!
//! The rooms: [`follow`] (which bytes of which file), [`line`] (what a line says), [`fold`] (many lines, few
//! increments), [`commit`] (counters and position in one script), [`rotate`], [`edge`] (what nginx acknowledged, the
//! table's snapshot, lost lines), [`api`] (HTTP) and [`metrics`].

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
