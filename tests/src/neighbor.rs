//! What a client notices of another one: the latency of its calls, with and without the other.

use std::{future::Future, time::Duration};

use tokio::time::Instant;

/// A call may take this long next to a noisy neighbor, however fast it is without one. Debug builds on a machine that runs
/// other tests have pauses of this length. The faults that this finds last for seconds or for good.
const FLOOR: Duration = Duration::from_secs(2);
/// How many times longer than without the neighbor.
const FACTOR: u32 = 3;

/// The latency below which 99% of `calls` calls remain. The calls run one after the other.
pub async fn p99<F, Fut>(calls: usize, mut call: F) -> Duration
where
    F: FnMut() -> Fut,
    Fut: Future<Output = ()>,
{
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        call().await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[(calls * 99).div_ceil(100).max(1) - 1]
}

/// Asserts that calls next to a noisy neighbor are about as fast as without it.
///
/// # Panics
/// If they are not.
pub fn assert_undisturbed(what: &str, without: Duration, with: Duration) {
    let limit = FLOOR.max(without * FACTOR);
    assert!(with <= limit, "{what}: p99 {with:?} next to the neighbor, {without:?} without it");
}
