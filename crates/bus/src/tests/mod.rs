//! The bus against a real Redis.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod changes;
mod chaos;
mod check;
mod cost;
mod credentials;
mod faults;
mod hands;
mod lifecycle;
mod model;
mod path;
mod publish;
mod scripts;
mod shards;
#[allow(unreachable_pub, dead_code, reason = "it is a separate crate, of which these tests use a part")]
#[path = "../../testkit/src/lib.rs"]
mod support;
mod truth;
mod views;
