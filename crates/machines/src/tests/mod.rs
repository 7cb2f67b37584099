//! Machines against a real Redis.

#![allow(clippy::expect_used, clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod acting;
mod applying;
mod checking;
mod fates;
mod feeds;
mod folder;
mod foretold;

mod glance;
mod inputs;
mod labels;
mod loops;
mod lost;
mod racing;
mod scripts;
mod shards;
mod support;
mod tables;
mod times;
