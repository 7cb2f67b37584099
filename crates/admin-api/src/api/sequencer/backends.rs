//! Backends: define, read and remove.

use axum::{Json as Answer, extract::State, http::StatusCode};
use rand::RngExt as _;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::params::BackendName;
use crate::{
    api::bus::visible_callback,
    http::{
        App, Problem,
        audit::Notes,
        auth::{ReadAll, RootOnly, Whole},
        body::{JsonBytes, Query},
        path::Path,
    },
};
use signalbox_access::Caller;
use signalbox_api::objects::{Backend, DeadEvent, Dropped, Queued, RedrivenEvents};
use signalbox_sequencer::{BackendStatus, Removed};

/// Dead letters that are listed.
const MAX_DEAD: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show, put, remove))
        .routes(routes!(dead, drop_dead))
        .routes(routes!(redrive))
}

fn view(status: BackendStatus, caller: &Caller) -> Backend {
    let with_secrets = caller.is_root();
    let BackendStatus { name, backend, objects, events, dead, .. } = status;
    let secret = backend.secrets.into_iter().next().map(|secret| secret.secret);
    Backend {
        name,
        prefix: backend.prefix,
        callback: visible_callback(&backend.callback, caller, false).to_owned(),
        uuid: with_secrets.then_some(backend.uuid),
        secret: secret.filter(|_| with_secrets),
        on_failure: backend.on_failure,
        max_attempts: backend.max_attempts,
        workers: backend.workers,
        disabled: backend.disabled,
        draining: backend.draining,
        queued: backend.draining.then_some(backend.queued),
        objects,
        events,
        dead,
    }
}

/// List the backends
#[utoipa::path(get, path = "/backends", responses((status = 200, body = Vec<Backend>)))]
async fn list(caller: Whole<ReadAll>, State(app): State<App>) -> Result<Answer<Vec<Backend>>, Problem> {
    let numbers = app.sequencer.handle.numbers().await?;
    Ok(Answer(numbers.backends.into_iter().map(|status| view(status, &caller)).collect()))
}

/// Show a backend
#[utoipa::path(get, path = "/backends/{name}", params(("name" = String, Path, example = "search")),
    responses((status = 200, body = Backend), (status = "default", description = "404 unknown_backend")))]
async fn show(
    caller: Whole<ReadAll>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Answer<Backend>, Problem> {
    find(&app, &name).await.map(|status| Answer(view(status, &caller)))
}

async fn find(app: &App, name: &str) -> Result<BackendStatus, Problem> {
    let numbers = app.sequencer.handle.numbers().await?;
    let found = numbers.backends.into_iter().find(|one| one.name == name);
    Ok(found.ok_or(signalbox_bus::Error::NoSuchBackend)?)
}

/// Notes the backend before a change for the audit log.
async fn note_before(app: &App, notes: &Notes, name: &str) -> Result<(), Problem> {
    let numbers = app.sequencer.handle.numbers().await?;
    if let Some(status) = numbers.backends.into_iter().find(|one| one.name == name) {
        notes.before(json!(view(status, &Caller::named(String::new(), Vec::new(), None))));
    }
    Ok(())
}

/// Define a backend
///
/// From now on, events of objects whose names begin with `prefix` are POSTed to `callback`, one at a time for each
/// object, in order, in place of going to subscribers. Of several prefixes that fit the longest counts. The body:
/// `prefix`, `callback` (https), and if wanted `uuid` (the user name of deliveries), `secret` (`whsec_…`; one is made
/// else), `on_failure` (`block`, `skip`, `park`), `max_attempts` (10), `workers` (4): the objects that one pacemaker
/// serves at a time. Defining it again starts deliveries that a 410 stopped.
#[utoipa::path(put, path = "/backends/{name}", params(("name" = String, Path, example = "search")),
    request_body = Object, responses((status = 200, body = Backend), (status = 201, body = Backend),
    (status = "default", description = "400 invalid_backend | 403 limit_reached | 409 prefix_taken")))]
