//! One integration binary, a module per capability.

#![allow(clippy::print_stdout, reason = "the output of a test is shown when it fails")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed, and says where"
)]

mod access;
mod admin;
mod bad_input;
mod bus_api;
mod bus_delivery;
mod bus_faults;
mod bus_order;
mod changes;
mod house;
mod instruments;
mod isolation;
mod keys;
mod lookup;
mod own_events;
mod pacemakers;
mod policies;
mod proxying;
mod registration;
mod replacement;
mod statistics;
mod up;
