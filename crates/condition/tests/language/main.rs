//! The language as authors of conditions use it: text in, truths and messages out.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue has failed")]

mod arbitrary;
mod document;
mod drip_feed;
mod earliest;
mod errors;
mod explanation;
mod feeds;
mod fuzz;
mod grammar;
mod model;
mod properties;
mod round_trip;
mod setting;
mod truth_tables;
mod values;
mod warnings;
