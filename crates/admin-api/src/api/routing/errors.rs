//! Errors of the route table as answers.

use axum::http::StatusCode;

use crate::http::Problem;
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, Invalid};
use signalbox_routing::{Error, NotPromoted};

/// Rejects a caller whose token does not cover the host.
pub(crate) fn check_host(caller: &Caller, hostname: &Hostname) -> Result<(), Problem> {
    if caller.may_touch(hostname) {
        return Ok(());
    }
    Err(Error::HostNotAllowed { hostname: hostname.to_string() }.into())
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::unprocessable(invalid.code, invalid.detail).with("field", invalid.field)
    }
}

/// The advice after a change that is in the fabric but not yet in the table.
const RECORDED: &str =
    "The change is recorded and will be applied as soon as possible; repeating it is safe.";
const NOT_RECORDED: &str = "Nothing was changed; try again.";

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let after = |recorded| if recorded { RECORDED } else { NOT_RECORDED };
        let chain = &error as &dyn std::error::Error;
        match &error {
            Error::Fabric(_) => {
                tracing::warn!(error = chain, "fabric command failed");
                let detail = "the fabric Redis does not answer. The change may have been accepted; \
                              repeating it is safe";
                Self::unavailable("fabric_unavailable", detail)
            }
            Error::Table { recorded, .. } => {
                tracing::warn!(error = chain, recorded, "routes primary command failed");
                let detail = format!("the routes primary does not answer. {}", after(*recorded));
                Self::unavailable("routes_unavailable", detail).with("recorded", *recorded)
            }
            Error::Stats(_) => {
                tracing::warn!(error = chain, "stats Redis command failed");
                Self::unavailable("stats_unavailable", "the stats Redis does not answer; try again")
            }
            Error::Resyncing { recorded } => {
                let detail = format!("the route table is being resynchronized. {}", after(*recorded));
                Self::unavailable("routes_resyncing", detail).with("recorded", *recorded)
            }
            Error::Blocked { key, recorded } => {
                let detail = format!(
                    "the key {key} of the route table holds a value of the wrong type; delete it. {}",
                    after(*recorded)
                );
                Self::new(StatusCode::CONFLICT, "foreign_key", detail).with("recorded", *recorded)
            }
            Error::Contended => Self::unavailable(
                "contended",
                "other clients keep changing the same instance or address; try again",
            ),
            other => from_client(other).unwrap_or_else(|| {
                tracing::error!(error = chain, "internal error or unexpected data in Redis");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
            }),
        }
    }
}

/// Errors that the client can fix.
fn from_client(error: &Error) -> Option<Problem> {
    let detail = error.to_string();
    let changed = |code, detail, revision: u64| {
        Problem::new(StatusCode::PRECONDITION_FAILED, code, detail).with("revision", revision)
    };
    Some(match error {
        Error::NoInstance(_) => {
            Problem::not_found("unknown_instance", format!("{detail}; register it with PUT"))
        }
        Error::PolicyChanged { revision } => changed("policy_changed", detail, *revision),
        Error::InstanceChanged { revision } => changed("instance_changed", detail, *revision),
        Error::NoHost => Problem::not_found("unknown_host", detail),
        Error::HostNotAllowed { hostname } => {
            Problem::forbidden("host_not_allowed", detail).with("hostname", hostname.as_str())
        }
        Error::InstanceNotAllowed => Problem::forbidden("host_not_allowed", detail),
        Error::VersionTypeNotAllowed(_) => Problem::forbidden("version_type_not_allowed", detail),
        Error::IdNotAllowed(_) => Problem::forbidden("id_not_allowed", detail),
        Error::AddressTaken => Problem::forbidden("address_taken", detail),
        Error::HostFull { hostname } => {
            Problem::unprocessable("too_many_instances", detail).with("hostname", hostname.as_str())
        }
        Error::TokenFull { instances } => {
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail)
                .with("limit", *instances)
                .retry_after(1)
        }
        Error::TokenNames { names, seconds } => {
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail)
                .with("limit", *names)
                .retry_after(*seconds)
        }
        Error::CannotPromote { hostname, version_type, reason } => {
            cannot_promote(hostname, version_type, reason)
        }
        Error::NothingToUndo { hostname, .. } => {
            let problem = Problem::new(StatusCode::CONFLICT, "nothing_to_undo", detail);
            problem.with("hostname", hostname.as_str())
        }
        Error::UnknownShares { hostname, version_types } => {
            let detail = format!("{detail}; register one first, or set `force`");
            Problem::new(StatusCode::CONFLICT, "no_instance_of_version", detail)
                .with("hostname", hostname.as_str())
                .with("version_types", version_types.clone())
        }
        Error::Invalid(invalid) => Problem::from(invalid.clone()),
        _ => return None,
    })
}

fn cannot_promote(hostname: &str, version_type: &str, reason: &NotPromoted) -> Problem {
    let conflict = |code, detail| Problem::new(StatusCode::CONFLICT, code, detail).with("hostname", hostname);
    match reason {
        NotPromoted::NoInstance => {
            let detail =
                format!("no instance of version type {version_type} serves {hostname}; register one first");
            conflict("no_instance_of_version", detail)
        }
        NotPromoted::Unhealthy => {
            let detail =
                format!("no instance of version type {version_type} that serves {hostname} is healthy");
            conflict("version_unhealthy", detail)
        }
        NotPromoted::Incomplete(names) => {
            let detail = format!(
                "the instances that would be drained also serve names that no instance of version type {version_type} serves; \
                 register instances for these names, or remove the names from the old instances"
            );
            conflict("version_incomplete", detail).with("hostnames", names.clone())
        }
    }
}
