//! The rules of the house that no compiler knows: who may call whom, who may talk to Redis, and what a script says of
//! itself.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The rooms of the pacemaker and the rooms each may enter. A room that is not here is open to all.
const ARROWS: &[(&str, &[&str])] = &[
    ("http", &["routing", "certificates", "bus", "queues", "sequencer", "live", "machines", "dashboard"]),
    // A page is HTTP as well.
    ("dashboard", &["http", "routing", "bus", "queues", "sequencer", "live", "machines"]),
    ("machines", &["sequencer", "bus", "routing"]),
    // A certificate stands in the route table, which takes it as a text.
    ("certificates", &["routing"]),
    ("routing", &["sequencer"]),
    ("sequencer", &["bus"]),
    ("live", &["bus", "queues"]),
    // Where the two meet that know nothing of each other.
    ("own_events", &["routing", "bus"]),
    ("bus", &["queues"]),
    ("queues", &[]),
    // A token may be confined to hosts and environments, and only their rooms know what such a name is.
    ("tokens", &["routing", "queues"]),
];

/// What puts all rooms together.
const ROOTS: [&str; 4] = ["main", "lib", "service", "config"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every file below `folder`, without what is built, run or downloaded.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // What is built or written by a run is no part of the house; .gitignore names the same.
        let made =
            matches!(&*name, "target" | ".git") || name.starts_with(".signalbox") || name.ends_with(".log");
        if made {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn with_extension(folder: &str, extension: &str) -> Vec<(PathBuf, String)> {
    let root = root();
    files(&root.join(folder))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.strip_prefix(&root).unwrap().to_owned(), text)
        })
        .collect()
}

/// The text without comments, so that prose may mention what code may not.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The first names after every `crate::` in `text`: `crate::bus::Error` and `crate::{bus, http::x}` alike.
fn rooms_entered(text: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    for rest in code(text).split("crate::").skip(1) {
        let names = match rest.strip_prefix('{') {
            Some(group) => top_level_items(group),
            None => vec![rest.to_owned()],
        };
        for name in names {
            let word: String =
                name.trim().chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect();
            rooms.insert(word);
        }
    }
    rooms
}

/// The items of a `{…}` group (its opening brace already gone), split at the commas of its own level.
fn top_level_items(group: &str) -> Vec<String> {
    let (mut items, mut depth) = (vec![String::new()], 0);
    for char in group.chars() {
        match char {
            '}' if depth == 0 => break,
            ',' if depth == 0 => items.push(String::new()),
            _ => {
                depth += i32::from(char == '{') - i32::from(char == '}');
                items.last_mut().unwrap().push(char);
            }
        }
    }
    items
}

/// The room that a file of the pacemaker lies in: `routing/store.rs` and `routing.rs` are both `routing`.
fn room_of(path: &Path) -> Option<String> {
    let inside = path.strip_prefix("pacemaker/src").ok()?;
    let first = inside.components().next()?.as_os_str().to_string_lossy().into_owned();
    Some(first.trim_end_matches(".rs").to_owned())
}

#[test]
fn imports_are_read_in_every_form() {
    let text = "use crate::bus;\nuse crate::{http::{a, b}, queues, self as me};\nlet x = crate::routing::X; // crate::no";
    let rooms: Vec<_> = rooms_entered(text).into_iter().collect();
    assert_eq!(rooms, ["bus", "http", "queues", "routing", "self"]);
}

