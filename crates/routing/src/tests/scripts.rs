//! The headers of the scripts of routing, tokens and leases, and the files that they name. Other crates test theirs.

use std::path::{Path, PathBuf};

/// The crates whose scripts are tested here.
const CRATES: [&str; 3] = ["access", "lease", "routing"];
/// Local functions that are appended to other scripts.
const INCLUDED: [&str; 7] = [
    "shared.lua",
    "policy_index.lua",
    "policy_table.lua",
    "promotion_index.lua",
    "promotion_table.lua",
    "certificate_index.lua",
    "certificate_table.lua",
];

/// The source folder of a script's crate, the path of the script, and its text.
fn scripts() -> Vec<(PathBuf, PathBuf, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for name in CRATES {
        let source = crates.join(name).join("src");
        let mut folders = vec![source.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let included = || INCLUDED.iter().any(|file| path.ends_with(file));
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "lua") && !included() {
                    let text = std::fs::read_to_string(&path).unwrap();
                    found.push((source.clone(), path, text));
                }
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
    for (_, path, text) in scripts {
        let shown = path.display();
        let header_lines = text.lines().take_while(|line| line.starts_with("--")).count();
        let header: String = text.lines().take(header_lines).map(|line| format!("{line}\n")).collect();
        let body: String = text.lines().skip(header_lines).map(|line| format!("{line}\n")).collect();
        assert!(header.contains("\n-- Returns "), "{shown} does not document its result");
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
    for (source, path, text) in scripts() {
        let shown = path.display();
        let caller = text
            .lines()
            .find_map(|line| line.strip_prefix("-- Caller: "))
            .unwrap_or_else(|| panic!("{shown}"));
        let (file, function) = caller.split_once(", ").unwrap();
        let rust = std::fs::read_to_string(source.join(file))
            .unwrap_or_else(|error| panic!("{shown}: {file}: {error}"));
        let called = |opening| rust.contains(&format!("async fn {function}{opening}"));
        assert!(called('(') || called('<'), "{shown}: {function} in {file}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(rust.contains(&format!("scripts/{name}")), "{shown}: not included by {file}");
    }
}

#[test]
fn no_script_reads_json_or_loses_digits() {
    for (_, path, text) in scripts() {
        for word in ["cjson", "cmsgpack", "tostring", "KEYS *", "loadstring"] {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}
