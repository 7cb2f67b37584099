//! Errors of queues as answers.

use axum::http::StatusCode;
use signalbox_store::Kind;

use crate::http::Problem;
use signalbox_queues::{Error, Flaw, Settled};

impl From<Flaw> for Problem {
    fn from(flaw: Flaw) -> Self {
        let code = match flaw {
            Flaw::Name => "invalid_queue_name",
            Flaw::Pattern(_) => "invalid_pattern",
            Flaw::OutOfRange { .. } | Flaw::Rate => "out_of_range",
            Flaw::Tenant(_) | Flaw::Tenants => "invalid_weights",
        };
        let problem = Self::unprocessable(code, flaw.to_string());
        match flaw {
            Flaw::Pattern(flaw) => match flaw.position() {
                Some(position) => problem.with("position", position),
                None => problem,
            },
            _ => problem,
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(source) if source.kind() == Kind::Broken => {
                tracing::error!(
                    error = &source as &dyn std::error::Error,
                    "unexpected reply from the fabric"
                );
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
            }
            Error::Store(source) => {
                tracing::warn!(
                    error = &source as &dyn std::error::Error,
                    "fabric unavailable for the queues"
                );
                Self::unavailable(
                    "fabric_unavailable",
                    "The fabric Redis does not respond; repeat the request.",
                )
            }
            Error::Ending => {
                Self::unavailable("shutting_down", "This pacemaker is shutting down; try again.")
            }
            Error::InvalidCursor => {
                Self::unprocessable("invalid_cursor", "pass the cursor of an earlier answer as it is")
            }
            Error::NoSuchQueue => {
                Self::not_found("unknown_queue", "unknown queue; create it with PUT /queues/{name}")
            }
            Error::Behind | Error::Stale => {
                Self::unavailable("queue_changing", "the queue's definition is being changed; try again")
            }
            Error::Busy => Self::unavailable(
                "too_many_waiting",
                "Limit of waiting pulls reached on this pacemaker; try again, or use another pacemaker.",
            ),
        }
    }
}

/// Why a receipt settled nothing; `None` for one that did.
pub(super) fn refused(settled: Settled) -> Option<Problem> {
    Some(match settled {
        Settled::Malformed => {
            Problem::unprocessable("invalid_receipt", "not a valid receipt; send it as the pull returned it")
        }
        Settled::OtherQueue => Problem::new(
            StatusCode::CONFLICT,
            "receipt_of_other_queue",
            "this receipt belongs to another queue",
        ),
        Settled::Used => Problem::new(
            StatusCode::CONFLICT,
            "receipt_used",
            "this receipt was used before, or its message was dropped",
        ),
        Settled::Expired => Problem::new(
            StatusCode::GONE,
            "receipt_expired",
            "the lease expired, and the message was returned to its queue; another consumer may have it",
        ),
        Settled::Acked
        | Settled::AckedBefore
        | Settled::Back
        | Settled::Delayed
        | Settled::Dead
        | Settled::Extended(_) => return None,
    })
}
