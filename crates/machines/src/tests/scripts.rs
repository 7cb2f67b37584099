//! Checks the headers of the scripts.

use crate::store::scripts;

#[test]
fn every_header_names_keys_returns_and_caller() {
    assert_eq!(scripts().len(), 20);
    for source in scripts().into_iter().map(|script| script.source()) {
        let header: Vec<&str> = source.lines().take_while(|line| line.starts_with("--")).collect();
        let name = header.first().copied().unwrap_or_default();
        for word in ["-- KEYS[1]", "-- Returns ", "-- Caller: "] {
            assert!(header.iter().any(|line| line.starts_with(word)), "{name}: no {word:?} in its header");
        }
        for bad in ["cjson", "tostring(", "math.random"] {
            assert!(!source.contains(bad), "{name} uses {bad}");
        }
    }
}
