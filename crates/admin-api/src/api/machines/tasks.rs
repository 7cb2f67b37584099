//! Operations of operators: on one label, and on all that match a filter, in the background. Deletion of machines. A task ends
//! with the token that started it.

use axum::{
    Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::Value;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ManageMachines, ReadMachines,
    bulk::age,
    confined::OfMachine,
    key,
    labels::Expected,
    params::{LabelName, MachineName},
    views::changed,
};
use crate::api::bus::Front;
use crate::http::{
    App, Problem,
    body::{Body, Json, Query},
    path::Path,
};
use signalbox_access::Tokens;
use signalbox_api::{
    Time,
    machines::{Changed, LabelFilter, LabelOperation, NewTask, Task, Tasks},
};
use signalbox_machines::{Filter, Handle, HasEnded, Job, MAX_RATE, Operation, Status};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(operate))
        .routes(routes!(list, start))
        .routes(routes!(show, cancel))
        .routes(routes!(delete_machine))
}

impl Body for LabelOperation {}
impl Body for NewTask {}

/// Ends the tasks of clients whose tokens were deleted or have expired.
pub async fn end_lost_tasks(machines: &Handle, front: &Front, tokens: &Tokens) -> Result<(), Problem> {
    let has_ended = async {
        let validity = front.validity(tokens).await?;
        Ok(Box::new(move |client: &str| validity.has_ended(client)) as HasEnded)
    };
    machines.tasks.end_lost(has_ended).await
}

/// Ends the tasks of a client whose token was deleted.
pub(crate) async fn end_tasks_of(app: &App, client: &str) -> Result<(), Problem> {
    let client = client.to_owned();
    let is_client: HasEnded = Box::new(move |other| other == client);
    app.machines.tasks.end_lost(async { Ok(is_client) }).await
}

/// The words of operations.
const OPERATIONS: &str = "retry, evaluate, skip, cancel, suspend, resume, move, set and delete";

/// The operation of a request.
fn operation(word: &str, to: Option<String>, metadata: Option<Value>) -> Result<Operation, Problem> {
    let invalid = |detail: String| Problem::unprocessable("invalid_operation", detail);
    if to.is_some() != (word == "move") || metadata.is_some() != (word == "set") {
        return Err(invalid(
            "`move` needs `to`, `set` needs `metadata`, and other operations have neither".into(),
        ));
    }
    Ok(match (word, to, metadata) {
        ("retry", ..) => Operation::Retry,
        ("evaluate", ..) => Operation::Evaluate,
        ("skip", ..) => Operation::Skip,
        ("cancel", ..) => Operation::Cancel,
        ("suspend", ..) => Operation::Suspend,
        ("resume", ..) => Operation::Resume,
        ("delete", ..) => Operation::Delete,
        ("move", Some(to), _) => Operation::Move { to },
        ("set", _, Some(metadata)) if metadata.is_object() => Operation::Set { metadata, patch: false },
        ("set", ..) => return Err(invalid("`metadata` must be an object".into())),
        _ => return Err(invalid(format!("unknown operation; the operations are {OPERATIONS}"))),
    })
}

fn word(job: &Job) -> &'static str {
    match job {
        Job::DeleteMachine => "delete_machine",
        Job::Each(operation) => operation.word(),
    }
}

fn filter(given: LabelFilter) -> Result<Filter, Problem> {
    let status = given.status.map(|status| {
        let unknown = || Problem::unprocessable("invalid_filter", format!("unknown status {status:?}"));
        Status::from_word(&status).ok_or_else(unknown)
    });
    Ok(Filter {
        state: given.state,
        status: status.transpose()?,
        suspended: given.suspended,
        error: given.error,
        older_than_seconds: age("older_than", given.older_than.as_deref())?,
        younger_than_seconds: age("younger_than", given.younger_than.as_deref())?,
        metadata: given.metadata,
    })
}

fn view(task: signalbox_machines::Task) -> Task {
    let seconds = |seconds: u64| format!("{seconds}s");
    let filter = task.filter;
    Task {
        operation: word(&task.job).to_owned(),
        filter: LabelFilter {
            state: filter.state,
            status: filter.status.map(|status| status.as_str().to_owned()),
            suspended: filter.suspended,
            error: filter.error,
            older_than: filter.older_than_seconds.map(seconds),
            younger_than: filter.younger_than_seconds.map(seconds),
            metadata: filter.metadata,
        },
        id: task.id,
        rate: task.rate,
        by: task.by,
        state: task.state.as_str().to_owned(),
        created: Time::from_ms(task.created_ms),
        updated: Time::from_ms(task.updated_ms),
        labels: task.labels,
        checked: task.checked,
        changed: task.changed,
        unchanged: task.unchanged,
        failed: task.failed,
        error: task.error,
    }
}

/// Apply an operation to a label
///
/// `retry` a failed action, also before its next attempt is due; `evaluate` the gate now; `skip` an action as if it were
/// done; `cancel` its retries; `suspend` and `resume`; `move` to a state (`to`); `set` metadata; `delete`. The history names
/// the token. With an `Idempotency-Key`, a repeat returns the first answer and changes nothing.
#[utoipa::path(post, path = "/state-machines/{machine}/labels/{label}/operations", params(Expected), request_body = LabelOperation,
    responses((status = 200, body = Changed), (status = 204, description = "The label was deleted"),
    (status = "default", description = "404 unknown_state | 409 label_not_errored, label_not_acting, conflict | \
        410 label_deleted | 422 invalid_operation, invalid_metadata, invalid_idempotency_key, idempotency_conflict")))]
