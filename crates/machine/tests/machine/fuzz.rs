//! Any file: a rejected one has error places, and an accepted one is accepted again with the same result.

use signalbox_machine::{definition::Refused, load, scenario};
use signalbox_testkit::Fuzz;

const DRIP: &str = include_str!("../../../../examples/machines/drip.yaml");
const CANARY: &str = include_str!("../../../../examples/machines/canary.yaml");
const SCENARIOS: &str = include_str!("../../../../examples/machines/drip.test.yaml");

const WORDS: [&str; 24] = [
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
    let mut fuzz = Fuzz::new("definitions", [DRIP, CANARY], &WORDS);
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
