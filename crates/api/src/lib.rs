//! The wire types of Signalbox's HTTP API: answers of the pacemaker and the sidecar, and requests of their clients.
//!
//! One module per subsystem. The types contain no logic: values are checked where they are used. In requests, unknown
//! fields are rejected, so that a typo is reported. In answers, they are ignored, so that a client can read the answers
//! of a newer server.
//!
//! The feature `schema` derives the descriptions of the OpenAPI document.

pub mod acme;
pub mod audit;
pub mod certificates;
pub mod events;
pub mod health;
pub mod machines;
pub mod objects;
mod problem;
pub mod queues;
pub mod routes;
#[cfg(feature = "schema")]
mod schema;
pub mod stats;
mod time;
pub mod tokens;
mod words;

pub use problem::Problem;
pub use time::Time;
