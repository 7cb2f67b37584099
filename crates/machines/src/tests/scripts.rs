//! The scripts' headers are what a reader believes; this holds them against the text.

use crate::store::scripts;

#[test]
fn every_script_says_what_it_takes_and_returns_and_who_calls_it() {
    assert_eq!(scripts().len(), 5);
    for source in scripts().into_iter().map(|script| script.source()) {
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
