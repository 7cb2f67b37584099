//! `GET /health` (the process is alive) and `GET /health/ready` (log lines are counted).

use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};

use super::{App, Problem};
use crate::follow::service::Condition;

pub(super) async fn live() -> Json<Value> {
    Json(json!({"status": "live"}))
}

pub(super) async fn ready(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let (code, detail) = match app.follower.progress().condition {
        Condition::Following => return Ok(Json(json!({"status": "ready"}))),
        Condition::Starting => ("starting", "The log has not been read yet."),
        Condition::StoreAway => (
            "statistics_unavailable",
            "The statistics Redis does not respond. Log lines wait and will be counted.",
        ),
        Condition::StoreRefuses => (
            "statistics_refused",
            "The statistics Redis rejects writes. Check its memory and disk. Log lines wait and will be counted.",
        ),
        Condition::StoreBroken => {
            ("statistics_unreadable", "The statistics Redis contains unexpected data. See the sidecar's log.")
        }
        Condition::LogUnreadable => {
            ("log_unreadable", "The access log cannot be read. Check its permissions.")
        }
        Condition::Fenced { .. } => (
            "fenced",
            "A newer sidecar counts for this node. Stop this one, or set another `node` and restart it.",
        ),
    };
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail))
}
