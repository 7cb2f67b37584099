//! Errors of the bus as answers. The statuses are those of Routemaster: an invalid event, topic or subscription is 400.

use axum::http::StatusCode;
use signalbox_store::Kind;

use crate::http::Problem;
use signalbox_bus::{Error, Refusal, intake::Flaw};

impl From<Flaw> for Problem {
    fn from(flaw: Flaw) -> Self {
        Self::bad_request(flaw.code, flaw.detail)
    }
}

/// The fabric has no registry, or another one than before.
pub(super) fn uninitialized() -> Problem {
    Problem::unavailable(
        "fabric_uninitialized",
        "The fabric Redis is empty, or was replaced by another one. Events are rejected until an operator calls POST /bus/initialize.",
    )
}

fn unavailable() -> Problem {
    Problem::unavailable("fabric_unavailable", "The fabric Redis does not respond; repeat the request.")
}

fn invalid_topic(name: &str) -> Problem {
    let detail = format!("{name} is not a valid topic name: must match [a-z_]{{1,64}}");
    Problem::bad_request("invalid_topic", detail)
}

fn claimed() -> Problem {
    Problem::forbidden(
        "topic_claimed",
        "another client owns this topic; use another topic, or ask an operator to transfer it with PUT /topics/{name}/publisher",
    )
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Claimed => claimed(),
            Refusal::BadTopic => invalid_topic("this"),
            Refusal::Conflict => Self::unprocessable(
                "idempotency_conflict",
                "another event was published under this Idempotency-Key within the last minutes",
            ),
            Refusal::TooManyTopics => Self::forbidden("limit_reached", refusal.to_string()),
            Refusal::Busy => {
                Self::unavailable("busy", "Too many events are waiting to be accepted; try again.")
            }
            Refusal::QueueFull => queue_full(),
            Refusal::WaitingFull => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "queue_limit_reached",
                "A queue whose pattern matches has reached its limit of waiting messages, and this tenant has at least its share; \
                 try again later, or raise the limit.",
            )
            .retry_after(1),
            Refusal::TenantFull { limit } => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "tenant_limit_reached",
                format!(
                    "Limit of stored bytes of this tenant reached ({limit}). Let its consumers catch up, or raise \
                     `bus.tenant_bytes`."
                ),
            )
            .with("limit", limit)
            .retry_after(10),
            Refusal::MemoryShort => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "tenant_limit_reached",
                "The fabric has little memory left, and this tenant, or this client with its tenants, uses most of it. Let \
                 the consumers catch up.",
            )
            .retry_after(10),
            Refusal::KeysUsedUp { retry_ms } => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "idempotency_keys_used_up",
                "This client has used all of its idempotency keys, or the fabric has little memory left and they use most of it. \
                 No key is forgotten before it expires. Publish more slowly, or raise `bus.idempotency_keys` or the memory.",
            )
            .retry_after(u32::try_from(retry_ms.div_ceil(1000)).unwrap_or(u32::MAX)),
            // A caller that changes a label reads it again instead of returning this.
            Refusal::Outdated => unavailable(),
            Refusal::Full => Self::unavailable("fabric_full", "the fabric Redis has reached its memory limit; try again later"),
            Refusal::ReadOnly => Self::unavailable(
                "fabric_read_only",
                "The fabric Redis rejects writes at the moment, for example because replicas are missing or its disk is full; repeat the request.",
            ),
            Refusal::Unavailable => unavailable(),
            Refusal::Uninitialized => uninitialized(),
        }
    }
}

/// Why an event or message of this tenant was not accepted.
pub(super) fn refused(refusal: Refusal, tenant: &str) -> Problem {
    let problem = Problem::from(refusal);
    if matches!(refusal, Refusal::TenantFull { .. } | Refusal::MemoryShort) {
        return problem.with("tenant", tenant);
    }
    problem
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(source) if source.kind() == Kind::Broken => {
                tracing::error!(
                    error = &source as &dyn std::error::Error,
                    "unexpected reply from the fabric"
                );
                internal()
            }
            Error::Store(source) => {
                tracing::warn!(error = &source as &dyn std::error::Error, "fabric unavailable for the bus");
                unavailable()
            }
            Error::BadRegistry(source) => {
                tracing::error!(%source, "the registry of the bus cannot be read");
                internal()
            }
            Error::Seal => {
                tracing::error!("credentials could not be encrypted");
                internal()
            }
            Error::OtherShards { stored, configured } => {
                tracing::error!(stored, configured, "fabric has another number of shards");
                internal()
            }
            Error::Silent => unavailable(),
            Error::Contended => {
                Self::unavailable("busy", "Other clients change the registry at the same time; try again.")
            }
            Error::Uninitialized => uninitialized(),
            Error::Locked => Self::unavailable("credentials_locked", LOCKED_DETAIL),
            Error::NoSuchTopic => Self::not_found("unknown_topic", "unknown topic; the first event or subscription creates it"),
            Error::InvalidCursor => {
                Self::unprocessable("invalid_cursor", "pass the cursor of an earlier answer as it is")
            }
            Error::NoSuchQueue => {
                Self::not_found("unknown_queue", "unknown queue; create it with PUT /queues/{name}")
            }
            Error::InvalidQueue(flaw) => flaw.into(),
            Error::QueueChanged(revision) => Self::new(
                StatusCode::PRECONDITION_FAILED,
                "queue_changed",
                "the queue does not have the revision that the request expects; read it again, then repeat the change",
            )
            .with("revision", revision),
            Error::QueueEnding => Self::unavailable(
                "queue_ending",
                "A deleted queue of this name is still being removed; try again.",
            ),
            Error::NoSuchSubscription => Self::not_found(
                "unknown_subscription",
                "unknown subscription; create it with POST /subscription",
            ),
            Error::NoSuchEvent => Self::not_found(
                "unknown_event",
                "the event is not among the subscriber's next events, its dead letters, or its topics in the log",
            ),
            Error::NoSuchBackend => Self::not_found("unknown_backend", "unknown backend; create it with PUT /backends/{name}"),
            Error::PrefixTaken => Self::new(
                StatusCode::CONFLICT,
                "prefix_taken",
                "another backend has this prefix; choose another prefix",
            ),
            Error::NoSuchToken => Self::not_found("unknown_token", "unknown token"),
            Error::TokenExists => Self::new(
                StatusCode::CONFLICT,
                "token_exists",
                "the token exists with another name or other scopes",
            ),
            Error::Forbidden => claimed(),
            Error::BadTopic(name) => invalid_topic(&format!("{name:?}")),
            Error::OutOfRange { field, least, most } => {
                let detail = format!("`{field}` must be a whole number between {least} and {most}");
                Self::bad_request("out_of_range", detail)
            }
            Error::TooMany(limit) => Self::forbidden("limit_reached", limit.to_string()),
        }
    }
}

fn queue_full() -> Problem {
    Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "object_queue_full",
        "The queue of this object is full. Try again later, or raise `bus.object_events`.",
    )
    .retry_after(1)
}

const LOCKED_DETAIL: &str = "The credentials are encrypted with a key that this pacemaker does not have. Add the key to \
    `edge_key_file`, or replace the secret.";

fn internal() -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
}
