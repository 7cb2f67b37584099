//! One label: create, read, update, delete, retry.

use axum::{
    Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ManageMachines, ReadMachines, TellFacts,
    confined::OfMachine,
    facts, key,
    params::{LabelName, MachineName},
    patience,
    views::{self, changed},
};
use crate::http::{
    App, Problem,
    body::{Query, RawBytes},
    path::Path,
};
use signalbox_api::machines::{Changed, Facts, Label};
use signalbox_machines::Update;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show, create, update, delete)).routes(routes!(retry))
}

/// Options for creating a label.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Asked {
    /// Allows the creation of a label that was deleted.
    recreate: Option<bool>,
    /// Answer when the label has settled: `5s`, at most `60s`.
    wait: Option<String>,
}

/// Options for updating a label.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UpdateOptions {
    /// Change the label only if it has this revision.
    revision: Option<u64>,
    /// Answer when the label has settled: `5s`, at most `60s`.
    wait: Option<String>,
}

/// The revision that a request expects.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Expected {
    /// Change the label only if it has this revision.
    pub(super) revision: Option<u64>,
}

/// Show a label
#[utoipa::path(get, path = "/state-machines/{machine}/labels/{label}",
    params(("machine" = String, Path, example = "drip"), ("label" = String, Path, example = "88625")),
    responses((status = 200, body = Label), (status = "default", description = "410 label_deleted")))]
async fn show(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
) -> Result<Answer<Label>, Problem> {
    let record = app.machines.label_store.label(&machine, &label).await?;
    Ok(Answer(views::label(label.0, record)))
}

/// Create a label
///
/// It begins in the machine's first state. With an `Idempotency-Key` a repeat returns the first answer and changes
/// nothing.
#[utoipa::path(post, path = "/state-machines/{machine}/labels/{label}", params(Asked), request_body = Facts,
    responses((status = 201, body = Changed),
    (status = "default", description = "422 invalid_metadata, invalid_idempotency_key, idempotency_conflict | \
        409 label_exists, label_deleted | 429 label_limit_reached")))]
async fn create(
    OfMachine { 0: caller, .. }: OfMachine<TellFacts>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
    RawBytes(body): RawBytes,
) -> Result<(StatusCode, Answer<Changed>), Problem> {
    let (wait, key) = (patience(asked.wait.as_deref())?, key(&headers)?);
    let _place = wait.map(|_| app.limits.waits.take(&caller)).transpose()?;
    let (metadata, _) = facts(&headers, &body)?;
    let recreate = asked.recreate.unwrap_or(false);
    let mut answer =
        app.machines.labels.by(&caller.name).create(&machine, &label, &metadata, recreate, key).await?;
    if let Some(wait) = wait.filter(|_| !answer.repeated) {
        answer = app.machines.label_store.wait_until_at_rest(&machine, &label, wait).await?;
    }
    Ok((StatusCode::CREATED, Answer(changed(label.0, answer))))
}

/// Update a label's metadata
///
/// Objects are merged recursively, lists and scalars are replaced, null is stored; with
/// `application/merge-patch+json`, null removes a member. If this triggers a gate that needs no feed, the gate is
/// evaluated before the answer. With an `Idempotency-Key`, a repeat returns the first answer and changes nothing.
#[utoipa::path(patch, path = "/state-machines/{machine}/labels/{label}", params(UpdateOptions), request_body = Facts,
    responses((status = 200, body = Changed),
    (status = "default", description = "409 conflict | 410 label_deleted | \
        422 invalid_metadata, invalid_idempotency_key, idempotency_conflict")))]
async fn update(
    OfMachine { 0: caller, .. }: OfMachine<TellFacts>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
    Query(asked): Query<UpdateOptions>,
    headers: HeaderMap,
    RawBytes(body): RawBytes,
) -> Result<Answer<Changed>, Problem> {
    let (wait, key) = (patience(asked.wait.as_deref())?, key(&headers)?);
    let _place = wait.map(|_| app.limits.waits.take(&caller)).transpose()?;
    let (metadata, patch) = facts(&headers, &body)?;
    let update = Update { metadata: &metadata, patch, key };
    let labels = app.machines.labels.by(&caller.name).once(key, asked.revision);
    let mut answer = labels.update(&machine, &label, &update).await?;
    if let Some(wait) = wait.filter(|_| !answer.repeated) {
        answer = app.machines.label_store.wait_until_at_rest(&machine, &label, wait).await?;
    }
    Ok(Answer(changed(label.0, answer)))
}

/// Delete a label
///
/// Its metadata is removed; its name and history are kept for thirty days. With an `Idempotency-Key`, a repeat does not delete
/// a label that was created in the meantime.
#[utoipa::path(delete, path = "/state-machines/{machine}/labels/{label}", params(Expected),
    responses((status = 204, description = "Deleted, or did not exist"),
    (status = "default", description = "409 conflict | 422 invalid_idempotency_key, idempotency_conflict | \
        429 label_limit_reached")))]
async fn delete(
    OfMachine { 0: caller, .. }: OfMachine<TellFacts>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
    Query(Expected { revision }): Query<Expected>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let labels = app.machines.labels.by(&caller.name).once(key(&headers)?, revision);
    labels.delete(&machine, &label).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Retry the action of an errored label
///
/// The attempts are counted from zero; the token stays the same. With an `Idempotency-Key`, a repeat returns the first answer
/// and changes nothing.
#[utoipa::path(post, path = "/state-machines/{machine}/labels/{label}/retry", params(Expected),
    responses((status = 200, body = Changed),
    (status = "default", description = "409 label_not_errored, conflict | 410 label_deleted | \
        422 invalid_idempotency_key, idempotency_conflict")))]
async fn retry(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
    Query(Expected { revision }): Query<Expected>,
    headers: HeaderMap,
) -> Result<Answer<Changed>, Problem> {
    let labels = app.machines.labels.by(&caller.name).once(key(&headers)?, revision);
    let answer = labels.retry(&machine, &label).await?;
    Ok(Answer(changed(label.0, answer)))
}
