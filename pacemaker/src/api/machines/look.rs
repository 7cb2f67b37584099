//! Looking: machines with their counts, a label's history, why it is where it is, and where it will go.

use std::{collections::BTreeMap, time::Duration};

use axum::{Json as Answer, extract::State};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ReadMachines,
    params::{LabelName, MachineName},
    views::HistoryRow,
};
use crate::http::{
    App, Problem,
    auth::Granted,
    body::{Body, Json},
    path::Path,
};
use signalbox_machines::{Assumptions, Counts};

/// The period that a route simulates, and the maximum of a simulation.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(history))
        .routes(routes!(why))
        .routes(routes!(route))
        .routes(routes!(simulate))
}

/// The machines.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Machines {
    #[serde(rename = "state-machines")]
    state_machines: Vec<MachineEntry>,
}

/// A machine in a list.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = MachineName)]
pub(crate) struct MachineEntry {
    name: String,
    /// The number of its labels by state.
    labels: String,
}

/// A machine.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct MachineView {
    name: String,
    /// The active version.
    version: u64,
    /// Its states in order.
    #[schema(value_type = Vec<Object>)]
    states: Vec<Value>,
    /// Labels by state.
    labels: BTreeMap<String, u64>,
    /// Unsettled labels, by status.
    busy: BTreeMap<String, u64>,
    /// Labels at gates that are evaluated only on entry, by gate: they will not be evaluated again.
    stuck: BTreeMap<String, u64>,
}

/// The transitions of a label, oldest first.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct History {
    history: Vec<HistoryRow>,
}

/// The assumptions of a simulation.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Simulate {
    /// The period to simulate: `30d`.
    #[serde(rename = "for")]
    span: Option<String>,
    /// Or its end, RFC 3339.
    until: Option<String>,
    /// Metadata that is set now.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    /// The answers of feeds; null for one that fails.
    #[serde(default)]
    #[schema(value_type = Object)]
    feeds: BTreeMap<String, Option<Value>>,
    /// The answers of the states' actions; default 200.
    #[serde(default)]
    webhooks: BTreeMap<String, u16>,
}

impl Body for Simulate {}

/// List the machines
#[utoipa::path(get, path = "/state-machines", tag = "machines", responses((status = 200, body = Machines)))]
async fn list(_: Granted<ReadMachines>, State(app): State<App>) -> Result<Answer<Machines>, Problem> {
    let names = app.machines.definitions.names().await?;
    let view = |name: String| MachineEntry { labels: format!("/state-machines/{name}/labels"), name };
    Ok(Answer(Machines { state_machines: names.into_iter().map(view).collect() }))
}

/// Show a machine
#[utoipa::path(get, path = "/state-machines/{machine}", tag = "machines", params(("machine" = String, Path)),
    responses(
    (status = 200, body = MachineView), (status = 404, description = "unknown_machine", body = Problem)))]
async fn show(
    _: Granted<ReadMachines>,
    State(app): State<App>,
    Path(MachineName(name)): Path<MachineName>,
) -> Result<Answer<MachineView>, Problem> {
    let Counts { version, labels, busy, stuck } = app.machines.inspector.overview.counts(&name).await?;
    let shape = |state: &signalbox_machine::State| {
        let kind = if state.action().is_some() {
            "action"
        } else if state.gate().is_some() {
            "gate"
        } else {
            "end"
        };
        let mut next: Vec<&str> = state
            .next()
            .map(|next| next.targets().map(|target| version.machine.at(target).name()).collect())
            .unwrap_or_default();
        next.dedup();
        let triggers: Vec<String> = state
            .gate()
            .map(|gate| gate.triggers.iter().map(ToString::to_string).collect())
            .unwrap_or_default();
        json!({"name": state.name(), "kind": kind, "next": next, "triggers": triggers})
    };
    let states = version.machine.states().iter().map(shape).collect();
    Ok(Answer(MachineView { name, version: version.number, states, labels, busy, stuck }))
}

