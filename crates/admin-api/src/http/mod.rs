//! HTTP: what all handlers share. Errors ([`Problem`]), who is asking ([`auth`]), how much at a time ([`slots`]) and per second
//! ([`rates`]), what a request carries ([`body`]), sessions of browsers, and metrics. Nothing here names a route.

pub mod audit;
pub mod auth;
pub(crate) mod body;
pub mod buffered;
pub mod cursor;
pub(crate) mod deadline;
pub mod list;
pub mod metrics;
pub(crate) mod observe;
pub(crate) mod path;
pub(crate) mod precondition;
mod problem;
pub(crate) mod rates;
pub mod session;
pub mod slots;
pub(crate) mod unread;

use axum::http::HeaderName;

pub(crate) use crate::app::App;
pub use body::{Form, Query};
pub use problem::Problem;

/// The serial that a change has in the table, on answers without a body too.
pub(crate) static SERIAL_HEADER: HeaderName = HeaderName::from_static("x-signalbox-serial");
