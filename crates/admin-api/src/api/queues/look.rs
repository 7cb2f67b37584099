//! Inspect queues, and purge or redrive their messages.

use axum::{
    Json as Answer,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ReadQueues, UseQueues, check_tenant, consume::show, find, own_part, with_queues};
use crate::http::{
    App, Problem,
    auth::{Confined, Tenants, Whole},
    body::{Body, Json, Query},
    path::Path,
};
use signalbox_api::{
    Time,
    queues::{Count, DeadLetter, DeadPage, Gaps, Peek, Peeked, Purge, Redrive},
};
use signalbox_queues::{self as queues, DeadLetters, Matchable, Taken, thousandths};

/// Items of a page: the default and the maximum.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(peek))
        .routes(routes!(purge))
        .routes(routes!(dead, drop_dead))
        .routes(routes!(redrive))
        .routes(routes!(gaps, forget_gaps))
}

/// The position to continue from.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// The `next` of the previous page.
    pub(super) cursor: Option<String>,
    /// Items of a page, 1 to 1000; default 100.
    pub(super) limit: Option<usize>,
}

impl PageQuery {
    pub(super) fn read(self) -> Result<(String, usize), Problem> {
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

impl Body for Peek {}

/// Peek at waiting messages
///
/// The messages stay in the queue; `attempt` is the number of deliveries so far.
#[utoipa::path(post, path = "/queues/{name}/peek", request_body = Option<Peek>,
    responses((status = 200, body = Object),
    (status = "default", description = "422 out_of_range, invalid_tenant")))]
async fn peek(
    caller: Confined<ReadQueues, Tenants>,
    State(app): State<App>,
    Path(name): Path<String>,
    body: Option<Json<Peek>>,
) -> Result<Response, Problem> {
    let Peek { tenant, max } = body.map(|Json(body)| body).unwrap_or_default();
    let most = max.unwrap_or(10);
    if !(1..=MAX_LIMIT).contains(&most) {
        return Err(Problem::unprocessable(
            "out_of_range",
            format!("`max` must be between 1 and {MAX_LIMIT}"),
        ));
    }
    own_part(&caller, tenant.as_deref())?;
    find(&app, &name).await?;
    let shown = app.queues.peek(&name, tenant.as_deref(), most).await?;
    let messages = shown.iter().map(|taken| show(taken, None)).collect();
    Ok(Answer(Peeked { messages }).into_response())
}

impl Body for Purge {}

/// Drop waiting and delayed messages
///
/// Of one tenant or of the whole queue. Messages in flight stay with their consumers.
#[utoipa::path(post, path = "/queues/{name}/purge", request_body = Option<Purge>,
    responses((status = 200, body = Count), (status = "default", description = "422 invalid_tenant")))]
async fn purge(
    caller: Confined<UseQueues, Tenants>,
    State(app): State<App>,
    Path(name): Path<String>,
    body: Option<Json<Purge>>,
) -> Result<Answer<Count>, Problem> {
    let Purge { tenant } = body.map(|Json(body)| body).unwrap_or_default();
    own_part(&caller, tenant.as_deref())?;
    find(&app, &name).await?;
    Ok(Answer(Count { messages: app.queues.purge(&name, tenant.as_deref()).await? }))
}

/// A message as a pull would have shown it.
pub(super) fn raw(taken: &Taken) -> Option<Box<RawValue>> {
    serde_json::value::to_raw_value(&show(taken, None)).ok()
}

