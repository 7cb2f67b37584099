//! Definitions: plan, apply, versions.

use std::collections::BTreeMap;

use axum::{Json as Answer, extract::State};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use signalbox_machine::{
    Machine,
    definition::{self, Call},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ManageMachines, ReadMachines, params::MachineName, views::moment};
use crate::http::{
    App, Problem,
    auth::Granted,
    body::{Body, Json, RawBytes},
    path::{Parameter as _, Path},
};
use signalbox_access::{Caller, Scope};
use signalbox_machines::{Error, StoredPlan, parse_machine};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(plan))
        .routes(routes!(apply))
        .routes(routes!(versions))
        .routes(routes!(version))
}

/// The changes that a definition would make.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = MachinePlan)]
pub(crate) struct Plan {
    /// The token to apply it with, valid for an hour.
    plan: String,
    /// The version that it is compared with; 0 for a new machine.
    version: u64,
    /// `{"added","removed","changed"}`.
    #[schema(value_type = Object)]
    states: Value,
    /// The differences other than states: `timezone`, `feeds.NAME`, `inputs.TOPIC`, `webhooks`.
    changed: Vec<String>,
    /// Labels in removed states.
    labels: BTreeMap<String, u64>,
    /// Labels that continue as soon as it is applied, because the kind of their state changes: a gate that becomes an
    /// action, or an end that gets a successor.
    starts: u64,
    /// Labels that would move if their gate were evaluated now.
    would_move: u64,
    /// Labels whose evaluation needs a feed.
    needs_feed: u64,
    /// Labels that were checked.
    checked: u64,
    /// Warnings about the definition.
    warnings: Vec<String>,
}

/// Selects the plan to apply.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MachineApply)]
pub(crate) struct Apply {
    plan: String,
    /// The target state for labels in each removed state.
    #[serde(default)]
    map: BTreeMap<String, String>,
}

impl Body for Apply {}

/// The applied definition.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = MachineApplied)]
pub(crate) struct Applied {
    version: u64,
}

/// The versions of a machine, oldest first.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = MachineVersions)]
pub(crate) struct Versions {
    #[schema(value_type = Vec<Object>)]
    versions: Vec<Value>,
}

/// Plan a definition
///
/// The body is YAML and contains this machine (other machines in it are ignored). Nothing changes.
#[utoipa::path(post, path = "/state-machines/{machine}/plan", tag = "machines", params(("machine" = String, Path)),
    request_body(content = String, content_type = "application/yaml"), responses(
    (status = 200, body = Plan),
    (status = 422, description = "invalid_definition: every problem with its place", body = Problem)))]
async fn plan(
    _: Granted<ManageMachines>,
    State(app): State<App>,
    Path(name): Path<String>,
    RawBytes(body): RawBytes,
) -> Result<Answer<Plan>, Problem> {
    let MachineName(name) = MachineName::check(name).map_err(|_| {
        Problem::unprocessable("invalid_definition", "the path contains an invalid machine name")
    })?;
    let source = std::str::from_utf8(&body)
        .map_err(|_| Problem::unprocessable("invalid_definition", "the definition is not UTF-8"))?;
    let file = definition::load_with("definition", source, app.machines.applier.environment())
        .map_err(|refused| Problem::unprocessable("invalid_definition", refused.to_string()))?;
    let warnings = file.warnings.iter().map(ToString::to_string).collect();
    let machine = file.machines.into_iter().find(|machine| machine.name() == name).ok_or_else(|| {
        Problem::unprocessable(
            "invalid_definition",
            format!("the definition does not contain the machine {name}"),
        )
    })?;
    let old = match app.machines.definitions.current(&name).await {
        Ok(old) => Some(old),
        Err(Error::NoSuchMachine) => None,
        Err(error) => return Err(error.into()),
    };
    let preview = app.machines.inspector.planner.preview(old.as_ref(), &machine).await?;
    let version = old.map_or(0, |old| old.number);
    let plan = format!("{:016x}", rand::rng().random::<u64>());
    app.machines.definitions.keep_plan(&name, &plan, version, machine.source()).await?;
    let states = preview.states;
    Ok(Answer(Plan {
        plan,
        version,
        states: json!({"added": states.added, "removed": states.removed, "changed": states.changed}),
        changed: preview.changed,
        labels: preview.labels,
        starts: preview.starts,
        would_move: preview.would_move,
        needs_feed: preview.needs_feed,
        checked: preview.checked,
        warnings,
    }))
}

