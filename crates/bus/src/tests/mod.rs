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
mod ended;
mod faults;
mod hands;
mod largest;
mod lifecycle;
mod memory;
mod model;
mod path;
mod publish;
mod receivers;
mod scripts;
mod shards;
#[allow(unreachable_pub, dead_code, reason = "it is a separate crate, of which these tests use a part")]
#[path = "../../testkit/src/lib.rs"]
mod support;
mod time;
mod topics;
mod truth;
mod views;
mod wakeups;

use std::time::Duration;

use signalbox_egress::Outcome;
use signalbox_store::FabricRole;
use signalbox_testkit::Server;
use support::{Pacemaker, Recorder, quick};

/// A running pacemaker whose deliveries `recorder` answers.
async fn running(server: &Server, recorder: &Recorder) -> Pacemaker {
    let redis = server.open::<FabricRole>();
    Pacemaker::start(&redis, quick(), recorder.clone()).ready().await
}

fn delivered() -> (Duration, Outcome) {
    (Duration::ZERO, Outcome::Delivered)
}

fn failed() -> (Duration, Outcome) {
    (Duration::ZERO, Outcome::Failed { why: "500".into(), retry_after: None })
}
