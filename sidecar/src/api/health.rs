//! `GET /health` (the process lives) and `GET /health/ready` (it counts).

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
        Condition::Starting => ("starting", "The log was not looked at yet."),
        Condition::StoreAway => {
            ("statistics_unavailable", "The statistics Redis does not answer; the log waits.")
        }
        Condition::StoreRefuses => (
            "statistics_refused",
            "The statistics Redis refuses to write: look at its memory and disk. The log waits.",
        ),
        Condition::StoreBroken => (
            "statistics_unreadable",
            "The statistics hold something unexpected; the sidecar's log says what.",
        ),
        Condition::LogUnreadable => {
            ("log_unreadable", "The access log cannot be read: look at its permissions.")
        }
        Condition::Fenced { .. } => (
            "fenced",
            "A newer sidecar counts for this node. Stop this one, or give it a node of its own and restart it.",
        ),
    };
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail))
}
