//! One integration binary, a module per capability.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed, and says where"
)]

mod house;
mod instruments;
