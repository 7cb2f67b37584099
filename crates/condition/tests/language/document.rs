//! `docs/conditions.md` is correct.
//!
//! In blocks of ```` ```condition ````, the text before `# →` on a line, together with the lines before it that have
//! none, is evaluated with the facts of the last ```` ```json ```` block, and has the value after the arrow.

use std::{fs, path::Path};

use serde_json::Value as Json;
use signalbox_condition::{Condition, KnownFeeds, Truth};

use crate::setting::{Setting, at};

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conditions.md");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of the document: the word behind the backticks, the line of the first line within, and the lines.
fn blocks(document: &str) -> Vec<(String, usize, Vec<&str>)> {
    let mut blocks: Vec<(String, usize, Vec<&str>)> = Vec::new();
    let mut open = false;
    for (n, line) in document.lines().enumerate() {
        match (line.strip_prefix("```"), open) {
            (Some(_), true) => open = false,
            (Some(word), false) => {
                blocks.push((word.to_owned(), n + 2, Vec::new()));
                open = true;
            }
            (None, true) => blocks.last_mut().unwrap().2.push(line),
            (None, false) => {}
        }
    }
    blocks
}

fn setting(facts: &Json) -> Setting {
    let mut setting = Setting::with(facts["metadata"].clone());
    setting.feeds.values = facts["feeds"].as_object().cloned().unwrap_or_default();
    setting.feeds.failed.push("broken");
    setting.entered = at(facts["entered"].as_str().unwrap());
    setting.now = at(facts["now"].as_str().unwrap());
    setting.zone = jiff::tz::TimeZone::get(facts["timezone"].as_str().unwrap()).unwrap();
    setting
}

#[test]
fn every_example_of_the_reference_has_the_documented_value() {
    let document = document();
    let (mut facts, mut examples) = (None, 0);
    for (word, first, lines) in blocks(&document) {
        match &*word {
            "json" => facts = Some(setting(&serde_json::from_str(&lines.join("\n")).unwrap())),
            "condition" => {
                let facts = facts.as_ref().expect("facts come before examples");
                let mut text = String::new();
                for (n, line) in lines.iter().enumerate() {
                    text.push_str(line);
                    text.push('\n');
                    if let Some((_, expected)) = line.split_once("# →") {
                        check(&text, expected.trim(), facts, first + n);
                        text.clear();
                        examples += 1;
                    }
                }
                assert_eq!(text.trim(), "", "an example without a result");
            }
            _ => {}
        }
    }
    assert!(examples > 60, "only {examples} examples were found");
}

fn check(text: &str, expected: &str, facts: &Setting, line: usize) {
    let place = format!("docs/conditions.md:{line}: {text}");
    if let Some(message) = expected.strip_prefix("refused: ") {
        let error = Condition::parse(text, KnownFeeds::Any).expect_err(&place);
        let said = format!("{} {}", error.message, error.hint.as_deref().unwrap_or_default());
        assert!(said.contains(message), "{place} prints {said}");
        return;
    }
    let condition =
        Condition::parse(text, KnownFeeds::Any).unwrap_or_else(|error| panic!("{place}\n{error}"));
    let setting_facts = facts.facts();
    let verdict = condition.evaluate(&setting_facts).unwrap();
    let error = condition.error_of(&verdict);
    let (word, wanted_error) =
        expected.split_once(": ").map_or((expected, None), |(word, error)| (word, Some(error)));
    let truth = match word {
        "true" => Truth::True,
        "false" => Truth::False,
        "unknown" => Truth::Unknown,
        word => panic!("{place}: {word} is not a result"),
    };
    assert_eq!(verdict.truth, truth, "{place}");
    match wanted_error {
        Some(wanted) => {
            assert!(error.as_ref().is_some_and(|error| error.contains(wanted)), "{place}: {error:?}")
        }
        None => assert_eq!(error, None, "{place}"),
    }
}

#[test]
fn the_error_that_the_reference_shows_is_the_error() {
    let document = document();
    let blocks = blocks(&document);
    let shown: Vec<_> = blocks.iter().filter(|(word, ..)| word == "error").collect();
    assert!(!shown.is_empty());
    for (_, line, lines) in shown {
        // The second line is the source.
        let error = Condition::parse(lines[1], KnownFeeds::Any).unwrap_err();
        assert_eq!(error.to_string(), lines.join("\n"), "docs/conditions.md:{line}");
    }
}
