//! Whether the running system is as it must be: what every room checks of its own data, put together.

use axum::{Json as Answer, extract::State};
use serde::Serialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    App, Problem,
    auth::{Granted, ReadAll},
};
use crate::{bus, queues};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check))
}

/// What was found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Check {
    /// Whether nothing was found.
    sound: bool,
    /// The rooms whose data was looked at.
    #[schema(example = json!(["bus", "queues", "sequencer"]))]
    rooms: Vec<&'static str>,
    findings: Vec<FindingView>,
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
/// Looks at lanes and jobs of the bus, at queues and at every object with a queue, a part at a time, without changing anything and
/// beside running work. What looks wrong is looked at twice before it is told.
#[utoipa::path(get, path = "/check", tag = "health", responses((status = 200, body = Check),
    (status = 401, body = Problem), (status = 403, body = Problem),
    (status = 503, description = "fabric_unavailable", body = Problem)))]
async fn check(_: Granted<ReadAll>, State(app): State<App>) -> Result<Answer<Check>, Problem> {
    let queues: Vec<String> = app.bus.handle().registry().queues.keys().cloned().collect();
    let queues = app.queues.check(&queues).await?.into_iter();
    let queues = queues.map(|queues::Finding { predicate, shard, name, what }| bus::Finding {
        predicate,
        shard,
        name,
        what,
    });
    let rooms = [
        ("bus", app.bus.check().await?),
        ("queues", queues.collect()),
        ("sequencer", app.sequencer.handle.check().await?),
    ];
    let names = rooms.iter().map(|(room, _)| *room).collect();
    let findings: Vec<FindingView> = rooms
        .into_iter()
        .flat_map(|(room, found)| found.into_iter().map(move |finding| FindingView { room, finding }))
        .collect();
    Ok(Answer(Check { sound: findings.is_empty(), rooms: names, findings }))
}
