//! Files of scenarios: their results, and their errors.

use signalbox_machine::{load, scenario};

const MACHINE: &str = r#"
state_machines:
  m:
    inputs: [{topic: orders, into: order}]
    feeds: [{name: f, url: "http://h/"}]
    states:
      - gate: a
        exit_condition: metadata.go or metadata.order.paid
        triggers: [{metadata: go}, {topic: orders}]
        next: b
      - action: b
        webhook: http://h/<metadata.who>
        next: {type: context, path: feeds.f.next, destinations: [], default: c}
      - gate: c
"#;

fn run(test: &str) -> Vec<Option<String>> {
    let machines = load("m.yaml", MACHINE).unwrap().machines;
    let outcomes =
        scenario::run("m.test.yaml", test, &machines).unwrap_or_else(|refused| panic!("{refused}"));
    outcomes.into_iter().map(|outcome| outcome.failed.map(|problem| problem.message)).collect()
}

fn one(steps: &str) -> Option<String> {
    let test = format!("scenarios:\n  - name: one\n    start: 2026-01-01T00:00:00Z\n{steps}");
    run(&test).remove(0)
}

#[test]
fn a_scenario_that_holds_reports_nothing() {
    let test = "    metadata: {who: ada}\n    feeds: {f: {}}\n    steps:\n      \
        - {after: 1h, expect: {state: a}}\n      \
        - {after: 1s, topic: orders, data: {paid: true}, expect: {state: c, status: ended, through: [b, c]}}\n";
    assert_eq!(one(test), None);
}

#[test]
fn a_scenario_that_does_not_hold_reports_the_place() {
    let start = "    metadata: {who: ada}\n    feeds: {f: {}}\n    steps:\n";
    let step = |step: &str| one(&format!("{start}      - {step}\n")).unwrap();
    assert_eq!(
        step("{at: 2026-01-01T00:00:01Z, expect: {state: c}}"),
        "at 2026-01-01T00:00:01Z the label is `waiting` in `a`, not in `c`"
    );
    assert_eq!(
        step("{after: 1s, metadata: {go: 1}, expect: {through: [c]}}"),
        "at 2026-01-01T00:00:01Z the label went through [b, c], not through [c]"
    );
    assert_eq!(
        step("{after: 1s, metadata: {go: 1}, expect: {status: waiting}}"),
        "at 2026-01-01T00:00:01Z the label is `ended` in `c`, not `waiting`"
    );
    assert_eq!(
        step("{at: 2025-01-01T00:00:00Z}"),
        "2025-01-01T00:00:00Z is before the previous step, at 2026-01-01T00:00:00Z"
    );
    let silent = one("    metadata: {who: ada}\n    steps: [{after: 0s, metadata: {go: 1}}]\n").unwrap();
    assert_eq!(silent, "the scenario needs an answer of the feed `f`");
    // A fact that the address needs is missing.
    let missing =
        one("    feeds: {f: {}}\n    steps: [{after: 0s, metadata: {go: 1}, expect: {state: c}}]\n").unwrap();
    assert_eq!(
        missing,
        "at 2026-01-01T00:00:00Z the label is `errored` in `b` (missing_fact: metadata.who is null), not in `c`"
    );
}

#[test]
fn files_that_are_not_in_order_are_refused() {
    let machines = load("m.yaml", MACHINE).unwrap().machines;
    for (test, expected) in [
        ("scenarios: []\n", "no scenario found"),
        ("scenarios: [{name: a, start: today, steps: []}]\n", "invalid time"),
        ("scenarios: [{name: a, start: 2026-01-01T00:00:00Z}]\n", "a scenario needs `steps`"),
        (
            "scenarios: [{name: a, start: 2026-01-01T00:00:00Z, steps: [{}]}]\n",
            "a step needs exactly one of `at` and `after`",
        ),
        (
            "scenarios: [{name: a, start: 2026-01-01T00:00:00Z, steps: [{after: 1s, expect: {state: z}}]}]\n",
            "unknown state `z`",
        ),
        (
            "scenarios: [{name: a, start: 2026-01-01T00:00:00Z, steps: [], feeds: {g: 1}}]\n",
            "`feeds` has no key `g`",
        ),
        (
            "scenarios: [{name: a, start: 2026-01-01T00:00:00Z, steps: [], webhooks: {a: 200}}]\n",
            "`webhooks` has no key `a`",
        ),
        (
            "scenarios: [{name: a, machine: n, start: 2026-01-01T00:00:00Z, steps: []}]\n",
            "unknown machine `n`",
        ),
        ("scenario: []\n", "the file has no key `scenario`"),
    ] {
        let refused = scenario::run("m.test.yaml", test, &machines).unwrap_err().to_string();
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
}
