//! Pulling messages and settling their receipts.

use std::time::Duration;

use axum::{
    Json as Answer,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{UseQueues, find, own_part, problems::refused, with_queue};
use crate::http::{
    App, Problem,
    auth::{ByReceipt, Confined, Environments},
    body::{Body, Json},
    path::Path,
};
use signalbox_api::queues::{Extend, Message, Nack, Outcome, Outcomes, Pull, Pulled, Receipts};
use signalbox_queues::{MAX_LEASE_MS, Matchable, PullRequest, Receipt, Settled, Taken, milliseconds};

/// Messages in one pull when nothing is said.
const DEFAULT_MESSAGES: usize = 10;
/// Receipts in one request.
const RECEIPTS: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(pull))
        .routes(routes!(ack))
        .routes(routes!(nack))
        .routes(routes!(extend))
}

impl Body for Pull {}

/// The parts of a log entry that a message shows, unchanged.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    environment: &'a RawValue,
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

/// Shows a message; `None` when the log contains something else, which is logged.
pub(super) fn show<'a>(taken: &'a Taken, receipt: Option<&Receipt>) -> Option<Message<&'a RawValue>> {
    let entry: Entry<'_> = serde_json::from_slice(&taken.body)
        .inspect_err(|error| tracing::error!(id = taken.id, %error, "message in the log not readable"))
        .ok()?;
    Some(Message {
        receipt: receipt.map(ToString::to_string),
        id: taken.id,
        environment: entry.environment,
        kind: entry.kind,
        name: entry.topic,
        payload: entry.data,
        attempt: taken.attempt,
        lease_until_ms: receipt.map(|receipt| receipt.until_ms),
        object: entry.url.and(Some(entry.object)),
        url: entry.url,
        timestamp: entry.timestamp,
    })
}

/// Pull messages
///
/// Fair between environments: weighted round robin. Each message comes with a receipt and is leased for
/// `lease_seconds`; a message that is not acknowledged by then is redelivered. With `wait_seconds` the request waits
/// for a message if the queue is empty. The answer: `{"messages": [{"receipt", "id", "environment", "type", "name",
/// "payload", "attempt", "lease_until_ms"}], "next_due_in_ms"}`; events of the bus also have `url`, `object` and
/// `timestamp`, and their topic as name. The last member is the time until the next lease or delay ends, if no message
/// is available now.
#[utoipa::path(post, path = "/queues/{name}/pull", tag = "queues", params(("name" = String, Path)),
    request_body = Option<Pull>, responses(
    (status = 200, body = Object), (status = 403, description = "environment_missing", body = Problem),
    (status = 404, description = "unknown_queue", body = Problem),
    (status = 422, description = "out_of_range, unknown_field, invalid_environment", body = Problem),
    (status = 503, description = "too_many_waiting", body = Problem)))]
async fn pull(
    caller: Confined<UseQueues, Environments>,
    State(app): State<App>,
    Path(name): Path<String>,
    body: Option<Json<Pull>>,
) -> Result<Response, Problem> {
    let Pull { max, wait_seconds, auto_ack, environment } = body.map(|Json(body)| body).unwrap_or_default();
    own_part(&caller, environment.as_deref())?;
    let options = app.queues.options();
    let most = max.unwrap_or(DEFAULT_MESSAGES.min(options.pull_messages));
    if !(1..=options.pull_messages).contains(&most) {
        return Err(out_of_range("max", format!("must be between 1 and {}", options.pull_messages)));
    }
    #[allow(clippy::cast_precision_loss, reason = "minutes at most")]
    let longest = options.wait_seconds as f64;
    let wait_ms = milliseconds(wait_seconds.unwrap_or_default(), 0.0, longest)
        .ok_or_else(|| out_of_range("wait_seconds", format!("must be between 0 and {longest}")))?;
    let _place = (wait_ms > 0).then(|| app.limits.pulls.take(&caller)).transpose()?;
    let environment = environment.as_deref();
    let request = PullRequest { most, wait: Duration::from_millis(wait_ms), auto_ack, environment };
    let (queues, queue) = (&app.queues, &*name);
    let pull = |known: Matchable| async move { queues.pull(queue, known.definition.revision, request).await };
    let handed = with_queue(&app, queue, pull).await?;
    let messages = handed
        .messages
        .iter()
        .filter_map(|(receipt, taken)| show(taken, (!auto_ack).then_some(receipt)))
        .collect();
    Ok(Answer(Pulled { messages, next_due_in_ms: handed.next_due_in_ms }).into_response())
}

