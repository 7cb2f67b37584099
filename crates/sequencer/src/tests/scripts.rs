//! Checks the scripts' headers against their text.

use crate::store::SCRIPTS;

#[test]
fn every_script_documents_its_arguments_results_and_caller() {
    assert_eq!(SCRIPTS.len(), 10);
    for source in SCRIPTS.iter().map(|script| script.source()) {
        let header: Vec<&str> = source.lines().take_while(|line| line.starts_with("--")).collect();
        let name = header.first().copied().unwrap_or_default();
        for word in ["-- KEYS[1]", "-- Returns ", "-- Caller: Store::"] {
            assert!(header.iter().any(|line| line.starts_with(word)), "{name}: no {word:?} in its header");
        }
        for bad in ["cjson", "tostring(", "math.random"] {
            assert!(!source.contains(bad), "{name} uses {bad}");
        }
    }
}
