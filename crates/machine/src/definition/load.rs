//! From the tree of a file to its machines.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    File, Refused, SecretNames, checks, keys,
    model::Machine,
    read::{Fields, Reader},
    yaml::{self, Mark, Node, Value},
    zone::{Zone, ZoneRule},
};

pub(super) const HOUR: u64 = 3600;
pub(super) const DAY: u64 = 24 * HOUR;
/// Maximum number of hosts in a definition.
const MAX_HOSTS: usize = 100;
/// Maximum number of indexed paths of metadata.
const MAX_INDEX: usize = 8;

pub(super) fn load<'a>(
    file: &str,
    source: &'a str,
    applied: Option<(Option<&str>, &'a SecretNames)>,
) -> Result<File, Refused> {
    // Some editors begin a file with a byte order mark.
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let mut reader = Reader::new(file, source, None);
    let machines = match yaml::parse(source) {
        Ok(root) => root_of(&mut reader, &root, applied),
        Err(unreadable) => {
            let problem = reader.problem(unreadable.at, unreadable.message, unreadable.hint);
            reader.add(unreadable.at, problem);
            Vec::new()
        }
    };
    let in_order = |mut found: Vec<(Mark, super::Problem)>| {
        found.sort_by_key(|(at, _)| *at);
        // If an alias repeats a mistake in several places, it is reported once.
        found.dedup();
        found.into_iter().map(|(_, problem)| problem).collect::<Vec<_>>()
    };
    if reader.problems.is_empty() {
        Ok(File {
            machines: machines.into_iter().map(Arc::new).collect(),
            warnings: in_order(reader.warnings),
        })
    } else {
        Err(Refused { problems: in_order(reader.problems) })
    }
}

fn root_of<'s>(
    reader: &mut Reader<'s>,
    root: &Node,
    applied: Option<(Option<&str>, &'s SecretNames)>,
) -> Vec<Machine> {
    let Some(fields) = reader.fields(root, "the file", &keys::FILE) else { return Vec::new() };
    let Some(node) = reader.required(&fields, "state_machines", "the file") else { return Vec::new() };
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
        let says = json!({ "state_machines": { key.name.as_str(): body.to_json() } }).to_string();
        let hash = HEXLOWER.encode(&Sha256::digest(says.as_bytes()));
        // A file with one machine is stored unchanged, including its comments.
        let source = if entries.len() == 1 { reader.source.into() } else { says.into() };
        let is_applied = |(machine, _): &(Option<&str>, _)| machine.is_none_or(|name| name == key.name);
        reader.secrets = applied.filter(is_applied).map(|(_, secrets)| secrets);
        let read = Builder::new(&mut *reader).machine(&key.name, key.at, body);
        if let Some((mut machine, broken)) = read {
            machine.source = source;
            machine.hash = hash.into();
            checks::judge(reader, &machine, body, &broken);
            machines.push(machine);
        }
    }
    machines
}

/// The state of reading one machine.
pub(super) struct Builder<'r, 's> {
    pub(super) reader: &'r mut Reader<'s>,
    /// The names of the feeds.
    pub(super) feeds: Vec<String>,
    /// The names of the states; empty for a state without a name.
    pub(super) names: Vec<String>,
    /// The index of each name; if a name is repeated, that of its first state.
    pub(super) places: HashMap<String, usize>,
    /// The zone of the machine's labels.
    pub(super) zone: Option<ZoneRule>,
    /// The indexes of states that could not be read.
    pub(super) broken: Vec<usize>,
}

impl<'r, 's> Builder<'r, 's> {
    fn new(reader: &'r mut Reader<'s>) -> Self {
        Self {
            reader,
            feeds: Vec::new(),
            names: Vec::new(),
            places: HashMap::new(),
            zone: None,
            broken: Vec::new(),
        }
    }
}

