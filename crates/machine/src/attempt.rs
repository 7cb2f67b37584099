//! The outcome of an attempt: the action is done, is retried later, or has failed permanently.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::{
    definition::{Action, Failure, OnFailure, ResultPart, Retry},
    merge,
};

/// The longest pause that a receiver may request with `Retry-After`.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// The longest pause between two queries of a failing feed.
const MAX_FEED_WAIT: Duration = Duration::from_secs(300);

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver answered.
    Status {
        /// The HTTP status.
        code: u16,
        /// The pause that the receiver requested with `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// No answer, none in time, or an invalid one.
    Silence,
    /// It cannot succeed unchanged, so it is not repeated: a value is missing, or the change was rejected.
    Refused,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The action succeeded.
    Done,
    /// The action is retried after this pause.
    Again(Duration),
    /// The action failed for good. The label stays until an operator retries it.
    Errored,
}

/// Decides what follows an attempt. `attempts` counts this attempt, too. `chance`, from 0 to 1, selects a
/// point within the jittered pause.
pub fn judge(retry: &Retry, attempts: u32, outcome: Outcome, chance: f64) -> Verdict {
    let asked = match outcome {
        Outcome::Status { code: 200..=299, .. } => return Verdict::Done,
        // Gone: the resource will not return.
        Outcome::Status { code: 410, .. } | Outcome::Refused => return Verdict::Errored,
        Outcome::Status { retry_after, .. } => {
            retry_after.map_or(Duration::ZERO, |asked| asked.min(MAX_RETRY_AFTER))
        }
        Outcome::Silence => Duration::ZERO,
    };
    if attempts >= retry.attempts || retry.except.iter().any(|failure| failure.covers(outcome)) {
        return Verdict::Errored;
    }
    // Full jitter: anything between zero and the bound, so that actions that failed together are not retried together.
    Verdict::Again(bound(retry, attempts).mul_f64(chance.clamp(0.0, 1.0)).max(asked))
}

impl Failure {
    /// Whether this kind of failure includes the outcome.
    pub fn covers(self, outcome: Outcome) -> bool {
        match (self, outcome) {
            (Self::Status(status), Outcome::Status { code, .. }) => status == code,
            (Self::Class(class), Outcome::Status { code, .. }) => class == code / 100,
            (Self::NoAnswer, Outcome::Silence) | (Self::Invalid, Outcome::Refused) => true,
            _ => false,
        }
    }
}

impl Action {
    /// The `on_error` case that applies when the action failed for good. `None`: the label stays in the
    /// state, errored.
    pub fn after(&self, outcome: Outcome) -> Option<&OnFailure> {
        let applies = |case: &&OnFailure| {
            case.failures.is_empty() || case.failures.iter().any(|failure| failure.covers(outcome))
        };
        self.on_error.iter().find(applies)
    }

    /// The metadata update that `result` extracts from an answer; `None` if the action has no `result`.
    /// `body` is the answer's JSON, if it has any.
    ///
    /// # Errors
    /// The part that the answer lacks.
    pub fn result_of(&self, status: u16, body: Option<&Json>) -> Result<Option<Json>, String> {
        let mut update: Option<Json> = None;
        for (path, part) in &self.result {
            let value = match part {
                ResultPart::Status => json!(status),
                ResultPart::Body(below) => {
                    let body = body.ok_or("its answer is not JSON, and `result` needs it")?;
                    let value = below.of(body);
                    if value.is_null() {
                        let key = below.to_string().replacen("metadata", "response", 1);
                        return Err(format!("its answer has no {key}, which `result` needs"));
                    }
                    value.clone()
                }
            };
            let one = merge::at_path(path, value);
            match &mut update {
                None => update = Some(one),
                Some(update) => merge::merge(update, &one),
            }
        }
        Ok(update)
    }
}