/// Show a label's history
///
/// The last twenty transitions, also of a label that was deleted within the last thirty days.
#[utoipa::path(get, path = "/state-machines/{machine}/labels/{label}/history", tag = "machines",
    params(("machine" = String, Path), ("label" = String, Path)), responses(
    (status = 200, body = History), (status = 422, description = "invalid_label_name", body = Problem),
    (status = 404, description = "unknown_machine, unknown_label", body = Problem)))]
async fn history(
    _: Granted<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
) -> Result<Answer<History>, Problem> {
    let record = app.machines.label_store.label_or_tombstone(&machine, &label).await?;
    Ok(Answer(History { history: record.history.into_iter().map(Into::into).collect() }))
}

/// Explain a label's state
///
/// The gate's condition as a tree with the value of every operand, the parts that block it, the smallest changes that
/// would open it, the earliest time at which it could open without a change, and the next evaluation. Feeds are
/// queried.
#[utoipa::path(get, path = "/state-machines/{machine}/labels/{label}/why", tag = "machines",
    params(("machine" = String, Path), ("label" = String, Path)), responses(
    (status = 200, body = Object), (status = 422, description = "invalid_label_name", body = Problem),
    (status = 404, description = "unknown_machine, unknown_label", body = Problem),
    (status = 410, description = "label_deleted", body = Problem)))]
async fn why(
    _: Granted<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
) -> Result<Answer<Value>, Problem> {
    Ok(Answer(app.machines.inspector.explainer.why(&machine, &label).await?))
}

/// Show a label's expected route
///
/// The result of a simulation without assumptions, over one year.
#[utoipa::path(get, path = "/state-machines/{machine}/labels/{label}/route", tag = "machines",
    params(("machine" = String, Path), ("label" = String, Path)), responses(
    (status = 200, body = Object), (status = 422, description = "invalid_label_name", body = Problem),
    (status = 404, description = "unknown_machine, unknown_label", body = Problem),
    (status = 410, description = "label_deleted", body = Problem)))]
async fn route(
    _: Granted<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
) -> Result<Answer<Value>, Problem> {
    Ok(Answer(
        app.machines
            .inspector
            .explainer
            .simulate(&machine, &label, Assumptions { span: YEAR, ..Assumptions::default() })
            .await?,
    ))
}

/// Simulate a label
///
/// With assumed metadata, feed answers and webhook answers; `for` (or `until`) sets the period. At most 1,000 steps.
/// Nothing changes.
#[utoipa::path(post, path = "/state-machines/{machine}/labels/{label}/simulate", tag = "machines",
    params(("machine" = String, Path), ("label" = String, Path)), request_body = Simulate,
    responses(
    (status = 200, body = Object),
    (status = 404, description = "unknown_machine, unknown_label", body = Problem),
    (status = 410, description = "label_deleted", body = Problem),
    (status = 422, description = "invalid_span, invalid_label_name, unknown_field", body = Problem)))]
async fn simulate(
    _: Granted<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
    Json(asked): Json<Simulate>,
) -> Result<Answer<Value>, Problem> {
    let bad = || {
        Problem::unprocessable(
            "invalid_span",
            "`for` is a duration like 30d, `until` a moment as in RFC 3339",
        )
    };
    let until =
        asked.until.as_deref().map(|until| until.parse::<Timestamp>().map_err(|_| bad())).transpose()?;
    let span = match &asked.span {
        Some(span) => {
            let seconds = signalbox_condition::duration(span).ok_or_else(bad)?;
            Duration::from_secs(seconds).min(10 * YEAR)
        }
        None => YEAR,
    };
    let asking =
        Assumptions { span, until, metadata: asked.metadata, feeds: asked.feeds, webhooks: asked.webhooks };
    Ok(Answer(app.machines.inspector.explainer.simulate(&machine, &label, asking).await?))
}
