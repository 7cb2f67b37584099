//! Source rules that no compiler checks: which files talk to Redis, what a script's header
//! declares, and that no file names the machine it was written on. Cargo enforces the dependencies
//! between crates.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every file below `folder`, without what is built, run or downloaded.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Files that are built or written by a run are not part of the source; .gitignore lists the
        // same.
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

/// Every source file of the daemons and the crates they are made of, but for those that offer Redis itself.
fn sources(extension: &str) -> Vec<(PathBuf, String)> {
    let skipped = ["crates/store", "crates/stack", "crates/testkit", "crates/bus/testkit"];
    ["crates", "pacemaker/src", "sidecar/src"]
        .into_iter()
        .flat_map(|folder| with_extension(folder, extension))
        .filter(|(path, _)| !skipped.iter().any(|skipped| path.starts_with(skipped)))
        .collect()
}

/// The text without comments, so that prose may mention what code may not.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn only_a_store_talks_to_redis() {
    // Connections are opened at the composition root and handed down; commands and scripts are a store's business.
    const REDIS: &[&str] =
        &[".command(", ".batch()", "Script::new(", "redis::cmd", "include_str!(\"scripts/"];
    let (mut stores, mut offenders) = (0, Vec::new());
    for (path, text) in sources("rs") {
        let in_store = path.file_name().is_some_and(|name| name == "store.rs")
            || path.parent().is_some_and(|folder| folder.ends_with("store"));
        if path
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs" | "testing.rs")))
        {
            continue;
        }
        let code = code(&text);
        // The file's unit tests follow; they may access Redis directly.
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        let found: Vec<_> = REDIS.iter().filter(|word| code.contains(**word)).collect();
        stores += usize::from(in_store && !found.is_empty());
        if !in_store && !found.is_empty() {
            offenders.push(format!("{} is not a store module but uses {found:?}", path.display()));
        }
    }
    assert!(offenders.is_empty(), "{offenders:#?}");
    assert!(stores > 0, "no store module found: check the paths of this test");
}

/// Every handler of the API states whose data it uses by one of the extractors of `admin-api` (`http/auth.rs`), unless it is open to
/// all. One that accepts confined tokens gives the caller a name, so that the compiler reports it if it does not filter.
#[test]
fn every_handler_states_whether_a_confined_token_may_call_it() {
    const EXTRACTORS: &[&str] = &[
        "caller: Whole<",
        "_: Whole<",
        "caller: Confined<",
        "OfMachine<",
        "_: ByReceipt<",
        "_: Anyone",
        "_: MetricsReader",
        "Result<Anyone,",
    ];
    let mut handlers = 0;
    for (path, text) in with_extension("crates/admin-api/src/api", "rs") {
        let code = code(&text);
        assert!(
            !code.contains("_: Confined<"),
            "{}: a handler does not filter by its caller",
            path.display()
        );
        for handler in code.split("#[utoipa::path(").skip(1) {
            let (attribute, rest) = handler.split_once("async fn ").expect("a handler");
            let signature = rest.split_once(") ->").expect("an answer").0;
            let open = attribute.contains("security(())");
            let guarded = EXTRACTORS.iter().any(|extractor| signature.contains(extractor));
            assert!(open != guarded, "{}: {signature}", path.display());
            handlers += 1;
        }
    }
    assert!(handlers > 90, "{handlers} handlers seen: the test looks in the wrong place");
}

/// A script and the folder of the module that it belongs to.
struct Script {
    path: PathBuf,
    header: Vec<String>,
    body: String,
}

/// Texts that scripts share, each with the mark of the scripts that it is appended to.
const SHARED: &[(&str, &str)] = &[
    ("crates/bus/src/scripts/lanes.lua", "function main(lanes"),
    ("crates/bus/src/scripts/batches.lua", "function main(lanes"),
    ("crates/queues/src/scripts/slices.lua", "function main(slices"),
    ("crates/bus/src/scripts/objects.lua", "function main(objects"),
    ("crates/sequencer/src/scripts/main.lua", "function main(objects"),
    ("crates/routing/src/scripts/shared.lua", "function main(shared"),
    // The differences between the kinds of resources: one of each group is appended, both follow the same header.
    ("crates/routing/src/scripts/policy_index.lua", "local index = {}"),
    ("crates/routing/src/scripts/certificate_index.lua", "local index = {}"),
    ("crates/routing/src/scripts/promotion_index.lua", "local index = {}"),
    ("crates/routing/src/scripts/policy_table.lua", "local resource = {}"),
    ("crates/routing/src/scripts/certificate_table.lua", "local resource = {}"),
    ("crates/routing/src/scripts/promotion_table.lua", "local resource = {}"),
    // The publish script is in four files.
    ("crates/bus/src/scripts/publish_quota.lua", "local function early_reply()"),
    ("crates/bus/src/scripts/publish_decide.lua", "local function early_reply()"),
    ("crates/bus/src/scripts/publish_write.lua", "local function early_reply()"),
    ("crates/bus/src/scripts/lanes.lua", "local function early_reply()"),
    // Appended where Rust assembles a script: to the publish script, and to every script that changes the due set of a machine.
    ("crates/bus/src/scripts/labels.lua", "function main(labels"),
    ("crates/bus/src/scripts/settle.lua", "local function main()"),
    ("crates/machines/src/scripts/change.lua", "local function main()"),
];

