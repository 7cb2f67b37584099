//! The state of a name's automatic certificate. Pure.

use serde::{Deserialize, Serialize};

use crate::schedule::{self, Life, Window};

/// Maximum length of a stored error text.
const MAX_WORDS: usize = 500;

/// The stored state of a name. Times are unix seconds.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Whether a client requested the name and the check URL allowed it, so that it is not a registered host.
    #[serde(default)]
    pub(crate) on_demand: bool,
    /// The certificate in the route table.
    pub(crate) certificate: Option<Life>,
    pub(crate) window: Option<Window>,
    /// When renewal information is queried next; `None` if the server provides none.
    pub(crate) ari_at: Option<u64>,
    /// An unfinished order.
    pub(crate) order: Option<OpenOrder>,
    /// Failed attempts since the last certificate.
    #[serde(default)]
    pub(crate) failures: u32,
    pub(crate) last_error: Option<String>,
    pub(crate) last_error_at: Option<u64>,
    /// No attempt is made before this time, because the server requested a pause.
    pub(crate) not_before: Option<u64>,
    pub(crate) issued_at: Option<u64>,
    /// The result of the latest attempt, until its event is published.
    pub(crate) news: Option<News>,
}

/// The event for an attempt. A repeated publication is identical.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct News {
    pub(crate) issued: bool,
    /// The fencing token of the claim in which it happened, which makes it unique.
    pub(crate) claim: u64,
    pub(crate) at: u64,
}

/// An order at the ACME server. A pacemaker that takes over continues it: the same order with the same key
/// results in the same certificate, so a crash does not cause a second one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenOrder {
    pub(crate) url: String,
    /// The private key of the certificate, encrypted.
    pub(crate) key: String,
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Attempt {
    Issued { life: Life, ari: bool },
    Failed { words: String, retry_after: Option<u64> },
}

/// The next step for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Obtain a certificate.
    Order,
    /// Query the server's renewal information.
    AskRenewal,
    /// Nothing is due yet.
    Rest,
}

impl Record {
    /// Records the result of an attempt.
    pub(crate) fn attempted(&mut self, attempt: Attempt, now: u64) {
        match attempt {
            Attempt::Issued { life, ari } => {
                *self = Self {
                    on_demand: self.on_demand,
                    certificate: Some(life),
                    ari_at: ari.then_some(now),
                    issued_at: Some(now),
                    ..Self::default()
                };
            }
            Attempt::Failed { words, retry_after } => {
                self.failures = self.failures.saturating_add(1);
                let plain = words.chars().map(|c| if c.is_control() { ' ' } else { c });
                self.last_error = Some(plain.take(MAX_WORDS).collect());
                self.last_error_at = Some(now);
                self.not_before = retry_after.map(|seconds| now.saturating_add(seconds));
            }
        }
    }

    /// The step that is due at `now`.
    pub(crate) fn step(&self, now: u64, spread: f64) -> Step {
        let Some(life) = self.certificate else { return Step::Order };
        if self.order.is_some() || now >= schedule::renewal(life, self.window, spread) {
            Step::Order
        } else if self.ari_at.is_some_and(|at| at <= now) {
            Step::AskRenewal
        } else {
            Step::Rest
        }
    }

    /// When the next step is due.
    pub(crate) fn due(&self, now: u64, first_pause: u64, spread: f64) -> u64 {
        if self.failures > 0 {
            let left = self.certificate.map(|life| life.not_after.saturating_sub(now));
            let asked = self.not_before.map(|at| at.saturating_sub(now));
            return now + schedule::pause(self.failures, first_pause, asked, left, spread);
        }
        let Some(life) = self.certificate else { return now };
        let renewal = schedule::renewal(life, self.window, spread);
        self.ari_at.map_or(renewal, |at| at.min(renewal)).max(now + 1)
    }

    /// When the certificate is renewed.
    pub(crate) fn renews_at(&self, spread: f64) -> Option<u64> {
        self.certificate.map(|life| schedule::renewal(life, self.window, spread))
    }
}

/// A number from 0 to 1 that is constant for a name (FNV-1a).
pub(crate) fn spread(name: &str) -> f64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 40) as f64 / (1_u64 << 24) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_the_certificate_and_success_forgets_the_failures() {
        let life = Life { not_before: 0, not_after: 900 };
        let mut record = Record::default();
        assert_eq!(record.step(5, 0.0), Step::Order);
        record.attempted(Attempt::Issued { life, ari: true }, 5);
        assert_eq!((record.step(5, 0.0), record.due(5, 60, 0.0)), (Step::AskRenewal, 6));
        record.ari_at = Some(100);
        assert_eq!((record.step(50, 0.0), record.due(50, 60, 0.0)), (Step::Rest, 100));
        assert_eq!(record.step(600, 0.0), Step::Order);
        record.attempted(Attempt::Failed { words: "no\nanswer".to_owned(), retry_after: Some(70) }, 600);
        assert_eq!(record.certificate, Some(life));
        assert_eq!(record.last_error.as_deref(), Some("no answer"));
        assert_eq!(record.due(600, 60, 0.0), 670);
        record.attempted(Attempt::Issued { life, ari: false }, 700);
        assert_eq!((record.failures, record.last_error, record.ari_at), (0, None, None));
    }

    #[test]
    fn names_are_spread_evenly() {
        let mut tenths = [0; 10];
        for at in 0..10_000 {
            let at = spread(&format!("host-{at}.example"));
            tenths[(at * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (800..1200).contains(count)), "{tenths:?}");
    }
}
