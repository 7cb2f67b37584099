//! The sidecar against real files, a real redis-server and real HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot set itself up has failed.

mod api;
mod commit;
mod follow;
mod model;
mod process;
mod sample;
mod window;
