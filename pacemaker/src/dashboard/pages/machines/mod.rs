//! State machines: the list, one machine with its state graph and labels, one label, and the preview of a new version.

mod diagram;
mod label;
mod machine;
mod plan;
mod why;

use std::collections::BTreeMap;

use askama::Template;

use super::{Content, Kind, View, link, render};
use crate::dashboard::Site;
use crate::http::Problem;
use signalbox_access::{Caller, Scope};
use signalbox_machines::{Counts, Error};

pub(crate) use diagram::Diagrams;

#[derive(Debug, Template)]
#[template(path = "dashboard/machines.html")]
struct List {
    machines: Vec<MachineRow>,
    may_manage: bool,
}

#[derive(Debug)]
struct MachineRow {
    name: String,
    link: String,
    version: u64,
    states: usize,
    labels: u64,
    acting: u64,
    errored: u64,
    looping: u64,
}

/// Numbers of labels by status, for the statuses other than waiting and ended.
#[derive(Debug, Default)]
struct Busy {
    acting: u64,
    choosing: u64,
    errored: u64,
    looping: u64,
}

impl Busy {
    fn read(by_status: &BTreeMap<String, u64>) -> Self {
        let count = |status: &str| by_status.get(status).copied().unwrap_or(0);
        Self {
            acting: count("acting"),
            choosing: count("choosing"),
            errored: count("errored"),
            looping: count("looping"),
        }
    }
}

pub(super) async fn content(app: &Site, caller: &Caller, view: &View) -> Result<Content, Problem> {
    let name = &view.name;
    if !name.is_empty() && !is_name(name) {
        return Err(Error::NoSuchMachine.into());
    }
    if !name.is_empty() && !caller.may_use_machine(name) {
        let detail = "the token is confined to other state machines";
        return Err(Problem::forbidden("machine_not_allowed", detail));
    }
    let html = match view.kind {
        _ if name.is_empty() => list(app, caller).await?,
        Kind::Label => label::page(app, caller, view).await?,
        Kind::Plan => plan::page(app, caller, view).await?,
        _ => machine::page(app, caller, view).await?,
    };
    Ok(Content { html, charts: Vec::new() })
}

/// Whether this is a valid name of a machine.
fn is_name(name: &str) -> bool {
    name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

async fn list(app: &Site, caller: &Caller) -> Result<String, Problem> {
    let mut machines = Vec::new();
    for name in
        app.machines.definitions.names().await?.into_iter().filter(|name| caller.may_use_machine(name))
    {
        let Counts { version, labels, busy, .. } = match app.machines.inspector.overview.counts(&name).await {
            Ok(counts) => counts,
            // Its first version is being applied.
            Err(Error::NoSuchMachine) => continue,
            Err(error) => return Err(error.into()),
        };
        let busy = Busy::read(&busy);
        machines.push(MachineRow {
            link: link(Kind::Machines, &name),
            name,
            version: version.number,
            states: version.machine.states().len(),
            labels: labels.values().sum(),
            acting: busy.acting + busy.choosing,
            errored: busy.errored,
            looping: busy.looping,
        });
    }
    render(&List { machines, may_manage: caller.has_any(&[Scope::Machines]) })
}
