//! Waiting for a condition.

use std::{fmt::Debug, panic::Location, time::Duration};

use tokio::time::{self, Instant};

/// How long a test waits for anything. It guards against a hang on a busy machine and measures nothing, so it is far
/// longer than any condition needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(5);

/// Repeats `check` until it returns `Ok`, and returns that value.
///
/// `check` is an ordinary closure that returns a future, or an `async` closure that changes nothing it captures. A bound
/// with `AsyncFnMut` would allow more, but the compiler cannot prove that its future may be sent to another task.
///
/// # Panics
/// When [`PATIENCE`] has passed. The message contains `what`, the caller's place, and the status of the last check.
#[track_caller]
pub fn eventually<T, E: Debug, F>(what: &str, check: impl FnMut() -> F) -> impl Future<Output = T>
where
    F: Future<Output = Result<T, E>>,
{
    eventually_within(PATIENCE, what, check)
}

/// [`eventually`] with an explicit limit, for conditions that take long even on an idle machine.
///
/// # Panics
/// When `patience` has passed. A check that hangs is abandoned then.
#[track_caller]
pub fn eventually_within<T, E: Debug, F>(
    patience: Duration,
    what: &str,
    mut check: impl FnMut() -> F,
) -> impl Future<Output = T>
where
    F: Future<Output = Result<T, E>>,
{
    let caller = Location::caller();
    async move {
        let deadline = Instant::now() + patience;
        let mut last = None;
        loop {
            match time::timeout_at(deadline, check()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(status)) => last = Some(status),
                Err(_) => {}
            }
            assert!(
                Instant::now() < deadline,
                "{caller}: waited {patience:?} for {what}; last status: {last:?}"
            );
            time::sleep(PAUSE).await;
        }
    }
}

/// A condition for [`eventually`]: `found` is `expected`. Otherwise `found` is the status.
///
/// # Errors
/// `found`, when it differs.
pub fn equal<T: PartialEq>(found: T, expected: T) -> Result<(), T> {
    if found == expected { Ok(()) } else { Err(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_value_of_the_first_check_that_succeeds_is_returned() {
        let mut checks = 0;
        let value = eventually("three checks", || {
            checks += 1;
            std::future::ready(if checks == 3 { Ok("done") } else { Err(checks) })
        });
        assert_eq!(value.await, "done");
        assert_eq!(checks, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 1s for the moon; last status: Some(\"half\")")]
    async fn a_condition_that_never_holds_fails_with_its_last_status() {
        eventually_within(Duration::from_secs(1), "the moon", async || Err::<(), _>("half")).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 1s for an answer; last status: None")]
    async fn a_check_that_hangs_fails_as_well() {
        eventually_within(Duration::from_secs(1), "an answer", async || {
            std::future::pending::<Result<(), ()>>().await
        })
        .await;
    }

    #[test]
    fn answers_differ_only_in_their_status() {
        assert_eq!(equal(1, 1), Ok(()));
        assert_eq!(equal(1, 2), Err(1));
    }
}
