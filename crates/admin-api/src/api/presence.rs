//! `GET /pacemakers`.

use axum::{Json as Answer, extract::State};
use signalbox_api::health::{Pacemaker, PacemakerList};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{ReadAll, Whole},
};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// List the running pacemakers
///
/// A pacemaker that was killed remains in the list for half a minute.
#[utoipa::path(get, path = "/pacemakers", responses((status = 200, body = PacemakerList)))]
async fn list(_: Whole<ReadAll>, State(app): State<App>) -> Result<Answer<PacemakerList>, Problem> {
    let seen = app.presence.all().await.map_err(|error| {
        tracing::warn!(%error, "the list of pacemakers cannot be read");
        Problem::unavailable("fabric_unavailable", "The fabric Redis does not respond; repeat the request.")
    })?;
    let view =
        |one: signalbox_lease::Seen| Pacemaker { node: one.node, version: one.version, age_ms: one.age_ms };
    Ok(Answer(PacemakerList { pacemakers: seen.into_iter().map(view).collect() }))
}
