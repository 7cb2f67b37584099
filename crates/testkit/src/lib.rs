//! The test kit of all packages: real Redis servers, one way to wait, ports, and a network that fails.
//!
//! - [`Server`] is one `redis-server`, [`Servers`] are the three that a pacemaker needs. Each is a child process with its
//!   data in a temporary folder. Dropping the value ends the process and removes the folder.
//! - [`Monitored`] is a primary and a replica with three Sentinels.
//! - [`eventually`] waits for a condition. No test sleeps for a fixed time.
//! - [`Ports`] reserves TCP ports without a race.
//! - [`wire::Wire`] is a TCP proxy that delays, drops and cuts.
//! - [`work`] measures how much a Redis server works, and how long one command blocks it.
//! - [`Fuzz`] mutates the inputs of a parser.
//!
//! Nothing here replaces Redis or a network with a mock. Functions panic instead of returning errors: a test that cannot
//! set itself up has failed.

#![allow(clippy::expect_used, reason = "a test that cannot set itself up has failed")]
#![allow(clippy::print_stdout, reason = "the output of a test is shown when it fails")]

mod fuzz;
mod ports;
mod sentinels;
mod server;
mod servers;
mod wait;
pub mod wire;
pub mod work;

pub use fuzz::Fuzz;
pub use ports::Ports;
pub use sentinels::Monitored;
pub use server::{Server, Snapshot};
pub use servers::Servers;
pub use wait::{PATIENCE, equal, eventually, eventually_within};
