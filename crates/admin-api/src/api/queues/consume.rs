//! Pulling messages and settling their receipts.

use std::{borrow::Cow, collections::BTreeSet, time::Duration};

use axum::{
    Extension, Json as Answer,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{UseQueues, find, own_part, problems::refused, with_queues};
use crate::http::{
    App, Problem,
    auth::{ByReceipt, Confined, Tenants},
    body::{Body, Json, check_readable},
    path::Path,
    slots::InProgress,
};
use signalbox_access::Caller;
use signalbox_api::{
    Time,
    queues::{Extend, Message, Nack, Outcome, Outcomes, Pull, PullFrom, PullSource, Pulled, Receipts},
};
use signalbox_queues::{Handed, MAX_LEASE_MS, PullRequest, Receipt, Settled, Source, Taken, thousandths};

/// Messages of a pull that does not specify their number.
const DEFAULT_MESSAGES: usize = 10;
/// Queues of one pull.
const MAX_SOURCES: usize = 16;
const MAX_SOURCE_WEIGHT: u32 = 10_000;
/// Receipts in one request.
const RECEIPTS: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(pull))
        .routes(routes!(pull_from))
        .routes(routes!(ack))
        .routes(routes!(nack))
        .routes(routes!(reject))
        .routes(routes!(extend))
}

impl Body for Pull {}

impl Body for PullFrom {}

/// The parts of a log entry that a message shows, unchanged.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow, rename = "type")]
    kind: &'a RawValue,
    #[serde(borrow)]
    topic: &'a RawValue,
    #[serde(borrow)]
    object: &'a RawValue,
    #[serde(borrow, default)]
    url: Option<&'a RawValue>,
    #[serde(borrow, default)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

/// JSON of a message: a part of the log, or text made here.
pub(super) type Piece<'a> = Cow<'a, RawValue>;

/// Shows a message. Whatever the log contains, a reader of JSON can read the answer and settle the message: a payload that
/// it may reject is shown as text, and so is a whole entry that is not readable here.
pub(super) fn show<'a>(taken: &'a Taken, receipt: Option<&Receipt>) -> Message<Piece<'a>> {
    let readable = check_readable(&taken.body).is_ok();
    let entry = serde_json::from_slice::<Entry<'_>>(&taken.body)
        .inspect_err(|error| tracing::error!(id = taken.id, %error, "message in the log not readable"));
    let text =
        |text: &str| serde_json::value::to_raw_value(text).map_or(Cow::Borrowed(RawValue::NULL), Cow::Owned);
    let mut message = Message {
        receipt: receipt.map(ToString::to_string),
        queue: None,
        id: taken.id,
        tenant: text(&taken.tenant),
        kind: Cow::Borrowed(RawValue::NULL),
        name: Cow::Borrowed(RawValue::NULL),
        payload: None,
        payload_text: None,
        attempt: taken.attempt,
        lease_until: receipt.map(|receipt| Time::from_ms(receipt.until_ms)),
        object: None,
        url: None,
        timestamp: None,
    };
    match entry {
        Ok(entry) => {
            message.kind = Cow::Borrowed(entry.kind);
            message.name = Cow::Borrowed(entry.topic);
            match entry.data {
                Some(data) if !readable => message.payload_text = Some(data.get().to_owned()),
                data => message.payload = data.map(Cow::Borrowed),
            }
            message.object = entry.url.and(Some(Cow::Borrowed(entry.object)));
            message.url = entry.url.map(Cow::Borrowed);
            message.timestamp = entry.timestamp.map(Cow::Borrowed);
        }
        Err(_) => message.payload_text = Some(String::from_utf8_lossy(&taken.body).into_owned()),
    }
    message
}

/// Pull messages
///
/// Fair between tenants: weighted round robin. Each message comes with a receipt and is leased for
/// `lease_seconds`; a message that is not acknowledged by then is redelivered. With `wait_seconds` the request waits
/// for a message if the queue is empty. The answer: `{"messages": [{"receipt", "id", "tenant", "type", "name",
/// "payload", "attempt", "lease_until"}], "next_due_in_ms"}`; events of the bus also have `url`, `object` and
/// `timestamp`, and their topic as name. The last member is the time until the next lease or delay ends, if no message
/// is available now. A payload that readers of JSON may reject is `payload_text`, a string, in place of `payload`.
#[utoipa::path(post, path = "/queues/{name}/pull", request_body = Option<Pull>,
    responses((status = 200, body = Object),
    (status = "default", description = "403 tenant_missing | 422 out_of_range, invalid_tenant | \
        429 token_limit_reached | 503 too_many_waiting")))]
async fn pull(
    caller: Confined<UseQueues, Tenants>,
    State(app): State<App>,
    Path(name): Path<String>,
    Extension(place): Extension<InProgress>,
    body: Option<Json<Pull>>,
) -> Result<Response, Problem> {
    let Pull { max, wait_seconds, auto_ack, tenant, lease_seconds } =
        body.map(|Json(body)| body).unwrap_or_default();
    let queues = vec![PullSource { name, weight: None }];
    let wanted = PullFrom { queues, max, wait_seconds, auto_ack, tenant, lease_seconds };
    let handed = pull_messages(&app, &caller, &place, &wanted).await?;
    Ok(answer(&handed, &wanted, |_| None))
}

