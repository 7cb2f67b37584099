//! The subject of a statistics request.

use axum::{
    extract::{FromRequestParts, MatchedPath, Path},
    http::{StatusCode, request::Parts},
};
use signalbox_store::{Key, StatsSpace, keys::stats};

use super::Problem;
use crate::{fold::TOTAL, line::UNCAUGHT};

/// The path segment of requests for host names without a route.
pub(super) const UNCAUGHT_PATH: &str = "uncaught";
/// The path segment of all requests except those to the admin listener.
pub(super) const TOTAL_PATH: &str = "total";
/// The path segment, and the log key, of requests to the admin listener.
pub(super) const PACEMAKER: &str = "pacemaker";
/// The maximum length of an ID. Longer IDs cannot be registered.
const MAX_ID_BYTES: usize = 128;

/// The path parameters of a subject.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only its description is used")]
pub(super) struct SubjectPath {
    /// `version_type`, `version`, `application`, `workspace` or `node`
    kind: String,
    /// The ID of the subject
    id: String,
}

/// A version type, or a group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) kind: &'static str,
    pub(super) id: String,
}

/// From a path below `/stats/total`, `/stats/uncaught`, `/stats/pacemaker` or `/stats/{kind}/{id}`.
impl<S: Send + Sync> FromRequestParts<S> for Subject {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match parts.extensions.get::<MatchedPath>().and_then(|path| path.as_str().split('/').nth(2)) {
            Some(UNCAUGHT_PATH) => Ok(Self { kind: UNCAUGHT_PATH, id: UNCAUGHT.to_owned() }),
            Some(TOTAL_PATH) => Ok(Self { kind: TOTAL_PATH, id: TOTAL.to_owned() }),
            Some(PACEMAKER) => Ok(Self { kind: PACEMAKER, id: PACEMAKER.to_owned() }),
            _ => {
                let Path((kind, id)) = Path::<(String, String)>::from_request_parts(parts, state).await?;
                Self::new(&kind, id)
            }
        }
    }
}

impl Subject {
    /// Parses the two path segments after `/stats`.
    fn new(kind: &str, id: String) -> Result<Self, Problem> {
        let kinds = ["workspace", "application", "version", "version_type", "node"];
        let Some(kind) = kinds.into_iter().find(|known| *known == kind) else {
            let detail = format!(
                "Unknown kind of statistics. The kinds are {}, instance (latency only), total, uncaught and pacemaker.",
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
