//! Secrets of machines: values for headers and signatures of webhooks. No answer contains a value.

use axum::{Json as Answer, extract::State, http::StatusCode};
use serde_json::json;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ManageMachines, ReadMachines, confined::OfMachine, params::MachineName};
use crate::http::{
    App, Problem,
    audit::Notes,
    body::{Body, Json},
    path::Path,
};
use signalbox_api::machines::{NewSecret, Secret, Secrets};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(set, delete))
}

impl Body for NewSecret {}

/// List the secrets of a machine
///
/// Without their values. The machine need not exist.
#[utoipa::path(get, path = "/state-machines/{machine}/secrets", responses((status = 200, body = Secrets)))]
async fn list(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
) -> Result<Answer<Secrets>, Problem> {
    let secrets = app.machines.secrets.list(&machine).await?;
    Ok(Answer(Secrets { secrets }))
}

/// Set a secret of a machine
///
/// Headers and signatures of the definition's webhooks use it as `${NAME}`. It is stored encrypted, is sent only to addresses
/// that begin with `address`, and cannot be read. The machine need not exist yet.
#[utoipa::path(put, path = "/state-machines/{machine}/secrets/{secret}",
    params(("secret" = String, Path, example = "WAREHOUSE_TOKEN")), request_body = NewSecret,
    responses((status = 200, body = Secret),
    (status = "default", description = "409 no_edge_key | 422 invalid_secret, too_many_secrets")))]
async fn set(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    notes: Notes,
    Path((machine, name)): Path<(MachineName, String)>,
    Json(new): Json<NewSecret>,
) -> Result<Answer<Secret>, Problem> {
    note_before(&app, &notes, (&machine, &name)).await?;
    let place = (&*name, &*new.address);
    Ok(Answer(app.machines.secrets.set(&machine, place, &new.value, &caller.name).await?))
}

/// Delete a secret of a machine
///
/// Calls that need it fail, and are retried.
#[utoipa::path(delete, path = "/state-machines/{machine}/secrets/{secret}",
    responses((status = 204, description = "Deleted, or did not exist")))]
async fn delete(
    _: OfMachine<ManageMachines>,
    State(app): State<App>,
    notes: Notes,
    Path((machine, name)): Path<(MachineName, String)>,
) -> Result<StatusCode, Problem> {
    note_before(&app, &notes, (&machine, &name)).await?;
    app.machines.secrets.delete(&machine, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Notes a secret before its change, without its value.
async fn note_before(app: &App, notes: &Notes, (machine, name): (&str, &str)) -> Result<(), Problem> {
    let before = app.machines.secrets.list(machine).await?.into_iter().find(|secret| secret.name == name);
    if let Some(before) = before {
        notes.before(json!(before));
    }
    Ok(())
}
