//! `signalbox up` as an operator uses it: real processes, observed from outside.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue has failed")]

mod configuration;
mod copies;
mod ending;
mod running;
mod supervision;
