//! Create, change, list and delete queues.

use axum::{
    Json as Answer,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ReadQueues, UseQueues, find};
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{Confined, Environments, Whole},
    body::{Body, Json},
    path::Path,
};
use signalbox_api::queues::{NewQueue, Numbers, Queue, QueueList};
use signalbox_queues::{Definition, QueueNumbers, Wanted};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

impl Body for NewQueue {}

fn show(name: String, definition: &Definition, numbers: QueueNumbers) -> Queue {
    let QueueNumbers { waiting, in_flight, delayed, dead, .. } = numbers;
    Queue {
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

async fn view(app: &App, name: String, definition: &Definition) -> Result<Queue, Problem> {
    let numbers = app.queues.numbers(&[&name]).await?.pop().unwrap_or_default();
    Ok(show(name, definition, numbers))
}

/// The queue as a token sees it that is confined to the environments `own`: their weights and messages only. Dead letters
/// are not counted by environment.
async fn view_within(
    app: &App,
    own: &[String],
    name: String,
    definition: &Definition,
) -> Result<Queue, Problem> {
    let mut numbers = QueueNumbers::default();
    for facet in app.queues.facets_named(&name, own).await? {
        numbers.waiting += facet.waiting;
        numbers.in_flight += facet.in_flight;
        numbers.delayed += facet.delayed;
    }
    let mut queue = show(name, definition, numbers);
    queue.weights.retain(|environment, _| own.contains(environment));
    Ok(queue)
}

/// Notes the definition before a change for the audit log.
fn note_before(app: &App, notes: &Notes, name: &str) {
    if let Some(definition) = app.bus.handle().registry().queues.get(name) {
        let mut before = json!(show(name.to_owned(), definition, QueueNumbers::default()));
        // Numbers are no part of the definition.
        if let Some(members) = before.as_object_mut() {
            members.remove("messages");
        }
        notes.before(before);
    }
}

/// List the queues
///
/// For a token that is confined to environments, `weights` and `messages` are those of its environments, without dead
/// letters.
#[utoipa::path(get, path = "/queues", tag = "queues", responses((status = 200, body = QueueList)))]
async fn list(
    caller: Confined<ReadQueues, Environments>,
    State(app): State<App>,
) -> Result<Answer<QueueList>, Problem> {
    app.bus.handle().look_again().await?;
    let registry = app.bus.handle().registry();
    if let Some(own) = caller.environments() {
        let mut queues = Vec::with_capacity(registry.queues.len());
        for (name, queue) in &registry.queues {
            queues.push(view_within(&app, own, name.clone(), queue).await?);
        }
        return Ok(Answer(QueueList { queues }));
    }
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).collect();
    let numbers = app.queues.numbers(&names).await?;
    let views = registry.queues.iter().zip(numbers);
    let queues = views.map(|((name, queue), numbers)| show(name.clone(), queue, numbers)).collect();
    Ok(Answer(QueueList { queues }))
}

/// Show a queue
///
/// For a token that is confined to environments, `weights` and `messages` are those of its environments, without dead
/// letters.
#[utoipa::path(get, path = "/queues/{name}", tag = "queues", params(("name" = String, Path)), responses(
    (status = 200, body = Queue), (status = 404, description = "unknown_queue", body = Problem)))]
async fn get(
    caller: Confined<ReadQueues, Environments>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Answer<Queue>, Problem> {
    let queue = find(&app, &name).await?;
    Ok(Answer(match caller.environments() {
        Some(own) => view_within(&app, own, name, &queue.definition).await?,
        None => view(&app, name, &queue.definition).await?,
    }))
}

/// Create a queue, or replace its definition
///
/// A missing field gets its default, even if the queue exists. Messages that are accepted after the answer are stored
/// in the queue if its pattern matches, whichever pacemaker accepts them; weights, pauses and limits are in effect
/// from then on.
#[utoipa::path(put, path = "/queues/{name}", tag = "queues", params(("name" = String, Path, example = "email_events")),
    request_body = NewQueue, responses(
    (status = 200, description = "The queue existed", body = Queue), (status = 201, body = Queue),
    (status = 403, description = "limit_reached", body = Problem),
    (status = 422, description = "invalid_queue_name, invalid_pattern (with `position`), out_of_range, \
        invalid_weights, unknown_field", body = Problem),
    (status = 503, description = "queue_ending, busy", body = Problem)))]
async fn put(
    _: Whole<UseQueues>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
    Json(new): Json<NewQueue>,
) -> Result<Response, Problem> {
    let NewQueue { pattern, lease_seconds, in_flight_limit, max_attempts, retention_seconds, weights } = new;
    let wanted = Wanted { pattern, lease_seconds, in_flight_limit, max_attempts, retention_seconds, weights };
    let definition = Definition::new(&name, wanted)?;
    note_before(&app, &notes, &name);
    let created = app.bus.handle().put_queue(&name, definition.clone(), app.queues.options().queues).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(view(&app, name, &definition).await?)).into_response())
}

/// Delete a queue with all its messages
///
/// Messages that are accepted after the answer are not stored in it.
#[utoipa::path(delete, path = "/queues/{name}", tag = "queues", params(("name" = String, Path)), responses(
    (status = 204), (status = 404, description = "unknown_queue", body = Problem)))]
async fn remove(
    _: Whole<UseQueues>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    note_before(&app, &notes, &name);
    app.bus.handle().delete_queue(&name).await?;
    app.queues.forget(&name);
    Ok(StatusCode::NO_CONTENT)
}
