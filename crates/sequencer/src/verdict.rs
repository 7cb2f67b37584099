//! The verdict on an event that its backend did not accept. Pure.

use std::time::Duration;

use super::Options;
use signalbox_bus::OnFailure;

/// The next step for the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Retry after this pause.
    Retry(Duration),
    /// Make it a dead letter and record a gap.
    Skip,
    /// Its object waits for an operator's decision.
    Park,
}

/// Decides after `attempts` failures, including this one. `uniform` is a random number in 0..1 that spreads
/// the retries of many objects. A pause that the backend requested is never shortened.
pub(super) fn judge(
    attempts: u32,
    max_attempts: u32,
    on_failure: OnFailure,
    retry_after: Option<Duration>,
    options: &Options,
    uniform: f64,
) -> Verdict {
    if attempts >= max_attempts {
        match on_failure {
            OnFailure::Block => {}
            OnFailure::Skip => return Verdict::Skip,
            OnFailure::Park => return Verdict::Park,
        }
    }
    let first = Duration::from_millis(options.first_pause_ms);
    let longest = Duration::from_millis(options.longest_pause_ms);
    let doubled = first.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(longest);
    let jittered = doubled.mul_f64(0.5 + uniform.clamp(0.0, 1.0) / 2.0);
    Verdict::Retry(retry_after.map_or(jittered, |asked| asked.max(jittered)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(attempts: u32, on_failure: OnFailure, asked: Option<u64>) -> Verdict {
        judge(attempts, 3, on_failure, asked.map(Duration::from_secs), &Options::default(), 1.0)
    }

    #[test]
    fn pauses_double_up_to_the_maximum_and_are_never_shorter_than_requested() {
        let pause = |attempts| verdict(attempts, OnFailure::Block, None);
        assert_eq!(pause(1), Verdict::Retry(Duration::from_secs(1)));
        assert_eq!(pause(3), Verdict::Retry(Duration::from_secs(4)));
        assert_eq!(pause(u32::MAX), Verdict::Retry(Duration::from_secs(600)));
        assert_eq!(verdict(1, OnFailure::Skip, Some(90)), Verdict::Retry(Duration::from_secs(90)));
        assert_eq!(verdict(2, OnFailure::Skip, Some(0)), Verdict::Retry(Duration::from_secs(2)));
    }

    #[test]
    fn each_policy_decides_about_a_poison_event() {
        assert_eq!(verdict(3, OnFailure::Skip, Some(90)), Verdict::Skip);
        assert_eq!(verdict(3, OnFailure::Park, None), Verdict::Park);
        assert!(matches!(verdict(3, OnFailure::Block, None), Verdict::Retry(_)));
        assert!(matches!(verdict(2, OnFailure::Park, None), Verdict::Retry(_)));
    }
}
