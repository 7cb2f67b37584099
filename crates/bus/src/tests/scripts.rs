//! Checks the scripts' headers against their text.

/// Files that are parts of scripts.
const PARTS: [&str; 8] =
    ["batches", "labels", "lanes", "objects", "publish_decide", "publish_quota", "publish_write", "settle"];

/// The files of the scripts and their parts, by name.
fn files() -> Vec<(String, String)> {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts")).expect("the folder");
    let file = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a script");
        (path.file_stem().expect("a name").to_string_lossy().into_owned(), text)
    };
    folder.map(|entry| file(entry.expect("a file").path())).collect()
}

#[test]
fn every_script_documents_its_arguments_results_and_caller() {
    for (name, source) in files().into_iter().filter(|(name, _)| !PARTS.contains(&&**name)) {
        let header: Vec<&str> = source.lines().take_while(|line| line.starts_with("--")).collect();
        assert!(header.len() >= 3, "{name} has no header");
        for word in ["-- KEYS[1", "-- Returns ", "-- Caller: Store::"] {
            assert!(header.iter().any(|line| line.starts_with(word)), "{name}: no {word:?} in its header");
        }
        // Each argument that the text reads by number is in the header.
        let body = &source[header.iter().map(|line| line.len() + 1).sum()..];
        for table in ["KEYS", "ARGV"] {
            for used in numbers(body, table) {
                let documented = header.iter().any(|line| {
                    line.strip_prefix("-- ").and_then(|line| line.strip_prefix(table)).is_some_and(|line| {
                        let index = line.trim_start_matches('[').split(']').next().unwrap_or_default();
                        let (from, to) = match index.strip_suffix("...") {
                            Some(from) => (from, "1000"),
                            None => index.split_once('-').unwrap_or((index, index)),
                        };
                        let number = |text: &str| text.parse::<usize>().expect("a number");
                        (number(from)..=number(to)).contains(&used)
                    })
                });
                assert!(documented, "{name} reads {table}[{used}], which its header does not document");
            }
        }
    }
}

#[test]
fn only_the_first_part_of_the_publish_script_reads_arguments_by_number() {
    let source = concat!(
        include_str!("../scripts/publish.lua"),
        include_str!("../scripts/publish_quota.lua"),
        include_str!("../scripts/publish_decide.lua"),
        include_str!("../scripts/publish_write.lua")
    );
    let (_, rest) = source.split_once("\n-- Part 2, ").expect("its parts");
    for table in ["KEYS[", "ARGV"] {
        assert!(!rest.contains(table), "{table} belongs to part 1");
    }
}

fn numbers(text: &str, table: &str) -> Vec<usize> {
    text.split(&format!("{table}[")).skip(1).filter_map(|rest| rest.split(']').next()?.parse().ok()).collect()
}

#[test]
fn no_script_decodes_json_or_prints_a_number_as_lua_likes() {
    for (name, source) in files() {
        for bad in ["cjson", "tostring(", "math.random"] {
            assert!(!source.contains(bad), "{name} uses {bad}");
        }
    }
}
