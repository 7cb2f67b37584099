//! Checks the header of every script.

use super::scripts;

#[test]
fn no_script_decodes_json_or_prints_a_number_as_lua_likes() {
    let scripts = scripts();
    assert!(scripts.len() >= 12, "{}", scripts.len());
    for (name, source) in scripts {
        for bad in ["cjson", "tostring(", "math.random"] {
            assert!(!source.contains(bad), "{name} uses {bad}");
        }
        for word in ["-- KEYS[1]", "-- Returns ", "-- Caller: Store::"] {
            assert!(source.lines().any(|line| line.starts_with(word)), "{name}: no {word:?} in its header");
        }
    }
}
