//! Any text: a rejected one has error places, and an accepted one is accepted again with the same result.

#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_machine::load;

fuzz_target!(|text: &str| {
    match load("any.yaml", text) {
        Err(refused) => {
            assert!(!refused.problems.is_empty());
            for problem in &refused.problems {
                assert!(problem.line > 0 && problem.column > 0 && problem.length > 0);
                assert!(!problem.to_string().is_empty());
            }
        }
        Ok(file) => {
            for machine in &file.machines {
                let again = load("again.yaml", machine.source()).expect("an accepted source is accepted again");
                let same = again.machines.iter().find(|other| other.name() == machine.name());
                assert_eq!(same.map(|other| other.hash()), Some(machine.hash()));
            }
        }
    }
});
