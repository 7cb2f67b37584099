//! The only reader of the machine's clock. All other code takes the time as an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unix milliseconds. Only for comparison with times that nginx wrote on this machine. Times that several machines compare
/// come from Redis's clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the one reader of the wall clock; callers take it as a function"
)]
pub fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since_epoch.as_millis() as u64
}
