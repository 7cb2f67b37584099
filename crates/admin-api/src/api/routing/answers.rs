//! Answers that changes of the route table have in common, as the OpenAPI document names them.

use crate::http::Problem;

/// Errors of all changes: the host is not allowed, or the route table is unavailable.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only a description")]
pub(crate) enum Refused {
    #[response(status = 403, description = "host_not_allowed")]
    Forbidden(Problem),
    #[response(status = 503, description = "routes_unavailable, routes_resyncing")]
    Unavailable(Problem),
}

/// The instance to change does not exist.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only a description")]
pub(super) enum NoInstance {
    #[response(status = 404, description = "unknown_instance")]
    Unknown(Problem),
}

/// Not all routers acknowledged the change in time.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only a description")]
pub(crate) enum NotConverged {
    #[response(
        status = 504,
        description = "not_converged, no_router, convergence_unknown: the change is applied"
    )]
    Applied(Problem),
}

/// The resource is gone, or there was none.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only a description")]
pub(crate) enum Removed {
    #[response(
        status = 204,
        description = "Removed, or there was none",
        headers(("x-signalbox-serial" = u64, description = "The serial of the route table with this change in it"))
    )]
    Done,
}