fn out_of_range(member: &str, what: String) -> Problem {
    Problem::unprocessable("out_of_range", format!("`{member}` {what}"))
}

impl Body for Receipts {}

impl Body for Nack {}

impl Body for Extend {}

fn outcome(receipt: String, settled: Settled) -> Outcome {
    let problem = refused(settled);
    let result = match settled {
        Settled::Acked => Some("acked"),
        Settled::Back => Some("back"),
        Settled::Delayed => Some("delayed"),
        Settled::Dead => Some("dead"),
        Settled::Extended(_) => Some("extended"),
        Settled::Malformed | Settled::OtherQueue | Settled::Used | Settled::Expired => None,
    };
    let lease_until_ms = if let Settled::Extended(until_ms) = settled { Some(until_ms) } else { None };
    Outcome {
        receipt,
        result: result.map(Into::into),
        lease_until_ms,
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
    milliseconds(seconds, least, most)
        .ok_or_else(|| out_of_range(member, format!("must be between {least} and {most}")))
}

/// Acknowledge messages
///
/// The messages are removed. Returns a result for each receipt, in order; if none settled anything, the error of the
/// first, with `results`.
#[utoipa::path(post, path = "/queues/{name}/ack", tag = "queues", params(("name" = String, Path)),
    request_body = Receipts, responses(
    (status = 200, body = Outcomes),
    (status = 404, description = "unknown_queue", body = Problem),
    (status = 409, description = "receipt_used, receipt_of_other_queue", body = Problem),
    (status = 410, description = "receipt_expired", body = Problem),
    (status = 422, description = "invalid_receipt, out_of_range, unknown_field", body = Problem)))]
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
/// They become available immediately, before others of their environment, or after `delay_seconds`. A message that was
/// delivered `max_attempts` times becomes a dead letter.
#[utoipa::path(post, path = "/queues/{name}/nack", tag = "queues", params(("name" = String, Path)),
    request_body = Nack, responses(
    (status = 200, body = Outcomes),
    (status = 404, description = "unknown_queue", body = Problem),
    (status = 409, description = "receipt_used, receipt_of_other_queue", body = Problem),
    (status = 410, description = "receipt_expired", body = Problem),
    (status = 422, description = "invalid_receipt, out_of_range, unknown_field", body = Problem)))]
async fn nack(
    _: ByReceipt<UseQueues>,
    State(app): State<App>,
    Path(name): Path<String>,
    Json(body): Json<Nack>,
) -> Result<Answer<Outcomes>, Problem> {
    let delay_ms = seconds("delay_seconds", body.delay_seconds.unwrap_or_default(), 0.0)?;
    find(&app, &name).await?;
    let settled = app.queues.nack(&name, delay_ms, &checked(&body.receipts)?).await?;
    outcomes(body.receipts, settled)
}

/// Extend leases
#[utoipa::path(post, path = "/queues/{name}/extend", tag = "queues", params(("name" = String, Path)),
    request_body = Extend, responses(
    (status = 200, body = Outcomes),
    (status = 404, description = "unknown_queue", body = Problem),
    (status = 409, description = "receipt_used, receipt_of_other_queue", body = Problem),
    (status = 410, description = "receipt_expired", body = Problem),
    (status = 422, description = "invalid_receipt, out_of_range, unknown_field", body = Problem)))]
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
