//! Is the bus alive, can it keep up, and what does it count.

use std::{collections::BTreeMap, time::Duration};

use axum::{Json as Answer, extract::State, http::StatusCode};
use serde::Serialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::front::by_name;
use crate::http::{
    App, Problem,
    auth::{BeKnown, Granted, ReadAll, RootOnly},
};

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

/// The process answers; the time of the answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Pong {
    /// Unix milliseconds.
    pong: u64,
}

/// Show the time
#[utoipa::path(get, path = "/health/ping", tag = "health", security(()), responses(
    (status = 200, body = Pong)))]
async fn ping(State(app): State<App>) -> Answer<Pong> {
    Answer(Pong { pong: app.bus.now_ms() })
}

/// Check whether the event bus reaches its Redis
#[utoipa::path(get, path = "/pulse", tag = "bus", responses(
    (status = 204), (status = 500, description = "no_pulse", body = Problem)))]
async fn pulse(
    caller: Result<Granted<BeKnown>, Problem>,
    State(app): State<App>,
) -> Result<StatusCode, Problem> {
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
#[utoipa::path(get, path = "/pulse/scaling", tag = "bus", responses((status = 204)))]
async fn scaling(_: Granted<BeKnown>, State(app): State<App>) -> Result<StatusCode, Problem> {
    if app.bus.handle.overdue_jobs().await? > app.bus.overdue_jobs {
        tokio::select! {
            () = tokio::time::sleep(SLOW_PULSE) => {}
            () = app.shutdown.cancelled() => {}
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// All numbers of the bus.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Numbers {
    /// By name.
    subscribers: BTreeMap<String, SubscriberNumbers>,
    jobs: Jobs,
    /// Bytes of events in the log.
    log_bytes: u64,
    /// Telemetry counters.
    counters: BTreeMap<String, u64>,
}

/// The numbers of one subscriber.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct SubscriberNumbers {
    /// Events delivered in all.
    sent: u64,
    /// Events that wait or are being delivered.
    events: u64,
    /// Batches that wait or are being delivered.
    batches: u64,
    /// Creation time of the oldest of them, unix milliseconds.
    oldest_ms: Option<u64>,
    /// Dead letters, in events.
    dead: u64,
    health: u8,
    last_attempted_ms: Option<u64>,
}

/// Delivery jobs by state.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Jobs {
    instant: u64,
    scheduled: u64,
    pending: u64,
}

/// Show the numbers of the event bus
///
/// The same as in `/metrics`, as JSON, without the counters of this process.
#[utoipa::path(get, path = "/bus/metrics", tag = "bus", responses((status = 200, body = Numbers)))]
async fn numbers(_: Granted<ReadAll>, State(app): State<App>) -> Result<Answer<Numbers>, Problem> {
    let gauges = app.bus.handle.gauges().await?;
    let gauges = by_name(gauges, &app.bus.handle.registry());
    let subscribers = gauges.subscribers.into_iter().map(|(name, numbers)| {
        let numbers = SubscriberNumbers {
            sent: numbers.sent,
            events: numbers.queued,
            batches: numbers.batches,
            oldest_ms: numbers.oldest_ms,
            dead: numbers.dead,
            health: numbers.health,
            last_attempted_ms: numbers.last_attempted_ms,
        };
        (name, numbers)
    });
    Ok(Answer(Numbers {
        subscribers: subscribers.collect(),
        jobs: Jobs {
            instant: gauges.jobs_instant,
            scheduled: gauges.jobs_scheduled,
            pending: gauges.jobs_pending,
        },
        log_bytes: gauges.log_bytes,
        counters: gauges.counters,
    }))
}

/// Initialize the event bus on a new fabric
///
/// If the fabric was replaced by an empty or another one, publishing is rejected, because its subscriptions are gone.
/// This call accepts the current fabric and creates a registry if there is none. On the known fabric it changes
/// nothing.
#[utoipa::path(post, path = "/bus/initialize", tag = "bus", responses((status = 204)))]
async fn initialize(_: Granted<RootOnly>, State(app): State<App>) -> Result<StatusCode, Problem> {
    app.bus.handle.initialize().await?;
    tracing::warn!("the event bus was initialized on the current fabric");
    Ok(StatusCode::NO_CONTENT)
}