async fn put(
    caller: Whole<RootOnly>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
    JsonBytes(body): JsonBytes,
) -> Result<(StatusCode, Answer<Backend>), Problem> {
    let wanted = app.bus.wanted_backend(&name, &body)?;
    let new_secret = signalbox_egress::new_secret(rand::rng().random());
    note_before(&app, &notes, &name).await?;
    let new = app.sequencer.handle.put_backend(&name, wanted, &new_secret).await?;
    let backend = view(find(&app, &name).await?, &caller);
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Answer(backend)))
}

/// The treatment of queued events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Removal {
    /// `send`: it is sent first. `dead`: it becomes dead letters. `discard`: it is dropped.
    queued: Option<Queued>,
}

/// Remove a backend
///
/// While events are queued for it, the request must specify their treatment: `queued=send` sends them first;
/// `queued=dead` makes them dead letters, which can be redriven once a backend of this name is defined again;
/// `queued=discard` drops them. Without it, the answer is 409 with their number. With `dead` and `discard`, an event
/// that is being sent at this moment is dropped with the others, although it may have arrived. From now on the backend
/// accepts no new objects. The answer is 204 when it is gone; 202 when it will be removed automatically as soon as its
/// queues are empty. The call can be repeated, also with another value.
#[utoipa::path(delete, path = "/backends/{name}", params(Removal), responses((status = 202), (status = 204),
    (status = "default", description = "404 unknown_backend | 409 backend_not_empty")))]
async fn remove(
    _: Whole<RootOnly>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
    Query(Removal { queued }): Query<Removal>,
) -> Result<StatusCode, Problem> {
    note_before(&app, &notes, &name).await?;
    match app.sequencer.handle.remove_backend(&name, queued).await? {
        Removed::Gone => Ok(StatusCode::NO_CONTENT),
        Removed::Going => Ok(StatusCode::ACCEPTED),
        Removed::NotEmpty { objects, events } => {
            let detail = format!(
                "{events} events of {objects} objects are queued for it; choose their treatment: \
                 ?queued=send, dead or discard"
            );
            Err(Problem::new(StatusCode::CONFLICT, "backend_not_empty", detail)
                .with("events", events)
                .with("objects", objects)
                .with("choices", Queued::words().collect::<Vec<_>>()))
        }
    }
}

/// List a backend's dead letters
///
/// The latest thousand, oldest first; fewer if they have more than about 4 MiB.
#[utoipa::path(get, path = "/backends/{name}/dead", responses((status = 200, body = Vec<DeadEvent>),
    (status = "default", description = "400 invalid_backend")))]
async fn dead(
    _: Whole<ReadAll>,
    State(app): State<App>,
    Path(BackendName(name)): Path<BackendName>,
) -> Result<Answer<Vec<DeadEvent>>, Problem> {
    Ok(Answer(app.sequencer.handle.dead(&name, MAX_DEAD).await?))
}

/// Delete a backend's dead letters
#[utoipa::path(delete, path = "/backends/{name}/dead", responses((status = 200, body = Dropped),
    (status = "default", description = "400 invalid_backend")))]
async fn drop_dead(
    _: Whole<RootOnly>,
    State(app): State<App>,
    Path(BackendName(name)): Path<BackendName>,
) -> Result<Answer<Dropped>, Problem> {
    Ok(Answer(Dropped { dropped: app.sequencer.handle.drop_dead(&name).await? }))
}

/// Send a backend's dead letters again
///
/// Each is queued behind the other events of its object, with its original ID and `"redriven": true`, since later ones
/// arrived before it. Events that become dead letters in the meantime stay. The call can be repeated.
#[utoipa::path(post, path = "/backends/{name}/dead/redrive", responses((status = 200, body = RedrivenEvents),
    (status = "default", description = "400 invalid_backend | 404 unknown_backend | 503 busy")))]
async fn redrive(
    _: Whole<RootOnly>,
    State(app): State<App>,
    Path(BackendName(name)): Path<BackendName>,
) -> Result<Answer<RedrivenEvents>, Problem> {
    let (redriven, left) = app.sequencer.handle.redrive(&name).await?;
    Ok(Answer(RedrivenEvents { redriven, left }))
}
