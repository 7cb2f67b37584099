//! Converts definitions of Thread's Routemaster, whose format this one extends.
//!
//! Most of a file loads as it is: end gates with `exit_condition: false`, gates without a trigger, regular expressions for
//! webhooks. This module rewrites the rest, where the meaning can be kept, and reports the changes: plugins are removed, own
//! placeholders are written out, and gates whose condition reads feeds or the clock are evaluated every five minutes, as
//! it did.

use signalbox_condition::{Condition, KnownFeeds};

use crate::definition::{
    Problem, Refused, load,
    read::Reader,
    yaml::{Key, Mark, Node, Value},
};

/// The interval at which a converted gate is evaluated if it reads feeds or the clock.
const EVERY: &str = "5m";
/// How deep texts of placeholders are nested.
const MAX_NESTING: usize = 3;
/// Maximum length of a text with its placeholders written out.
const MAX_TEXT: usize = 64 * 1024;

/// A converted file.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The definition, as YAML.
    pub yaml: String,
    /// Descriptions of the changes that were made.
    pub changes: Vec<String>,
    /// The remaining problems, with positions in [`Imported::yaml`].
    pub problems: Vec<Problem>,
}

/// Converts a file; `file` is its name in messages.
///
/// # Errors
/// If it is not readable YAML.
pub fn import(file: &str, source: &str) -> Result<Imported, Refused> {
    let mut reader = Reader::new(file, source);
    let Some(mut root) = reader.parse() else { return Err(reader.refused()) };
    let mut changes = Vec::new();
    if let Value::Map(entries) = &mut root.value {
        let mut known = placeholders(entries);
        let (others, own) =
            std::mem::take(entries).into_iter().partition(|(key, _)| key.name != "state_machines");
        *entries = own;
        let others: Vec<(Key, Node)> = others;
        others.iter().for_each(|(key, node)| paths(&key.name, node, &mut known));
        // A text may contain placeholders, too.
        for _ in 0..MAX_NESTING {
            let earlier = known.clone();
            known.iter_mut().for_each(|(_, text)| _ = replace(text, &earlier));
        }
        let mut filled = 0;
        let machines = entries.iter_mut().find(|(key, _)| key.name == "state_machines");
        if let Some((_, Node { value: Value::Map(machines), .. })) = machines {
            for (name, machine) in machines {
                filled += convert(&name.name, machine, &known, &mut changes);
            }
        }
        for (key, _) in &others {
            changes.push(format!("`{}` was removed: {}", key.name, removed(&key.name, filled)));
        }
    }
    let mut yaml = String::new();
    write(&root, 0, &mut yaml);
    let problems = load(file, &yaml).err().map(|refused| refused.problems).unwrap_or_default();
    Ok(Imported { yaml, changes, problems })
}

/// The reason why a key of the file is removed.
fn removed(key: &str, filled: usize) -> &'static str {
    match key {
        "plugins" => "logs, metrics and events of Signalbox replace plugins",
        "placeholders" if filled > 0 => "they were written out",
        "placeholders" => "nothing uses them",
        _ => "it has no meaning here",
    }
}

/// The placeholders that the file defines, with their texts.
fn placeholders(entries: &[(Key, Node)]) -> Vec<(String, String)> {
    let given = entries.iter().find(|(key, _)| key.name == "placeholders");
    let text = |(key, node): &(Key, Node)| match &node.value {
        Value::Text(text) => Some((format!("<{}>", key.name), text.clone())),
        Value::Number(number) => Some((format!("<{}>", key.name), number.to_string())),
        _ => None,
    };
    given.into_iter().flat_map(|(_, node)| node.entries()).filter_map(text).collect()
}

/// The texts below a key of the file, each with its placeholder: the path from the file's root in braces.
fn paths(path: &str, node: &Node, known: &mut Vec<(String, String)>) {
    match &node.value {
        Value::Text(text) => known.push((format!("{{{path}}}"), text.clone())),
        Value::Number(number) => known.push((format!("{{{path}}}"), number.to_string())),
        Value::Map(entries) => {
            entries.iter().for_each(|(key, node)| paths(&format!("{path}.{}", key.name), node, known));
        }
        _ => {}
    }
}

