//! Answers that changes of the route table have in common, as the OpenAPI document names them.

use crate::http::Problem;

/// Whoever changes something may not be allowed to, or meet a server that is away.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only a description")]
pub(super) enum Refused {
    #[response(status = 401)]
    Unauthenticated(Problem),
    #[response(status = 403, description = "scope_missing, host_not_allowed")]
    Forbidden(Problem),
    #[response(status = 503, description = "fabric_unavailable, routes_unavailable, routes_resyncing")]
    Unavailable(Problem),
}

/// What is to be changed is not there.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only a description")]
pub(super) enum NoInstance {
    #[response(status = 404, description = "unknown_instance")]
    Unknown(Problem),
}

/// The routers were waited for and did not all acknowledge.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only a description")]
pub(super) enum NotConverged {
    #[response(
        status = 504,
        description = "not_converged, no_router, convergence_unknown: the change stands"
    )]
    Stands(Problem),
}
