//! The verdict on an event that its backend did not accept. Pure.

use std::time::Duration;

use super::{Options, store::Failed};
use signalbox_bus::OnFailure;

/// Decides after `attempts` failures, including this one. `uniform` is a random number in 0..1 that spreads
/// the retries of many objects. A pause that the backend requested is never shortened.
pub(super) fn judge(
    attempts: u32,
    max_attempts: u32,
    on_failure: OnFailure,
    retry_after: Option<Duration>,
    options: &Options,
    uniform: f64,
) -> Failed {
    if attempts >= max_attempts {
        match on_failure {
            OnFailure::Block => {}
            OnFailure::Skip => return Failed::Skip,
            OnFailure::Park => return Failed::Park,
        }
    }
    let first = Duration::from_millis(options.first_pause_ms);
    let longest = Duration::from_millis(options.longest_pause_ms);
    let doubled = first.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(longest);
    let jittered = doubled.mul_f64(0.5 + uniform.clamp(0.0, 1.0) / 2.0);
    let pause = retry_after.map_or(jittered, |asked| asked.max(jittered));
    Failed::Retry { pause_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(attempts: u32, on_failure: OnFailure, asked: Option<u64>) -> Failed {
        judge(attempts, 3, on_failure, asked.map(Duration::from_secs), &Options::default(), 1.0)
    }

    #[test]
    fn pauses_double_up_to_the_maximum_and_are_never_shorter_than_requested() {
        let pause = |attempts| verdict(attempts, OnFailure::Block, None);
        assert_eq!(pause(1), Failed::Retry { pause_ms: 1_000 });
        assert_eq!(pause(3), Failed::Retry { pause_ms: 4_000 });
        assert_eq!(pause(u32::MAX), Failed::Retry { pause_ms: 600_000 });
        assert_eq!(verdict(1, OnFailure::Skip, Some(90)), Failed::Retry { pause_ms: 90_000 });
        assert_eq!(verdict(2, OnFailure::Skip, Some(0)), Failed::Retry { pause_ms: 2_000 });
    }

    #[test]
    fn each_policy_decides_about_a_poison_event() {
        assert_eq!(verdict(3, OnFailure::Skip, Some(90)), Failed::Skip);
        assert_eq!(verdict(3, OnFailure::Park, None), Failed::Park);
        assert!(matches!(verdict(3, OnFailure::Block, None), Failed::Retry { .. }));
        assert!(matches!(verdict(2, OnFailure::Park, None), Failed::Retry { .. }));
    }
}
