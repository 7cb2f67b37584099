//! Which room may know which: a test that reads the source.

use std::path::{Path, PathBuf};

/// A room and the rooms whose names may stand in its files. `api.rs`, a folder `api/` and the dashboard's page belong
/// to the HTTP layer, which may know all; tests may, too.
const ARROWS: [(&str, &[&str]); 11] = [
    ("bus", &["duty", "queues"]),
    // A certificate stands in the route table.
    ("certificates", &["routing", "tokens"]),
    // Its part of a configuration file is the bus' own options.
    ("config", &["bus", "certificates", "machines", "queues", "sequencer"]),
    ("duty", &[]),
    ("live", &["bus"]),
    // A route action is done in nobody's name but root's.
    ("machines", &["bus", "duty", "routing", "tokens"]),
    ("metrics", &[]),
    ("queues", &[]),
    ("sequencer", &["bus"]),
    // A token is confined to host names, whose owner is the route table.
    ("tokens", &["config", "routing"]),
    ("routing", &["config", "duty", "metrics", "tokens"]),
];
const LAYERS_ABOVE: [&str; 2] = ["http", "dashboard"];

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

fn speaks_http(path: &Path) -> bool {
    path.iter().any(|part| ["api", "api.rs", "tests", "tests.rs"].iter().any(|name| part == *name))
}

/// The part of a file before its own tests.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

#[test]
fn arrows_point_one_way() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (room, allowed) in ARROWS {
        let folder = source.join(room);
        let paths = if folder.is_dir() { files(&folder) } else { vec![source.join(format!("{room}.rs"))] };
        assert!(!paths.is_empty(), "{room}");
        for path in paths.iter().filter(|path| !speaks_http(path)) {
            let text = std::fs::read_to_string(path).unwrap();
            let others = ARROWS.iter().map(|(other, _)| *other).chain(LAYERS_ABOVE);
            for other in others.filter(|other| *other != room && !allowed.contains(other)) {
                let used = uses(product(&text), other);
                assert!(!used, "{} knows {other}", path.display());
            }
        }
    }
}

/// Whether `crate::room` is named, alone or inside braces.
fn uses(text: &str, room: &str) -> bool {
    if text.contains(&format!("crate::{room}::")) {
        return true;
    }
    let groups = text.match_indices("use crate::{").filter_map(|(at, _)| text[at..].split_once("};"));
    let starts =
        |group: &str| group.split_once('{').is_some_and(|(_, group)| names(group).contains(&room.to_owned()));
    groups.into_iter().any(|(group, _)| starts(group))
}

/// The first names of a use group, those inside further braces left out.
fn names(group: &str) -> Vec<String> {
    let (mut depth, mut name, mut found) = (0, String::new(), Vec::new());
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => found.push(std::mem::take(&mut name)),
            _ if depth == 0 => name.push(character),
            _ => {}
        }
    }
    found.push(name);
    found.iter().filter_map(|name| name.trim().split("::").next()).map(str::to_owned).collect()
}

#[test]
fn a_group_is_read_by_its_first_names() {
    let text = "use crate::{\n    http::{App, Problem},\n    tokens::Caller,\n};\n";
    assert!(uses(text, "http") && uses(text, "tokens") && !uses(text, "App") && !uses(text, "duty"));
}

#[test]
fn only_stores_talk_to_redis() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in files(&source).iter().filter(|path| !speaks_http(path)) {
        let text = std::fs::read_to_string(path).unwrap();
        let relative = path.strip_prefix(&source).unwrap().display().to_string();
        let may =
            relative.contains("/store") || ["testing.rs", "architecture.rs"].contains(&relative.as_str());
        let talks = product(&text).contains(".command(\"") || product(&text).contains(".batch()");
        assert!(may || !talks, "{relative} talks to Redis");
    }
}