impl Builder<'_, '_> {
    /// Reads the machine as far as possible; also returns the indexes of the states that could not be read.
    fn machine(mut self, name: &str, at: Mark, body: &Node) -> Option<(Machine, Vec<usize>)> {
        let fields = self.reader.fields(body, "a state machine", &keys::MACHINE)?;
        let zone = match fields.get("timezone") {
            Some(node) => self.zone_rule(node),
            None => Some(ZoneRule::Fixed(Zone::utc())),
        };
        // An invalid zone does not prevent the remaining checks.
        let zone = zone.unwrap_or(ZoneRule::Fixed(Zone::utc()));
        self.zone = Some(zone.clone());
        let hosts = self.each(&fields, "hosts", Self::host);
        if let Some(node) = fields.get("hosts")
            && matches!(&node.value, Value::List(items) if !(1..=MAX_HOSTS).contains(&items.len()))
        {
            self.reader.refuse(node.at, format!("`hosts` must have between 1 and {MAX_HOSTS} entries"));
        }
        let index = self.each(&fields, "index", Self::indexed);
        if let Some(node) = fields.get("index")
            && matches!(&node.value, Value::List(items) if !(1..=MAX_INDEX).contains(&items.len()))
        {
            self.reader.refuse(node.at, format!("`index` must have between 1 and {MAX_INDEX} entries"));
        }
        let feeds = self.each(&fields, "feeds", Self::feed);
        self.twice(&fields, "feeds", "a feed");
        let inputs = self.each(&fields, "inputs", Self::input);
        let webhooks = self.each(&fields, "webhooks", Self::webhook);
        let limits = fields.get("limits").map(|node| self.limits(node)).unwrap_or_default();
        let Some(states) = fields.get("states") else {
            self.reader.refuse(at, "a state machine needs `states`");
            return None;
        };
        let states = self.states(states)?;
        let places = states.iter().map(|state| (state.name.clone(), state.index)).collect();
        let (source, hash) = ("".into(), "".into());
        let machine = Machine {
            name: name.into(),
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
        };
        Some((machine, self.broken))
    }

    /// A metadata path that is indexed, so that labels can be found by its value.
    fn indexed(&mut self, node: &Node) -> Option<super::Path> {
        let path = self.reader.path(node, "an entry of `index`")?;
        if path.keys().is_empty() {
            self.reader.refuse(node.at, "an entry of `index` must be a path below metadata");
            return None;
        }
        Some(path)
    }

    fn each<T>(&mut self, fields: &Fields<'_>, key: &str, read: fn(&mut Self, &Node) -> Option<T>) -> Vec<T> {
        let items = fields.get(key).and_then(|node| self.reader.list(node, &format!("`{key}`")));
        items.unwrap_or_default().iter().filter_map(|item| read(self, item)).collect()
    }

    /// Rejects list entries that repeat a name.
    fn twice(&mut self, fields: &Fields<'_>, key: &str, what: &str) {
        let Some(Value::List(items)) = fields.get(key).map(|node| &node.value) else { return };
        let mut seen = HashSet::new();
        for item in items {
            let Value::Map(entries) = &item.value else { continue };
            let Some((_, node)) = entries.iter().find(|(key, _)| key.name == "name") else { continue };
            let Value::Text(name) = &node.value else { continue };
            if !seen.insert(name) {
                self.reader.refuse(node.at, format!("{what} named `{name}` exists already"));
            }
        }
    }

    fn zone_rule(&mut self, node: &Node) -> Option<ZoneRule> {
        if let Value::Text(_) = node.value {
            return self.reader.zone(node).map(ZoneRule::Fixed);
        }
        let fields = self.reader.fields(node, "`timezone`", &keys::ZONE)?;
        let path = self.reader.required(&fields, "metadata", "`timezone`");
        let path = path.and_then(|node| self.reader.path(node, "`metadata`"));
        let default = self.reader.required(&fields, "default", "`timezone`");
        let default = default.and_then(|node| self.reader.zone(node));
        Some(ZoneRule::Metadata { path: path?, default: default? })
    }

    pub(super) fn duration(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        bounds: std::ops::RangeInclusive<u64>,
        default: u64,
    ) -> Option<Duration> {
        match fields.get(key) {
            None => Some(Duration::from_secs(default)),
            Some(node) => self.reader.duration(node, &format!("`{key}`"), bounds),
        }
    }
}