#[test]
fn arrows_between_the_pacemakers_rooms_point_one_way() {
    let sources = with_extension("pacemaker/src", "rs");
    let mut arrows_seen = 0;
    for (path, text) in &sources {
        let room = room_of(path).unwrap();
        // A test may put rooms together that do not know each other.
        let is_test =
            path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")));
        if ROOTS.contains(&&*room) || is_test {
            continue;
        }
        let allowed = ARROWS.iter().find(|(from, _)| *from == room).map_or(&[][..], |(_, to)| *to);
        // What a room says over HTTP it says with what all rooms share towards HTTP, and nothing else of it does.
        let speaks_http =
            path.components().any(|part| matches!(part.as_os_str().to_str(), Some("api" | "api.rs")));
        for entered in rooms_entered(text) {
            let open = !ARROWS.iter().any(|(name, _)| *name == entered) || entered == "tokens";
            if entered == room || open || (entered == "http" && speaks_http) {
                continue;
            }
            arrows_seen += 1;
            assert!(
                allowed.contains(&&*entered),
                "{}: `{room}` may not know `{entered}` (allowed: {allowed:?}); turn the arrow round",
                path.display()
            );
        }
    }
    assert!(arrows_seen > 0, "no arrow seen in {} files: the test looks in the wrong place", sources.len());
}

#[test]
fn only_a_store_talks_to_redis() {
    // Connections are opened at the composition root and handed down; commands and scripts are a store's business.
    const REDIS: &[&str] =
        &[".command(", ".batch()", "Script::new(", "redis::cmd", "include_str!(\"scripts/"];
    let (mut stores, mut offenders) = (0, Vec::new());
    for (path, text) in
        with_extension("pacemaker/src", "rs").into_iter().chain(with_extension("sidecar/src", "rs"))
    {
        let in_store = path.file_name().is_some_and(|name| name == "store.rs")
            || path.parent().is_some_and(|folder| folder.ends_with("store"));
        if path
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs" | "testing.rs")))
        {
            continue;
        }
        let code = code(&text);
        // What follows is the file's own unit tests, which may look behind the curtain.
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        let found: Vec<_> = REDIS.iter().filter(|word| code.contains(**word)).collect();
        stores += usize::from(in_store && !found.is_empty());
        if !in_store && !found.is_empty() {
            offenders.push(format!("{} is no store but uses {found:?}", path.display()));
        }
    }
    assert!(offenders.is_empty(), "{offenders:#?}");
    assert!(stores > 0, "no store seen: the test looks in the wrong place");
}

/// A script and the folder of the module that it belongs to.
struct Script {
    path: PathBuf,
    header: Vec<String>,
    body: String,
}

/// The parts of scripts that are no scripts, each with what the scripts that it is appended to are known by.
const SHARED: &[(&str, &str, &str)] = &[
    ("lanes.lua", "function main(lanes", "lanes_script!"),
    ("batches.lua", "function main(lanes", "lanes_script!"),
    ("facets.lua", "function main(facets", "facets_script!"),
    ("objects.lua", "function main(objects", "objects_script!"),
    ("shared.lua", "function main(shared", "table_script!"),
    // Appended to the publish script only, which names it by its path.
    ("labels.lua", "function main(labels", "labels_script!"),
];

fn scripts() -> Vec<Script> {
    ["pacemaker/src", "sidecar/src"]
        .into_iter()
        .flat_map(|folder| with_extension(folder, "lua"))
        // What several scripts of a room share is appended to each of them when they are compiled.
        .filter(|(path, _)| !SHARED.iter().any(|(shared, ..)| path.ends_with(shared)))
        .map(|(path, mut text)| {
            for (shared, _, _) in SHARED.iter().filter(|(_, mark, _)| text.contains(mark)).collect::<Vec<_>>()
            {
                text += &fs::read_to_string(root().join(path.with_file_name(shared))).unwrap();
            }
            let header: Vec<_> = text
                .lines()
                .map_while(|line| line.strip_prefix("--"))
                .map(|line| line.trim().to_owned())
                .collect();
            let body = text.lines().skip(header.len()).collect::<Vec<_>>().join("\n");
            Script { path, header, body }
        })
        .collect()
}