/// Apply a plan
///
/// The definition becomes the next version, shard by shard; labels in removed states are moved as `map` specifies.
/// Actions that change routes also need the scope `routes`, those that publish also need `publish`.
#[utoipa::path(post, path = "/state-machines/{machine}/apply", tag = "machines", params(("machine" = String, Path)),
    request_body = Apply, responses(
    (status = 200, body = Applied), (status = 404, description = "unknown_plan", body = Problem),
    (status = 409, description = "definition_changed, apply_under_way", body = Problem),
    (status = 422, description = "unmapped_state, invalid_map, unknown_field, missing_field, invalid_body", body = Problem)))]
async fn apply(
    Granted { 0: caller, .. }: Granted<ManageMachines>,
    State(app): State<App>,
    Path(MachineName(name)): Path<MachineName>,
    Json(asked): Json<Apply>,
) -> Result<Answer<Applied>, Problem> {
    let StoredPlan { base, source } = app.machines.definitions.kept_plan(&name, &asked.plan).await?;
    let machine = parse_machine(&name, &source).ok().flatten().ok_or(Error::Unreadable)?;
    allowed(&caller, &machine)?;
    let version = app.machines.applier.apply(&machine, base, &caller.name, &asked.map).await?;
    Ok(Answer(Applied { version }))
}

/// The caller must have the permissions for the machine's actions.
fn allowed(caller: &Caller, machine: &Machine) -> Result<(), Problem> {
    for action in machine.states().iter().filter_map(signalbox_machine::State::action) {
        let needed = match action.call {
            Call::Route(_) => Scope::Routes,
            Call::Publish(_) => Scope::Publish,
            Call::Webhook(_) => continue,
        };
        if !caller.has_any(&[needed]) || (needed == Scope::Routes && !caller.is_unconfined()) {
            let detail = format!("its actions need the scope {}, without a limit to hosts", needed.as_str());
            return Err(Problem::forbidden("scope_missing", detail));
        }
    }
    Ok(())
}

/// List the versions of a machine
#[utoipa::path(get, path = "/state-machines/{machine}/versions", tag = "machines", params(("machine" = String, Path)),
    responses(
    (status = 200, body = Versions), (status = 404, description = "unknown_machine", body = Problem)))]
async fn versions(
    _: Granted<ReadMachines>,
    State(app): State<App>,
    Path(MachineName(name)): Path<MachineName>,
) -> Result<Answer<Versions>, Problem> {
    let current = app.machines.definitions.current(&name).await?;
    let versions = app.machines.definitions.versions(&name).await?.into_iter().map(|(number, stored)| {
        json!({
            "version": number, "at": moment(stored.at_ms), "by": stored.by, "hash": stored.hash,
            "current": number == current.number,
        })
    });
    Ok(Answer(Versions { versions: versions.collect() }))
}

/// Show a version of a machine
///
/// Includes its text.
#[utoipa::path(get, path = "/state-machines/{machine}/versions/{version}", tag = "machines",
    params(("machine" = String, Path), ("version" = u64, Path)), responses(
    (status = 200, body = Object),
    (status = 404, description = "unknown_machine, unknown_version", body = Problem)))]
async fn version(
    _: Granted<ReadMachines>,
    State(app): State<App>,
    Path((name, number)): Path<(MachineName, u64)>,
) -> Result<Answer<Value>, Problem> {
    app.machines.definitions.current(&name).await?;
    let stored = app.machines.definitions.stored_version(&name, number).await?;
    Ok(Answer(json!({
        "version": number, "at": moment(stored.at_ms), "by": stored.by, "hash": stored.hash, "source": stored.source,
    })))
}
