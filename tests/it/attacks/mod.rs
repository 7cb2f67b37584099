//! Attacks from outside, through real daemons. Each test tries to break a rule of the threat model (docs/security.md) and
//! passes when it cannot.

mod audit_log;
mod confinement_data;
mod confinement_shares;
mod confinement_time;
mod edge_admin;
mod edge_answers;
mod edge_exhaustion;
mod edge_grpc;
mod edge_headers;
mod edge_instances;
mod edge_loops;
mod edge_paths;
mod host_name;
mod machine_actions;
mod machine_tokens;
mod own_addresses;
mod raw;
mod redis_credentials;
mod reserved_addresses;
mod session_theft;
mod token_guessing;
mod token_life;

/// `docs/security.md` names the modules that attack each rule.
#[test]
fn the_threat_model_names_every_attack_and_no_other() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("../docs/security.md")).unwrap();
    let table = text.split("## Threat model").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| actor"));
    let cells: Vec<&str> = rows.map(|row| row.split(" | ").nth(2).unwrap()).collect();
    assert!(
        cells.len() > 10 && cells.iter().all(|cell| cell.contains('`')),
        "a rule without a test: {cells:?}"
    );
    let named: std::collections::BTreeSet<&str> =
        cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let source = include_str!("mod.rs");
    let modules: std::collections::BTreeSet<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
        .filter(|module| *module != "raw")
        .collect();
    assert_eq!(named, modules);
    let files = std::fs::read_dir(root.join("it/attacks")).unwrap().count();
    assert_eq!(files, modules.len() + 2, "every file but mod.rs and raw.rs is a module");
}
