//! The subject of a statistics request.

use axum::http::StatusCode;
use signalbox_store::{Key, StatsSpace, keys::stats};

use super::Problem;
use crate::line::UNCAUGHT;

/// The log key of requests to the admin listener.
const PACEMAKER: &str = "pacemaker";
/// The maximum length of an ID. Longer IDs cannot be registered.
const MAX_ID_BYTES: usize = 128;

/// A version type, or a group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) kind: &'static str,
    pub(super) id: String,
}

impl Subject {
    /// Parses the two path segments after `/stats`.
    pub(super) fn new(kind: &str, id: String) -> Result<Self, Problem> {
        let kinds = ["workspace", "application", "version", "version_type", "node"];
        let Some(kind) = kinds.into_iter().find(|known| *known == kind) else {
            let detail = format!(
                "Unknown kind of statistics. The kinds are {}, instance (latency only), uncaught and pacemaker.",
                kinds.join(", ")
            );
            return Err(Problem::new(StatusCode::NOT_FOUND, "unknown_kind", detail));
        };
        Ok(Self { kind, id: Self::checked(id)? })
    }

    /// Validates an ID.
    pub(super) fn checked(id: String) -> Result<String, Problem> {
        if id.is_empty() || id.len() > MAX_ID_BYTES || id.chars().any(char::is_control) {
            let detail = format!("Invalid ID: must be 1 to {MAX_ID_BYTES} bytes without control characters.");
            return Err(Problem::unprocessable("invalid_id", detail));
        }
        Ok(id)
    }

    /// Requests for host names without a route.
    pub(super) fn uncaught() -> Self {
        Self { kind: "uncaught", id: UNCAUGHT.to_owned() }
    }

    /// Requests to the admin listener.
    pub(super) fn pacemaker() -> Self {
        Self { kind: PACEMAKER, id: PACEMAKER.to_owned() }
    }

    /// The set of version types of a group.
    pub(super) fn members(&self) -> Option<Key<StatsSpace>> {
        Some(match self.kind {
            "workspace" => stats::workspace(&self.id),
            "application" => stats::application(&self.id),
            "version" => stats::version(&self.id),
            "node" => stats::node(&self.id),
            _ => return None,
        })
    }
}
