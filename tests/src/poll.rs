//! Waiting for a condition.

use std::{fmt::Debug, future::Future, time::Duration};

use tokio::time::{self, Instant};

/// How long anything may take before a test gives up. Far more than it ever needs: it guards against a hang on a
/// crowded machine, it is no measurement.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `check` gives `Ok`. Its `Err` is the status that the failure message shows when that never happens.
///
/// # Panics
/// When [`PATIENCE`] has run out.
#[track_caller]
pub fn until<T, E: Debug, F>(what: &str, check: impl FnMut() -> F) -> impl Future<Output = T>
where
    F: Future<Output = Result<T, E>>,
{
    within(PATIENCE, what, check)
}

/// As [`until`], with a patience of its own.
///
/// # Panics
/// When `patience` has run out.
#[track_caller]
pub fn within<T, E: Debug, F>(
    patience: Duration,
    what: &str,
    mut check: impl FnMut() -> F,
) -> impl Future<Output = T>
where
    F: Future<Output = Result<T, E>>,
{
    let caller = std::panic::Location::caller();
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
            time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// [`until`] for a plain value: waits until `value` gives `wanted`.
///
/// # Panics
/// When it never does.
#[track_caller]
pub fn equal<T: PartialEq + Debug, F>(
    what: &str,
    wanted: T,
    mut value: impl FnMut() -> F,
) -> impl Future<Output = ()>
where
    F: Future<Output = T>,
{
    let caller = std::panic::Location::caller();
    async move {
        let what = format!("{what} to be {wanted:?} (asked at {caller})");
        let wanted = &wanted;
        until(&what, move || {
            let value = value();
            async move {
                let value = value.await;
                if value == *wanted { Ok(()) } else { Err(value) }
            }
        })
        .await;
    }
}
