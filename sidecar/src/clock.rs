//! The machine's clock, in the one place that reads it. Everything else takes a time as an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unix milliseconds. For comparing with the times that nginx wrote on this machine; whatever two machines must agree
/// on uses Redis' clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the one reader of the wall clock; callers take it as a function"
)]
pub fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since_epoch.as_millis() as u64
}