/// List dead letters
///
/// Oldest first, in each shard. A page has fewer than `limit` if they have more than about 4 MiB. The answer: `{"dead": [{"died_at", "reason", "message"}], "next"}`.
#[utoipa::path(get, path = "/queues/{name}/dead", params(PageQuery), responses((status = 200, body = Object)))]
async fn dead(
    _: Whole<ReadQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Response, Problem> {
    let (after, limit) = page.read()?;
    find(&app, &name).await?;
    let page = app.queues.dead(&name, &after, limit).await?;
    let letter = |letter: queues::Stored| DeadLetter {
        died_at: Time::from_ms(letter.at_ms.unwrap_or_default()),
        reason: letter.reason.unwrap_or_default(),
        message: raw(&letter.message),
    };
    let dead = page.items.into_iter().map(letter).collect();
    let next = page.next.map(|next| URL_SAFE_NO_PAD.encode(next));
    Ok(Answer(DeadPage { dead, next }).into_response())
}

impl Body for Redrive {}

/// Redrive dead letters
///
/// All of them, those of one tenant, or single ones. Each goes to the end of its tenant's queue, with zero
/// attempts. With `rate_per_second` they become available one after another: until then they are delayed messages, which
/// survive every restart.
#[utoipa::path(post, path = "/queues/{name}/dead/redrive", request_body = Option<Redrive>,
    responses((status = 200, body = Count),
    (status = "default", description = "422 out_of_range, invalid_tenant")))]
async fn redrive(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    body: Option<Json<Redrive>>,
) -> Result<Answer<Count>, Problem> {
    let Redrive { tenant, ids, rate_per_second } = body.map(|Json(body)| body).unwrap_or_default();
    if let Some(tenant) = &tenant {
        check_tenant(tenant)?;
    }
    if ids.as_ref().is_some_and(|ids| !(1..=MAX_LIMIT).contains(&ids.len())) {
        let detail = format!("`ids` must have between 1 and {MAX_LIMIT} items");
        return Err(Problem::unprocessable("out_of_range", detail));
    }
    let out_of_range = || {
        let detail = "`rate_per_second` must be between 0.1 and 1000000";
        Problem::unprocessable("out_of_range", detail)
    };
    let in_range = |rate| thousandths(rate, 0.1, 1_000_000.0).ok_or_else(out_of_range);
    let rate = rate_per_second.map(in_range).transpose()?;
    let wanted =
        DeadLetters { tenant: tenant.as_deref(), ids: ids.as_deref().unwrap_or_default(), drop: false, rate };
    Ok(Answer(Count { messages: take_dead(&app, &name, wanted).await? }))
}

pub(super) async fn take_dead(app: &App, queue: &str, wanted: DeadLetters<'_>) -> Result<u64, Problem> {
    let (queues, bus) = (&app.queues, app.bus.handle());
    let take = |known: Vec<Matchable>| async move {
        let known = known.first().ok_or(queues::Error::NoSuchQueue)?;
        queues.take_dead(queue, &bus.stamp(), &known.definition, wanted).await
    };
    with_queues(app, &[queue], take).await
}

/// Which dead letters to drop.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeadQuery {
    /// Only those of this tenant.
    tenant: Option<String>,
    /// Only this message.
    id: Option<u64>,
}

/// Drop dead letters
///
/// All of them, those of one tenant, or a single one.
#[utoipa::path(delete, path = "/queues/{name}/dead", params(DeadQuery), responses((status = 200, body = Count)))]
async fn drop_dead(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(query): Query<DeadQuery>,
) -> Result<Answer<Count>, Problem> {
    if let Some(tenant) = &query.tenant {
        check_tenant(tenant)?;
    }
    let ids: Vec<u64> = query.id.into_iter().collect();
    let wanted = DeadLetters { tenant: query.tenant.as_deref(), ids: &ids, drop: true, rate: None };
    Ok(Answer(Count { messages: take_dead(&app, &name, wanted).await? }))
}

/// List messages that were dropped because too many waited
///
/// One entry for each tenant of which a full queue dropped messages, or did not receive events. It names the first and
/// the last of them.
#[utoipa::path(get, path = "/queues/{name}/gaps", responses((status = 200, body = Gaps)))]
async fn gaps(
    caller: Confined<ReadQueues, Tenants>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Answer<Gaps>, Problem> {
    find(&app, &name).await?;
    let mut gaps = app.queues.gaps(&name).await?;
    if let Some(own) = caller.tenants() {
        gaps.retain(|gap| gap.tenant.as_ref().is_some_and(|name| own.contains(name)));
    }
    Ok(Answer(Gaps { gaps }))
}

/// Delete the record of dropped messages
#[utoipa::path(delete, path = "/queues/{name}/gaps", responses((status = 204)))]
async fn forget_gaps(
    _: Whole<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    find(&app, &name).await?;
    app.queues.forget_gaps(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
