//! Is the bus alive, can it keep up, and what does it count.

use std::time::Duration;

use axum::{Json as Answer, extract::State, http::StatusCode};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{Anyone, ReadAll, RootOnly, Whole},
};
use signalbox_api::events::{Numbers, Pong};

/// The response time of the scaling pulse while the workers are behind.
const SLOW_PULSE: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(ping))
        .routes(routes!(pulse))
        .routes(routes!(scaling))
        .routes(routes!(numbers))
        .routes(routes!(initialize))
}

/// Show the current time
#[utoipa::path(get, path = "/health/ping", security(()), responses((status = 200, body = Pong)))]
pub(super) async fn ping(State(app): State<App>) -> Answer<Pong> {
    Answer(Pong { pong: app.bus.now_ms() })
}

/// Check whether the event bus reaches its Redis
#[utoipa::path(get, path = "/pulse", responses((status = 204), (status = "default", description = "500 no_pulse")))]
async fn pulse(caller: Result<Anyone, Problem>, State(app): State<App>) -> Result<StatusCode, Problem> {
    let no_pulse = |problem: Problem| {
        let away = problem.status().is_server_error();
        let detail = "the event bus cannot reach its Redis";
        if away { Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "no_pulse", detail) } else { problem }
    };
    // A token that is not of the bus is looked up in the same Redis; a failure of that answers the question.
    caller.map_err(no_pulse)?;
    app.bus.handle.pulse().await.map_err(|error| no_pulse(error.into()))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Check whether the workers keep up
///
/// Answers immediately while they do, and after a second while more jobs are overdue than `bus.overdue_jobs`: a signal
/// for autoscalers that use response times.
#[utoipa::path(get, path = "/pulse/scaling", responses((status = 204)))]
async fn scaling(_: Anyone, State(app): State<App>) -> Result<StatusCode, Problem> {
    if app.bus.handle.overdue_jobs().await? > app.bus.overdue_jobs {
        tokio::select! {
            () = tokio::time::sleep(SLOW_PULSE) => {}
            () = app.shutdown.cancelled() => {}
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Show the counters of the event bus
///
/// The same as in `/metrics`, as JSON, without the counters of this process.
#[utoipa::path(get, path = "/bus/metrics", responses((status = 200, body = Numbers)))]
async fn numbers(_: Whole<ReadAll>, State(app): State<App>) -> Result<Answer<Numbers>, Problem> {
    Ok(Answer(app.bus.handle.numbers().await?))
}

/// Initialize the event bus on a new fabric
///
/// While the fabric is not the one that was used before, nothing is accepted, because its subscriptions are gone. This
/// takes it as it is, and lays out a registry where there is none. On the known fabric it changes nothing.
#[utoipa::path(post, path = "/bus/initialize", responses((status = 204)))]
async fn initialize(_: Whole<RootOnly>, State(app): State<App>) -> Result<StatusCode, Problem> {
    app.bus.handle.initialize().await?;
    tracing::warn!("an operator initialized the event bus on the fabric as it is");
    Ok(StatusCode::NO_CONTENT)
}
