//! `signalbox up` as an operator meets it: real processes, looked at from outside.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod configuration;
mod copies;
mod ending;
mod running;
mod supervision;
