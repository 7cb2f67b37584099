//! Looking: machines with their counts, a label's history, why it is where it is, and where it will go.

use std::time::Duration;

use axum::{Json as Answer, extract::State};
use serde::Deserialize;
use serde_json::Value;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ReadMachines,
    bulk::limit,
    confined::OfMachine,
    params::{LabelName, MachineName},
    views::{self, line, moved},
};
use crate::http::{
    App, Problem,
    auth::Confined,
    body::{Body, Json, Query},
    path::Path,
};
use signalbox_access::Caller;
use signalbox_api::{
    Time,
    machines::{
        Activity, AssumedAnswer, AssumedResponse, History, Machine, MachineEntry, MachineState, Machines,
        Simulate,
    },
};
use signalbox_machine::simulate::Assumption;
use signalbox_machines::{Assumptions, Counts};

/// The period that a route simulates, and the maximum of a simulation.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(history))
        .routes(routes!(activity))
        .routes(routes!(why))
        .routes(routes!(route))
        .routes(routes!(simulate))
}

impl Body for Simulate {}

/// List the machines
#[utoipa::path(get, path = "/state-machines", responses((status = 200, body = Machines)))]
async fn list(
    caller: Confined<ReadMachines, crate::http::auth::Machines>,
    State(app): State<App>,
) -> Result<Answer<Machines>, Problem> {
    let mut names = app.machines.definitions.names().await?;
    names.retain(|name| caller.may_use_machine(name));
    let view = |name: String| MachineEntry { labels: format!("/state-machines/{name}/labels"), name };
    Ok(Answer(Machines { state_machines: names.into_iter().map(view).collect() }))
}

/// Show a machine
#[utoipa::path(get, path = "/state-machines/{machine}", responses((status = 200, body = Machine)))]
async fn show(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path(MachineName(name)): Path<MachineName>,
) -> Result<Answer<Machine>, Problem> {
    let Counts { version, labels, kept, busy, stuck, alerts, limits } =
        app.machines.inspector.overview.counts(&name).await?;
    let shape = |state: &signalbox_machine::State| {
        let kind = if state.action().is_some() {
            "action"
        } else if state.gate().is_some() {
            "gate"
        } else {
            "end"
        };
        let next = state.targets().into_iter().map(|target| version.machine.at(target).name().to_owned());
        let next = next.collect();
        let triggers = state
            .gate()
            .map(|gate| gate.triggers.iter().map(ToString::to_string).collect())
            .unwrap_or_default();
        MachineState { kind: kind.to_owned(), name: state.name().to_owned(), next, triggers }
    };
    let states = version.machine.states().iter().map(shape).collect();
    Ok(Answer(Machine {
        name,
        version: version.number,
        by: version.by().to_owned(),
        states,
        labels,
        busy,
        kept: views::kept(kept),
        stuck,
        alerts,
        limits,
    }))
}

/// Show a label's history
///
/// The last twenty transitions, also of a label that was deleted within the last thirty days.
#[utoipa::path(get, path = "/state-machines/{machine}/labels/{label}/history",
    responses((status = 200, body = History)))]
async fn history(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
) -> Result<Answer<History>, Problem> {
    let record = app.machines.label_store.label_or_tombstone(&machine, &label).await?;
    Ok(Answer(History { history: record.history.into_iter().map(moved).collect() }))
}

/// Which part of a label's activity.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// The `next` of the previous page.
    cursor: Option<String>,
    /// 1 to 1,000; default 100.
    limit: Option<usize>,
}

/// Show what happened to a label
///
/// Transitions, attempts of actions with their answers, operations with the token, and changes of metadata, the newest first;
/// also of a label that was deleted within the last thirty days. `machines.history_hours` and `machines.history_lines` set how
/// much is stored.
#[utoipa::path(get, path = "/state-machines/{machine}/labels/{label}/activity", params(Part),
    responses((status = 200, body = Activity)))]
