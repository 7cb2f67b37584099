//! Tests on a real Redis: the scripts as the bus and the consumers call them.

#![allow(clippy::expect_used, clippy::unwrap_used)] // A test that cannot set itself up has failed.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod consumers;
mod faults;
mod model;
mod scale;
mod scripts;
mod shards;
mod support;
mod traces;
