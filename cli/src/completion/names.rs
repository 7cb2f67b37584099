//! The names that a running system knows.

use std::{collections::BTreeMap, time::Duration};

use clap::Parser as _;
use serde_json::Value;
use signalbox_client::{Client, segment, with_query};
use tokio::time;

use super::Selected;
use crate::{contexts::Store, run::groups};

/// Items that are read.
const LIMIT: &str = "200";
/// Of lists without a search, more are read.
const MANY: &str = "1000";
/// Commands whose argument is a new name.
const CREATING: [&str; 2] = ["create", "add"];

/// A kind of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Names {
    AutomaticCertificates,
    Backends,
    Certificates,
    Clients,
    Contexts,
    Environments(String),
    Groups,
    Hosts,
    Instances,
    Labels(String),
    Machines,
    Nodes,
    Objects,
    Queues,
    States(String),
    Subscribers,
    Tokens,
    Topics,
    VersionTypes,
}

impl Names {
    /// The names that an argument of a command expects. `values` has the values of the arguments before it.
    pub(super) fn of(path: &[&str], argument: &str, values: &BTreeMap<String, String>) -> Option<Self> {
        let noun = path.first().copied().unwrap_or_default();
        let verb = path.get(1).copied().unwrap_or_default();
        let of = |name: &str| values.get(name).cloned();
        if CREATING.contains(&verb) && ["id", "name", "queue"].contains(&argument) {
            return None;
        }
        Some(match (noun, argument) {
            (_, "context") | ("context", "name") => Self::Contexts,
            ("run", "group") => Self::Groups,
            ("routes", "id") => Self::Instances,
            ("subscribers", "name") => Self::Subscribers,
            ("clients", "name") | (_, "publisher") => Self::Clients,
            ("tokens", "name") => Self::Tokens,
            ("certificates", "name") if verb == "renew" => Self::AutomaticCertificates,
            ("certificates", "name") => Self::Certificates,
            ("queues", "environment") => Self::Environments(of("queue").or_else(|| of("queues"))?),
            ("labels", "state" | "to") => Self::States(of("machine")?),
            (_, "host") => Self::Hosts,
            (_, "node") => Self::Nodes,
            (_, "version_type") => Self::VersionTypes,
            (_, "queue" | "queues") => Self::Queues,
            (_, "topic" | "topics") => Self::Topics,
            (_, "object") => Self::Objects,
            (_, "backend") => Self::Backends,
            (_, "machine") => Self::Machines,
            (_, "label") => Self::Labels(of("machine")?),
            _ => return None,
        })
    }

    /// The path of the list, where the items are in the answer, and the member that has the name.
    fn list(&self, prefix: &str) -> (String, &'static str, &'static str) {
        let search = Some(prefix).filter(|prefix| !prefix.is_empty());
        let searched = |path: &str| with_query(path, &[("search", search), ("limit", Some(LIMIT))]);
        let many = |path: &str| with_query(path, &[("limit", Some(MANY))]);
        match self {
            Self::AutomaticCertificates => (searched("/acme/names"), "/names", "server_name"),
            Self::Backends => ("/backends".to_owned(), "", "name"),
            Self::Certificates => (searched("/certificates"), "/certificates", "server_name"),
            Self::Clients => ("/api_tokens".to_owned(), "", "name"),
            Self::Environments(queue) => {
                (many(&format!("/queues/{}/facets", segment(queue))), "/facets", "environment")
            }
            Self::Hosts => (searched("/hosts"), "/hosts", "hostname"),
            Self::Instances => (searched("/instances"), "/instances", "id"),
            Self::Labels(machine) => {
                (many(&format!("/state-machines/{}/labels", segment(machine))), "/labels", "name")
            }
            Self::Machines => ("/state-machines".to_owned(), "/state_machines", "name"),
            Self::Nodes => (many("/instances"), "/instances", "node_id"),
            Self::Objects => (searched("/objects"), "/objects", "object"),
            Self::Queues => (searched("/queues"), "/queues", "name"),
            Self::States(machine) => (format!("/state-machines/{}", segment(machine)), "/states", "name"),
            Self::Subscribers => (searched("/subscriptions"), "", "subscriber"),
            Self::Tokens => (searched("/tokens"), "/tokens", "name"),
            Self::Topics => (searched("/topics"), "", "name"),
            Self::VersionTypes => (many("/instances"), "/instances", "version_type_id"),
            // They are on this machine.
            Self::Contexts | Self::Groups => (String::new(), "", ""),
        }
    }
}

/// The names of a kind; none if the system does not answer in time, or not as expected.
pub(super) async fn read(names: &Names, prefix: &str, system: &[String], patience: Duration) -> Vec<String> {
    match names {
        Names::Contexts => return Store::of_user().map(|store| store.names()).unwrap_or_default(),
        Names::Groups => return groups(),
        // Standard input is the terminal of the shell.
        _ if system.iter().any(|flag| flag == "--token-file=-") => return Vec::new(),
        _ => {}
    }
    let words = std::iter::once("signalbox").chain(system.iter().map(String::as_str));
    let Ok(selected) = Selected::try_parse_from(words) else { return Vec::new() };
    let Ok(client) = selected.system.patient(patience) else { return Vec::new() };
    time::timeout(patience, fetch(&client, names, prefix)).await.ok().flatten().unwrap_or_default()
}

async fn fetch(client: &Client, names: &Names, prefix: &str) -> Option<Vec<String>> {
    let (path, pointer, member) = names.list(prefix);
    let answer: Value = client.get(&path).await.ok()?;
    let items = answer.pointer(pointer)?.as_array()?;
    let mut found: Vec<String> =
        items.iter().filter_map(|item| item.get(member).and_then(Value::as_str)).map(str::to_owned).collect();
    found.sort_unstable();
    found.dedup();
    Some(found)
}