/// Converts a machine. Returns how many placeholders were replaced.
fn convert(name: &str, machine: &mut Node, file: &[(String, String)], changes: &mut Vec<String>) -> usize {
    let Value::Map(entries) = &mut machine.value else { return 0 };
    let mut known = placeholders(entries);
    known.extend(file.iter().cloned());
    let is_other = |key: &Key| matches!(key.name.as_str(), "plugins" | "placeholders");
    let filled =
        entries.iter_mut().filter(|(key, _)| !is_other(key)).map(|(_, node)| fill(node, &known)).sum();
    entries.retain(|(key, _)| {
        if is_other(key) {
            changes.push(format!("{name}: `{}` was removed: {}", key.name, removed(&key.name, filled)));
        }
        !is_other(key)
    });
    let states = entries.iter_mut().find(|(key, _)| key.name == "states");
    let Some((_, Node { value: Value::List(states), .. })) = states else { return filled };
    for state in states {
        gate(name, state, changes);
    }
    filled
}

/// Replaces placeholders with their texts. Returns how many there were.
fn fill(node: &mut Node, known: &[(String, String)]) -> usize {
    match &mut node.value {
        Value::Text(text) => replace(text, known),
        Value::List(items) => items.iter_mut().map(|item| fill(item, known)).sum(),
        Value::Map(entries) => entries.iter_mut().map(|(_, node)| fill(node, known)).sum(),
        _ => 0,
    }
}

/// Replaces placeholders in a text. A longer one is a different text, so their order has no effect.
fn replace(text: &mut String, known: &[(String, String)]) -> usize {
    let mut replaced = 0;
    for (placeholder, value) in known {
        let found = text.matches(placeholder.as_str()).count();
        if found > 0 && text.len() + found * value.len() <= MAX_TEXT {
            *text = text.replace(placeholder.as_str(), value);
            replaced += found;
        }
    }
    replaced
}

/// Adds the triggers that a gate needs to be evaluated again.
fn gate(machine: &str, state: &mut Node, changes: &mut Vec<String>) {
    let Value::Map(entries) = &mut state.value else { return };
    let text = |entries: &[(Key, Node)], key: &str| {
        entries.iter().find(|(known, _)| known.name == key).and_then(|(_, node)| match &node.value {
            Value::Text(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            _ => None,
        })
    };
    let Some(name) = text(entries, "gate") else { return };
    let Some(condition) = text(entries, "exit_condition") else { return };
    let Ok(condition) = Condition::parse(&condition, KnownFeeds::Any) else { return };
    if !entries.iter().any(|(key, _)| key.name == "next") {
        return;
    }
    if !entries.iter().any(|(key, _)| key.name == "triggers") {
        entries.push((key("triggers"), node(Value::List(Vec::new()))));
        changes.push(format!("{machine}.{name}: `triggers` was added: every gate with `next` needs them"));
    }
    let triggers = entries.iter_mut().find(|(key, _)| key.name == "triggers");
    let Some((_, Node { value: Value::List(triggers), .. })) = triggers else { return };
    let has = |kinds: &[&str]| {
        triggers.iter().flat_map(Node::entries).any(|(key, _)| kinds.contains(&key.name.as_str()))
    };
    let (timed, updated) = (has(&["time", "interval", "at"]), has(&["metadata", "topic"]));
    let reads_more = condition.reads_clock() || condition.feeds().next().is_some();
    if !timed && reads_more {
        triggers.push(map("interval", EVERY));
        changes.push(format!(
            "{machine}.{name}: `{{interval: {EVERY}}}` was added, because the condition reads feeds or the clock"
        ));
    } else if !timed && !updated {
        for path in condition.metadata_paths() {
            let path = signalbox_condition::path_text(path);
            changes.push(format!(
                "{machine}.{name}: `{{metadata: {path}}}` was added: nothing evaluated the gate"
            ));
            triggers.push(map("metadata", &path));
        }
    }
}

fn key(name: &str) -> Key {
    Key { name: name.to_owned(), at: Mark { start: 0, end: 0 } }
}

fn node(value: Value) -> Node {
    Node { value, at: Mark { start: 0, end: 0 } }
}

fn map(name: &str, value: &str) -> Node {
    node(Value::Map(vec![(key(name), node(Value::Text(value.to_owned())))]))
}

/// Writes a value as YAML. Nested lists and maps begin on the next line.
fn write(node: &Node, depth: usize, out: &mut String) {
    let space = "  ".repeat(depth);
    match &node.value {
        Value::Map(entries) if !entries.is_empty() => {
            for (key, node) in entries {
                out.push_str(&format!("{space}{}:", scalar(&key.name)));
                below(node, depth, out);
            }
        }
        Value::List(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&format!("{space}-"));
                below(item, depth, out);
            }
        }
        _ => out.push_str(&format!("{space}{}\n", inline(node))),
    }
}

