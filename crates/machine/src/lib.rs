//! State machines: their definition and their next steps, as functions of a definition, a label and a moment.
//!
//! This crate uses no Redis, no network and no clock. The engine in the pacemaker stores labels, calls webhooks and
//! queries feeds; this crate decides what to do with them, and the results of `simulate`, `why` and `plan` come from
//! the same functions.
//!
//! | module | what it answers |
//! |---|---|
//! | [`definition`] | Is this file a machine, and which? ([`load`], [`Machine`]) |
//! | [`mod@import`] | What does a definition of Routemaster become? |
//! | [`merge`] | What becomes of metadata, and which paths does an update mention? |
//! | [`time`] | When is a gate evaluated because of time? |
//! | [`schedule`] | At which times does a daily time or a cron expression occur? |
//! | [`step`] | Something happened: where does the label go? ([`step::decide`]) |
//! | [`render`] | What is sent: address, body, token, headers? |
//! | [`attempt`] | An attempt ended: done, again, or errored? |
//! | [`why`](mod@why) | Why is the label still here, and what would open the gate? |
//! | [`simulate`](mod@simulate) | Where will the label be if only the assumed data arrives? |
//! | [`plan`] | What would another version of the machine change? |
//! | [`scenario`] | Does the machine do what the scenario file expects? |
//!
//! Invariants:
//! * [`step::decide`] is a function: the same definition, label, event, moment and feeds give the same moves;
//! * a label moves only as [`step::decide`] decides, so `simulate` and `plan` predict what really happens;
//! * a value that is missing, not comparable or not available opens no gate.

pub mod attempt;
pub mod definition;
pub mod import;
pub mod merge;
pub mod plan;
pub mod render;
pub mod scenario;
pub mod schedule;
pub mod simulate;
pub mod step;
pub mod time;
pub mod why;

pub use definition::{Machine, State, StateIndex, load};