impl OnFailure {
    /// The metadata update that describes a failure, if the case has an `into` path.
    pub fn update(&self, outcome: Outcome, error: &str, attempts: u32) -> Option<Json> {
        let status = match outcome {
            Outcome::Status { code, .. } => Some(code),
            Outcome::Silence | Outcome::Refused => None,
        };
        let failure = json!({ "status": status, "error": error, "attempts": attempts });
        self.into.as_ref().map(|path| merge::at_path(path, failure))
    }
}

impl Outcome {
    /// The failure of this name; an unknown name is one without an answer.
    pub fn from_word(word: &str) -> Self {
        match word.parse() {
            Ok(code) => Self::Status { code, retry_after: None },
            Err(_) if word == "invalid" => Self::Refused,
            Err(_) => Self::Silence,
        }
    }

    /// A short name of the failure: its status, `no_answer` or `invalid`.
    pub fn word(self) -> String {
        match self {
            Self::Status { code, .. } => code.to_string(),
            Self::Silence => "no_answer".to_owned(),
            Self::Refused => "invalid".to_owned(),
        }
    }
}

/// The longest pause after the attempt with this number.
pub fn bound(retry: &Retry, attempts: u32) -> Duration {
    let exponent = i32::try_from(attempts.saturating_sub(1)).unwrap_or(i32::MAX);
    let seconds = retry.first.as_secs_f64() * retry.factor.powi(exponent);
    Duration::try_from_secs_f64(seconds).unwrap_or(retry.longest).min(retry.longest)
}

/// The pause before a feed is queried again after consecutive failures: one second, doubled with each
/// failure, at most five minutes.
pub fn feed_wait(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.saturating_sub(1).min(9)).min(MAX_FEED_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: Outcome = Outcome::Status { code: 500, retry_after: None };

    #[test]
    fn success_ends_an_action_and_410_fails_it_immediately() {
        let retry = Retry::default();
        for code in [200, 204, 299] {
            let outcome = Outcome::Status { code, retry_after: None };
            // This also applies to the last attempt.
            assert_eq!(judge(&retry, retry.attempts, outcome, 1.0), Verdict::Done);
        }
        let gone = Outcome::Status { code: 410, retry_after: None };
        assert_eq!(judge(&retry, 1, gone, 1.0), Verdict::Errored);
        assert_eq!(judge(&retry, 1, Outcome::Refused, 1.0), Verdict::Errored);
        for code in [100, 301, 302, 400, 404, 429, 503] {
            let outcome = Outcome::Status { code, retry_after: None };
            assert!(matches!(judge(&retry, 1, outcome, 1.0), Verdict::Again(_)), "{code}");
        }
    }

    #[test]
    fn waits_grow_to_the_longest_until_the_attempts_are_spent() {
        let retry = Retry::default();
        let waits: Vec<u64> = (1..=12).map(|n| bound(&retry, n).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        assert_eq!(bound(&retry, u32::MAX), retry.longest);
        assert_eq!(judge(&retry, 3, NO, 0.5), Verdict::Again(Duration::from_secs(2)));
        assert_eq!(judge(&retry, 19, NO, 0.0), Verdict::Again(Duration::ZERO));
        assert_eq!(judge(&retry, 20, NO, 0.0), Verdict::Errored);
        assert_eq!(judge(&retry, 20, Outcome::Silence, 0.0), Verdict::Errored);
    }

    #[test]
    fn a_receiver_may_ask_for_an_hour_and_not_for_more() {
        let retry = Retry::default();
        let asked = |seconds| Outcome::Status { code: 503, retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(judge(&retry, 1, asked(90), 1.0), Verdict::Again(Duration::from_secs(90)));
        assert_eq!(judge(&retry, 1, asked(86_400), 1.0), Verdict::Again(MAX_RETRY_AFTER));
    }

    #[test]
    fn a_feed_is_asked_again_after_seconds_then_minutes() {
        let waits: Vec<u64> = [0, 1, 2, 3, 9, 10, u32::MAX].map(|n| feed_wait(n).as_secs()).into();
        assert_eq!(waits, [1, 1, 2, 4, 256, 300, 300]);
    }
}
