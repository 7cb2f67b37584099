//! Any text: a rejected one has an error place, and an accepted one satisfies the crate's guarantees.

use serde_json::json;
use signalbox_condition::{Condition, KnownFeeds};
use signalbox_testkit::Fuzz;

use crate::setting::Setting;

const EXAMPLES: [&str; 7] = [
    "metadata.a.1.b = \"18:30\" and not (metadata.n < -5 or feeds.x.y is defined)",
    "12h passed since system.entered_state",
    "metadata.s > \"2026-01-31T00:00:00Z\" and system.time >= 18:30",
    "metadata.a has 1 or 1.5e3 in metadata.a # why\nor history.previous_state was \"asked\"",
    "system.now - 1d2h3m4s > metadata.s",
    "\"\\ud83d\\ude00\" in metadata.a and true is not null",
    "((((metadata.a /= [1, \"x\", null]))))",
];

const WORDS: [&str; 40] = [
    "(",
    ")",
    "[",
    "]",
    ",",
    " and ",
    " or ",
    "not ",
    " is ",
    " has ",
    " was ",
    " in ",
    " defined",
    "passed since ",
    "=",
    "/=",
    "<",
    ">",
    "<=",
    ">=",
    "metadata.",
    "metadata.a",
    "feeds.x.y",
    "history.previous_state",
    "system.time",
    "system.now",
    "system.date",
    "system.entered_state",
    "18:30",
    "1d2h3m4s",
    "-5",
    "1e300",
    "1e400",
    "\"s\"",
    "\"2026-01-31T00:00:00Z\"",
    "\\u",
    "\\ud83d",
    "#",
    "\n",
    "true",
];

#[test]
fn fuzz_conditions() {
    let mut fuzz = Fuzz::new("conditions", EXAMPLES, &WORDS);
    let mut setting = Setting::with(json!({"a": [1, {"b": "18:30"}], "s": "2026-01-31T00:00:00Z", "n": 0.5}));
    setting.feeds.failed.push("x");
    while let Some(text) = fuzz.text() {
        match Condition::parse(&text, KnownFeeds::Any) {
            Err(error) => {
                assert!(error.line > 0 && error.column > 0 && error.length > 0);
                assert!(!error.to_string().is_empty());
            }
            Ok(condition) => {
                check(&condition, &setting);
                fuzz.accepted();
            }
        }
    }
}

fn check(condition: &Condition, setting: &Setting) {
    let printed = condition.to_string();
    // A printed text may be longer than the one that was read (`'` becomes `"`), and so be too long.
    if printed.len() <= signalbox_condition::MAX_BYTES {
        let again = Condition::parse(&printed, KnownFeeds::Any);
        assert!(again.is_ok_and(|again| again == *condition), "{printed}");
    }
    let facts = setting.facts();
    let verdict = condition.evaluate(&facts).expect("no feed has to be asked");
    assert_eq!(condition.explain(&facts).truth, verdict.truth, "{printed}");
    let _message = condition.error_of(&verdict);
    let _moment = condition.earliest(&facts);
    let _odd = condition.warnings();
}
