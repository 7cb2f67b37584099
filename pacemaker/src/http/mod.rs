//! HTTP: shared code of all handlers. Errors ([`Problem`]), authentication ([`auth`]), request bodies ([`body`]),
//! browser sessions, metrics, and the frame of the OpenAPI document. Nothing here names a route.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod metrics;
pub(crate) mod observe;
pub(crate) mod openapi;
pub(crate) mod path;
mod problem;
pub(crate) mod session;
#[cfg(test)]
mod tests;
pub(crate) mod unread;

use axum::http::HeaderName;

pub(crate) use crate::app::App;
pub(crate) use problem::Problem;

/// The serial that a change has in the table, on answers without a body too.
pub(crate) static SERIAL_HEADER: HeaderName = HeaderName::from_static("x-signalbox-serial");
