//! The messages for mistakes.

use serde_json::json;

use crate::setting::refused;

#[track_caller]
fn hints(text: &str, hint: &str) {
    let error = refused(text);
    assert!(
        error.hint.as_deref().is_some_and(|found| found.contains(hint)),
        "{text}\n{error}\ndoes not hint at {hint}"
    );
}

#[test]
fn operators_of_other_languages_get_a_hint() {
    for (text, meant) in [
        ("metadata.a == 1", "did you mean `=`?"),
        ("metadata.a === 1", "did you mean `=`?"),
        ("metadata.a != 1", "did you mean `/=`?"),
        ("metadata.a <> 1", "did you mean `/=`?"),
        ("true && false", "did you mean `and`?"),
        ("true & false", "did you mean `and`?"),
        ("true || false", "did you mean `or`?"),
        ("true | false", "did you mean `or`?"),
        ("!metadata.a", "did you mean `not`?"),
        ("1 => 0", "did you mean `>=`?"),
        ("1 =< 0", "did you mean `<=`?"),
        ("1 ≤ 2", "did you mean `<=`?"),
        ("1 + 2 = 3", "arithmetic is not supported"),
        ("metadata.a / 2", "arithmetic is not supported"),
        ("metadata.a = “pro”", "straight quotes"),
        ("metadata = {}", "object literals are not supported"),
    ] {
        hints(text, meant);
    }
}

#[test]
fn bare_words_get_a_hint() {
    hints("metadata.s = foo", "did you mean \"foo\"?");
    hints("foo", "did you mean \"foo\"?");
    hints("metdata.s", "did you mean `metadata.s`?");
    hints("feed.x.y", "did you mean `feeds.x.y`?");
    hints("system.tiem > 9:00", "did you mean `system.time`?");
    hints("history.previus_state", "did you mean `history.previous_state`?");
    hints("entered_state", "`system.entered_state`");
    hints("previous_state", "`history.previous_state`");
    hints("system.day", "time, date, now");
    hints("user.plan", "did you mean `metadata.user.plan`?");
    hints("metadata.a = None", "`null`");
    hints("system", "time, date, now");
    hints("history", "previous_state");
    hints("feeds", "feeds.NAME");
    assert!(refused("feeds.\"a b\"").message.contains("no feed can be called"));
    assert!(refused(&format!("feeds.{}", "a".repeat(65))).message.contains("no feed can be called"));
}

#[test]
fn words_in_the_wrong_place_get_a_hint() {
    hints("metadata.a in [1]", "`is in`");
    hints("metadata.a not in [1]", "`is not in`");
    hints("metadata.a defined", "`is defined`");
    hints("12h passed since system.entered_state", "`has passed since`");
    hints("metadata.a is true", "compared by `=`");
    hints("metadata.a is not null", "compared by `/=`");
    hints("12h has passed system.entered_state", "12h has passed since");
    hints("metadata.a contains \"x\"", "`is in`");
    hints("metadata.a equals 1", "`=`");
    hints("1 = not true", "(not …)");
    hints("metadata.a = is", "\"is\"");
    hints("[foo]", "quotes");
    hints("[metadata.a]", "literals only");
    hints("1 < 2 < 3", "join two tests by `and`");
    hints("metadata.", "a key is");
}

#[test]
fn digits_that_mean_nothing_get_a_hint() {
    hints("2026-01-31", "needs quotes");
    hints("system.now > 2026-01-31T00:00:00Z", "needs quotes");
    hints("1.5h", "whole numbers");
    hints("12hours", "1d2h30m5s");
    hints("-5m", "no sign");
    hints("25:00", "23:59:59");
    hints("5-3", "arithmetic is not supported");
    hints("007", "as in JSON");
    assert!(refused("1e400").message.contains("beyond what a number can be"));
    assert!(refused("-1e999").message.contains("beyond what a number can be"));
}

#[test]
fn syntax_is_judged_before_roots() {
    assert!(refused("foo = = 1").message.contains("expected a value"));
    assert!(refused("foo and 1 == 2").message.contains("`==`"));
    assert!(refused("foo and bar or true").message.contains("side by side"));
    assert!(refused("feeds.\"a b\" and (true").message.contains("never closed"));
    // Of two unknown roots the first is named.
    assert!(refused("foo and bar").message.contains("`foo`"));
}

#[test]
fn an_error_reads_line_source_and_caret() {
    let error = refused("metadata.a and\n  metadata.plan == \"pro\"\nand true");
    assert_eq!(
        error.to_string(),
        "line 2: `==` is not a valid operator\n  metadata.plan == \"pro\"\n                ^^\nhint: did you mean `=`?"
    );
    assert_eq!(
        json!(error),
        json!({"line": 2, "column": 17, "length": 2, "message": "`==` is not a valid operator", "hint": "did you mean `=`?"})
    );
}

#[test]
fn columns_are_counted_in_characters() {
    let error = refused("\"größe 😀\" == 1");
    assert_eq!((error.line, error.column, error.length), (1, 11, 2));
    assert_eq!(error.to_string().lines().nth(2).unwrap(), "          ^^");
}

#[test]
fn tabs_are_kept_below_tabs() {
    let error = refused("true and\n\tmetadata.a\t== 1");
    assert_eq!(
        error.to_string().lines().collect::<Vec<_>>()[1..3],
        ["\tmetadata.a\t== 1", "\t          \t^^"]
    );
    assert_eq!(error.column, 13);
}

#[test]
fn every_kind_of_line_end_counts_once() {
    for (text, line) in [("\n\n==", 3), ("\r\r==", 3), ("\r\n\r\n==", 3), ("\n\r==", 3), ("==", 1)] {
        let error = refused(text);
        assert_eq!((error.line, error.column), (line, 1), "{text:?}");
    }
    // The source line has no line end in it.
    assert_eq!(refused("1 ==\r\n2").to_string().lines().nth(1), Some("1 =="));
}

#[test]
fn the_end_is_a_place_too() {
    let error = refused("true and");
    assert_eq!((error.line, error.column, error.length), (1, 9, 1));
    assert_eq!(error.to_string(), "line 1: expected a value, not the end\ntrue and\n        ^");
    assert_eq!(json!(error)["hint"], json!(null));
}

#[test]
fn an_error_over_several_lines_is_underlined_on_the_first() {
    let error = refused("metadata.s = \"open\n\"");
    assert_eq!((error.line, error.column, error.length), (1, 14, 5));
    assert!(error.hint.as_deref().unwrap().contains("\\n"));
}

#[test]
fn a_text_that_is_too_long_is_not_shown_again() {
    let error = refused(&"x".repeat(20_000));
    assert!(error.to_string().len() < 200, "{error}");
}

#[test]
fn an_invisible_character_is_named_by_its_number() {
    assert!(refused("\u{feff}true").message.contains("U+FEFF"));
    assert!(refused("true\0").message.contains("U+0000"));
    assert!(refused("@").message.contains("`@`"));
}
