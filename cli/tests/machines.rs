//! `signalbox machines` as the author of a machine uses it: a process, its output and its exit code.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue has failed")]

use std::process::{Command, Output};

use serde_json::{Value as Json, json};

const GOOD: &str = "state_machines:\n  m:\n    states:\n      - {gate: a, exit_condition: metadata.go, \
    triggers: [{metadata: go}], next: b}\n      - gate: b\n";

/// Runs `machines COMMAND` in a folder with these files.
fn signalbox(files: &[(&str, &str)], arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_signalbox"))
        .arg("machines")
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json_of(output: &Output) -> Json {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} in {output:?}"))
}

#[test]
fn a_valid_file_is_listed_with_its_machines() {
    let output = signalbox(&[("m.yaml", GOOD)], &["validate", "m.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("m.yaml: m (2 states)\n", ""));
    let report = json_of(&signalbox(&[("m.yaml", GOOD)], &["validate", "--json", "m.yaml"]));
    assert_eq!((&report["valid"], &report["files"][0]["machines"][0]["name"]), (&json!(true), &json!("m")));
}

#[test]
fn a_file_that_is_refused_is_shown_with_line_caret_and_hint() {
    let bad = GOOD.replace("next: b", "next: c");
    let output = signalbox(&[("m.yaml", &bad)], &["validate", "m.yaml"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(stderr(&output).starts_with("m.yaml:4:82: unknown state `c`\n"), "{output:?}");
    assert!(stderr(&output).contains('^') && stderr(&output).contains("hint: "), "{output:?}");
    let output = signalbox(&[("m.yaml", &bad)], &["validate", "--json", "m.yaml"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(65), ""));
    let problem = &json_of(&output)["files"][0]["problems"][0];
    assert_eq!((&problem["line"], &problem["column"]), (&json!(4), &json!(82)));
}

#[test]
fn a_machine_is_in_one_file_only() {
    let output = signalbox(&[("a.yaml", GOOD), ("b.yaml", GOOD)], &["validate", "a.yaml", "b.yaml"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert_eq!(stderr(&output), "b.yaml: the machine `m` is already defined in a.yaml\n");
}

#[test]
fn wrong_arguments_are_64() {
    for arguments in [
        &["validate"][..],
        &["validate", "not-there.yaml"],
        &["validate", "--yaml", "m.yaml"],
        &["test", "m.yaml"],
        &["judge"],
    ] {
        // The file m.test.yaml does not exist.
        let output = signalbox(&[("m.yaml", GOOD)], arguments);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
    }
}

#[test]
fn scenarios_hold_or_show_where_they_do_not() {
    let test = |state: &str| {
        format!(
            "scenarios:\n  - name: it goes\n    start: 2026-01-01T00:00:00Z\n    steps:\n      \
             - {{after: 1h, metadata: {{go: true}}, expect: {{state: {state}}}}}\n"
        )
    };
    let output = signalbox(&[("m.yaml", GOOD), ("m.test.yaml", &test("b"))], &["test", "m.yaml"]);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "ok      it goes\n"),
        "{output:?}"
    );
    let output = signalbox(&[("m.yaml", GOOD), ("m.test.yaml", &test("a"))], &["test", "m.yaml"]);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(65), "FAILED  it goes\n"),
        "{output:?}"
    );
    let expected = "m.test.yaml:5:52: at 2026-01-01T01:00:00Z the label is `ended` in `b`, not in `a`";
    assert!(stderr(&output).starts_with(expected), "{output:?}");
    let output = signalbox(&[("m.yaml", GOOD), ("m.test.yaml", &test("a"))], &["test", "--json", "m.yaml"]);
    let report = json_of(&output);
    assert_eq!(
        (&report["passed"], &report["files"][0]["scenarios"][0]["passed"]),
        (&json!(false), &json!(false))
    );
}

#[test]
fn the_schema_is_printed() {
    let output = signalbox(&[], &["schema"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(json_of(&output)["$ref"], json!("#/$defs/file"));
}

#[test]
fn headers_are_checked_against_the_operators_list() {
    let asking = GOOD.replace(
        "    states:",
        "    webhooks:\n      - {match: \"http://a.example/\", headers: {Authorization: \"Bearer ${TOKEN}\"}}\n    states:",
    );
    let validate =
        |more: &[&str]| signalbox(&[("m.yaml", &asking)], &[&["validate"], more, &["m.yaml"]].concat());
    assert_eq!(validate(&[]).status.code(), Some(0));
    assert_eq!(validate(&["--secrets", "OTHER,TOKEN"]).status.code(), Some(0));
    let output = validate(&["--secrets", "OTHER"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(stderr(&output).starts_with("m.yaml:4:63: the machine has no secret TOKEN\n"), "{output:?}");
    assert!(stderr(&output).contains("hint: store it"), "{output:?}");
}

/// A megabyte of YAML is judged with the memory and the processor time that a small service has: what grew as the square
/// of the states would take minutes.
#[test]
fn a_megabyte_of_states_is_judged_within_limits() {
    let gate = |n: usize, next: &str| {
        format!(
            "    - {{gate: s{n}, exit_condition: metadata.x, triggers: [{{event: entry}}, {{metadata: x}}], next: {next}}}\n"
        )
    };
    let machine = |states: String| format!("state_machines:\n  m:\n    states:\n{states}");
    let in_a_loop =
        |count: usize| machine((0..count).map(|n| gate(n, &format!("s{}", (n + 1) % count))).collect());
    let nowhere = machine((0..1_000).map(|n| gate(n, &format!("t{n}"))).collect());
    let values: String = (0..30_000).map(|n| format!("{{value: {n}, state: end}}, ")).collect();
    let mapped = machine(format!(
        "    - {{gate: a, exit_condition: metadata.x, triggers: [{{metadata: x}}], next: {{type: context, path: metadata.y, \
         destinations: [{values}], default: end}}}}\n    - gate: end\n"
    ));
    let feeds: String = (0..5_000).map(|n| format!("{{name: f{n}, url: \"http://a.example/\"}}, ")).collect();
    let fed = format!(
        "state_machines:\n  m:\n    feeds: [{feeds}]\n    states:\n{}",
        (0..5_000).map(|n| gate(n, &format!("s{}", (n + 1) % 5_000))).collect::<String>()
    );
    for (name, yaml, code, says) in [
        ("loop", in_a_loop(1_000), 0, "1 loop"),
        ("too many", in_a_loop(10_000), 65, "a state machine can have at most 1000 states, not 10000"),
        ("nowhere", nowhere, 65, "unknown state `t0`"),
        ("mapped", mapped, 0, ""),
        ("fed", fed, 65, "`feeds` must have between 0 and 100 entries"),
    ] {
        assert!(yaml.len() < 1 << 20, "{name} has {} bytes", yaml.len());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m.yaml"), yaml).unwrap();
        // 1 GiB of addresses, and a minute of processor time: a debug build takes a few seconds.
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 1048576; ulimit -t 60; exec \"$0\" machines validate m.yaml"])
            .arg(env!("CARGO_BIN_EXE_signalbox"))
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = stderr(&output).replace("labels can loop", "1 loop");
        let start: String = said.chars().take(500).collect();
        assert_eq!(output.status.code(), Some(code), "{name}: {} {start}", output.status);
        assert!(said.contains(says), "{name}: {start}");
        assert!(said.len() < 1 << 20, "{name} prints {} bytes", said.len());
    }
}
