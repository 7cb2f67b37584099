//! Corrupted files: any content is accepted, or rejected with valid places.

use proptest::prelude::*;
use signalbox_machine::{Machine, load, scenario};

const FILES: [&str; 2] = [
    include_str!("../../../../examples/machines/drip.yaml"),
    include_str!("../../../../examples/machines/canary.yaml"),
];
const SCENARIOS: &str = include_str!("../../../../examples/machines/drip.test.yaml");

/// The inserted texts.
const PIECES: [&str; 28] = [
    "",
    " ",
    "\n",
    "\t",
    "'",
    "\"",
    "|",
    ">",
    "&a ",
    "*a",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "#",
    " # x\n",
    "é",
    "<label>",
    "<metadata.",
    "${",
    "!!binary ",
    "~",
    "yes",
    "null",
    "0x10",
    "\r\n",
];

/// A file in which parts were replaced.
fn spoilt(file: impl Strategy<Value = &'static str>) -> impl Strategy<Value = String> {
    let cuts = proptest::collection::vec((any::<prop::sample::Index>(), 0..12_usize, 0..PIECES.len()), 1..4);
    (file, cuts).prop_map(|(file, cuts)| {
        let mut text: Vec<char> = file.chars().collect();
        for (place, length, piece) in cuts {
            let start = place.index(text.len().max(1)).min(text.len());
            let end = (start + length).min(text.len());
            text.splice(start..end, PIECES[piece].chars());
        }
        text.into_iter().collect()
    })
}

fn places_exist(refused: &signalbox_machine::definition::Refused, source: &str) {
    assert!(!refused.problems.is_empty());
    let lines: Vec<&str> = source.split('\n').collect();
    for problem in &refused.problems {
        let line = lines[problem.line - 1].trim_end_matches('\r');
        assert_eq!(problem.source, line);
        assert!(problem.column >= 1 && problem.column <= line.chars().count() + 2, "{problem}");
        assert!(problem.length >= 1);
        assert!(problem.to_string().contains(&problem.message));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_spoilt_definition_is_read_or_refused_in_its_place(source in spoilt(prop::sample::select(&FILES[..]))) {
        match load("spoilt.yaml", &source) {
            Err(refused) => places_exist(&refused, &source),
            Ok(file) => for machine in &file.machines {
                let again = load("again.yaml", machine.source()).expect("an accepted source is accepted again");
                let same = again.machines.iter().find(|other| other.name() == machine.name());
                prop_assert_eq!(same.map(|other| other.hash()), Some(machine.hash()));
            },
        }
    }

    #[test]
    fn spoilt_scenarios_are_run_or_refused_in_their_place(source in spoilt(Just(SCENARIOS))) {
        let machines: Vec<std::sync::Arc<Machine>> = load("drip.yaml", FILES[0]).unwrap().machines;
        if let Err(refused) = scenario::run("spoilt.test.yaml", &source, &machines) {
            places_exist(&refused, &source);
        }
    }
}
