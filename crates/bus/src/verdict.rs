//! The verdict on a batch that was not delivered, and the changes of a subscriber's health. Pure.

use std::time::Duration;

use super::OnExhausted;

/// Health of a subscriber that never failed.
pub(super) const FULL_HEALTH: u8 = 100;

/// The facts about a failed delivery.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// Attempts made, this one included.
    pub attempts: u32,
    /// How long the batch has existed.
    pub age: Duration,
    /// How many events it holds.
    pub events: usize,
    /// The subscriber's health after this failure.
    pub health: u8,
    /// The pause that the subscriber asked for.
    pub retry_after: Option<Duration>,
}

/// Limits on trying.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience<'a> {
    /// Attempts before a batch counts as exhausted.
    pub max_attempts: u32,
    /// Age at which a batch counts as exhausted.
    pub max_age: Duration,
    /// The treatment after the last attempt.
    pub on_exhausted: OnExhausted,
    /// Seconds before each retry, of which the last repeats. Without any, pauses grow exponentially.
    pub retry_seconds: &'a [u32],
}

/// The next step of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The same batch again, after this pause.
    Retry(Duration),
    /// Two halves in its place, the first one after this pause: one poison event must not fail its neighbors.
    Split(Duration),
    /// A dead letter and a gap; the lane continues.
    Dead,
}

/// The first pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// The batch is halved after every this many failures.
const SPLIT_EVERY: u32 = 4;

/// Health after a delivery: one point up, two down, between 0 and 100.
pub(super) fn health_after(health: u8, delivered: bool) -> u8 {
    if delivered { health.saturating_add(1).min(FULL_HEALTH) } else { health.saturating_sub(2) }
}

/// Decides. `uniform` is uniform in 0..1 and spreads the retries of many lanes.
pub(super) fn judge(failure: &Failure, patience: &Patience<'_>, uniform: f64) -> Verdict {
    let pause = pause(failure, patience.retry_seconds, uniform);
    let exhausted = failure.attempts >= patience.max_attempts || failure.age >= patience.max_age;
    if exhausted && patience.on_exhausted == OnExhausted::Dead {
        // A subscriber whose other batches get through (its health is not at the floor) has a poison event in this
        // one; one that takes nothing at all gains nothing by trying every event alone.
        return if failure.events > 1 && failure.health > 0 { Verdict::Split(pause) } else { Verdict::Dead };
    }
    if failure.events > 1 && failure.attempts.is_multiple_of(SPLIT_EVERY) && failure.health > 0 {
        return Verdict::Split(pause);
    }
    Verdict::Retry(pause)
}

/// As planned, or exponential from the first failure on, capped, between half and the whole of it; never less than the
/// requested pause.
fn pause(failure: &Failure, planned: &[u32], uniform: f64) -> Duration {
    let place = usize::try_from(failure.attempts.saturating_sub(1)).unwrap_or(usize::MAX);
    if let Some(seconds) = planned.get(place).or(planned.last()) {
        // Never earlier than planned; the lanes of a subscriber still do not return together.
        let spread = Duration::from_secs(u64::from(*seconds)).mul_f64(1.0 + uniform.clamp(0.0, 1.0) / 10.0);
        return failure.retry_after.map_or(spread, |asked| asked.max(spread));
    }
    let doubled = FIRST_PAUSE.saturating_mul(1 << failure.attempts.saturating_sub(1).min(16)).min(MAX_PAUSE);
    let jittered = doubled.mul_f64(0.5 + uniform.clamp(0.0, 1.0) / 2.0);
    failure.retry_after.map_or(jittered, |asked| asked.max(jittered))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(attempts: u32) -> Failure {
        Failure { attempts, age: Duration::ZERO, events: 8, health: 90, retry_after: None }
    }

    fn patience(on_exhausted: OnExhausted) -> Patience<'static> {
        Patience { max_attempts: 10, max_age: Duration::from_secs(3600), on_exhausted, retry_seconds: &[] }
    }

    #[test]
    fn the_first_failure_is_paced_already_and_pauses_grow_to_a_cap() {
        let pause = |attempts| pause(&failure(attempts), &[], 1.0);
        assert_eq!(pause(1), FIRST_PAUSE);
        assert_eq!(pause(3), FIRST_PAUSE * 4);
        assert_eq!(pause(u32::MAX), MAX_PAUSE);
    }

    #[test]
    fn a_schedule_of_the_subscription_replaces_the_pauses_and_its_last_repeats() {
        let pause = |attempts| pause(&failure(attempts), &[5, 60], 0.0).as_secs();
        assert_eq!([pause(1), pause(2), pause(3), pause(u32::MAX)], [5, 60, 60, 60]);
    }

    #[test]
    fn the_requested_pause_is_never_shortened() {
        let asked = Failure { retry_after: Some(Duration::from_secs(900)), ..failure(1) };
        assert_eq!(
            judge(&asked, &patience(OnExhausted::Dead), 0.0),
            Verdict::Retry(Duration::from_secs(900))
        );
    }

    #[test]
    fn an_exhausted_batch_is_split_before_anything_dies() {
        let dead = patience(OnExhausted::Dead);
        assert!(matches!(judge(&failure(10), &dead, 0.0), Verdict::Split(_)));
        assert_eq!(judge(&Failure { events: 1, ..failure(10) }, &dead, 0.0), Verdict::Dead);
        assert_eq!(judge(&Failure { health: 0, ..failure(10) }, &dead, 0.0), Verdict::Dead);
        let old = Failure { events: 1, age: Duration::from_secs(3600), ..failure(1) };
        assert_eq!(judge(&old, &dead, 0.0), Verdict::Dead);
    }

    #[test]
    fn a_blocking_subscription_never_loses_a_batch() {
        let old = Failure { events: 1, age: Duration::from_secs(1 << 30), ..failure(1 << 30) };
        assert!(matches!(judge(&old, &patience(OnExhausted::Block), 0.0), Verdict::Retry(_)));
    }

    #[test]
    fn health_moves_one_up_and_two_down_within_its_range() {
        assert_eq!(health_after(100, true), 100);
        assert_eq!(health_after(99, false), 97);
        assert_eq!(health_after(1, false), 0);
    }
}
