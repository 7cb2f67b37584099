//! Any text: a rejected one has an error place, and an accepted one satisfies the crate's guarantees.

#![no_main]

use jiff::{Timestamp, tz::TimeZone};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use signalbox_condition::{Condition, Facts, KnownFeeds, NoFeeds, Visit};

fuzz_target!(|text: &str| {
    let condition = match Condition::parse(text, KnownFeeds::Any) {
        Ok(condition) => condition,
        Err(error) => {
            assert!(error.line() > 0 && error.column() > 0 && error.length() > 0);
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let printed = condition.to_string();
    // A printed text may be longer than the one that was read (`'` becomes `"`), and so be too long.
    if printed.len() <= signalbox_condition::MAX_BYTES {
        assert!(Condition::parse(&printed, KnownFeeds::Any).is_ok_and(|again| again == condition), "{printed}");
    }
    let metadata = json!({"a": [1, {"b": "18:30"}], "s": "2026-01-31T00:00:00Z", "n": 0.5});
    let visit = Visit {
        entered: Timestamp::UNIX_EPOCH,
        previous_state: Some("asked"),
        state_machine: Some("machine"),
        label: None,
    };
    let zone = TimeZone::UTC;
    let facts = Facts::new(&metadata, &NoFeeds, visit, Timestamp::UNIX_EPOCH, &zone);
    let verdict = condition.evaluate(&facts).expect("no feed has to be asked");
    assert_eq!(condition.explain(&facts).truth, verdict.truth);
    let _said = condition.error_of(&verdict);
    let _moment = condition.earliest(&facts);
    let _odd = condition.warnings();
});
