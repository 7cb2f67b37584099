//! When a loop that takes work from the fabric asks again after an error, and when it logs the error.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause after an error, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Interval between two reports of an error that lasts.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Pauses that double while the fabric returns errors. Cheap to create.
#[derive(Debug, Default)]
pub struct Retry {
    pause: Duration,
    at: Option<Instant>,
    reported: Option<Instant>,
}

impl Retry {
    /// Whether the last attempt failed and the pause after it lasts.
    pub fn is_paused(&self) -> bool {
        self.at.is_some()
    }

    /// When to ask again: at the end of the pause, or else at the first of `reasons`. During a pause they do not count: they
    /// may lie in the past, because no successful attempt has moved them.
    pub fn next(&self, reasons: impl IntoIterator<Item = Option<Instant>>) -> Option<Instant> {
        self.at.or_else(|| reasons.into_iter().flatten().min())
    }

    /// The pause is over.
    pub fn resume(&mut self) {
        self.at = None;
    }

    /// An attempt succeeded. Returns whether errors were reported before it.
    pub fn succeeded(&mut self) -> bool {
        std::mem::take(self).reported.is_some()
    }

    /// An attempt failed.
    pub fn failed(&mut self) {
        self.pause = (self.pause * 2).clamp(PAUSES.0, PAUSES.1);
        self.at = Some(Instant::now() + self.pause);
    }

    /// Whether to log an error of this moment: the first one, and then one each minute.
    pub fn reports(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.reported.is_none_or(|at| now.duration_since(at) >= REPORT_EVERY);
        if is_due {
            self.reported = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_error_that_lasts_is_retried_every_second_and_reported_once_a_minute() {
        let mut retry = Retry::default();
        let (start, mut attempts, mut reports) = (Instant::now(), 0, 0);
        while start.elapsed() < Duration::from_secs(600) {
            attempts += 1;
            retry.failed();
            reports += u32::from(retry.reports());
            // A reason in the past, as the last look of a loop becomes after a minute.
            let next = retry.next([Some(start)]).unwrap();
            assert!(retry.is_paused() && next > Instant::now());
            time::advance(next - Instant::now()).await;
            retry.resume();
        }
        assert!((600..610).contains(&attempts), "{attempts}");
        assert_eq!(reports, 10);
        assert!(retry.succeeded());
        assert!(!retry.succeeded());
        retry.failed();
        assert!(retry.reports(), "the first error after a success");
        assert_eq!(retry.next([None]).unwrap() - Instant::now(), PAUSES.0);
        retry.resume();
        assert_eq!(retry.next([None, Some(start)]), Some(start));
    }
}
