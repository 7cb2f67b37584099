//! From the tree of a file to its machines.

use std::{collections::HashSet, ops::RangeInclusive, sync::Arc};

use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    File, Path, Refused, SecretNames, checks, keys,
    model::Machine,
    read::{Fields, Known, Reader, in_order},
    yaml::{Key, Node, Value},
    zone::{Zone, ZoneRule},
};

pub(super) const HOUR: u64 = 3600;
pub(super) const DAY: u64 = 24 * HOUR;
/// Maximum number of hosts in a definition.
const MAX_HOSTS: usize = 100;
/// Maximum number of indexed paths of metadata.
const MAX_INDEX: usize = 8;
/// Maximum number of feeds, and of inputs.
const MAX_SOURCES: usize = 100;
/// Maximum number of entries of `webhooks`: each may have a pattern, which is compiled and kept in memory.
const MAX_WEBHOOKS: usize = 32;

/// Where a definition comes from.
#[derive(Clone, Copy)]
pub(super) enum Origin<'m, 's> {
    /// An author wrote it. `applied` has the secrets of the machine that is about to be applied, or of all machines.
    Author { applied: Option<(Option<&'m str>, &'s SecretNames)> },
    /// It was accepted before, possibly by an earlier version with other limits.
    Store,
}

pub(super) fn load<'a>(file: &str, source: &'a str, origin: Origin<'_, 'a>) -> Result<File, Refused> {
    let applied = match origin {
        Origin::Author { applied } => applied,
        Origin::Store => None,
    };
    let mut reader = Reader::new(file, source);
    reader.is_stored = matches!(origin, Origin::Store);
    let root = reader.parse();
    let machines = root.map(|root| machines(&mut reader, &root, applied)).unwrap_or_default();
    if reader.problems.is_empty() {
        Ok(File { machines, warnings: in_order(reader.warnings) })
    } else {
        Err(reader.refused())
    }
}

fn machines<'s>(
    reader: &mut Reader<'s>,
    root: &Node,
    applied: Option<(Option<&str>, &'s SecretNames)>,
) -> Vec<Arc<Machine>> {
    let fields = reader.fields(root, "the file", &keys::FILE);
    let Some(node) = fields.and_then(|fields| reader.required(&fields, "state_machines")) else {
        return Vec::new();
    };
    let Value::Map(entries) = &node.value else {
        reader.refuse_hint(node.at, "`state_machines` must be a map", "write each below its name: `drip:`");
        return Vec::new();
    };
    if entries.is_empty() {
        reader.refuse(node.at, "no state machine found");
    }
    let mut machines = Vec::new();
    for (key, body) in entries {
        if reader.is_full() {
            break;
        }
        if !reader.valid_name(&key.name, key.at, "a state machine", true) {
            continue;
        }
        let is_applied = |(machine, _): &(Option<&str>, _)| machine.is_none_or(|name| name == key.name);
        reader.secrets = applied.filter(is_applied).map(|(_, secrets)| secrets);
        if let Some(machine) = reader.machine(key, body, entries.len() == 1) {
            checks::judge(reader, &machine, body);
            machines.push(Arc::new(machine));
        }
    }
    machines
}

impl Reader<'_> {
    /// Reads the machine as far as possible. `alone`: the file contains no other machine.
    fn machine(&mut self, key: &Key, body: &Node, alone: bool) -> Option<Machine> {
        let fields = self.fields(body, "a state machine", &keys::MACHINE)?;
        // An invalid zone does not prevent the remaining checks.
        let zone = fields.get("timezone").and_then(|node| self.zone_rule(node));
        let zone = zone.unwrap_or(ZoneRule::Fixed(Zone::utc()));
        self.known = Known { zone: Some(zone.clone()), ..Known::default() };
        let hosts = self.each(&fields, "hosts", 1..=MAX_HOSTS, Self::host);
        let index = self.each(&fields, "index", 1..=MAX_INDEX, Self::indexed);
        let feeds = self.each(&fields, "feeds", 0..=MAX_SOURCES, Self::feed);
        let mut seen = HashSet::new();
        let given = fields.get("feeds").into_iter().flat_map(Node::items);
        for node in given.filter_map(|feed| feed.get("name")) {
            if let Some(name) = node.as_text()
                && !seen.insert(name)
            {
                self.refuse(node.at, format!("a feed named `{name}` exists already"));
            }
        }
        let inputs = self.each(&fields, "inputs", 0..=MAX_SOURCES, Self::input);
        let webhooks = self.each(&fields, "webhooks", 0..=MAX_WEBHOOKS, Self::webhook);
        let limits = fields.get("limits").map(|node| self.limits(node)).unwrap_or_default();
        let Some(states) = fields.get("states") else {
            return self.fail(key.at, "a state machine needs `states`");
        };
        let states = self.states(states)?;
        let places = states.iter().map(|state| (state.name.clone(), state.index)).collect();
        let says = json!({ "state_machines": { key.name.as_str(): body.to_json() } }).to_string();
        let hash = HEXLOWER.encode(&Sha256::digest(says.as_bytes())).into();
        // A file with one machine is stored unchanged, including its comments.
        let source = if alone { self.source.into() } else { says.into() };
        let name = key.name.as_str().into();
        Some(Machine {
            name,
            zone,
            hosts,
            index,
            feeds,
            inputs,
            webhooks,
            limits,
            states,
            places,
            source,
            hash,
        })
    }

    /// A metadata path that is indexed, so that labels can be found by its value.
    fn indexed(&mut self, node: &Node) -> Option<Path> {
        self.path_below(node, "an entry of `index`", "an entry of `index` must be a path below metadata")
    }

    /// Reads the entries of a list, whose number is limited. Reading ends when enough problems were found.
    fn each<T>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        number: RangeInclusive<usize>,
        read: fn(&mut Self, &Node) -> Option<T>,
    ) -> Vec<T> {
        let Some(node) = fields.get(key) else { return Vec::new() };
        let items = self.list(node, &format!("`{key}`")).unwrap_or_default();
        let (least, most) = (*number.start(), *number.end());
        if items.len() > most || (items.len() < least && matches!(node.value, Value::List(_))) {
            self.refuse(node.at, format!("`{key}` must have between {least} and {most} entries"));
            return Vec::new();
        }
        let mut found = Vec::new();
        for item in items {
            if self.is_full() {
                break;
            }
            found.extend(read(self, item));
        }
        found
    }

    fn zone_rule(&mut self, node: &Node) -> Option<ZoneRule> {
        if let Value::Text(_) = node.value {
            return self.zone(node).map(ZoneRule::Fixed);
        }
        let fields = self.fields(node, "`timezone`", &keys::ZONE)?;
        let path = self.need(&fields, "metadata", |reader, node| reader.path(node, "`metadata`"));
        let default = self.need(&fields, "default", Self::zone);
        Some(ZoneRule::Metadata { path: path?, default: default? })
    }
}
