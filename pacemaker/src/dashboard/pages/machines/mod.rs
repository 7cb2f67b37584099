//! State machines: the list, one machine with its state graph and labels, one label, and the preview of a new version.

mod diagram;
mod label;
mod machine;
mod plan;
mod why;

use askama::Template;

use super::{Content, Kind, Visit, link, plain};
use crate::http::Problem;
use signalbox_access::Scope;
use signalbox_machines::{Counts, Error, Status};

pub(crate) use diagram::Diagrams;

#[derive(Debug, Template)]
#[template(path = "dashboard/machines.html")]
struct List {
    machines: Vec<(String, Counts)>,
    may_manage: bool,
}

/// The number of labels with a status other than waiting and ended.
pub(in crate::dashboard) fn busy(counts: &Counts, status: Status) -> u64 {
    counts.busy.get(status.as_str()).copied().unwrap_or(0)
}

pub(super) async fn content(visit: Visit<'_>) -> Result<Content, Problem> {
    let name = &visit.view.name;
    if name.is_empty() {
        return list(visit).await;
    }
    if !is_name(name) {
        return Err(Error::NoSuchMachine.into());
    }
    if !visit.caller.may_use_machine(name) {
        let detail = "the token is confined to other state machines";
        return Err(Problem::forbidden("machine_not_allowed", detail));
    }
    match visit.view.kind {
        Kind::Label => label::page(visit).await,
        Kind::Plan => plan::page(visit).await,
        _ => machine::page(visit).await,
    }
}

/// Whether this is a valid name of a machine.
fn is_name(name: &str) -> bool {
    name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

async fn list(Visit { app, caller, .. }: Visit<'_>) -> Result<Content, Problem> {
    let mut machines = Vec::new();
    let names = app.machines.definitions.names().await?;
    for name in names.into_iter().filter(|name| caller.may_use_machine(name)) {
        match app.machines.inspector.overview.counts(&name).await {
            Ok(counts) => machines.push((name, counts)),
            // Its first version is being applied.
            Err(Error::NoSuchMachine) => {}
            Err(error) => return Err(error.into()),
        }
    }
    plain(&List { machines, may_manage: caller.has_any(&[Scope::Machines]) })
}
