//! Making, changing, listing and deleting queues.

use std::collections::BTreeMap;

use axum::{
    Json as Answer,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ReadQueues, UseQueues, find, whole_queue};
use crate::http::{
    App, Problem,
    auth::Granted,
    body::{Body, Json},
    path::Path,
};
use signalbox_queues::{Definition, QueueNumbers, Wanted};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

/// A queue as it is asked for.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct NewQueue {
    /// Which messages it takes: a regular expression (without look-around and back-references) for the whole of
    /// `environment:type:name`, up to 4,096 characters. Events of the bus are `environment:type:topic`.
    #[schema(example = ".*:email_event:.*")]
    pattern: String,
    /// How long a pulled message is held for its consumer: 1 to 43,200 (30).
    lease_seconds: Option<f64>,
    /// Messages of one environment that may be in flight at a time, in each shard. Any number when left out.
    in_flight_limit: Option<u64>,
    /// How often a message is handed out before it becomes a dead letter; 0 is for ever (20).
    max_attempts: Option<u32>,
    /// How long a message may wait before it is dropped: up to a year (four days).
    retention_seconds: Option<u64>,
    /// Messages in a turn by environment, 0 to 10,000; 0 pauses. Others have 1.
    #[serde(default)]
    weights: BTreeMap<String, u32>,
}

impl Body for NewQueue {}

/// A queue.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct QueueView {
    #[schema(example = "email_events")]
    name: String,
    pattern: String,
    lease_seconds: f64,
    in_flight_limit: Option<u64>,
    max_attempts: u32,
    retention_seconds: u64,
    weights: BTreeMap<String, u32>,
    messages: Numbers,
}

/// How many messages are where.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QueueNumbers)]
struct Numbers {
    waiting: u64,
    in_flight: u64,
    delayed: u64,
    dead: u64,
}

impl QueueView {
    fn new(name: String, definition: &Definition, numbers: QueueNumbers) -> Self {
        let QueueNumbers { waiting, in_flight, delayed, dead, .. } = numbers;
        Self {
            name,
            pattern: definition.pattern.clone(),
            #[allow(clippy::cast_precision_loss, reason = "twelve hours")]
            lease_seconds: definition.lease_ms as f64 / 1000.0,
            in_flight_limit: definition.in_flight_limit,
            max_attempts: definition.max_attempts,
            retention_seconds: definition.retention_seconds,
            weights: definition.weights.clone(),
            messages: Numbers { waiting, in_flight, delayed, dead },
        }
    }
}

/// All queues.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct QueueList {
    queues: Vec<QueueView>,
}

async fn view(app: &App, name: String, definition: &Definition) -> Result<QueueView, Problem> {
    let numbers = app.queues.numbers(&[&name]).await?.pop().unwrap_or_default();
    Ok(QueueView::new(name, definition, numbers))
}

/// List the queues
#[utoipa::path(get, path = "/queues", tag = "queues", responses((status = 200, body = QueueList)))]
async fn list(_: Granted<ReadQueues>, State(app): State<App>) -> Result<Answer<QueueList>, Problem> {
    app.bus.handle().look_again().await?;
    let registry = app.bus.handle().registry();
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).collect();
    let numbers = app.queues.numbers(&names).await?;
    let views = registry.queues.iter().zip(numbers);
    let queues = views.map(|((name, queue), numbers)| QueueView::new(name.clone(), queue, numbers)).collect();
    Ok(Answer(QueueList { queues }))
}

/// Look at a queue
#[utoipa::path(get, path = "/queues/{name}", tag = "queues", params(("name" = String, Path)), responses(
    (status = 200, body = QueueView), (status = 404, description = "unknown_queue", body = Problem)))]
async fn get(
    _: Granted<ReadQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Answer<QueueView>, Problem> {
    let queue = find(&app, &name).await?;
    Ok(Answer(view(&app, name, &queue.definition).await?))
}

/// Make a queue, or replace its definition
///
/// What is left out is the default, also when the queue is there. Messages that are accepted after the answer are in the
/// queue if its pattern matches, whichever pacemaker accepts them; weights, pauses and limits hold from then on.
#[utoipa::path(put, path = "/queues/{name}", tag = "queues", params(("name" = String, Path, example = "email_events")),
    request_body = NewQueue, responses(
    (status = 200, description = "It was there", body = QueueView), (status = 201, body = QueueView),
    (status = 403, description = "limit_reached", body = Problem),
    (status = 422, description = "invalid_queue_name, invalid_pattern (with `position`), out_of_range, \
        invalid_weights, unknown_field", body = Problem),
    (status = 503, description = "queue_ending, busy", body = Problem)))]
async fn put(
    Granted { 0: caller, .. }: Granted<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Json(new): Json<NewQueue>,
) -> Result<Response, Problem> {
    whole_queue(&caller)?;
    let NewQueue { pattern, lease_seconds, in_flight_limit, max_attempts, retention_seconds, weights } = new;
    let wanted = Wanted { pattern, lease_seconds, in_flight_limit, max_attempts, retention_seconds, weights };
    let definition = Definition::new(&name, wanted)?;
    let created = app.bus.handle().put_queue(&name, definition.clone(), app.queues.options().queues).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(view(&app, name, &definition).await?)).into_response())
}

/// Delete a queue with all its messages
///
/// Messages that are accepted after the answer are not put into it.
#[utoipa::path(delete, path = "/queues/{name}", tag = "queues", params(("name" = String, Path)), responses(
    (status = 204), (status = 404, description = "unknown_queue", body = Problem)))]
async fn remove(
    Granted { 0: caller, .. }: Granted<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    whole_queue(&caller)?;
    app.bus.handle().delete_queue(&name).await?;
    app.queues.forget(&name);
    Ok(StatusCode::NO_CONTENT)
}
