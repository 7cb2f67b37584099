//! When a name's next step is due. Pure: times are passed in, in unix seconds, and so is randomness.
//!
//! ```text
//!            order                      ARI asked regularly
//! (wanted) ────────▶ certificate ──────────────────────────────▶ renewal
//!    ▲  │ failed                       │ failed                    at two thirds of its life,
//!    └──┘ backoff                      └──▶ retried                 or when ARI says so
//! ```

use serde::{Deserialize, Serialize};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Maximum pause after a failure, so that a recovered server is used on the same day.
const MAX_PAUSE: u64 = 12 * HOUR;
/// Maximum pause for a name whose certificate has expired, because its clients already fail.
const MAX_PAUSE_EXPIRED: u64 = HOUR;
/// Maximum pause that an ACME server may request. Rate limits of public servers last up to a week.
const MAX_RETRY_AFTER: u64 = 7 * DAY;
/// The pause between queries for renewal information, unless the server requests another one (RFC 9773, 4.3).
const ARI_PAUSE: u64 = 6 * HOUR;

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Life {
    pub(crate) not_before: u64,
    pub(crate) not_after: u64,
}

/// When an ACME server suggests to renew a certificate (RFC 9773).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// When a certificate is renewed. `spread`, from 0 to 1, differs for each name. Without it, certificates that
/// were obtained at the same time would always be renewed at the same time.
pub(crate) fn renewal(life: Life, window: Option<Window>, spread: f64) -> u64 {
    let length = life.not_after.saturating_sub(life.not_before);
    match window {
        Some(window) => {
            let chosen = window.start + part(window.end.saturating_sub(window.start), spread);
            // If the window is too late, the certificate would expire first.
            chosen.min(life.not_after.saturating_sub(length / 20))
        }
        None => life.not_before + length * 2 / 3 - part(length / 30, spread),
    }
}

/// Seconds until the next attempt after `failures` of them. `first` is the pause after the first failure,
/// `retry_after` the pause that the server requested, and `left` the remaining validity of the current
/// certificate.
pub(crate) fn pause(
    failures: u32,
    first: u64,
    retry_after: Option<u64>,
    left: Option<u64>,
    spread: f64,
) -> u64 {
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(MAX_PAUSE);
    // The shorter the remaining validity, the more often the renewal is attempted.
    let usual = match left {
        Some(0) => doubled.min(MAX_PAUSE_EXPIRED),
        Some(left) => doubled.min((left / 10).max(first)),
        None => doubled,
    };
    let varied = usual - part(usual / 4, spread);
    varied.max(retry_after.unwrap_or(0).min(MAX_RETRY_AFTER)).max(1)
}

/// Seconds until the next query for renewal information.
pub(crate) fn ari_pause(retry_after: Option<u64>) -> u64 {
    retry_after.unwrap_or(ARI_PAUSE).clamp(10 * MINUTE, DAY)
}

fn part(of: u64, share: f64) -> u64 {
    (of as f64 * share.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

    use super::*;
    use crate::record::{Attempt, Record};

    const LIFE: Life = Life { not_before: 1000 * DAY, not_after: 1090 * DAY };

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        assert_eq!(renewal(LIFE, None, 0.0), 1060 * DAY);
        assert_eq!(renewal(LIFE, None, 1.0), 1057 * DAY);
        let short = Life { not_before: 0, not_after: 6 * DAY };
        assert_eq!(renewal(short, None, 0.0), 4 * DAY);
    }

    #[test]
    fn renewal_information_decides_but_cannot_let_a_certificate_expire() {
        let window = |start, end| Some(Window { start: start * DAY, end: end * DAY });
        assert_eq!(renewal(LIFE, window(1010, 1020), 0.5), 1015 * DAY);
        assert_eq!(renewal(LIFE, window(900, 901), 0.5), 900 * DAY + DAY / 2, "revoked: immediately");
        assert!(renewal(LIFE, window(2000, 2001), 0.5) < LIFE.not_after);
        assert_eq!(renewal(LIFE, window(1020, 1010), 0.5), 1020 * DAY, "an end before its start");
    }

    #[test]
    fn pauses_double_and_honor_the_server_and_the_end_of_the_certificate() {
        assert_eq!(pause(1, 60, None, None, 0.0), 60);
        assert_eq!(pause(3, 60, None, None, 0.0), 240);
        assert_eq!(pause(60, 60, None, None, 0.0), MAX_PAUSE);
        assert_eq!(pause(1, 60, Some(3600), None, 0.0), 3600);
        assert_eq!(pause(1, 60, Some(u64::MAX), None, 0.0), MAX_RETRY_AFTER);
        assert_eq!(pause(60, 60, None, Some(10 * HOUR), 0.0), HOUR);
        assert_eq!(pause(60, 60, None, Some(0), 0.0), MAX_PAUSE_EXPIRED);
        assert!(pause(3, 60, None, None, 1.0) >= 180);
    }

    /// A name whose attempts always fail is retried once a day, and does not delay the renewal of other
    /// names.
    #[test]
    fn no_renewal_is_missed_among_100_000_names() {
        const NAMES: usize = 100_000;
        const BEGIN: u64 = 20_000 * DAY;
        const END: u64 = BEGIN + 400 * DAY;
        const LIMITED: usize = 1000;
        let outage = BEGIN + 150 * DAY..BEGIN + 157 * DAY;
        let mut random = StdRng::seed_from_u64(1);
        let mut names: Vec<Record> = vec![Record::default(); NAMES];
        let mut due: BinaryHeap<Reverse<(u64, usize)>> = (0..NAMES).map(|at| Reverse((BEGIN, at))).collect();
        let (mut orders, mut limited_attempts, mut expired) = (0_u64, 0_u64, 0_u64);
        while let Some(Reverse((now, name))) = due.pop() {
            if now >= END {
                break;
            }
            let record = &mut names[name];
            let spread = name as f64 / NAMES as f64;
            if record.certificate.is_some_and(|life| life.not_after <= now) && name >= LIMITED {
                expired += 1;
            }
            let attempt = if name < LIMITED {
                limited_attempts += 1;
                Attempt::Failed { words: "rateLimited".to_owned(), retry_after: Some(DAY) }
            } else if outage.contains(&now) || random.random_bool(0.2) {
                Attempt::Failed { words: "connection refused".to_owned(), retry_after: None }
            } else {
                orders += 1;
                Attempt::Issued { life: Life { not_before: now, not_after: now + 90 * DAY }, ari: false }
            };
            record.attempted(attempt, now);
            let next = record.due(now, 60, spread);
            assert!(next > now, "{record:?}");
            due.push(Reverse((next, name)));
        }
        assert_eq!(expired, 0);
        assert_eq!(due.len() + 1, NAMES, "every name has a next step");
        let lives = 400 / 60;
        assert!(orders >= (NAMES - LIMITED) as u64 * lives, "{orders}");
        assert!(orders <= (NAMES - LIMITED) as u64 * (lives + 3), "{orders}");
        assert!(limited_attempts <= LIMITED as u64 * 401, "{limited_attempts}");
    }
}
