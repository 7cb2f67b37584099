//! The desired policy of a host.

use axum::{
    Json as Answer,
    extract::State as AppState,
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    answers::{NotConverged, Refused},
    changes::{WaitQuery, deadline},
    wait::wait,
};
use crate::http::{
    App, Problem, SERIAL_HEADER,
    auth::{Granted, ManageRoutes},
    body::{Body, Json, Query},
    path::Path,
};
use signalbox_route_table::{Hostname, Label, Policy};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(remove)).routes(routes!(switch))
}

impl Body for Policy {}

/// A host after its policy was set.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct RuledView {
    #[schema(example = "shop.example")]
    hostname: String,
    /// The policy as it was set; absent if it is empty, which is the same as none.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Policy>,
    /// The serial of the route table with this change in it.
    serial: u64,
    /// The newest epoch of the table; serials are only comparable within one epoch.
    epoch: String,
    /// Whether anything changed.
    changed: bool,
}

/// Set a host's policy
///
/// Replaces the whole policy: missing fields get the edge's defaults. A policy can be set before the first instance is
/// registered, stays when the last one is removed, and is removed with the host. Weights belong to instances.
#[utoipa::path(put, path = "/hosts/{hostname}", tag = "hosts", params(("hostname" = String, Path), WaitQuery),
    request_body = Policy, responses(
    (status = 200, body = RuledView), (status = 409, description = "foreign_key", body = Problem),
    (status = 422, description = "invalid_hostname, invalid_policy (see `field`), unknown_field, \
        missing_field, invalid_body, invalid_wait", body = Problem),
    Refused, NotConverged))]
pub(super) async fn put(
    caller: Granted<ManageRoutes>,
    AppState(app): AppState<App>,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
    Json(policy): Json<Policy>,
) -> Result<Response, Problem> {
    let patience = query.patience()?;
    let policy = policy.check()?;
    let ruled = app.registry.set_policy(&caller.0, &hostname, &policy).await?;
    wait(&app, &ruled.epoch, ruled.serial, patience).await?;
    let view = RuledView {
        hostname: hostname.to_string(),
        rules: Some(policy).filter(|policy| !policy.is_empty()),
        serial: ruled.serial,
        epoch: ruled.epoch,
        changed: ruled.changed,
    };
    Ok(([(SERIAL_HEADER.clone(), HeaderValue::from(ruled.serial))], Answer(view)).into_response())
}

/// Remove a host's policy
///
/// Its instances then serve it with the edge's defaults. The call can be repeated.
#[utoipa::path(delete, path = "/hosts/{hostname}/policy", tag = "hosts", params(("hostname" = String, Path), WaitQuery), responses(
    (status = 204, headers(("x-signalbox-serial" = u64, description = "The serial of the route table with this \
        change in it"))),
    (status = 409, description = "foreign_key", body = Problem),
    (status = 422, description = "invalid_hostname, invalid_wait", body = Problem), Refused, NotConverged))]
async fn remove(
    caller: Granted<ManageRoutes>,
    AppState(app): AppState<App>,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience()?;
    let ruled = app.registry.remove_policy(&caller.0, &hostname).await?;
    wait(&app, &ruled.epoch, ruled.serial, patience).await?;
    Ok((StatusCode::NO_CONTENT, [(SERIAL_HEADER.clone(), HeaderValue::from(ruled.serial))]).into_response())
}

/// The version to switch to.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    #[schema(value_type = String, example = "18")]
    version_type_id: Label,
    /// Seconds until the instances of other versions are removed, 0 to 86,400; default 30.
    #[schema(example = 30)]
    deadline_seconds: Option<u32>,
}

impl Body for Switch {}

/// A host that was switched.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct SwitchedView {
    hostname: String,
    version_type_id: String,
    /// Instances of the version whose drain was cancelled.
    resumed: Vec<String>,
    /// Instances of other versions that are now draining.
    drained: Vec<String>,
    /// The serial of the route table with these changes in it.
    serial: u64,
    /// The newest epoch of the table; serials are only comparable within one epoch.
    epoch: String,
    /// Whether anything changed.
    changed: bool,
}

/// Switch a host to a version
///
/// Its instances of this version type receive requests from now on; then those of other versions are drained, with all
/// the names that they serve. Traffic splits between versions are removed from the policy. Nothing is changed unless
/// the version has a healthy instance, and one for each name that would otherwise have none. The call can be repeated.
#[utoipa::path(post, path = "/hosts/{hostname}/current", tag = "hosts", params(("hostname" = String, Path), WaitQuery),
    request_body = Switch, responses(
    (status = 200, body = SwitchedView),
    (status = 409, description = "no_instance_of_version, version_unhealthy, version_incomplete (`hostnames` lists \
        them), foreign_key", body = Problem),
    (status = 422, description = "invalid_hostname, invalid_label, invalid_deadline, unknown_field, missing_field, \
        invalid_body, invalid_wait", body = Problem),
    Refused, NotConverged))]
async fn switch(
    caller: Granted<ManageRoutes>,
    AppState(app): AppState<App>,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
    Json(body): Json<Switch>,
) -> Result<Response, Problem> {
    let patience = query.patience()?;
    let version_type = Label::parse(body.version_type_id.as_str(), "version_type_id")?;
    let seconds = deadline(body.deadline_seconds)?;
    let switched = app.registry.switch_version(&caller.0, &hostname, &version_type, seconds).await?;
    wait(&app, &switched.epoch, switched.serial, patience).await?;
    let ids = |ids: Vec<signalbox_route_table::InstanceId>| ids.iter().map(ToString::to_string).collect();
    let view = SwitchedView {
        hostname: hostname.to_string(),
        version_type_id: version_type.as_str().to_owned(),
        resumed: ids(switched.resumed),
        drained: ids(switched.drained),
        serial: switched.serial,
        epoch: switched.epoch,
        changed: switched.changed,
    };
    Ok(([(SERIAL_HEADER.clone(), HeaderValue::from(switched.serial))], Answer(view)).into_response())
}
