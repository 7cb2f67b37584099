//! The API of the control plane over HTTP.
//!
//! `http` has what all handlers share, `api` the handlers of each subsystem, and [`App`] is their state. The dashboard
//! uses the same state, with the checks and lists of the API, and its pages are part of the same [`router`].

pub mod api;
mod app;
pub mod http;
mod openapi;
mod own_events;
mod router;

pub use app::{App, LimitOptions, Limits, Parts};
pub use own_events::OwnEvents;
pub use router::{document, router};

/// The default file of the sections `[login]` and `[limits]`.
pub const DEFAULTS: &str = include_str!("defaults.toml");
