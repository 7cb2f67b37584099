//! The sidecar against real files, a real redis-server and real HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A failed setup is a failed test.

mod api;
mod commit;
mod follow;
mod fuzz;
mod model;
mod process;
mod sample;
mod window;
