//! `signalbox condition eval` as the author of a machine uses it: a process, its output and its exit code.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue has failed")]

use std::process::{Command, Output};

use serde_json::{Value as Json, json};

const NOW: &str = "2026-01-31T18:30:00Z";
const ENTERED: &str = "2026-01-31T06:30:00Z";

fn signalbox(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_signalbox"))
        .args(["condition", "eval"])
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs `eval` with a context of this content.
fn eval_with(context: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("context.json");
    std::fs::write(&file, context).unwrap();
    let mut arguments = vec!["--context", file.to_str().unwrap(), "--now", NOW, "--entered", ENTERED];
    arguments.extend(more);
    signalbox(&arguments)
}

fn stdout(output: &Output) -> Json {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} in {output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn evaluated(context: &Json, more: &[&str]) -> Json {
    let output = eval_with(&context.to_string(), more);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(stderr(&output), "");
    stdout(&output)
}

#[track_caller]
fn result(context: &Json, more: &[&str]) -> bool {
    evaluated(context, more)["result"].as_bool().unwrap()
}

#[test]
fn a_condition_is_evaluated_with_the_facts_of_the_file() {
    let text =
        "metadata.has_recommendations and 12h has passed since system.entered_state and system.time >= 18:30";
    assert_eq!(
        evaluated(&json!({"metadata": {"has_recommendations": true}}), &[text]),
        json!({
            "result": true, "error": null, "warnings": [],
            "variables": ["metadata.has_recommendations", "system.entered_state", "system.time"],
        })
    );
    assert!(!result(&json!({}), &[text]));
    assert!(!result(
        &json!({"metadata": {"has_recommendations": true}}),
        &["--timezone", "Asia/Tokyo", text]
    ));
    assert!(result(
        &json!({}),
        &["--timezone", "Asia/Tokyo", "system.time = 3:30 and system.date = '2026-02-01'"]
    ));
}

#[test]
fn feeds_and_history_come_from_the_file_and_an_unknown_feed_is_null() {
    let context = json!({"feeds": {"five": {"requests": 7}}, "history": {"previous_state": "asked"}});
    assert!(result(
        &context,
        &["feeds.five.requests = 7 and history.previous_state = 'asked' and feeds.six = null"]
    ));
}

#[test]
fn system_values_of_the_file_take_the_place_of_computed_ones() {
    let context = json!({"system": {
        "time": "09:15", "date": "2030-12-24", "weekday": "sunday", "now": "2030-01-01T00:00:00Z",
        "entered_state": "2029-12-31T23:00:00Z", "state_machine": "drip", "label": "7",
    }});
    assert!(result(
        &context,
        &["system.time = 9:15 and system.date = '2030-12-24' and system.weekday = 'sunday' and \
         system.now = '2030-01-01T00:00:00Z' and 1h has passed since history.entered_state and \
         1h1s has not passed since system.entered_state and system.state_machine = 'drip' and system.label = '7'"]
    ));
    // One of them alone leaves the others as they are.
    assert!(result(
        &json!({"system": {"time": "09:15:30"}}),
        &["system.time = 9:15:30 and system.weekday = 'saturday'"]
    ));
    assert!(result(
        &json!({"history": {"entered_state": NOW}}),
        &["1s has not passed since system.entered_state"]
    ));
    // The wall clock follows the moment of the file.
    assert!(result(
        &json!({"system": {"now": "2026-02-01T05:00:00Z"}}),
        &["system.time = 5:00 and system.weekday = 'sunday'"]
    ));
}

#[test]
fn unknown_is_false_and_its_error_is_named() {
    let answer = evaluated(&json!({"metadata": {"n": 1}}), &["true and\nmetadata.n < 'a'"]);
    assert_eq!(answer["result"], false);
    assert_eq!(answer["error"], "line 2: a number and a string have no order");
    let answer = evaluated(&json!({}), &["metadata.n < 1"]);
    assert_eq!((&answer["result"], &answer["error"]), (&json!(false), &json!(null)));
}

#[test]
fn an_expression_may_begin_with_a_minus() {
    assert!(result(&json!({}), &["-5 < 3"]));
    assert!(result(&json!({}), &["-5<3"]));
    assert!(!result(&json!({"metadata": {"n": -4}}), &["-5 = metadata.n"]));
    // Flags may still follow.
    assert!(evaluated(&json!({}), &["-1 < 0", "--explain"])["tree"].is_object());
}

#[test]
fn variables_are_sorted_and_without_repeats() {
    let answer = evaluated(
        &json!({}),
        &["system.time > 9:00 or metadata.b or (metadata.a = metadata.b) or metadata.\"a b\""],
    );
    assert_eq!(answer["variables"], json!(["metadata.\"a b\"", "metadata.a", "metadata.b", "system.time"]));
}

#[test]
fn what_is_odd_is_warned_of() {
    let answer = evaluated(&json!({}), &["metadata.a or system.time < 5"]);
    assert_eq!(
        answer["warnings"],
        json!([{
            "line": 1, "column": 15, "length": 15, "hint": null,
            "message": "this test is always unknown: a time of day and a number have no order",
        }])
    );
}

#[test]
fn explain_prints_the_tree_and_what_would_help() {
    let answer = evaluated(&json!({"metadata": {"a": 3}}), &["--explain", "metadata.a > 2 and metadata.b"]);
    assert_eq!(answer["tree"]["kind"], "and");
    assert_eq!(
        answer["tree"]["parts"][0]["operands"],
        json!([{"text": "metadata.a", "value": 3, "source": "metadata"}, {"text": "2", "value": 2, "source": "literal"}])
    );
    assert_eq!(answer["blocking"], json!([{"text": "metadata.b", "is": false, "should_be": true}]));
    assert_eq!(answer["fewest"], answer["blocking"]);
    assert_eq!(evaluated(&json!({}), &["true"]).get("tree"), None);
}

#[test]
fn a_refused_condition_exits_65_with_the_error_in_both_forms() {
    let output = eval_with("{}", &["true and\n\tmetadata.a == 1"]);
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(
        stdout(&output),
        json!({"line": 2, "column": 13, "length": 2, "message": "`==` is not a valid operator", "hint": "did you mean `=`?"})
    );
    assert_eq!(
        stderr(&output),
        "line 2: `==` is not a valid operator\n\tmetadata.a == 1\n\t           ^^\nhint: did you mean `=`?\n"
    );
    for text in ["(true))", "true and true or true", "metadata.s = foo", "", "1e400 > 1"] {
        assert_eq!(eval_with("{}", &[text]).status.code(), Some(65), "{text}");
    }
    for text in ["((1 < 2) and true)", "(true or (false))"] {
        assert!(result(&json!({}), &[text]), "{text}");
    }
}

#[test]
fn bad_arguments_exit_64() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("context.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    let missing = folder.path().join("missing.json");
    for arguments in [
        &[][..],
        &["--context", file, "--now", NOW, "--entered", ENTERED],
        &["--context", file, "--now", NOW, "true"],
        &["--context", file, "--entered", ENTERED, "true"],
        &["--now", NOW, "--entered", ENTERED, "true"],
        &["--context", file, "--now", "today", "--entered", ENTERED, "true"],
        &["--context", file, "--now", NOW, "--entered", "2026-01-31 06:30:00Z", "true"],
        &["--context", file, "--now", NOW, "--entered", ENTERED, "--timezone", "Mars/Olympus", "true"],
        &["--context", file, "--now", NOW, "--entered", ENTERED, "--timezone", "Etc/Unknown", "true"],
        &["--context", missing.to_str().unwrap(), "--now", NOW, "--entered", ENTERED, "true"],
        &["--context", folder.path().to_str().unwrap(), "--now", NOW, "--entered", ENTERED, "true"],
        &["--context", file, "--now", NOW, "--entered", ENTERED, "true", "false"],
        // Invalid arguments are reported first.
        &["--context", missing.to_str().unwrap(), "--now", NOW, "--entered", ENTERED, "(true))"],
    ] {
        let output = signalbox(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn an_invalid_context_exits_64_with_the_reason() {
    for (context, why) in [
        ("", "EOF"),
        ("[]", "expected a JSON object"),
        ("{\"metadata\": 5}", "metadata must be an object"),
        ("{\"metdata\": {}}", "unknown section \"metdata\""),
        ("{\"history\": {\"next_state\": \"x\"}}", "unknown key history.next_state"),
        ("{\"system\": {\"hour\": 5}}", "unknown key system.hour"),
        ("{\"system\": {\"now\": \"today\"}}", "system.now is \"today\": expected RFC 3339"),
        ("{\"system\": {\"time\": 5}}", "system.time is 5: expected a string"),
        ("{\"system\": {\"time\": \"25:00\"}}", "a time of day"),
        ("{\"system\": {\"date\": \"31.1.2026\"}}", "a date"),
        ("{\"system\": {\"weekday\": \"Sunday\"}}", "monday to sunday"),
        ("{\"metadata\": {\"n\": 1e400}}", "out of range"),
    ] {
        let output = eval_with(context, &["true"]);
        assert_eq!(output.status.code(), Some(64), "{context}: {output:?}");
        assert!(stderr(&output).contains(why), "{context}: {}", stderr(&output));
    }
}
