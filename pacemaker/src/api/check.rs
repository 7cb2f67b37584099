//! The consistency check of a running system: each subsystem checks its own data.

use axum::{Json as Answer, extract::State};
use serde::Deserialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{Granted, ReadAll},
    body::Query,
};
use signalbox_api::health::{Check, Finding};
use signalbox_bus as bus;
use signalbox_machines::CheckCursor;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check))
}

/// The position to continue from.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Onward {
    /// The `next` of an earlier answer; with it only labels are checked.
    cursor: Option<String>,
}

/// Check the system's data
///
/// Checks lanes and jobs of the bus, queues, every object with a queue, and labels of state machines, in parts, without
/// changing anything and alongside running work. A violation is checked twice before it is reported. One answer covers a
/// few thousand labels; pass its `next` as `cursor` to check more.
#[utoipa::path(get, path = "/check", tag = "health", params(Onward), responses(
    (status = 200, body = Check), (status = 422, description = "invalid_cursor", body = Problem)))]
async fn check(
    _: Granted<ReadAll>,
    State(app): State<App>,
    Query(from): Query<Onward>,
) -> Result<Answer<Check>, Problem> {
    let mut subsystems = match from.cursor {
        None => all_but_machines(&app).await?,
        Some(_) => Vec::new(),
    };
    let cursor: CheckCursor = match &from.cursor {
        None => CheckCursor::default(),
        Some(text) => text.parse().map_err(|()| {
            Problem::unprocessable("invalid_cursor", "`cursor` must be the `next` of an earlier answer")
        })?,
    };
    let page = app.machines.inspector.checker.check(cursor).await?;
    subsystems.push(("machines", page.findings));
    let names = subsystems.iter().map(|(subsystem, _)| (*subsystem).to_owned()).collect();
    let findings: Vec<Finding> = subsystems
        .into_iter()
        .flat_map(|(subsystem, found)| found.into_iter().map(move |one| finding(subsystem, one)))
        .collect();
    let next = page.next.map(|next| next.to_string());
    Ok(Answer(Check {
        consistent: findings.is_empty(),
        subsystems: names,
        findings,
        checked: page.checked,
        next,
    }))
}

fn finding(subsystem: &str, found: bus::Finding) -> Finding {
    let bus::Finding { predicate, shard, name, what } = found;
    Finding { subsystem: subsystem.to_owned(), predicate, shard, name, what }
}

async fn all_but_machines(app: &App) -> Result<Vec<(&'static str, Vec<bus::Finding>)>, Problem> {
    let queues: Vec<String> = app.bus.handle().registry().queues.keys().cloned().collect();
    Ok(vec![
        ("bus", app.bus.check().await?),
        ("queues", app.queues.check(&queues).await?),
        ("sequencer", app.sequencer.handle.check().await?),
    ])
}
