//! Why there is no certificate, in words for operators.

use std::error::Error as StdError;

use instant_acme::{Error, Problem};

use crate::{http::Http, store};

/// Pause after an answer that mentions a rate limit without saying how long it lasts.
const LIMITED_SECONDS: u64 = 3600;

/// An attempt that did not lead to a certificate.
#[derive(Debug, PartialEq)]
pub(crate) enum Failure {
    /// Another pacemaker has the name, or it is not wanted anymore.
    Fenced,
    /// The budget of this hour is spent; the next one begins after so many milliseconds.
    NoBudget(u64),
    /// The state could not be read or written here. The attempt does not count.
    Unavailable,
    /// The attempt failed.
    Failed {
        words: String,
        /// Seconds that the server asked to wait.
        retry_after: Option<u64>,
        /// Whether the order cannot lead to a certificate anymore.
        order_is_lost: bool,
        /// Whether the server does not know the account.
        account_is_lost: bool,
    },
}

impl Failure {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self::Failed { words: words.into(), retry_after: None, order_is_lost: false, account_is_lost: false }
    }

    /// The same, of an order that cannot lead to a certificate anymore.
    pub(crate) fn of_order(words: impl Into<String>) -> Self {
        Self::Failed { words: words.into(), retry_after: None, order_is_lost: true, account_is_lost: false }
    }

    /// Something that only a fault of Signalbox, or of its data, explains.
    pub(crate) fn internal(error: impl StdError) -> Self {
        Self::new(chain(&error))
    }

    /// A refusal of the ACME server, or no answer.
    pub(crate) fn acme(error: &Error, http: &Http) -> Self {
        let refusal = http.refusal().unwrap_or_default();
        let mut failed = Failed { retry_after: refusal.retry_after, ..Failed::default() };
        failed.words = match error {
            Error::Api(problem) => {
                let kind = kind(problem);
                failed.account_is_lost = kind == "accountDoesNotExist";
                // Whatever the server answers about this order or its account, the next attempt begins with a new one; only a
                // limit or a fault of the server is no reason for that.
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
        let Failed { words, retry_after, order_is_lost, account_is_lost } = failed;
        Self::Failed { words, retry_after, order_is_lost, account_is_lost }
    }
}

#[derive(Default)]
struct Failed {
    words: String,
    retry_after: Option<u64>,
    order_is_lost: bool,
    account_is_lost: bool,
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        tracing::debug!(error = &error as &dyn StdError, "state of automatic HTTPS not available");
        Self::Unavailable
    }
}

/// The last part of a problem's type: `rateLimited`.
fn kind(problem: &Problem) -> &str {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    kind.rsplit(':').next().unwrap_or_default()
}

/// A problem document as a sentence.
pub(crate) fn in_words(problem: &Problem) -> String {
    let detail = problem.detail.as_deref().unwrap_or("no reason given");
    let subproblems = problem.subproblems.iter().filter_map(|sub| sub.detail.as_deref());
    let details: Vec<&str> = std::iter::once(detail).chain(subproblems).collect();
    match kind(problem) {
        "" => details.join("; "),
        kind => format!("{} ({kind})", details.join("; ")),
    }
}

/// An error with its causes. Several libraries repeat a cause in their own text.
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
