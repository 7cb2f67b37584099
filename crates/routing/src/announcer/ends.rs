//! Publishes when certificates expire: 30, 14, 7 and 1 days before, and at the expiry.
//!
//! Checked once an hour, immediately when a certificate changed, and after the lease was acquired; in between no Redis
//! command is sent. The published marks are stored in the fabric, so all pacemakers together publish each once. If a
//! pacemaker dies after publishing and before storing it, the repeated event has the same key.

use std::time::Duration;

use tokio::time::Instant;

use super::{Announce, event};
use crate::metrics::Metrics;
use crate::{Error, Store};

/// Interval between checks when nothing changes.
const INTERVAL: Duration = Duration::from_secs(3600);
const DAY_SECONDS: u64 = 24 * 3600;
/// Days before the expiry at which an event is published, and the expiry itself.
const MARKS: [u32; 5] = signalbox_diagnosis::thresholds::CERTIFICATE_EVENT_DAYS;

/// When expiries are checked next.
#[derive(Debug, Default)]
pub(super) struct Ends {
    checked: Option<Instant>,
}

impl Ends {
    /// A certificate may have changed, or the lease was taken over: check immediately.
    pub(super) fn changed(&mut self) {
        self.checked = None;
    }

    fn due(&self) -> bool {
        self.checked.is_none_or(|at| at.elapsed() >= INTERVAL)
    }

    /// Checks the expiries if it is time. An event that could not be published is retried with the next turn.
    pub(super) async fn check<A: Announce>(
        &mut self,
        store: &Store,
        to: &A,
        metrics: &Metrics,
    ) -> Result<(), Error> {
        if !self.due() {
            return Ok(());
        }
        let now = store.table_now_ms().await? / 1000;
        let (ending, count) = store.ending(now + u64::from(MARKS[MARKS.len() - 1]) * DAY_SECONDS).await?;
        let names: Vec<String> = ending.iter().map(|(name, _)| name.clone()).collect();
        let published = store.published_ends(&names).await?;
        let mut all = true;
        for ((name, ends), published) in ending.iter().zip(published) {
            let Some(days) = mark(*ends, now) else { continue };
            if was_published(published.as_deref(), *ends, days) {
                continue;
            }
            let ending = event::ending(name, *ends, days);
            let also = event::expires(&ending);
            if to.announce(event::CERTIFICATES, vec![ending]).await
                && to.announce(event::EXPIRES, vec![also]).await
            {
                tracing::warn!(server_name = name, days_left = days, "certificate expires soon");
                store.published_end(name, &format!("{ends} {days}")).await?;
            } else {
                all = false;
            }
        }
        let first = store.first_end().await?;
        let expired = ending.iter().filter(|(_, ends)| *ends <= now).count();
        let days_left = first.map(|ends| (ends as f64 - now as f64) / DAY_SECONDS as f64);
        metrics.certificates(count, expired, days_left);
        if all {
            self.checked = Some(Instant::now());
        }
        Ok(())
    }
}

/// The last mark that an expiry has reached; `None` before the first.
fn mark(ends: u64, now: u64) -> Option<u32> {
    let left = ends.saturating_sub(now);
    MARKS.into_iter().find(|days| left <= u64::from(*days) * DAY_SECONDS)
}

/// Whether `published` (`<end> <days>`) concerns this end, and this mark or a later one.
fn was_published(published: Option<&str>, ends: u64, days: u32) -> bool {
    let Some((at, published)) = published.and_then(|published| published.split_once(' ')) else {
        return false;
    };
    at.parse() == Ok(ends) && published.parse::<u32>().is_ok_and(|published| published <= days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_reached_once() {
        let day = DAY_SECONDS;
        for (left, expected) in [
            (31 * day, None),
            (30 * day + 1, None),
            (30 * day, Some(30)),
            (15 * day, Some(30)),
            (14 * day, Some(14)),
            (7 * day, Some(7)),
            (2 * day, Some(7)),
            (day, Some(1)),
            (1, Some(1)),
            (0, Some(0)),
        ] {
            assert_eq!(mark(1000 * day + left, 1000 * day), expected, "{left}");
        }
        assert_eq!(mark(5, 1000), Some(0), "long ago");
    }

    #[test]
    fn published_marks_belong_to_one_certificate() {
        for (published, expected) in [
            (None, false),
            (Some("100 14"), true),
            (Some("100 7"), true),
            (Some("100 30"), false),
            (Some("99 7"), false),
            (Some("nonsense"), false),
        ] {
            assert_eq!(was_published(published, 100, 14), expected, "{published:?}");
        }
    }
}