/// Pull messages from several queues
///
/// Each queue gets a part of `max` by its weight; what one queue leaves goes to the others. Within a queue the order is
/// that of its own pulls. The answer is that of a pull from one queue; each message has its `queue`, whose calls settle its
/// receipt.
#[utoipa::path(post, path = "/messages/pull", request_body = PullFrom, responses((status = 200, body = Object),
    (status = "default", description = "403 tenant_missing | 404 unknown_queue | 422 out_of_range, \
        invalid_tenant, invalid_queues | 429 token_limit_reached | 503 too_many_waiting")))]
async fn pull_from(
    caller: Confined<UseQueues, Tenants>,
    State(app): State<App>,
    Extension(place): Extension<InProgress>,
    Json(wanted): Json<PullFrom>,
) -> Result<Response, Problem> {
    let names: BTreeSet<&str> = wanted.queues.iter().map(|queue| &*queue.name).collect();
    if names.len() != wanted.queues.len() || !(1..=MAX_SOURCES).contains(&names.len()) {
        let detail = format!("`queues` must have 1 to {MAX_SOURCES} queues, each of them once");
        return Err(Problem::unprocessable("invalid_queues", detail));
    }
    let weights = wanted.queues.iter().filter_map(|queue| queue.weight);
    if weights.clone().any(|weight| !(1..=MAX_SOURCE_WEIGHT).contains(&weight)) {
        return Err(out_of_range("weight", format!("must be between 1 and {MAX_SOURCE_WEIGHT}")));
    }
    let handed = pull_messages(&app, &caller, &place, &wanted).await?;
    Ok(answer(&handed, &wanted, |receipt| Some(receipt.queue.clone())))
}

fn answer(handed: &Handed, wanted: &PullFrom, queue: impl Fn(&Receipt) -> Option<String>) -> Response {
    let message = |(receipt, taken)| {
        let shown = show(taken, (!wanted.auto_ack).then_some(receipt));
        Message { queue: queue(receipt), ..shown }
    };
    let messages = handed.messages.iter().map(|(receipt, taken)| message((receipt, taken))).collect();
    Answer(Pulled { messages, next_due_in_ms: handed.next_due_in_ms }).into_response()
}

/// Bytes of a message without its data, about: its receipt, names and URL.
const AROUND_DATA: usize = 16 * 1024;

async fn pull_messages(
    app: &App,
    caller: &Caller,
    place: &InProgress,
    wanted: &PullFrom,
) -> Result<Handed, Problem> {
    let tenant = wanted.tenant.as_deref();
    own_part(caller, tenant)?;
    let options = app.queues.options();
    let most = wanted.max.unwrap_or(DEFAULT_MESSAGES.min(options.pull_messages));
    if !(1..=options.pull_messages).contains(&most) {
        return Err(out_of_range("max", format!("must be between 1 and {}", options.pull_messages)));
    }
    #[allow(clippy::cast_precision_loss, reason = "minutes at most")]
    let longest = options.wait_seconds as f64;
    let wait_ms = thousandths(wanted.wait_seconds.unwrap_or_default(), 0.0, longest)
        .ok_or_else(|| out_of_range("wait_seconds", format!("must be between 0 and {longest}")))?;
    let lease_ms = wanted.lease_seconds.map(|lease| seconds("lease_seconds", lease, 1.0)).transpose()?;
    let _place = (wait_ms > 0).then(|| app.limits.pulls.take(caller)).transpose()?;
    let auto_ack = wanted.auto_ack;
    let request = PullRequest { most, wait: Duration::from_millis(wait_ms), auto_ack, tenant, lease_ms };
    let names: Vec<&str> = wanted.queues.iter().map(|queue| &*queue.name).collect();
    let queues = &app.queues;
    // A client that does not read takes no further messages: those of many pulls that are woken together count as well.
    let bytes = options.pull_bytes.min(most.saturating_mul(app.bus.limits.data_bytes + AROUND_DATA)) as u64;
    let pulled = with_queues(app, &names, |known| async move {
        let mut sources = Vec::with_capacity(known.len());
        for (queue, known) in wanted.queues.iter().zip(&known) {
            let weight = queue.weight.unwrap_or(1);
            sources.push(Source { queue: &queue.name, revision: known.definition.revision, weight });
        }
        queues.pull(&sources, request, || place.reserve(bytes)).await
    })
    .await?;
    let (handed, reserved) = pulled.ok_or_else(|| place.unread())?;
    if let Some(reserved) = reserved.flatten() {
        place.keep(reserved);
    }
    Ok(handed)
}

fn out_of_range(member: &str, what: String) -> Problem {
    Problem::unprocessable("out_of_range", format!("`{member}` {what}"))
}

impl Body for Receipts {}

impl Body for Nack {}

impl Body for Extend {}

