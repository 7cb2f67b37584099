//! The software bill of materials that the Debian package contains.

use std::{collections::BTreeSet, path::Path, process::Command};

use serde_json::Value;

fn texts<'a>(list: &'a Value, field: &str) -> BTreeSet<&'a str> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap()).collect()
}

#[test]
fn the_bill_of_materials_lists_the_linked_crates_with_license_and_checksum() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(root.join(".ci/sbom")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bill: Value = serde_json::from_slice(&output.stdout).unwrap();

    let names = texts(&bill["components"], "name");
    for linked in
        ["signalbox", "signalbox-pacemaker", "signalbox-sidecar", "axum", "redis", "rustls", "tokio"]
    {
        assert!(names.contains(linked), "{linked} is linked into the programs but not listed");
    }
    for tool in ["proptest", "signalbox-tests", "signalbox-bench", "signalbox-testkit"] {
        assert!(!names.contains(tool), "{tool} is listed but not part of any shipped program");
    }
    for component in bill["components"].as_array().unwrap() {
        let external = component["type"] == "library";
        assert!(
            !component["licenses"].as_array().unwrap().is_empty() || !external,
            "no license: {component}"
        );
        assert_eq!(component["hashes"].as_array().unwrap().len(), usize::from(external), "{component}");
    }
    // Every edge of the graph ends at a listed component.
    let listed = texts(&bill["components"], "bom-ref");
    assert_eq!(texts(&bill["dependencies"], "ref"), listed);
    for dependency in bill["dependencies"].as_array().unwrap() {
        for target in dependency["dependsOn"].as_array().unwrap() {
            assert!(listed.contains(target.as_str().unwrap()), "{target} is not listed");
        }
    }
}
