//! The desired policy of a host.

use axum::{
    Json as Answer,
    extract::State as AppState,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    changes::{DEFAULT_DEADLINE_SECONDS, MAX_DEADLINE_SECONDS, WaitQuery},
    errors::check_host,
    hosts::instances_of,
    wait::{Removed, SerialHeader, wait},
};
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{Confined, Hosts, ManageRoutes},
    body::{Body, Json, Query},
    path::Path,
    precondition::expected,
};
use signalbox_access::Caller;
use signalbox_api::{
    Time,
    routes::{Promote, PromotedHost, RuledHost, UndoPromotion},
};
use signalbox_route_table::{Hostname, Invalid, Label, PathRule, Pause, Policy};
use signalbox_routing::{Error, PromotionTimes, ResourceChange};

const DEFAULT_UNDO_SECONDS: u32 = 3600;
const MAX_UNDO_SECONDS: u32 = 604_800;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(remove))
        .routes(routes!(put_paths, remove_paths))
        .routes(routes!(pause, resume))
        .routes(routes!(promote))
        .routes(routes!(undo))
}

impl Body for Policy {}

/// A policy as the API shows it, without hashes of passwords.
pub(super) fn raw(policy: &Policy) -> Box<RawValue> {
    // A policy is an object with text keys, which always has a JSON form.
    to_raw_value(&without_passwords(policy)).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The policy with `(hidden)` for each hash of a password.
pub(super) fn without_passwords(policy: &Policy) -> Policy {
    let hidden = serde_json::to_value(policy).and_then(|mut value| {
        Policy::hide_passwords(&mut value);
        serde_json::from_value(value)
    });
    hidden.unwrap_or_default()
}

/// How to set a policy.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PolicyQuery {
    /// Answer when every live router has the change: `5s`, `500ms`, `5`; at most 60 s. If it takes longer the answer
    /// is 504, although the change was applied.
    #[param(example = "5s")]
    wait: Option<String>,
    /// Whether `shares` may give a part to a version type that no instance of the host has.
    #[serde(default)]
    force: bool,
}

/// Set a host's policy
///
/// Replaces the whole policy: missing fields get the edge's defaults. A policy can be set before the first instance is
/// registered, stays when the last one is removed, and is removed with the host. Weights belong to instances. With `If-Match`
/// only the policy with that `ETag` of `GET` is replaced, with `If-None-Match: *` the host must not have a policy.
///
/// Instances on standby serve when `shares` gives a part to their version type. A new part for a version type that no instance of
/// the host has is rejected unless `force` is set, because its requests would go to the other version types.
#[utoipa::path(put, path = "/hosts/{hostname}", params(PolicyQuery), request_body = Policy,
    responses((status = 200, body = RuledHost),
    (status = "default", description = "409 no_instance_of_version, policy_unreadable | 412 policy_changed | \
        422 invalid_policy (`field` says which), automatic_https_off")))]
pub(super) async fn put(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(PolicyQuery { wait: patience, force }): Query<PolicyQuery>,
    headers: HeaderMap,
    Json(policy): Json<Policy>,
) -> Result<Response, Problem> {
    let patience = WaitQuery { wait: patience }.patience(&app, &caller)?;
    let expected = expected(&headers)?;
    let policy = policy.check()?;
    app.acme.check(&hostname, &policy)?;
    check_host(&caller, &hostname)?;
    if !force {
        app.registry.check_shares_are_served(&hostname, &policy).await?;
    }
    note_before(&app, &notes, &caller, &hostname).await?;
    notes.requested(json!({"rules": raw(&policy)}));
    let (ruled, policy) = app.registry.set_policy(&caller, &hostname, &policy, expected).await?;
    app.acme.policy_changed(&hostname, &policy).await;
    let serial = wait(&app, &ruled.epoch, ruled.serial, patience).await?;
    Ok(ruled_host(serial, &hostname, &policy, ruled))
}

/// The answer to a change of a policy.
fn ruled_host(serial: SerialHeader, hostname: &Hostname, policy: &Policy, ruled: ResourceChange) -> Response {
    let view = RuledHost {
        hostname: hostname.to_string(),
        rules: Some(policy).filter(|policy| !policy.is_empty()).map(raw),
        serial: ruled.serial,
        epoch: ruled.epoch,
        changed: ruled.changed,
    };
    (serial, Answer(view)).into_response()
}