async fn operate(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    Path((machine, label)): Path<(MachineName, LabelName)>,
    Query(Expected { revision }): Query<Expected>,
    headers: HeaderMap,
    Json(asked): Json<LabelOperation>,
) -> Result<axum::response::Response, Problem> {
    use axum::response::IntoResponse as _;
    let operation = operation(&asked.operation, asked.to, asked.metadata)?;
    let labels = app.machines.labels.by(&caller.name).once(key(&headers)?, revision);
    let operated = labels.operate(&machine, &label, &operation).await?;
    Ok(match operated.answer {
        Some(answer) => Answer(changed(label.0, answer)).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Start a task
///
/// Applies an operation to all labels that match a filter, in the background. With an `Idempotency-Key`, a repeat returns the
/// task that was started first.
#[utoipa::path(post, path = "/state-machines/{machine}/tasks", request_body = NewTask,
    responses((status = 202, body = Task),
    (status = "default", description = "404 unknown_state | 409 too_many_tasks | 422 invalid_operation, \
        invalid_filter, invalid_rate, invalid_idempotency_key, idempotency_conflict")))]
async fn start(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
    headers: HeaderMap,
    Json(asked): Json<NewTask>,
) -> Result<(StatusCode, Answer<Task>), Problem> {
    if asked.rate.is_some_and(|rate| !(1..=MAX_RATE).contains(&rate)) {
        let detail = format!("`rate` must be between 1 and {MAX_RATE} labels per second");
        return Err(Problem::unprocessable("invalid_rate", detail));
    }
    let operation = operation(&asked.operation, asked.to, asked.metadata)?;
    let filter = filter(asked.filter)?;
    let key = key(&headers)?;
    let by = (&*caller.name, &*caller.bus_client());
    let task = app.machines.tasks.start(&machine, operation, filter, asked.rate, by, key).await?;
    Ok((StatusCode::ACCEPTED, Answer(view(task))))
}

/// List the tasks of a machine
///
/// The newest first; also of a machine that was deleted. A task is listed for a week after its end.
#[utoipa::path(get, path = "/state-machines/{machine}/tasks", responses((status = 200, body = Tasks)))]
async fn list(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
) -> Result<Answer<Tasks>, Problem> {
    let tasks = app.machines.tasks.list(&machine).await?;
    Ok(Answer(Tasks { tasks: tasks.into_iter().map(view).collect() }))
}

/// Show a task
#[utoipa::path(get, path = "/state-machines/{machine}/tasks/{task}", responses((status = 200, body = Task)))]
async fn show(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path((machine, task)): Path<(MachineName, String)>,
) -> Result<Answer<Task>, Problem> {
    Ok(Answer(view(app.machines.tasks.get(&machine, &task).await?)))
}

/// Cancel a task
///
/// It ends before its next page of labels. What it has changed remains. The deletion of a machine cannot be canceled.
#[utoipa::path(delete, path = "/state-machines/{machine}/tasks/{task}", responses((status = 200, body = Task),
    (status = "default", description = "409 machine_being_deleted")))]
async fn cancel(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    Path((machine, task)): Path<(MachineName, String)>,
) -> Result<Answer<Task>, Problem> {
    Ok(Answer(view(app.machines.tasks.cancel(&machine, &task, &caller.name).await?)))
}

/// The confirmation of a deletion.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Confirmation {
    /// The name of the machine, again.
    confirm: Option<String>,
}

/// Delete a machine
///
/// With all of its labels and versions. The machine is gone immediately; a task deletes its labels. `confirm` repeats the
/// name. With an `Idempotency-Key`, a repeat returns the task that was started first.
#[utoipa::path(delete, path = "/state-machines/{machine}", params(Confirmation), responses((status = 202, body = Task),
    (status = "default", description = "409 apply_under_way, too_many_tasks | \
        422 invalid_confirm, invalid_idempotency_key, idempotency_conflict")))]
async fn delete_machine(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
    Query(Confirmation { confirm }): Query<Confirmation>,
    headers: HeaderMap,
) -> Result<(StatusCode, Answer<Task>), Problem> {
    let key = key(&headers)?;
    if let Some(first) = app.machines.tasks.deletion(&machine, &caller.name, key).await? {
        return Ok((StatusCode::ACCEPTED, Answer(view(first))));
    }
    app.machines.definitions.check_exists(&machine).await?;
    if confirm.as_deref() != Some(&*machine) {
        let detail =
            format!("this deletes the machine with all of its labels; confirm it with ?confirm={machine}");
        return Err(Problem::unprocessable("invalid_confirm", detail));
    }
    let by = (&*caller.name, &*caller.bus_client());
    let task = app.machines.tasks.delete_machine(&machine, by, key).await?;
    Ok((StatusCode::ACCEPTED, Answer(view(task))))
}
