//! Errors of machines as HTTP answers.

use axum::http::StatusCode;

use crate::http::Problem;
use signalbox_bus::Refusal;
use signalbox_machines::Error;

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let conflict = |code| Self::new(StatusCode::CONFLICT, code, text.clone());
        match error {
            Error::NoSuchMachine => Self::not_found("unknown_machine", text),
            Error::NoSuchVersion => Self::not_found("unknown_version", text),
            Error::NoSuchLabel => Self::not_found("unknown_label", text),
            Error::NoSuchPlan => {
                Self::not_found("unknown_plan", "unknown or expired plan; a plan is stored for an hour")
            }
            Error::Gone => Self::new(StatusCode::GONE, "label_deleted", text),
            Error::Exists => conflict("label_exists").with("hint", "use PATCH to update an existing label"),
            Error::Deleted => conflict("label_deleted").with("hint", "use ?recreate=true to create it again"),
            Error::OtherRevision(revision) => conflict("conflict").with("revision", revision),
            Error::NotErrored => conflict("label_not_errored"),
            Error::NotActing => conflict("label_not_acting"),
            Error::NoSuchState(_) => Self::not_found("unknown_state", text),
            Error::BadSecret(_) => Self::unprocessable("invalid_secret", text),
            Error::TooManySecrets(_) => Self::unprocessable("too_many_secrets", text),
            Error::NoKey => conflict("no_edge_key"),
            Error::NoSuchTask => Self::not_found("unknown_task", text),
            Error::BeingDeleted => conflict("machine_being_deleted").retry_after(1),
            Error::TooManyTasks(_) => conflict("too_many_tasks"),
            Error::TooManyMatches(_) => Self::unprocessable("too_many_labels", text),
            Error::BadFilter(_) => Self::unprocessable("invalid_filter", text),
            Error::BadAssumption(_) => Self::unprocessable("invalid_assumption", text),
            Error::DefinitionChanged => conflict("definition_changed"),
            Error::ApplyUnderWay => conflict("apply_under_way").retry_after(1),
            Error::BadMetadata(_) => Self::unprocessable("invalid_metadata", text),
            Error::TooManyLabels(limit) => {
                let detail = format!(
                    "Limit of labels of one machine reached ({limit}). Labels that were deleted in the last thirty days are \
                     included. Raise `machines.labels`."
                );
                Self::new(StatusCode::TOO_MANY_REQUESTS, "label_limit_reached", detail).with("limit", limit)
            }
            Error::Conflict => Self::unprocessable("idempotency_conflict", text),
            Error::Unmapped(states) => Self::unprocessable("unmapped_state", text).with("states", states),
            Error::BadMap(_) => Self::unprocessable("invalid_map", text),
            Error::Contended => Self::unavailable("busy", text),
            Error::Away => Self::unavailable("fabric_unavailable", text),
            Error::TooManyDefinitions => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "token_limit_reached",
                "The fabric has little memory left, and this client uses most of it, with definitions of state machines or with \
                 idempotency keys. Delete machines that are not needed, or raise the memory of the fabric.",
            )
            .retry_after(10),
            Error::Refused(Refusal::MemoryShort) => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "label_limit_reached",
                "The fabric has little memory left, and the labels of this machine use most of it. Delete labels, or raise the \
                 memory of the fabric.",
            )
            .retry_after(10),
            Error::Refused(refusal) => refusal.into(),
            Error::Store(error) => {
                tracing::debug!(%error, "the fabric does not answer a request about machines");
                Self::unavailable("fabric_unavailable", "the fabric does not answer; try again")
            }
            Error::Unreadable => {
                tracing::error!("stored machine or label not readable");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
            }
        }
    }
}
