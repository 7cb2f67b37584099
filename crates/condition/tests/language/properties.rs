//! The crate against the model, and against itself.

use proptest::prelude::*;
use serde_json::json;
use signalbox_condition::{Earliest, Truth};

use crate::{
    model::{self, counts, eval, program, write},
    setting::{Setting, at, parse},
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_evaluator_agrees_with_the_model(expr in program()) {
        let setting = model::setting();
        let text = write(&expr, &mut || " ");
        let expected = match counts(&eval(&expr, &setting)) {
            Some(truth) => Truth::from(truth),
            None => Truth::Unknown,
        };
        prop_assert_eq!(setting.truth(&text), expected, "{}", text);
    }

    #[test]
    fn an_explanation_agrees_with_the_evaluation(expr in program()) {
        let setting = model::setting();
        let text = write(&expr, &mut || " ");
        let explanation = parse(&text).explain(&setting.facts());
        prop_assert_eq!(explanation.truth, setting.truth(&text), "{}", text);
        prop_assert_eq!(explanation.blocking.is_empty(), explanation.truth == Truth::True);
        if explanation.truth == Truth::True {
            prop_assert_eq!(explanation.fewest, Some(Vec::new()));
        }
    }

    #[test]
    fn a_condition_that_warns_that_it_is_constant_is(expr in program()) {
        let text = write(&expr, &mut || " ");
        let setting = model::setting();
        for warning in parse(&text).warnings() {
            match &*warning.message {
                "the condition is always true" => prop_assert_eq!(setting.truth(&text), Truth::True, "{}", text),
                "the condition can never be true" => prop_assert_ne!(setting.truth(&text), Truth::True, "{}", text),
                _ => {}
            }
        }
    }
}

/// Conditions over facts that may be anything, for which every change of a test can really be made.
fn independent() -> impl Strategy<Value = String> {
    let leaf =
        (0..4_usize, 0..2_usize).prop_map(|(leaf, nots)| format!("{}metadata.v{leaf}", "not ".repeat(nots)));
    leaf.prop_recursive(4, 24, 4, |inner| {
        (prop::collection::vec(inner, 2..4), any::<bool>(), 0..2_usize).prop_map(|(parts, and, nots)| {
            format!("{}({})", "not ".repeat(nots), parts.join(if and { " and " } else { " or " }))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 700, ..ProptestConfig::default() })]

    /// Every assignment of four facts is tried, so the minimum is certain.
    #[test]
    fn the_fewest_changes_are_the_fewest(text in independent(), now in 0..16_u8) {
        let facts = |bits: u8| Setting::with((0..4).map(|n| (format!("v{n}"), json!(bits >> n & 1 == 1))).collect());
        let condition = parse(&text);
        let setting = facts(now);
        let found = condition.explain(&setting.facts()).fewest;
        let least = (0..16_u8).filter(|bits| facts(*bits).truth(&text).holds()).map(|bits| (bits ^ now).count_ones()).min();
        prop_assert_eq!(found.as_ref().map(|changes| changes.len() as u32), least, "{}", text);
        if let Some(changes) = found {
            // And making them makes it true.
            let mut bits = now;
            for change in changes {
                let leaf: u8 = change.text.trim_start_matches("metadata.v").parse().unwrap();
                bits = if change.should_be { bits | 1 << leaf } else { bits & !(1 << leaf) };
            }
            prop_assert!(facts(bits).truth(&text).holds(), "{}", text);
        }
    }

    /// Nothing between now and the promised moment makes it true, and that moment does.
    #[test]
    fn the_earliest_moment_is_never_later_than_the_truth(
        expr in program(),
        zone in proptest::sample::select(&["UTC", "Europe/London", "America/New_York", "Asia/Tokyo"][..]),
        start in proptest::sample::select(&["2026-01-31T18:30:00Z", "2026-03-28T22:10:07.5Z", "2026-10-24T23:59:59Z"][..]),
        probes in prop::collection::vec(0..400_000_u32, 40),
    ) {
        let mut setting = model::setting();
        setting.zone = jiff::tz::TimeZone::get(zone).unwrap();
        setting.now = at(start);
        let text = write(&expr, &mut || " ");
        let condition = parse(&text);
        let earliest = condition.earliest(&setting.facts());
        let begin = setting.now;
        let probes = probes.into_iter().map(|seconds| begin + jiff::SignedDuration::from_secs(seconds.into()));
        let before: Vec<_> = match earliest {
            Earliest::Now => Vec::new(),
            Earliest::At(at) | Earliest::NotBefore(at) => probes.filter(|probe| *probe < at).collect(),
            Earliest::Never => probes.collect(),
        };
        for probe in before {
            setting.now = probe;
            prop_assert_ne!(setting.truth(&text), Truth::True, "{} at {}, expected {:?}", text, probe, earliest);
        }
        // Where no feed is read, the moment is exact.
        if let (Earliest::At(at), 0) = (earliest, condition.feeds().count()) {
            setting.now = at;
            let possible = setting.truth(&text) == Truth::True;
            prop_assert!(possible, "{} at {}", text, at);
        }
    }
}
