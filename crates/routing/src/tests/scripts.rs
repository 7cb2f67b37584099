//! The headers of all scripts but those of the event bus, queues, sequencer and machines, which have tests of their own;
//! and the files that they name.

use std::path::{Path, PathBuf};

/// Rooms whose scripts are tested where they are.
const ELSEWHERE: [&str; 4] = ["src/bus", "src/machines", "src/queues", "src/sequencer"];
/// What scripts of the table have in common, which is no script.
const SHARED: &str = "routing/scripts/shared.lua";

fn scripts() -> Vec<(PathBuf, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![source];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !ELSEWHERE.iter().any(|room| path.ends_with(room)) {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "lua") && !path.ends_with(SHARED)
            {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

/// Indexes of `KEYS[n]` or `ARGV[n]` in a text, with whether one is open (`[n...]`).
fn indexes(text: &str, table: &str) -> (Vec<usize>, bool) {
    let mut open = false;
    let mut found: Vec<usize> = text
        .match_indices(&format!("{table}["))
        .filter_map(|(at, prefix)| {
            let (index, _) = text[at + prefix.len()..].split_once(']')?;
            open |= index.ends_with("...");
            index.trim_end_matches("...").parse().ok()
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    (found, open)
}

#[test]
fn each_header_names_exactly_what_the_script_uses() {
    let scripts = scripts();
    assert!(scripts.len() >= 15, "{}", scripts.len());
    for (path, text) in scripts {
        let shown = path.display();
        let header_lines = text.lines().take_while(|line| line.starts_with("--")).count();
        let header: String = text.lines().take(header_lines).map(|line| format!("{line}\n")).collect();
        let body: String = text.lines().skip(header_lines).map(|line| format!("{line}\n")).collect();
        assert!(header.contains("\n-- Returns "), "{shown}: what does it return?");
        for table in ["KEYS", "ARGV"] {
            let (declared, open) = indexes(&header, table);
            assert_eq!(
                declared,
                (1..=declared.len()).collect::<Vec<_>>(),
                "{shown}: {table} in order, without gap"
            );
            let (used, _) = indexes(&body, table);
            let fixed = declared.len() - usize::from(open);
            assert_eq!(
                used.iter().filter(|index| **index <= fixed).count(),
                fixed,
                "{shown}: {table} declared and used"
            );
            assert!(
                used.iter().all(|index| *index <= declared.len()),
                "{shown}: {table} used and not declared"
            );
            assert!(!open || body.contains(&format!("#{table}")), "{shown}: an open list is gone through");
        }
    }
}

#[test]
fn each_header_names_its_caller() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (path, text) in scripts() {
        let shown = path.display();
        let caller = text
            .lines()
            .find_map(|line| line.strip_prefix("-- Caller: "))
            .unwrap_or_else(|| panic!("{shown}"));
        let (file, function) = caller.split_once(", ").unwrap();
        let rust = std::fs::read_to_string(source.join(file))
            .unwrap_or_else(|error| panic!("{shown}: {file}: {error}"));
        assert!(rust.contains(&format!("async fn {function}(")), "{shown}: {function} in {file}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(rust.contains(&format!("scripts/{name}")), "{shown}: not included by {file}");
    }
}

#[test]
fn no_script_reads_json_or_loses_digits() {
    for (path, text) in scripts() {
        for word in ["cjson", "cmsgpack", "tostring", "KEYS *", "loadstring"] {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}
