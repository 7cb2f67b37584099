//! The crate from outside.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue has failed")]

mod definition;
mod documents;
mod explained;
mod fuzz;
mod mutated;
mod reference;
mod refused;
mod scenarios;
mod simulated;
mod steps;
mod zones;
