//! Nothing that is thrown at the crate makes it panic.

use proptest::prelude::*;
use serde_json::json;
use signalbox_condition::{Condition, KnownFeeds};

use crate::setting::Setting;

/// All that can be done with a text.
fn exercise(text: &str) {
    match Condition::parse(text, KnownFeeds::Any) {
        Err(error) => {
            assert!(error.length > 0 && error.line > 0 && error.column > 0);
            assert!(error.to_string().starts_with(&format!("line {}: ", error.line)));
        }
        Ok(condition) => {
            let mut setting = Setting::with(json!({"a": [1, {"b": "18:30"}], "s": "2026-01-31T00:00:00Z"}));
            setting.feeds.not_asked.push("x");
            let facts = setting.facts();
            if let Ok(verdict) = condition.evaluate(&facts) {
                assert_eq!(condition.explain(&facts).truth, verdict.truth, "{text}");
                let _message = condition.error_of(&verdict);
            }
            let _moment = condition.earliest(&facts);
            let _odd = condition.warnings();
            assert!(!condition.to_string().is_empty());
        }
    }
}

/// Words that make sense together more often than bytes do.
const WORDS: [&str; 44] = [
    "(",
    ")",
    "[",
    "]",
    ",",
    "and",
    "or",
    "not",
    "is",
    "has",
    "was",
    "in",
    "defined",
    "passed",
    "since",
    "=",
    "/=",
    "<",
    ">",
    "<=",
    ">=",
    "==",
    "!",
    "metadata",
    ".",
    "a",
    "metadata.a.1.b",
    "feeds.x",
    "system.time",
    "system.now",
    "system.date",
    "18:30",
    "12h",
    "-5",
    "1e400",
    "1.5",
    "\"s\"",
    "'",
    "\"",
    "\\u",
    "#",
    "\n",
    "\r",
    "é",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in any::<String>()) {
        exercise(&text);
    }

    #[test]
    fn arbitrary_words_do_not_panic(words in prop::collection::vec((proptest::sample::select(&WORDS[..]), any::<bool>()), 0..30)) {
        let text: String = words.iter().flat_map(|(word, gap)| [*word, if *gap { " " } else { "" }]).collect();
        exercise(&text);
    }

    #[test]
    fn an_instant_is_read_as_jiff_reads_it(seconds in -62_167_219_200_i64..253_402_300_799, nanos in 0..1_000_000_000_i32, minutes in -1439..1440_i32) {
        let moment = jiff::Timestamp::new(seconds, nanos).unwrap();
        let zone = jiff::tz::Offset::from_seconds(minutes * 60).unwrap().to_time_zone();
        let text = moment.to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%.f%:z").to_string();
        // Next to the ends, another zone's year may have a sign or five digits.
        if text.len() > 19 && text.as_bytes()[4] == b'-' && !text.starts_with('-') {
            prop_assert_eq!(signalbox_condition::instant(&text), Some(moment), "{}", text);
        }
    }

    #[test]
    fn an_arbitrary_text_is_an_instant_only_if_jiff_agrees(text in "[0-9]{4}-[0-1][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,10})?([Zz]|[+-][0-2][0-9]:?[0-9]{2})?") {
        if let Some(instant) = signalbox_condition::instant(&text) {
            let cut = text.clone();
            if let Ok(other) = cut.parse::<jiff::Timestamp>() {
                prop_assert_eq!(instant, other, "{}", text);
            }
        }
    }
}