/// The rules for paths of a host.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct Paths {
    /// The rules, at most 256.
    paths: Vec<PathRule>,
}

impl Body for Paths {}

/// Set the rules for paths of a host
///
/// Replaces the rules for paths; the rest of the host's policy stays. The exact rule for a path applies, otherwise that of
/// the longest prefix. Other paths are served by the host's own instances. The token must cover the host and every service.
#[utoipa::path(put, path = "/hosts/{hostname}/paths", params(WaitQuery), request_body = Paths,
    responses((status = 200, body = RuledHost),
    (status = "default", description = "422 invalid_policy (`field` says which)")))]
async fn put_paths(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
    Json(body): Json<Paths>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    note_before(&app, &notes, &caller, &hostname).await?;
    let mut rules = json!({"paths": body.paths});
    Policy::hide_passwords(&mut rules);
    notes.requested(json!({"rules": rules}));
    let altered = app.registry.set_paths(&caller, &hostname, Some(body.paths)).await?;
    let serial = wait(&app, &altered.change.epoch, altered.change.serial, patience).await?;
    Ok(ruled_host(serial, &hostname, &altered.after, altered.change))
}

/// Remove the rules for paths of a host
///
/// Its own instances serve all paths then. The rest of its policy stays. The call can be repeated.
#[utoipa::path(delete, path = "/hosts/{hostname}/paths", params(WaitQuery), responses(Removed))]
async fn remove_paths(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    note_before(&app, &notes, &caller, &hostname).await?;
    let ruled = app.registry.set_paths(&caller, &hostname, None).await?.change;
    let serial = wait(&app, &ruled.epoch, ruled.serial, patience).await?;
    Ok((StatusCode::NO_CONTENT, serial).into_response())
}

/// Remove a host's policy
///
/// Its instances then serve it with the edge's defaults. The call can be repeated.
#[utoipa::path(delete, path = "/hosts/{hostname}/policy", params(WaitQuery), responses(Removed))]
async fn remove(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    note_before(&app, &notes, &caller, &hostname).await?;
    let ruled = app.registry.remove_policy(&caller, &hostname).await?;
    let serial = wait(&app, &ruled.epoch, ruled.serial, patience).await?;
    Ok((StatusCode::NO_CONTENT, serial).into_response())
}

impl Body for Pause {}

/// Pause a host
///
/// Its requests wait until it is resumed, or are answered 503 after a time. The rest of its policy stays. The call can be
/// repeated.
#[utoipa::path(put, path = "/hosts/{hostname}/pause", params(WaitQuery), request_body = Pause,
    responses((status = 200, body = RuledHost),
    (status = "default", description = "422 invalid_policy (`field` says which)")))]
async fn pause(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
    Json(body): Json<Pause>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    note_before(&app, &notes, &caller, &hostname).await?;
    notes.requested(json!({"pause": body}));
    let altered = app.registry.set_pause(&caller, &hostname, Some(body)).await?;
    let serial = wait(&app, &altered.change.epoch, altered.change.serial, patience).await?;
    Ok(ruled_host(serial, &hostname, &altered.after, altered.change))
}

/// Resume a host
///
/// Its waiting requests continue. The call can be repeated.
#[utoipa::path(delete, path = "/hosts/{hostname}/pause", params(WaitQuery), responses(Removed))]
async fn resume(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    note_before(&app, &notes, &caller, &hostname).await?;
    let ruled = app.registry.set_pause(&caller, &hostname, None).await?.change;
    let serial = wait(&app, &ruled.epoch, ruled.serial, patience).await?;
    Ok((StatusCode::NO_CONTENT, serial).into_response())
}