/// The numbers of the header's rows for `table`: how many, whether the last is open (`ARGV[3...]`).
fn rows(script: &Script, table: &str) -> (usize, bool) {
    let mut count = 0;
    let mut open = false;
    for line in &script.header {
        let Some((number, meaning)) = line
            .strip_prefix(table)
            .and_then(|rest| rest.strip_prefix('['))
            .and_then(|rest| rest.split_once(']'))
        else {
            continue;
        };
        let place = format!("{}: {table}[{number}]", script.path.display());
        count += 1;
        assert!(!open, "{place} stands behind an open row");
        open = number.ends_with("...");
        assert_eq!(number.trim_end_matches('.'), count.to_string(), "{place} is out of order");
        let meaning = meaning.strip_prefix(':').unwrap_or_default();
        assert!(meaning.contains(','), "{place} needs `: type, meaning`");
    }
    (count, open)
}

/// The numbers that the body uses as `table[n]`.
fn used(body: &str, table: &str) -> BTreeSet<usize> {
    body.split(&format!("{table}["))
        .skip(1)
        .filter_map(|rest| rest.split(']').next()?.trim().parse().ok())
        .collect()
}

#[test]
fn every_script_says_what_it_takes_returns_and_who_calls_it() {
    let scripts = scripts();
    assert!(!scripts.is_empty(), "no script seen: the test looks in the wrong place");
    for script in &scripts {
        let name = script.path.display();
        let purpose = script.header.first().map(String::as_str).unwrap_or_default();
        assert!(purpose.len() > 10 && !purpose.starts_with("KEYS"), "{name}: the first line is its purpose");
        for table in ["KEYS", "ARGV"] {
            let (count, open) = rows(script, table);
            let body: String = script
                .body
                .lines()
                .map(|line| line.split("--").next().unwrap_or_default())
                .collect::<Vec<_>>()
                .join("\n");
            let used = used(&body, table);
            for number in &used {
                assert!(*number <= count || open, "{name}: {table}[{number}] has no row in the header");
            }
            // An open row is read with a computed index.
            for number in 1..=(if open { count - 1 } else { count }) {
                assert!(used.contains(&number), "{name}: {table}[{number}] has a row and is never read");
            }
        }
        assert!(
            script.header.iter().any(|line| line.starts_with("Returns")),
            "{name}: no `Returns` in the header"
        );
        caller_exists(script);
        assert!(!script.body.contains("cjson"), "{name}: cjson turns [] into {{}} and loses digits");
    }
}

/// The header's `Caller:` names a Rust function of the folder above `scripts/`.
fn caller_exists(script: &Script) {
    let name = script.path.display();
    let caller = script.header.iter().find_map(|line| line.strip_prefix("Caller:"));
    let caller = caller.unwrap_or_else(|| panic!("{name}: no `Caller:` in the header"));
    let function: &str = caller
        .rsplit(|char: char| !char.is_alphanumeric() && char != '_')
        .find(|word| !word.is_empty())
        .unwrap_or_else(|| panic!("{name}: `Caller:` names nobody"));
    let folder = script.path.parent().and_then(Path::parent).unwrap();
    let sources = with_extension(&folder.to_string_lossy(), "rs");
    let file = script.path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(
        sources.iter().any(|(_, text)| text.contains(&format!("fn {function}("))
            || text.contains(&format!("fn {function}<"))),
        "{name}: its caller `{function}` is no function of {}",
        folder.display()
    );
    let with_shared = SHARED
        .iter()
        .map(|(_, _, macro_name)| format!("{macro_name}(\"{}\")", file.trim_end_matches(".lua")));
    let with_shared: Vec<String> = with_shared.collect();
    let included =
        |text: &str| text.contains(&file) || with_shared.iter().any(|call| text.contains(call.as_str()));
    assert!(
        sources.iter().any(|(_, text)| included(text)),
        "{name} is included by nobody in {}",
        folder.display()
    );
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    let root = root();
    let checkout = root.to_string_lossy().into_owned();
    // A checkout directly below `/`, as in a container, has a name too short to look for.
    let here = root.components().count() > 2;
    for path in files(&root) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let found = (here && text.contains(&checkout)) || text.contains("/home/") || text.contains("/root/");
        let own = path.ends_with("tests/it/house.rs");
        assert!(own || !found, "{} names a folder of one machine", path.display());
    }
}
