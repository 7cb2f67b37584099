//! Errors of calls.

use std::path::PathBuf;

use signalbox_api::Problem;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be one of an API.
    #[error("{url} is not an API address: {why}")]
    Address {
        /// As it was given.
        url: String,
        /// The problem.
        why: String,
    },
    /// The token holds what no header can.
    #[error("the token cannot be sent: it may contain only visible ASCII characters")]
    Token,
    /// The idempotency key holds what no header can.
    #[error("the idempotency key cannot be sent: it may contain only visible ASCII characters")]
    Key,
    /// The file of trusted certificates cannot be read.
    #[error("cannot read certificates from {}: {why}", path.display())]
    Trust {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// No answer: the connection was refused or broke, or the server's certificate is not trusted.
    #[error("{url} does not answer: {why}")]
    Silent {
        /// The requested URL.
        url: String,
        /// The innermost cause.
        why: String,
    },
    /// No whole answer in time. Whether a change happened is unknown; it may be sent again.
    #[error("{url} did not answer within {seconds} s")]
    Late {
        /// The requested URL.
        url: String,
        /// The limit.
        seconds: u64,
    },
    /// The server rejected the request with a reason.
    #[error("{} ({})", problem.detail, problem.code)]
    Refused {
        /// The requested URL.
        url: String,
        /// The server's problem document.
        problem: Box<Problem>,
    },
    /// The answer is not one of this API, often because another program's server answered.
    #[error("{url} answered {status}, but not in the form of the Signalbox API")]
    Foreign {
        /// The requested URL.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// A good answer that has another shape than the one that was asked for.
    #[error("cannot read the answer of {url}")]
    Unreadable {
        /// The requested URL.
        url: String,
        /// Where it differs.
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// The stable name of a refusal, such as `unknown_instance`.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { problem, .. } => Some(&problem.code),
            _ => None,
        }
    }

    /// The HTTP status, when there was an answer.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { problem, .. } => Some(problem.status),
            Self::Foreign { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether there was no answer, or only one of a proxy: a later retry makes sense.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Silent { .. } | Self::Late { .. } => true,
            _ => self.status().is_some_and(|status| matches!(status, 429 | 502..=504)),
        }
    }
}
