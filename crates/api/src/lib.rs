//! The wire types of Signalbox's HTTP API: answers of the pacemaker, and requests of its clients.
//!
//! One module per subsystem. The types hold no logic: values are checked where they are used. A request rejects unknown
//! fields, so that a typing error is reported; an answer ignores them, so that a client can read a newer server.
//!
//! The feature `schema` derives the descriptions of the OpenAPI document.

pub mod health;
pub mod queues;
pub mod tokens;
