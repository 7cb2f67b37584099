//! The preview of a new version of a machine. This page has the editor; the browser sends the definition to the API.

use askama::Template;

use crate::{
    dashboard::pages::{Content, Kind, Visit, link, plain, segment},
    http::Problem,
};
use signalbox_access::Scope;
use signalbox_machines::{Error, Version};

#[derive(Debug, Template)]
#[template(path = "dashboard/plan.html")]
struct Page<'a> {
    name: &'a str,
    /// The active version; 0 before the first one.
    current: u64,
    /// The version whose text is shown.
    shown: u64,
    text: String,
    /// The states of the active version, as JSON.
    states: String,
    may_manage: bool,
}

pub(super) async fn page(Visit { app, caller, view, .. }: Visit<'_>) -> Result<Content, Problem> {
    let name = &view.name;
    let version = match app.machines.definitions.current(name).await {
        Ok(version) => Some(version),
        Err(Error::NoSuchMachine) => None,
        Err(error) => return Err(error.into()),
    };
    let current = version.as_ref().map_or(0, |version| version.number);
    let shown = view.at.parse().unwrap_or(current);
    let text = match &version {
        Some(_) => app.machines.definitions.stored_version(name, shown).await?.source,
        None => String::new(),
    };
    plain(&Page {
        name,
        current,
        shown: if version.is_some() { shown } else { 0 },
        text,
        states: states(version.as_ref()),
        may_manage: caller.has_any(&[Scope::Machines]),
    })
}

fn states(version: Option<&Version>) -> String {
    let states = version.into_iter().flat_map(|version| version.machine.states());
    let names: Vec<&str> = states.map(signalbox_machine::State::name).collect();
    serde_json::to_string(&names).unwrap_or_default()
}
