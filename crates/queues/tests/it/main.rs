//! Queues on a running bus, against a real Redis.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod consumers;
mod delays;
mod faults;
mod limits;
mod messages;
mod model;
mod scale;
mod shards;
mod support;
mod time;
mod traces;
