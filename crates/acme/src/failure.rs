//! Why there is no certificate, in words for operators.

use std::error::Error as StdError;

use instant_acme::{Error, Problem};

use crate::{
    http::Http,
    store::{self, Spent},
};

/// The pause after an answer that reports a rate limit without its duration.
const LIMITED_SECONDS: u64 = 3600;

/// Why an attempt did not result in a certificate.
#[derive(Debug, PartialEq)]
pub(crate) enum Failure {
    /// Another pacemaker has claimed the name, or automatic HTTPS is not wanted for it anymore.
    Fenced,
    /// The share of the name's owner of this hour's orders is spent.
    NoBudget(Spent),
    /// The fabric or another local component did not answer. The attempt is not counted.
    Unavailable,
    Failed(Failed),
}

/// A failed attempt.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Failed {
    pub(crate) words: String,
    /// The pause that the server requested, in seconds.
    pub(crate) retry_after: Option<u64>,
    /// Whether the order can no longer result in a certificate.
    pub(crate) order_is_lost: bool,
    /// Whether the server does not know the account anymore.
    pub(crate) account_is_lost: bool,
}

impl Failure {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self::Failed(Failed { words: words.into(), ..Failed::default() })
    }

    /// A failure of an order that can no longer result in a certificate.
    pub(crate) fn of_order(words: impl Into<String>) -> Self {
        Self::Failed(Failed { words: words.into(), order_is_lost: true, ..Failed::default() })
    }

    /// A failure that only a defect of Signalbox or invalid data explains.
    pub(crate) fn internal(error: impl StdError) -> Self {
        Self::new(chain(&error))
    }

    /// An error answer of the ACME server, or no answer.
    pub(crate) fn acme(error: &Error, http: &Http) -> Self {
        let refusal = http.refusal().unwrap_or_default();
        let mut failed = Failed { retry_after: refusal.retry_after, ..Failed::default() };
        failed.words = match error {
            Error::Api(problem) => {
                let kind = kind(problem);
                failed.account_is_lost = kind == "accountDoesNotExist";
                // If the server rejects the order or its account, the next attempt begins with a new order.
                // Rate limits and server errors do not invalidate the order.
                failed.order_is_lost = kind != "rateLimited" && refusal.status < 500 && refusal.status != 429;
                if kind == "rateLimited" && failed.retry_after.is_none() {
                    failed.retry_after = Some(LIMITED_SECONDS);
                }
                format!("The ACME server answered: {}", in_words(problem))
            }
            Error::Timeout(_) => "The ACME server did not complete the order in time.".to_owned(),
            Error::Json(_) if refusal.status > 0 => {
                format!("The ACME server answered with status {}.", refusal.status)
            }
            Error::Json(_) => "The ACME server's answer is not the expected JSON.".to_owned(),
            Error::Other(source) => format!("The ACME server did not answer: {}", chain(&**source)),
            other => format!("The ACME server's answer cannot be used: {other}"),
        };
        Self::Failed(failed)
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        tracing::debug!(error = &error as &dyn StdError, "state of automatic HTTPS not available");
        Self::Unavailable
    }
}

/// The last part of the problem's type, such as `rateLimited`.
fn kind(problem: &Problem) -> &str {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    kind.rsplit(':').next().unwrap_or_default()
}

/// The problem document as a sentence.
pub(crate) fn in_words(problem: &Problem) -> String {
    let detail = problem.detail.as_deref().unwrap_or("no reason given");
    let subproblems = problem.subproblems.iter().filter_map(|sub| sub.detail.as_deref());
    let details: Vec<&str> = std::iter::once(detail).chain(subproblems).collect();
    match kind(problem) {
        "" => details.join("; "),
        kind => format!("{} ({kind})", details.join("; ")),
    }
}

/// An error with its causes. Causes that a library repeats in its own text are omitted.
fn chain(error: &dyn StdError) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        next = cause.source();
    }
    words
}
