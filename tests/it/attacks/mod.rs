//! Attacks from outside, through real daemons. Each test tries to break a rule of the threat model (docs/security.md) and
//! passes when it cannot.

mod audit_log;
mod confinement_data;
mod confinement_lists;
mod confinement_shares;
mod confinement_time;
mod daemon_listeners;
mod doors;
mod edge_admin;
mod edge_answers;
mod edge_exhaustion;
mod edge_grpc;
mod edge_headers;
mod edge_instances;
mod edge_loops;
pub(crate) mod edge_paths;
mod edge_responses;
mod host_name;
mod machine_actions;
mod machine_tokens;
mod own_addresses;
mod raw;
mod redis_credentials;
mod reserved_addresses;
mod session_theft;
mod stored_secrets;
mod token_guessing;
mod token_life;

/// `docs/security.md` names tests that attack each rule. All of them exist, every module of attacks is named, and every file is
/// a module: a file that is not is not compiled, and its tests do not run.
#[test]
fn the_threat_model_names_tests_that_exist_and_every_module() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("../docs/security.md")).unwrap();
    let table = text.split("## Threat model").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| actor"));
    let cells: Vec<&str> = rows.map(|row| row.split(" | ").nth(2).unwrap()).collect();
    assert!(cells.len() > 10);
    let mut named = std::collections::BTreeSet::new();
    for cell in cells {
        let tests: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "a rule without a test: {cell}");
        for test in tests {
            let (module, function) = test.split_once("::").unwrap_or_else(|| panic!("{test} is no test"));
            let source =
                std::fs::read_to_string(root.join(format!("it/attacks/{module}.rs"))).unwrap_or_default();
            let exists = source.contains(&format!("\nasync fn {function}() {{"));
            assert!(exists, "docs/security.md names {test}, which does not exist");
            named.insert(module.to_owned());
        }
    }
    let modules: std::collections::BTreeSet<String> = include_str!("mod.rs")
        .lines()
        .filter_map(|line| {
            Some(line.trim_start_matches("pub(crate) ").strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
        })
        .collect();
    let files: std::collections::BTreeSet<String> = std::fs::read_dir(root.join("it/attacks"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|file| file != "mod")
        .collect();
    assert_eq!(modules, files, "each file is a module");
    assert_eq!(named, modules.into_iter().filter(|module| module != "raw").collect());
}
