//! What can go wrong with a call.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::More;

/// Why a call did not bring what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be one of an API.
    #[error("{url} is no address of an API: {why}")]
    Address {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The token holds what no header can.
    #[error("the token cannot be sent: it may hold visible ASCII characters only")]
    Token,
    /// The certificates to believe cannot be read.
    #[error("cannot read certificates from {}: {why}", path.display())]
    Trust {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No answer: nobody listens, the connection broke, or the server's certificate is not believed.
    #[error("{url} does not answer: {why}")]
    Silent {
        /// What was asked.
        url: String,
        /// The innermost cause.
        why: String,
    },
    /// No whole answer in time. Whether a change happened is unknown; it may be sent again.
    #[error("{url} did not answer within {seconds} s")]
    Late {
        /// What was asked.
        url: String,
        /// The limit.
        seconds: u64,
    },
    /// The server refused, and said why.
    #[error("{} ({})", problem.detail, problem.code)]
    Refused {
        /// What was asked.
        url: String,
        /// What it said.
        problem: Box<Problem>,
    },
    /// The answer is not what this API answers; often somebody else's server.
    #[error("{url} answered {status}, and not as Signalbox does")]
    Foreign {
        /// What was asked.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// A good answer that has another shape than the one that was asked for.
    #[error("cannot read the answer of {url}")]
    Unreadable {
        /// What was asked.
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

    /// Whether nobody answered, or only somebody in between: trying again later makes sense.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Silent { .. } | Self::Late { .. } => true,
            _ => self.status().is_some_and(|status| matches!(status, 429 | 502..=504)),
        }
    }
}

/// A refusal as the server words it (`application/problem+json`).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The status in words.
    #[serde(default)]
    pub title: String,
    /// The stable name of the error.
    pub code: String,
    /// What is wrong and what to do.
    #[serde(default)]
    pub detail: String,
    /// Members that belong to this code.
    #[serde(flatten)]
    pub more: More,
}
