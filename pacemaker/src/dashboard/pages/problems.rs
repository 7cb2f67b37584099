//! Everything that is wrong, by kind. `signalbox doctor` finds the same, and more about its own machine.

use askama::Template;

use super::{Content, Visit, plain, thousands};
use crate::{
    dashboard::facts::{self, Group, SkippedTogether},
    http::Problem,
};

/// Findings of one kind that are named.
const MAX_NAMED: usize = 5;
/// The same if only one kind is shown.
const MAX_NAMED_ALONE: usize = 1000;

#[derive(Debug, Template)]
#[template(path = "dashboard/problems.html")]
struct Page<'a> {
    groups: Vec<Group<'a>>,
    total: String,
    /// Whether only one kind is shown.
    alone: bool,
    skipped: Vec<SkippedTogether>,
}

pub(super) async fn content(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, deadline, .. } = visit;
    let checkup = app.dashboard.checkups.get(app, caller, deadline).await;
    let alone = !view.state.is_empty();
    let mut groups =
        facts::groups(&checkup.diagnosis.findings, if alone { MAX_NAMED_ALONE } else { MAX_NAMED });
    groups.retain(|group| !alone || group.first().id == view.state);
    plain(&Page {
        total: thousands(checkup.diagnosis.findings.len()),
        groups,
        alone,
        skipped: facts::skipped_together(&checkup.diagnosis.skipped),
    })
}
