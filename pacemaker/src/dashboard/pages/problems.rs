//! Everything that is wrong, by kind. `signalbox doctor` finds the same, and more about its own machine.

use askama::Template;
use tokio::time::Instant;

use super::{Content, View, render, thousands};
use crate::{
    dashboard::{
        Site,
        facts::{self, Group, SkippedTogether},
    },
    http::Problem,
};
use signalbox_access::Caller;

/// Findings of one kind that are named.
const MAX_NAMED: usize = 5;
/// The same if only one kind is shown.
const MAX_NAMED_ALONE: usize = 1000;

#[derive(Debug, Template)]
#[template(path = "dashboard/problems.html")]
struct Page {
    groups: Vec<Group>,
    total: String,
    /// Whether only one kind is shown.
    alone: bool,
    skipped: Vec<SkippedTogether>,
}

pub(super) async fn content(
    app: &Site,
    caller: &Caller,
    view: &View,
    deadline: Instant,
) -> Result<Content, Problem> {
    let checkup = app.dashboard.checkups.get(app, caller, deadline).await;
    let alone = !view.state.is_empty();
    let mut groups =
        facts::groups(&checkup.diagnosis.findings, if alone { MAX_NAMED_ALONE } else { MAX_NAMED });
    groups.retain(|group| !alone || group.id == view.state);
    let page = Page {
        total: thousands(checkup.diagnosis.findings.len()),
        groups,
        alone,
        skipped: facts::skipped_together(&checkup.diagnosis.skipped),
    };
    Ok(Content { html: render(&page)?, charts: Vec::new() })
}
