//! `GET /pacemakers`.

use axum::{Json as Answer, extract::State};
use serde::Serialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{Granted, ReadAll},
};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// A pacemaker that serves.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct PacemakerView {
    /// Its node's name; two processes of one name are two members of the list.
    node: String,
    #[schema(example = "0.1.0")]
    version: String,
    /// Milliseconds since it said so; it does every five seconds.
    age_ms: u64,
}

/// All that serve.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct PacemakerList {
    pacemakers: Vec<PacemakerView>,
}

/// List the pacemakers that serve
///
/// Who was killed stays in the list for half a minute.
#[utoipa::path(get, path = "/pacemakers", tag = "health", responses((status = 200, body = PacemakerList)))]
async fn list(_: Granted<ReadAll>, State(app): State<App>) -> Result<Answer<PacemakerList>, Problem> {
    let seen = app.presence.all().await.map_err(|error| {
        tracing::warn!(%error, "the list of pacemakers cannot be read");
        Problem::unavailable("fabric_unavailable", "the pacemakers cannot be listed at the moment; try again")
    })?;
    let view = |one: signalbox_lease::Seen| PacemakerView {
        node: one.node,
        version: one.version,
        age_ms: one.age_ms,
    };
    Ok(Answer(PacemakerList { pacemakers: seen.into_iter().map(view).collect() }))
}
