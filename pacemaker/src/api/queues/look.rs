//! Inspect queues, and purge or redrive their messages.

use axum::{
    Json as Answer,
    extract::State,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Environment, ReadQueues, UseQueues, consume::show, find, own_part, with_queue};
use crate::http::auth::CheckEnvironment as _;
use crate::http::{
    App, Problem,
    auth::{Confined, Environments, Whole},
    body::{Body, Json, Query},
    path::Path,
};
use signalbox_api::queues::{Count, DeadLetter, DeadPage, Facet, FacetPage, Peek, Peeked, Purge};
use signalbox_queues::{self as queues, FacetStatus, Matchable, Taken};

/// Items of a page: the default and the maximum.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(facets))
        .routes(routes!(drop_facet))
        .routes(routes!(peek))
        .routes(routes!(purge))
        .routes(routes!(dead, drop_dead))
        .routes(routes!(redrive))
}

/// The position to continue from.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PageQuery {
    /// The `next` of the previous page.
    cursor: Option<String>,
    /// Items of a page, 1 to 1000; default 100.
    limit: Option<usize>,
}

impl PageQuery {
    fn read(self) -> Result<(String, usize), Problem> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::unprocessable(
                "invalid_limit",
                format!("`limit` must be between 1 and {MAX_LIMIT}"),
            ));
        }
        let decoded = self.cursor.map(|cursor| URL_SAFE_NO_PAD.decode(cursor).ok());
        let after = decoded.map(|bytes| bytes.and_then(|bytes| String::from_utf8(bytes).ok()));
        match after {
            None => Ok((String::new(), limit)),
            Some(Some(after)) if !after.is_empty() => Ok((after, limit)),
            Some(_) => Err(Problem::unprocessable(
                "invalid_cursor",
                "`cursor` must be the `next` of an earlier answer",
            )),
        }
    }
}

fn facet(status: FacetStatus) -> Facet {
    let FacetStatus { environment, weight, waiting, in_flight, delayed, oldest_age_ms, dwell_ms } = status;
    Facet { environment, weight, waiting, in_flight, delayed, oldest_age_ms, dwell_ms }
}

/// List the environments that have messages in a queue
///
/// Ordered by name. A token confined to environments sees only its own.
#[utoipa::path(get, path = "/queues/{name}/facets", tag = "queues", params(("name" = String, Path), PageQuery), responses(
    (status = 200, body = FacetPage),
    (status = 422, description = "invalid_cursor, invalid_limit", body = Problem),
    (status = 404, description = "unknown_queue", body = Problem)))]
async fn facets(
    caller: Confined<ReadQueues, Environments>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Answer<FacetPage>, Problem> {
    let (after, limit) = page.read()?;
    find(&app, &name).await?;
    if let Some(own) = caller.environments() {
        let facets = app.queues.facets_named(&name, own).await?;
        return Ok(Answer(FacetPage { facets: facets.into_iter().map(facet).collect(), next: None }));
    }
    let page = app.queues.facets(&name, &after, limit).await?;
    let next = page.next.map(|last| URL_SAFE_NO_PAD.encode(last));
    Ok(Answer(FacetPage { facets: page.items.into_iter().map(facet).collect(), next }))
}

/// Drop all messages of an environment
///
/// Includes waiting, delayed and in-flight messages: their receipts settle nothing afterwards.
#[utoipa::path(delete, path = "/queues/{name}/facets/{environment}", tag = "queues",
    params(("name" = String, Path), ("environment" = String, Path)), responses(
    (status = 200, body = Count), (status = 404, description = "unknown_queue", body = Problem),
    (status = 422, description = "invalid_environment", body = Problem)))]
async fn drop_facet(
    caller: Confined<UseQueues, Environments>,
    State(app): State<App>,
    Path((name, environment)): Path<(String, Environment)>,
) -> Result<Answer<Count>, Problem> {
    caller.check_environment(&environment)?;
    find(&app, &name).await?;
    Ok(Answer(Count { messages: app.queues.drop_facet(&name, &environment).await? }))
}

impl Body for Peek {}

/// Peek at waiting messages
///
/// The messages stay in the queue; `attempt` is the number of deliveries so far.
#[utoipa::path(post, path = "/queues/{name}/peek", tag = "queues", params(("name" = String, Path)),
    request_body = Option<Peek>, responses(
    (status = 200, body = Object), (status = 404, description = "unknown_queue", body = Problem),
    (status = 422, description = "out_of_range, invalid_environment", body = Problem)))]
