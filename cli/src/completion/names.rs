//! The names that a running system knows.

use std::{collections::BTreeMap, time::Duration};

use clap::Parser as _;
use serde_json::Value;
use signalbox_client::{segment, with_query};
use tokio::time;

use super::Selected;
use crate::{contexts::Store, run::groups};

/// Items that are read of a list with a search. Of the others, 1000 are read.
const LIMIT: &str = "200";
/// Commands whose argument is a new name.
const CREATING: [&str; 2] = ["create", "add"];

/// Where names are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Names {
    /// Contexts of this user.
    Contexts,
    /// Applications that `signalbox run` runs on this machine.
    Groups,
    /// A list of the API.
    List {
        path: String,
        /// Whether the list can be searched.
        search: bool,
        /// The place of the items in the answer.
        items: &'static str,
        /// The member of an item that is its name.
        member: &'static str,
    },
}

impl Names {
    /// The names that an argument of a command expects. `values` has the values of the arguments before it.
    pub(super) fn of(path: &[&str], argument: &str, values: &BTreeMap<String, String>) -> Option<Self> {
        let noun = path.first().copied().unwrap_or_default();
        let verb = path.get(1).copied().unwrap_or_default();
        let of = |name: &str| values.get(name).map(|value| segment(value));
        if CREATING.contains(&verb) && ["id", "name", "queue"].contains(&argument) {
            return None;
        }
        let list = |path: String, items, member| Self::List { path, search: false, items, member };
        let searched =
            |path: &str, items, member| Self::List { path: path.to_owned(), search: true, items, member };
        let instances = |member| list("/instances?limit=1000".to_owned(), "/instances", member);
        let machine = |below| Some(format!("/state-machines/{}{below}", of("machine")?));
        Some(match (noun, argument) {
            (_, "context") | ("context", "name") => Self::Contexts,
            ("run", "group") => Self::Groups,
            ("routes", "id") => searched("/instances", "/instances", "id"),
            ("subscribers", "name") => searched("/subscriptions", "", "subscriber"),
            ("clients", "name") | (_, "publisher") => list("/api_tokens".to_owned(), "", "name"),
            ("tokens", "name") => searched("/tokens", "/tokens", "name"),
            ("certificates", "name") if verb == "renew" => searched("/acme/names", "/names", "server_name"),
            ("certificates", "name") => searched("/certificates", "/certificates", "server_name"),
            ("queues", "tenant") => {
                let queue = of("queue").or_else(|| of("queues"))?;
                list(format!("/queues/{queue}/tenants?limit=1000"), "/tenants", "tenant")
            }
            ("labels", "state" | "to") => list(machine("")?, "/states", "name"),
            (_, "host") => searched("/hosts", "/hosts", "hostname"),
            (_, "node") => instances("node_id"),
            (_, "version_type") => instances("version_type_id"),
            (_, "queue" | "queues") => searched("/queues", "/queues", "name"),
            (_, "topic" | "topics") => searched("/topics", "", "name"),
            (_, "object") => searched("/objects", "/objects", "object"),
            (_, "backend") => list("/backends".to_owned(), "", "name"),
            (_, "machine") => list("/state-machines".to_owned(), "/state_machines", "name"),
            (_, "label") => list(machine("/labels?limit=1000")?, "/labels", "name"),
            _ => return None,
        })
    }
}

/// The names; none if the system does not answer in time, or not as expected.
pub(super) async fn read(names: &Names, prefix: &str, system: &[String], patience: Duration) -> Vec<String> {
    let (path, items, member) = match names {
        Names::Contexts => return Store::of_user().map(|store| store.names()).unwrap_or_default(),
        Names::Groups => return groups(),
        // Standard input is the terminal of the shell.
        _ if system.iter().any(|flag| flag == "--token-file=-") => return Vec::new(),
        Names::List { path, search: true, items, member } => {
            let search = Some(prefix).filter(|prefix| !prefix.is_empty());
            (with_query(path, &[("search", search), ("limit", Some(LIMIT))]), items, member)
        }
        Names::List { path, search: false, items, member } => (path.clone(), items, member),
    };
    let words = std::iter::once("signalbox").chain(system.iter().map(String::as_str));
    let Ok(selected) = Selected::try_parse_from(words) else { return Vec::new() };
    let Ok(client) = selected.system.patient(patience) else { return Vec::new() };
    let Ok(Ok(answer)) = time::timeout(patience, client.get::<Value>(&path)).await else { return Vec::new() };
    let items = answer.pointer(items).and_then(Value::as_array).into_iter().flatten();
    let mut found: Vec<String> = items.filter_map(|item| item[member].as_str()).map(str::to_owned).collect();
    found.sort_unstable();
    found.dedup();
    found
}