/// Errors of requests that settle receipts.
const NOT_SETTLED: &str =
    "409 receipt_used, receipt_of_other_queue | 410 receipt_expired | 422 invalid_receipt, out_of_range";

fn outcome(receipt: String, settled: Settled) -> Outcome {
    let problem = refused(settled);
    let result = match settled {
        Settled::Acked => Some("acked"),
        Settled::AckedBefore => Some("already_acked"),
        Settled::Back => Some("back"),
        Settled::Delayed => Some("delayed"),
        Settled::Dead => Some("dead"),
        Settled::Extended(_) => Some("extended"),
        Settled::Malformed | Settled::OtherQueue | Settled::Used | Settled::Expired => None,
    };
    let lease_until =
        if let Settled::Extended(until_ms) = settled { Some(Time::from_ms(until_ms)) } else { None };
    Outcome {
        receipt,
        result: result.map(Into::into),
        lease_until,
        code: problem.as_ref().map(Problem::code),
        detail: problem.map(|problem| problem.detail().to_owned()),
    }
}

/// Each receipt's outcome. If none settled anything, the status of the whole request shows it: a client that checks
/// only statuses must not assume that it has settled something.
fn outcomes(receipts: Vec<String>, settled: Vec<Settled>) -> Result<Answer<Outcomes>, Problem> {
    let none = settled.iter().all(|settled| refused(*settled).is_some());
    let first = settled.first().copied().and_then(refused);
    let results: Vec<Outcome> =
        receipts.into_iter().zip(settled).map(|(receipt, settled)| outcome(receipt, settled)).collect();
    match first.filter(|_| none) {
        Some(problem) => Err(problem.with("results", serde_json::to_value(&results).unwrap_or_default())),
        None => Ok(Answer(Outcomes { results })),
    }
}

/// The texts of receipts, up to the maximum number.
fn checked(receipts: &[String]) -> Result<Vec<&str>, Problem> {
    if receipts.is_empty() || receipts.len() > RECEIPTS {
        return Err(out_of_range("receipts", format!("must have between 1 and {RECEIPTS} items")));
    }
    Ok(receipts.iter().map(String::as_str).collect())
}

fn seconds(member: &str, seconds: f64, least: f64) -> Result<u64, Problem> {
    #[allow(clippy::cast_precision_loss, reason = "twelve hours")]
    let most = MAX_LEASE_MS as f64 / 1000.0;
    thousandths(seconds, least, most)
        .ok_or_else(|| out_of_range(member, format!("must be between {least} and {most}")))
}

/// Acknowledge messages
///
/// The messages are removed. Returns a result for each receipt, in order; if none settled anything, the error of the
/// first, with `results`. A repeat within some minutes returns `already_acked`.
#[utoipa::path(post, path = "/queues/{name}/ack", request_body = Receipts, responses((status = 200, body = Outcomes),
    (status = "default", description = NOT_SETTLED)))]
async fn ack(
    _: ByReceipt<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Json(body): Json<Receipts>,
) -> Result<Answer<Outcomes>, Problem> {
    find(&app, &name).await?;
    let settled = app.queues.ack(&name, &checked(&body.receipts)?).await?;
    outcomes(body.receipts, settled)
}

/// Release messages
///
/// They become available before others of their tenant, after `delay_seconds`; without it after the backoff of the
/// queue, or immediately if it has none. A message that was delivered `max_attempts` times becomes a dead letter.
#[utoipa::path(post, path = "/queues/{name}/nack", request_body = Nack, responses((status = 200, body = Outcomes),
    (status = "default", description = NOT_SETTLED)))]
async fn nack(
    _: ByReceipt<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Json(body): Json<Nack>,
) -> Result<Answer<Outcomes>, Problem> {
    let delay_ms = body.delay_seconds.map(|delay| seconds("delay_seconds", delay, 0.0)).transpose()?;
    find(&app, &name).await?;
    let settled = app.queues.nack(&name, delay_ms, &checked(&body.receipts)?).await?;
    outcomes(body.receipts, settled)
}

/// Reject messages
///
/// They become dead letters, however often they were delivered.
#[utoipa::path(post, path = "/queues/{name}/reject", request_body = Receipts,
    responses((status = 200, body = Outcomes), (status = "default", description = NOT_SETTLED)))]
async fn reject(
    _: ByReceipt<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Json(body): Json<Receipts>,
) -> Result<Answer<Outcomes>, Problem> {
    find(&app, &name).await?;
    let settled = app.queues.reject(&name, &checked(&body.receipts)?).await?;
    outcomes(body.receipts, settled)
}

/// Extend leases
#[utoipa::path(post, path = "/queues/{name}/extend", request_body = Extend, responses((status = 200, body = Outcomes),
    (status = "default", description = NOT_SETTLED)))]
async fn extend(
    _: ByReceipt<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Json(body): Json<Extend>,
) -> Result<Answer<Outcomes>, Problem> {
    let lease_ms = seconds("lease_seconds", body.lease_seconds, 1.0)?;
    find(&app, &name).await?;
    let settled = app.queues.extend(&name, lease_ms, &checked(&body.receipts)?).await?;
    outcomes(body.receipts, settled)
}
