//! The consistency check of a running system: each subsystem checks its own data.

use std::time::Duration;

use axum::{Json as Answer, extract::State};
use serde::Deserialize;
use tokio::{sync::Mutex, time::Instant};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{ReadAll, Whole},
    body::Query,
};
use signalbox_api::health::{Check, Finding};
use signalbox_machines::CheckCursor;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check))
}

/// How long an answer is reused.
const TTL: Duration = Duration::from_secs(1);
/// The subsystems that a check without a cursor covers.
const SUBSYSTEMS: [&str; 4] = ["bus", "queues", "sequencer", "machines"];

/// The latest answer and its time. A check reads much of the fabric, so there is one at a time, and clients other than root that
/// ask more often than once per second get the same answer.
#[derive(Debug, Default)]
pub struct Checks(Mutex<Option<(Instant, Option<String>, Check)>>);

/// Where to continue.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Onward {
    /// The `next` of an earlier answer; with it only labels are checked.
    cursor: Option<String>,
}

/// Check the system's data
///
/// Checks lanes and jobs of the bus, queues, every object with a queue, and labels of state machines, in parts, without
/// changing anything and alongside running work. A violation is checked twice before it is reported. One answer covers a
/// few thousand labels; pass its `next` as `cursor` to check more. Checks are made one at a time; an answer may be a second old,
/// except for root.
#[utoipa::path(get, path = "/check", params(Onward), responses((status = 200, body = Check)))]
async fn check(
    caller: Whole<ReadAll>,
    State(app): State<App>,
    Query(from): Query<Onward>,
) -> Result<Answer<Check>, Problem> {
    let mut last = app.checks.0.lock().await;
    if let Some((at, cursor, answer)) = &*last
        && !caller.is_root()
        && at.elapsed() < TTL
        && *cursor == from.cursor
    {
        return Ok(Answer(answer.clone()));
    }
    let answer = perform(&app, &from).await?;
    *last = Some((Instant::now(), from.cursor, answer.clone()));
    Ok(Answer(answer))
}

async fn perform(app: &App, from: &Onward) -> Result<Check, Problem> {
    let (subsystems, mut findings) = match &from.cursor {
        None => (&SUBSYSTEMS[..], all_but_machines(app).await?),
        Some(_) => (&["machines"][..], Vec::new()),
    };
    let cursor: CheckCursor = match &from.cursor {
        None => CheckCursor::default(),
        Some(text) => text.parse().map_err(|()| {
            Problem::unprocessable("invalid_cursor", "`cursor` must be the `next` of an earlier answer")
        })?,
    };
    let page = app.machines.inspector.checker.check(cursor).await?;
    findings.extend(page.findings);
    let subsystems = subsystems.iter().map(|&name| name.to_owned()).collect();
    let next = page.next.map(|next| next.to_string());
    Ok(Check { consistent: findings.is_empty(), subsystems, findings, checked: page.checked, next })
}

async fn all_but_machines(app: &App) -> Result<Vec<Finding>, Problem> {
    let queues: Vec<String> = app.bus.handle().registry().queues.keys().cloned().collect();
    let mut findings = app.bus.check().await?;
    findings.extend(app.queues.check(&queues).await?);
    findings.extend(app.sequencer.handle.check().await?);
    Ok(findings)
}
