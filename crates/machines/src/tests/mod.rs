//! Machines against a real Redis.

#![allow(clippy::expect_used, clippy::unwrap_used)] // A test whose setup fails has failed.

mod acting;
mod applying;
mod checking;
mod definitions;
mod faults;
mod feeds;
mod flow;
mod folder;
mod history;
mod inputs;
mod kept;
mod labels;
mod limits;
mod loops;
mod lost;
mod operations;
mod outcomes;
mod overview;
mod places;
mod predictions;
mod racing;
mod recounts;
mod scripts;
mod secrets;
mod shards;
mod support;
mod suspended;
mod tables;
mod tasks;
mod time;
mod times;
mod turns;