fn scripts() -> Vec<Script> {
    sources("lua")
        .into_iter()
        .filter(|(path, _)| !SHARED.iter().any(|(shared, _)| path == Path::new(shared)))
        .map(|(path, mut text)| {
            let shared = SHARED.iter().filter(|(_, mark)| text.contains(mark)).collect::<Vec<_>>();
            for (shared, _) in shared {
                text += &fs::read_to_string(root().join(shared)).unwrap();
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

/// The numbers of the header's rows for `table` (`KEYS[1]`, `KEYS[2-9]`): how many, whether the last is open (`ARGV[3...]`).
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
        assert!(!open, "{place} follows an open row");
        open = number.ends_with("...");
        let number = number.trim_end_matches('.');
        let (first, last) = number.split_once('-').unwrap_or((number, number));
        assert_eq!(first, (count + 1).to_string(), "{place} is out of order");
        count = last.parse().unwrap_or_else(|_| panic!("{place} is not a number or a range"));
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
fn every_script_documents_its_arguments_results_and_caller() {
    let scripts = scripts();
    assert!(!scripts.is_empty(), "no script found: check the paths of this test");
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
        .unwrap_or_else(|| panic!("{name}: `Caller:` names no function"));
    let folder = script.path.parent().and_then(Path::parent).unwrap();
    let sources = with_extension(&folder.to_string_lossy(), "rs");
    let file = script.path.file_name().unwrap().to_string_lossy().into_owned();
    // A crate with many scripts includes them from a list of their names.
    let listed = format!("\"{}\"", script.path.file_stem().unwrap().to_string_lossy());
    assert!(
        sources.iter().any(|(_, text)| text.contains(&format!("fn {function}("))
            || text.contains(&format!("fn {function}<"))),
        "{name}: its caller `{function}` is not a function of {}",
        folder.display()
    );
    assert!(
        sources.iter().any(|(_, text)| text.contains(&file) || text.contains(&listed)),
        "{name} is not included in {}",
        folder.display()
    );
}

/// Lua raises an error when about 8,000 values are unpacked. Redis does not undo the writes before it, so a list whose length
/// configuration, data or a client decides goes through `lists.lua`. Returns the other calls of `unpack`, each with its line.
/// Allowed are the fields of one `HMGET` that are all literals, and a range that ends at a number.
fn unbounded_unpacks(lua: &str) -> Vec<(usize, String)> {
    let code =
        lua.lines().map(|line| line.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let is_name = |letter: char| letter.is_alphanumeric() || "._".contains(letter);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("unpack") {
        let (before, call) = code.split_at(at);
        // `cmsgpack.unpack` decodes one value, `redis.unpack_x` is another name.
        let named = before.chars().next_back().is_some_and(is_name) && !before.ends_with("table.");
        if named || call["unpack".len()..].chars().next().is_some_and(is_name) {
            continue;
        }
        let arguments = arguments(&call["unpack".len()..]);
        let is_bounded = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [command] => is_of_literal_fields(command),
            [_, _, last] => last.parse::<usize>().is_ok_and(|last| last <= 1_000),
            _ => false,
        };
        if !is_bounded {
            found
                .push((before.matches('\n').count() + 1, call.lines().next().unwrap_or_default().to_owned()));
        }
    }
    found
}

/// The arguments of the call whose parenthesis begins the text; none if `text` is not a call.
fn arguments(text: &str) -> Vec<String> {
    let Some(text) = text.trim_start().strip_prefix('(') else { return Vec::new() };
    let (mut depth, mut arguments) = (0, vec![String::new()]);
    for letter in text.chars() {
        match letter {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' if depth == 0 => break,
            ')' | '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        arguments.last_mut().expect("one at least").push(letter);
    }
    arguments.iter().map(|argument| argument.trim().to_owned()).collect()
}

/// Whether a text is `redis.call('HMGET', key, 'a', 'b')`.
fn is_of_literal_fields(text: &str) -> bool {
    let Some(call) = text.strip_prefix("redis.call") else { return false };
    match &arguments(call)[..] {
        [command, _, fields @ ..] => {
            command == "'HMGET'"
                && fields.iter().all(|field| field.starts_with('\'') && !field.contains(".."))
        }
        _ => false,
    }
}

#[test]
fn an_unpack_of_a_list_of_any_length_is_found_in_every_form() {
    let found = |lua: &str| unbounded_unpacks(lua).iter().map(|(line, _)| *line).collect::<Vec<_>>();
    for bad in [
        "redis.call('RPUSH', key, unpack(items))",
        "redis.call('RPUSH', key, unpack(items, 1, #items))",
        "local copied = { unpack(ARGV, 3) }",
        "redis.call('MSET', table.unpack(strings))",
        "unpack(redis.call('LRANGE', key, 0, -1))",
        "unpack(redis.call('HMGET', key, name))",
        "local pass = unpack",
    ] {
        assert_eq!(found(&format!("local a\n{bad}")), [2], "{bad}");
    }
    for good in [
        "local a, b = unpack(redis.call('HMGET', key, 'a',\n 'b'))",
        "local a, b = unpack(redis.call('HMGET', 'rules:' .. name, 'a', 'b'))",
        "f(unpack(list, 1, 100))",
        "local letter = cmsgpack.unpack(stored[i])",
        "-- unpack(items)",
    ] {
        assert_eq!(found(good), [0; 0], "{good}");
    }
}

#[test]
fn no_script_unpacks_a_list_of_any_length() {
    let mut scripts = 0;
    for (path, text) in ["crates", "sidecar/src"].iter().flat_map(|folder| with_extension(folder, "lua")) {
        scripts += 1;
        if path.ends_with("crates/store/src/scripts/lists.lua") {
            continue;
        }
        let found = unbounded_unpacks(&text);
        assert!(found.is_empty(), "{}: {found:?}: use lists.lua of crates/store", path.display());
    }
    assert!(scripts > 80, "{scripts} scripts found: the test looks in the wrong place");
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
        let own = path.ends_with("tests/it/source_rules.rs");
        assert!(own || !found, "{} names a folder of one machine", path.display());
    }
}
