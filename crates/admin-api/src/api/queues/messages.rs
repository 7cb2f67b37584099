//! Single messages: list those that cannot be pulled now, and show, drop or redrive one.

use axum::{
    Json as Answer,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ReadQueues, UseQueues, find,
    look::{PageQuery, raw, take_dead},
    own_part,
};
use crate::http::{
    App, Problem,
    auth::{Confined, Tenants},
    body::Query,
    path::Path,
};
use signalbox_access::Caller;
use signalbox_api::{
    Time,
    queues::{Count, MessagePage, MessageState, StoredMessage},
};
use signalbox_queues::{Act, DeadLetters, Stored};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(message, drop_message)).routes(routes!(redrive))
}

/// Messages that can be listed.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum Listable {
    Delayed,
    InFlight,
}

/// Which messages to list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// `delayed` or `in_flight`.
    #[param(inline)]
    state: Listable,
    /// Only of this tenant. A token that is confined to tenants has to name one of them.
    tenant: Option<String>,
    /// The `next` of the previous page.
    cursor: Option<String>,
    /// Items of a page, 1 to 1000; default 100.
    limit: Option<usize>,
}

/// Which tenant a message is in.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MessageQuery {
    /// The tenant of the message. Needed by a token that is confined to tenants, and for a message that waits and
    /// was redriven.
    tenant: Option<String>,
}

fn view(stored: &Stored) -> StoredMessage<Box<RawValue>> {
    let dead = stored.place == MessageState::Dead;
    StoredMessage {
        state: stored.place,
        until: stored.at_ms.filter(|_| !dead).map(Time::from_ms),
        died_at: stored.at_ms.filter(|_| dead).map(Time::from_ms),
        reason: stored.reason.clone(),
        message: raw(&stored.message),
    }
}

/// List delayed messages or messages in flight
///
/// Those whose delay or lease ends first, first (in each shard). The answer: `{"messages": [{"state", "until", "message"}],
/// "next"}`. `POST /queues/{name}/peek` shows waiting messages, and `GET /queues/{name}/dead` dead letters.
#[utoipa::path(get, path = "/queues/{name}/messages", params(ListQuery), responses((status = 200, body = Object),
    (status = "default", description = "403 tenant_missing")))]
async fn list(
    caller: Confined<ReadQueues, Tenants>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let ListQuery { state, tenant, cursor, limit } = query;
    let (_, limit) = PageQuery { cursor: None, limit }.read()?;
    own_part(&caller, tenant.as_deref())?;
    find(&app, &name).await?;
    // It contains the tenant and the ID of the last message that was read, whichever it was.
    let list = format!("queues {name}");
    let after = app.cursors.read(&caller, &list, cursor.as_deref()).await?.unwrap_or_default();
    let place = match state {
        Listable::Delayed => MessageState::Delayed,
        Listable::InFlight => MessageState::InFlight,
    };
    let page = app.queues.list(&name, place, tenant.as_deref(), &after, limit).await?;
    let messages = page.items.iter().map(view).collect();
    let next = app.cursors.write(&caller, &list, page.next).await?;
    Ok(Answer(MessagePage { messages, next }).into_response())
}

/// The tenant to search a message in: the one that the caller names, or that of the log's entry.
async fn tenant_of(
    app: &App,
    caller: &Caller,
    queue: &str,
    id: u64,
    named: Option<String>,
) -> Result<Option<String>, Problem> {
    #[derive(Deserialize)]
    struct Entry {
        tenant: String,
    }
    own_part(caller, named.as_deref())?;
    find(app, queue).await?;
    if named.is_some() {
        return Ok(named);
    }
    let entry = app.queues.log_entry(id).await?;
    Ok(entry.and_then(|entry| serde_json::from_slice::<Entry>(&entry).ok()).map(|entry| entry.tenant))
}

fn unknown() -> Problem {
    Problem::not_found(
        "unknown_message",
        "The queue has no message with this ID. To find a message that was delayed or redriven, name its `tenant`.",
    )
}

/// A message that was found. Tokens that are confined to tenants do not see dead letters.
fn found(caller: &Caller, stored: Option<Stored>) -> Result<Stored, Problem> {
    let hidden = |stored: &Stored| stored.place == MessageState::Dead && caller.tenants().is_some();
    stored.filter(|stored| !hidden(stored)).ok_or_else(unknown)
}

/// Show a message
///
/// Wherever in the queue it is: `{"state", "until", "message"}`; of a dead letter `died_at` and `reason`.
#[utoipa::path(get, path = "/queues/{name}/messages/{id}", params(("id" = u64, Path), MessageQuery),
    responses((status = 200, body = Object),
    (status = "default", description = "403 tenant_missing | 404 unknown_message")))]
async fn message(
    caller: Confined<ReadQueues, Tenants>,
    State(app): State<App>,
    Path((name, id)): Path<(String, u64)>,
    Query(query): Query<MessageQuery>,
) -> Result<Response, Problem> {
    let tenant = tenant_of(&app, &caller, &name, id, query.tenant).await?;
    let stored = app.queues.message(&name, id, tenant.as_deref(), Act::Show).await?;
    Ok(Answer(view(&found(&caller, stored)?)).into_response())
}

/// Drop a message
///
/// Wherever in the queue it is. A consumer that has it cannot acknowledge it any more.
#[utoipa::path(delete, path = "/queues/{name}/messages/{id}", params(("id" = u64, Path), MessageQuery),
    responses((status = 204), (status = "default", description = "403 tenant_missing | 404 unknown_message")))]
async fn drop_message(
    caller: Confined<UseQueues, Tenants>,
    State(app): State<App>,
    Path((name, id)): Path<(String, u64)>,
    Query(query): Query<MessageQuery>,
) -> Result<StatusCode, Problem> {
    let tenant = tenant_of(&app, &caller, &name, id, query.tenant).await?;
    let stored = app.queues.message(&name, id, tenant.as_deref(), Act::Drop).await?;
    if found(&caller, stored)?.place == MessageState::Dead {
        let wanted = DeadLetters { ids: &[id], drop: true, ..DeadLetters::default() };
        take_dead(&app, &name, wanted).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Redrive a message
///
/// Makes a delayed message or a dead letter available now. Returns 0 messages if it was available already.
#[utoipa::path(post, path = "/queues/{name}/messages/{id}/redrive", params(("id" = u64, Path), MessageQuery),
    responses((status = 200, body = Count),
    (status = "default", description = "403 tenant_missing | 404 unknown_message | 409 message_in_flight")))]
async fn redrive(
    caller: Confined<UseQueues, Tenants>,
    State(app): State<App>,
    Path((name, id)): Path<(String, u64)>,
    Query(query): Query<MessageQuery>,
) -> Result<Answer<Count>, Problem> {
    let tenant = tenant_of(&app, &caller, &name, id, query.tenant).await?;
    let stored = app.queues.message(&name, id, tenant.as_deref(), Act::Advance).await?;
    let messages = match found(&caller, stored)?.place {
        MessageState::Delayed => 1,
        MessageState::Waiting => 0,
        MessageState::Dead => {
            let wanted = DeadLetters { ids: &[id], ..DeadLetters::default() };
            take_dead(&app, &name, wanted).await?
        }
        MessageState::InFlight => {
            let detail = "a consumer has the message; it becomes available when the consumer returns it or the \
                          lease ends";
            return Err(Problem::new(StatusCode::CONFLICT, "message_in_flight", detail));
        }
    };
    Ok(Answer(Count { messages }))
}