fn below(node: &Node, depth: usize, out: &mut String) {
    let nested = match &node.value {
        Value::Map(entries) => !entries.is_empty(),
        Value::List(items) => !items.is_empty(),
        Value::Text(text) if text.trim_end().contains('\n') => return block(text, depth, out),
        _ => false,
    };
    if nested {
        out.push('\n');
        write(node, depth + 1, out);
    } else {
        out.push_str(&format!(" {}\n", inline(node)));
    }
}

/// A text of several lines.
fn block(text: &str, depth: usize, out: &mut String) {
    out.push_str(" |\n");
    for line in text.trim_end().lines() {
        out.push_str(&format!("{}{line}\n", "  ".repeat(depth + 1)));
    }
}

fn inline(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => scalar(text),
        Value::List(_) => "[]".to_owned(),
        Value::Map(_) => "{}".to_owned(),
    }
}

/// A text, quoted unless every YAML parser reads it as text without quotes.
fn scalar(text: &str) -> String {
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !words.contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
plugins:
  - module: statsd
placeholders: {host: mail.example, root: "https://{placeholders.host}/send"}
state_machines:
  lifecycle:
    feeds:
    - {name: jacquard, url: "http://localhost:1212/<label>"}
    webhooks:
    - match: .+\.example
      headers: {x-api-key: secret}
    states:
    - gate: start
      triggers: []
      exit_condition: metadata.ready
      next: wait
    - gate: wait
      triggers: [{metadata: offer}]
      exit_condition: |
        feeds.jacquard.group = "a" and
        metadata.offer
      next: {type: constant, state: mail}
    - action: mail
      webhook: "{placeholders.root}/<label>"
      next: end
    - gate: end
      triggers: []
      exit_condition: false
"#;

    #[test]
    fn a_definition_of_routemaster_is_converted_and_explained() {
        let imported = import("old.yaml", FILE).unwrap();
        assert!(imported.problems.is_empty(), "{}\n{:?}", imported.yaml, imported.problems);
        let file = load("new.yaml", &imported.yaml).unwrap();
        let machine = &file.machines[0];
        let triggers = |state: &str| {
            let gate = machine.state(state).unwrap().gate().unwrap();
            gate.triggers.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(triggers("start"), ["metadata.ready"]);
        assert_eq!(triggers("wait"), ["metadata.offer", "interval 5m"]);
        assert!(machine.state("end").unwrap().ends());
        assert_eq!(machine.headers_for("https://mail.example/send/7").len(), 1);
        assert!(machine.headers_for("https://mail.test/send/7").is_empty());
        assert!(imported.yaml.contains("https://mail.example/send/<label>"), "{}", imported.yaml);
        let changes = imported.changes.join("\n");
        for part in
            ["`plugins` was removed", "`placeholders` was removed", "lifecycle.wait: `{interval: 5m}`"]
        {
            assert!(changes.contains(part), "{part}: {changes}");
        }
    }

    #[test]
    fn unconvertible_parts_are_reported_with_their_place() {
        let imported = import("old.yaml", &FILE.replace("metadata.ready", "metadata.ready !!")).unwrap();
        assert!(!imported.problems.is_empty());
        assert!(import("old.yaml", "a: [").is_err());
    }

    #[test]
    fn a_file_that_needs_no_change_loads_as_it_is() {
        let plain = FILE.replace(
            concat!(
                "plugins:\n  - module: statsd\n",
                "placeholders: {host: mail.example, root: \"https://{placeholders.host}/send\"}\n"
            ),
            "",
        );
        let plain = plain
            .replace("{placeholders.root}", "https://mail.example/send")
            .replace("[{metadata: offer}]", "[{interval: 1h}]");
        let file = load("old.yaml", &plain).unwrap();
        let warnings: Vec<_> = file.warnings.iter().map(|warning| warning.message.as_str()).collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("no trigger"), "{warnings:?}");
        assert!(import("old.yaml", &plain).unwrap().changes.len() <= 1);
    }
}
