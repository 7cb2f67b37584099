//! Any file: a rejected one has error places, and an accepted one is accepted again with the same result.

use signalbox_machine::{definition::Refused, load, scenario};
use signalbox_testkit::Fuzz;

const DRIP: &str = include_str!("../../../../examples/machines/drip.yaml");
const CANARY: &str = include_str!("../../../../examples/machines/canary.yaml");
const APPROVAL: &str = include_str!("../../../../examples/machines/approval.yaml");
const NIGHTLY: &str = include_str!("../../../../examples/machines/nightly.yaml");
const ONBOARDING: &str = include_str!("../../../../examples/machines/onboarding.yaml");
const ORDER: &str = include_str!("../../../../examples/machines/order.yaml");
const LIMITS: &str = r#"state_machines:
  limits:
    timezone: {metadata: zone, default: Europe/London}
    states:
      - gate: asked
        exit_condition: metadata.go
        triggers: [{metadata: go}, {time: 18:30, days: [monday, friday], grace: 1h}, {cron: "0 9 * * *"}, {at: metadata.due}]
        deadline: {at: metadata.due, next: done}
        alert: {labels: 1000, age: 2h}
        next: call
      - action: call
        webhook: https://a.test/<label>
        method: PUT
        body: {a: <metadata.a>, b: [1, text <label>]}
        result: {metadata.order_id: response.id, metadata.status: status}
        quiet: {from: 22:00, to: 07:00, timezone: metadata.zone}
        retry: {attempts: 3, first: 10s, factor: 2, longest: 1m}
        on_error: {next: done, into: metadata.failure}
        next: done
      - gate: done
"#;
const SCENARIOS: &str = include_str!("../../../../examples/machines/drip.test.yaml");

const WORDS: [&str; 34] = [
    "'",
    "\"",
    "|",
    ">",
    "&a ",
    "*a",
    "\n- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    " # x\n",
    "\n  ",
    "\t",
    "? ",
    "---\n",
    "...\n",
    "<<: *a",
    "!!int ",
    "${A}",
    "{{ metadata.x }}",
    "null",
    "0x1F",
    "results: ",
    "on_error: ",
    "deadline: ",
    "alert: ",
    "quiet: ",
    "at: ",
    "24:00",
    "99999999d",
    "timezone: ",
    "parallel: ",
];

fn check_places(refused: &Refused) {
    assert!(!refused.problems.is_empty());
    for problem in &refused.problems {
        assert!(problem.line > 0 && problem.column > 0 && problem.length > 0, "{problem}");
        assert!(!problem.to_string().is_empty());
    }
}

#[test]
fn fuzz_definitions() {
    load("limits.yaml", LIMITS).expect("the example has all keys");
    let mut fuzz =
        Fuzz::new("definitions", [DRIP, CANARY, APPROVAL, NIGHTLY, ONBOARDING, ORDER, LIMITS], &WORDS);
    while let Some(text) = fuzz.text() {
        match load("any.yaml", &text) {
            Err(refused) => check_places(&refused),
            Ok(file) => {
                for machine in &file.machines {
                    let again =
                        load("again.yaml", machine.source()).expect("an accepted source is accepted again");
                    let same = again.machines.iter().find(|other| other.name() == machine.name());
                    assert_eq!(same.map(|other| other.hash()), Some(machine.hash()));
                }
                fuzz.accepted();
            }
        }
    }
}

#[test]
fn fuzz_scenarios() {
    let machines = load("drip.yaml", DRIP).expect("an example").machines;
    let mut fuzz = Fuzz::new("scenarios", [SCENARIOS], &WORDS);
    while let Some(text) = fuzz.text() {
        match scenario::run("any.test.yaml", &text, &machines) {
            Err(refused) => check_places(&refused),
            Ok(_) => fuzz.accepted(),
        }
    }
}
