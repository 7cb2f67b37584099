//! The rules of what is wrong with a running Signalbox, how bad it is, and how to fix it.
//!
//! `signalbox doctor`, the dashboard's overview and the pacemaker's own events use the same rules, so that they cannot
//! disagree. A caller collects [`Facts`], and [`diagnose`] returns [`Finding`]s. The crate is pure: it performs no I/O
//! and reads no clock.
//!
//! # Invariants
//! * The same facts give the same findings, independent of the caller.
//! * A check whose facts are [`Checked::Skipped`] is reported as skipped and never as healthy. A caller starts from
//!   [`Facts::skipped`], so a fact that it does not collect is skipped by default.
//! * A finding's [`Finding::id`] is stable: programs compare it, and documentation links to it.
//! * Facts of one check do not change the findings of another, with one exception: a router's own report
//!   replaces the same finding of the local nginx or sidecar ([`diagnose`]).

pub mod certificates;
mod facts;
mod finding;
pub mod hosts;
pub mod installation;
pub mod machines;
pub mod messages;
pub mod redis;
pub mod routers;
pub mod sidecar;
mod text;
pub mod thresholds;
pub mod traffic;

pub use facts::{Checked, Facts, diagnose};
pub use finding::{Diagnosis, Finding, Severity, Skipped, Subject, kinds};
pub use text::{span, thousands};