async fn peek(
    caller: Confined<ReadQueues, Environments>,
    State(app): State<App>,
    Path(name): Path<String>,
    body: Option<Json<Peek>>,
) -> Result<Response, Problem> {
    let Peek { environment, max } = body.map(|Json(body)| body).unwrap_or_default();
    let most = max.unwrap_or(10);
    if !(1..=MAX_LIMIT).contains(&most) {
        return Err(Problem::unprocessable(
            "out_of_range",
            format!("`max` must be between 1 and {MAX_LIMIT}"),
        ));
    }
    own_part(&caller, environment.as_deref())?;
    find(&app, &name).await?;
    let shown = app.queues.peek(&name, environment.as_deref(), most).await?;
    let messages = shown.iter().filter_map(|taken| show(taken, None)).collect();
    Ok(Answer(Peeked { messages }).into_response())
}

impl Body for Purge {}

/// Drop waiting and delayed messages
///
/// Of one environment or of the whole queue. Messages in flight stay with their consumers.
#[utoipa::path(post, path = "/queues/{name}/purge", tag = "queues", params(("name" = String, Path)),
    request_body = Option<Purge>, responses(
    (status = 200, body = Count), (status = 404, description = "unknown_queue", body = Problem),
    (status = 422, description = "invalid_environment", body = Problem)))]
async fn purge(
    caller: Confined<UseQueues, Environments>,
    State(app): State<App>,
    Path(name): Path<String>,
    body: Option<Json<Purge>>,
) -> Result<Answer<Count>, Problem> {
    let Purge { environment } = body.map(|Json(body)| body).unwrap_or_default();
    own_part(&caller, environment.as_deref())?;
    find(&app, &name).await?;
    Ok(Answer(Count { messages: app.queues.purge(&name, environment.as_deref()).await? }))
}

/// A dead letter's message, as a pull would have shown it.
fn message(letter: &queues::DeadLetter) -> Option<Box<RawValue>> {
    let taken = Taken {
        id: letter.id,
        attempt: letter.attempts,
        environment: letter.environment.clone(),
        backlog: 0,
        body: letter.body.clone(),
    };
    serde_json::value::to_raw_value(&show(&taken, None)?).ok()
}

/// List dead letters
///
/// Oldest first, in each shard. The answer: `{"dead": [{"died_ms", "reason", "message"}], "next"}`.
#[utoipa::path(get, path = "/queues/{name}/dead", tag = "queues", params(("name" = String, Path), PageQuery), responses(
    (status = 200, body = Object),
    (status = 422, description = "invalid_cursor, invalid_limit", body = Problem),
    (status = 404, description = "unknown_queue", body = Problem)))]
async fn dead(
    _: Whole<ReadQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Response, Problem> {
    let (after, limit) = page.read()?;
    find(&app, &name).await?;
    let page = app.queues.dead(&name, &after, limit).await?;
    let dead = page
        .items
        .iter()
        .map(|letter| DeadLetter {
            died_ms: letter.died_ms,
            reason: letter.reason.clone(),
            message: message(letter),
        })
        .collect();
    let next = page.next.map(|next| URL_SAFE_NO_PAD.encode(next));
    Ok(Answer(DeadPage { dead, next }).into_response())
}

/// Redrive all dead letters
///
/// Each goes to the end of its environment's queue, with zero attempts.
#[utoipa::path(post, path = "/queues/{name}/dead/redrive", tag = "queues", params(("name" = String, Path)), responses(
    (status = 200, body = Count), (status = 404, description = "unknown_queue", body = Problem)))]
async fn redrive(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Answer<Count>, Problem> {
    let (queues, bus, queue) = (&app.queues, app.bus.handle(), &*name);
    let redrive =
        |known: Matchable| async move { queues.redrive(queue, &bus.stamp(), &known.definition).await };
    let messages = with_queue(&app, queue, redrive).await?;
    Ok(Answer(Count { messages }))
}

/// Drop all dead letters
#[utoipa::path(delete, path = "/queues/{name}/dead", tag = "queues", params(("name" = String, Path)), responses(
    (status = 200, body = Count), (status = 404, description = "unknown_queue", body = Problem)))]
async fn drop_dead(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Answer<Count>, Problem> {
    find(&app, &name).await?;
    Ok(Answer(Count { messages: app.queues.drop_dead(&name).await? }))
}
