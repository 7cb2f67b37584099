//! Whether the running system is as it must be: what every room checks of its own data, put together.

use axum::{Json as Answer, extract::State};
use serde::{Deserialize, Serialize};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{Granted, ReadAll},
    body::Query,
};
use signalbox_bus as bus;
use signalbox_machines::CheckCursor;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check))
}

/// What was found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Check {
    /// Whether nothing was found.
    sound: bool,
    /// The rooms whose data was looked at.
    #[schema(example = json!(["bus", "queues", "sequencer", "machines"]))]
    rooms: Vec<&'static str>,
    findings: Vec<FindingView>,
    /// Labels that were looked at.
    looked: u64,
    /// The cursor of the labels that were not, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Where to go on.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Onward {
    /// From `next` of the answer before: then only labels are looked at.
    cursor: Option<String>,
}

/// Something that must never be.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct FindingView {
    /// Whose data it is.
    #[schema(example = "sequencer")]
    room: &'static str,
    #[serde(flatten)]
    finding: bus::Finding,
}

/// Check the system's data
///
/// Looks at lanes and jobs of the bus, at queues, at every object with a queue, and at labels of state machines, a part at a time,
/// without changing anything and beside running work. What looks wrong is looked at twice before it is told. Of labels an answer
/// covers a few thousand; the next go on from its `next`.
#[utoipa::path(get, path = "/check", tag = "health", params(Onward), responses((status = 200, body = Check),
    (status = 400, description = "bad_cursor, invalid_query", body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
    (status = 503, description = "fabric_unavailable", body = Problem)))]
async fn check(
    _: Granted<ReadAll>,
    State(app): State<App>,
    Query(from): Query<Onward>,
) -> Result<Answer<Check>, Problem> {
    let mut rooms = match from.cursor {
        None => rooms_but_machines(&app).await?,
        Some(_) => Vec::new(),
    };
    let cursor: CheckCursor = match &from.cursor {
        None => CheckCursor::default(),
        Some(text) => text.parse().map_err(|()| {
            Problem::bad_request("bad_cursor", "a cursor is the `next` of the answer before")
        })?,
    };
    let page = app.machines.inspector.checker.check(cursor).await?;
    rooms.push(("machines", page.findings));
    let names = rooms.iter().map(|(room, _)| *room).collect();
    let findings: Vec<FindingView> = rooms
        .into_iter()
        .flat_map(|(room, found)| found.into_iter().map(move |finding| FindingView { room, finding }))
        .collect();
    let next = page.next.map(|next| next.to_string());
    Ok(Answer(Check { sound: findings.is_empty(), rooms: names, findings, looked: page.checked, next }))
}

async fn rooms_but_machines(app: &App) -> Result<Vec<(&'static str, Vec<bus::Finding>)>, Problem> {
    let queues: Vec<String> = app.bus.handle().registry().queues.keys().cloned().collect();
    Ok(vec![
        ("bus", app.bus.check().await?),
        ("queues", app.queues.check(&queues).await?),
        ("sequencer", app.sequencer.handle.check().await?),
    ])
}