async fn activity(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
    Query(part): Query<Part>,
) -> Result<Answer<Activity>, Problem> {
    let limit = limit(part.limit)?;
    let found = app.machines.label_store.activity(&machine, &label, part.cursor.as_deref(), limit).await?;
    let found = found.ok_or_else(|| {
        Problem::unprocessable("invalid_cursor", "`cursor` must be the `next` of a page of this label")
    })?;
    Ok(Answer(Activity { activity: found.lines.into_iter().map(line).collect(), next: found.next }))
}

/// Explain a label's state
///
/// The gate's condition as a tree with the value of every operand, the parts that block it, the smallest changes that
/// would open it, the earliest time at which it could open without a change, and the next evaluation. Feeds are
/// queried.
#[utoipa::path(get, path = "/state-machines/{machine}/labels/{label}/why", responses((status = 200, body = Object),
    (status = "default", description = "410 label_deleted")))]
async fn why(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
) -> Result<Answer<Value>, Problem> {
    Ok(Answer(app.machines.inspector.explainer.why(&machine, &label).await?))
}

/// Show a label's expected route
///
/// The result of a simulation without assumptions, over one year. It computes for at most 2 seconds; `end` is then `steps`.
#[utoipa::path(get, path = "/state-machines/{machine}/labels/{label}/route", responses((status = 200, body = Object),
    (status = "default", description = "410 label_deleted")))]
async fn route(
    OfMachine { 0: caller, .. }: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
) -> Result<Answer<Value>, Problem> {
    compute_route(&app, &caller, (machine, label), Assumptions { span: YEAR, ..Assumptions::default() }).await
}

/// Simulates in a task of its own: if the client goes away, the place is taken until the computation has ended.
async fn compute_route(
    app: &App,
    caller: &Caller,
    (MachineName(machine), LabelName(label)): (MachineName, LabelName),
    assumptions: Assumptions,
) -> Result<Answer<Value>, Problem> {
    let slot = app.limits.computations.take(caller)?;
    let app = app.clone();
    let simulated = tokio::spawn(async move {
        let _slot = slot;
        app.machines.inspector.explainer.simulate(&machine, &label, assumptions).await
    });
    let simulated =
        simulated.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
    Ok(Answer(simulated?))
}

/// Simulate a label
///
/// With assumed metadata, feed answers and webhook answers; `for` (or `until`) sets the period. At most 1,000 steps
/// and 2 seconds of computing; `end` is then `steps`.
/// Nothing changes.
#[utoipa::path(post, path = "/state-machines/{machine}/labels/{label}/simulate", request_body = Simulate,
    responses((status = 200, body = Object),
    (status = "default", description = "410 label_deleted | 422 invalid_span, invalid_assumption")))]
async fn simulate(
    OfMachine { 0: caller, .. }: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
    Json(asked): Json<Simulate>,
) -> Result<Answer<Value>, Problem> {
    let bad = || Problem::unprocessable("invalid_span", "`for` must be a duration such as 30d");
    if asked.span.is_some() && asked.until.is_some() {
        let detail = "`for` and `until` exclude each other";
        return Err(Problem::unprocessable("invalid_span", detail));
    }
    let span = match &asked.span {
        Some(span) => {
            let seconds = signalbox_condition::duration(span).ok_or_else(bad)?;
            Duration::from_secs(seconds).min(10 * YEAR)
        }
        None => YEAR,
    };
    let answer = |(state, answer)| match answer {
        AssumedAnswer::Status(status) => (state, Assumption { status, body: None }),
        AssumedAnswer::Full(AssumedResponse { status, body }) => (state, Assumption { status, body }),
    };
    let webhooks = asked.webhooks.into_iter().map(answer).collect();
    let asking = Assumptions {
        span,
        until: asked.until.map(Time::timestamp),
        metadata: asked.metadata,
        feeds: asked.feeds,
        webhooks,
    };
    compute_route(&app, &caller, (machine, label), asking).await
}