/// Notes the policy before a change for the audit log. A caller without access to the host learns nothing. A policy that cannot
/// be read can be replaced or removed, and the log has no earlier value then.
pub(super) async fn note_before(
    app: &App,
    notes: &Notes,
    caller: &Caller,
    hostname: &Hostname,
) -> Result<(), Problem> {
    if !caller.may_touch(hostname) {
        return Ok(());
    }
    match app.registry.store().policy(hostname).await {
        Ok(Some(wanted)) => {
            notes.before(json!({"hostname": hostname.to_string(), "rules": raw(&wanted.value)}));
        }
        Ok(None) => {}
        Err(Error::Record(error)) => {
            tracing::warn!(%hostname, %error, "policy before the change not readable")
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Notes the versions and states of a host's instances before a change for the audit log.
async fn note_versions(
    app: &App,
    notes: &Notes,
    caller: &Caller,
    hostname: &Hostname,
) -> Result<(), Problem> {
    for one in instances_of(app, caller, hostname).await? {
        let desired = &one.record.desired;
        let version_type = desired.spec.version_type_id.as_str();
        let before = json!({"id": one.id.as_str(), "version_type_id": version_type, "state": desired.state});
        notes.instance(Some(before), None);
    }
    Ok(())
}

impl Body for Promote {}

impl Body for UndoPromotion {}

/// The times of a promotion, checked.
fn times(drain_seconds: Option<u32>, undo_seconds: Option<u32>) -> Result<PromotionTimes, Invalid> {
    let within = |given: Option<u32>, default: u32, max: u32, field: &'static str| {
        let detail = format!("`{field}` must be between 0 and {max}");
        let seconds = Some(given.unwrap_or(default)).filter(|seconds| *seconds <= max);
        seconds.ok_or_else(|| Invalid::new("invalid_deadline", field, detail))
    };
    Ok(PromotionTimes {
        drain_seconds: within(
            drain_seconds,
            DEFAULT_DEADLINE_SECONDS,
            MAX_DEADLINE_SECONDS,
            "drain_seconds",
        )?,
        undo_seconds: within(undo_seconds, DEFAULT_UNDO_SECONDS, MAX_UNDO_SECONDS, "undo_seconds")?,
    })
}

/// Promote a version type of a host
///
/// Its instances of this version type receive requests from now on; then those of other versions drain, with all the names
/// that they serve. Nothing is removed at first: they are on standby for `undo_seconds`, and the promotion can be undone. Traffic
/// splits between versions are removed from the policy. Nothing is changed unless the version has a healthy instance, and one
/// for each name that would otherwise have none. Instances of a replaced version are on standby when they are registered
/// again. The call can be repeated.
#[utoipa::path(post, path = "/hosts/{hostname}/promote", params(WaitQuery), request_body = Promote,
    responses((status = 200, body = PromotedHost),
    (status = "default", description = "409 no_instance_of_version, version_unhealthy, version_incomplete \
        (`hostnames` says which names) | 422 invalid_label, invalid_deadline")))]
async fn promote(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
    Json(body): Json<Promote>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    let version_type = Label::parse(&body.version_type_id, "version_type_id")?;
    let times = times(body.drain_seconds, body.undo_seconds)?;
    note_before(&app, &notes, &caller, &hostname).await?;
    note_versions(&app, &notes, &caller, &hostname).await?;
    notes.requested(json!(body));
    let promoted = Box::pin(app.registry.promote(&caller, &hostname, &version_type, times)).await?;
    let serial = wait(&app, &promoted.epoch, promoted.serial, patience).await?;
    Ok((serial, Answer(promoted)).into_response())
}

/// Undo the promotion of a host
///
/// What was served before the promotion is served again, with the traffic split of that time, and the promoted version type
/// drains. It is on standby for an hour, and can be promoted again. The call can be repeated: a promotion is undone once.
#[utoipa::path(post, path = "/hosts/{hostname}/promote/undo", params(WaitQuery), request_body = UndoPromotion,
    responses((status = 200, body = PromotedHost),
    (status = "default", description = "409 nothing_to_undo, no_instance_of_version, version_unhealthy, \
        version_incomplete (`hostnames` says which names) | 422 invalid_label, invalid_deadline")))]
async fn undo(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
    Json(body): Json<UndoPromotion>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    let version_type = Label::parse(&body.version_type_id, "version_type_id")?;
    let times = times(body.drain_seconds, None)?;
    note_before(&app, &notes, &caller, &hostname).await?;
    note_versions(&app, &notes, &caller, &hostname).await?;
    notes.requested(json!(body));
    let undone = app.registry.undo_promotion(&caller, &hostname, &version_type, body.at.map(Time::ms), times);
    let undone = Box::pin(undone).await?;
    let serial = wait(&app, &undone.epoch, undone.serial, patience).await?;
    Ok((serial, Answer(undone)).into_response())
}
