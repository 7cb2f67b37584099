//! Unknown, type mismatch and short circuit, as tables.

use serde_json::json;
use signalbox_condition::Truth::{self, False, True, Unknown};

use crate::setting::{Setting, all, all_fail};

const TRUTHS: [(&str, Truth); 3] = [("1 < 2", True), ("2 < 1", False), ("null < 1", Unknown)];

#[test]
fn and_is_false_if_either_is_false_and_else_unknown_if_either_is_unknown() {
    let expected = [[True, False, Unknown], [False, False, False], [Unknown, False, Unknown]];
    for (n, (left, _)) in TRUTHS.iter().enumerate() {
        for (m, (right, _)) in TRUTHS.iter().enumerate() {
            assert_eq!(
                Setting::default().truth(&format!("{left} and {right}")),
                expected[n][m],
                "{left} and {right}"
            );
        }
    }
}

#[test]
fn or_is_true_if_either_is_true_and_else_unknown_if_either_is_unknown() {
    let expected = [[True, True, True], [True, False, Unknown], [True, Unknown, Unknown]];
    for (n, (left, _)) in TRUTHS.iter().enumerate() {
        for (m, (right, _)) in TRUTHS.iter().enumerate() {
            assert_eq!(
                Setting::default().truth(&format!("{left} or {right}")),
                expected[n][m],
                "{left} or {right}"
            );
        }
    }
}

#[test]
fn not_unknown_is_unknown() {
    for (text, truth) in TRUTHS {
        assert_eq!(Setting::default().truth(&format!("not {text}")), !truth, "{text}");
        assert_eq!(Setting::default().truth(&format!("not not {text}")), truth, "{text}");
        assert_eq!(Setting::default().truth(&format!("not ({text})")), !truth, "{text}");
    }
    assert_eq!(!Unknown, Unknown);
}

#[test]
fn unknown_spreads_to_every_expression_that_reads_it() {
    all(
        &Setting::default(),
        Unknown,
        &[
            "(null < 1) = true",
            "(null < 1) = (null < 1)",
            "true /= (null < 1)",
            "(null < 1) is defined",
            "(null < 1) is not defined",
            "(null < 1) is in [1]",
            "1 < (null < 1)",
            "(null < 1)",
            "(null < 1) has passed since system.now",
            "1 has passed since (null < 1)",
            "1 is in (null < 1)",
        ],
    );
}

#[test]
fn ordering_with_null_is_unknown_and_no_error() {
    for operator in ["<", ">", "<=", ">="] {
        for other in ["1", "\"a\"", "9:00", "system.now", "null", "metadata.missing"] {
            all(
                &Setting::default(),
                Unknown,
                &[&format!("null {operator} {other}"), &format!("{other} {operator} null")],
            );
        }
    }
}

#[test]
fn null_is_unknown_for_passed_since_on_both_sides_and_for_in_on_the_right() {
    all(
        &Setting::default(),
        Unknown,
        &[
            "null has passed since system.now",
            "metadata.wait has passed since system.entered_state",
            "1h has passed since null",
            "1h has not passed since metadata.missing",
            "1 is in null",
        ],
    );
    all(&Setting::default(), False, &["null is in [1]"]);
    all(&Setting::default(), True, &["null is in [null]", "null = null", "null /= 1", "null is not defined"]);
}

#[test]
fn ordering_of_types_that_have_none_is_unknown_and_an_error() {
    let setting = Setting::with(json!({"object": {}}));
    let orderly = ["1", "\"a\"", "9:00", "system.now"];
    for operator in ["<", ">", "<=", ">="] {
        for never in ["true", "[1]", "metadata.object", "(1 = 1)"] {
            for other in orderly {
                let both = [&*format!("{never} {operator} {other}"), &format!("{other} {operator} {never}")];
                all_fail(&setting, "neither less nor more than anything", &both);
            }
            all_fail(&setting, "neither less nor more than anything", &[&format!("{never} {operator} null")]);
        }
        all_fail(
            &setting,
            "have no order",
            &[
                &format!("1 {operator} \"1\""),
                &format!("9:00 {operator} 9"),
                &format!("system.now {operator} 5"),
                &format!("system.now {operator} 9:00"),
            ],
        );
    }
}

#[test]
fn evaluation_goes_from_left_to_right_and_stops_when_it_is_decided() {
    // A later test would record an error.
    let setting = Setting::default();
    all(&setting, False, &["false and 1 < true", "null < 1 and false and 1 < true", "(0 and 1 < true) or 0"]);
    all(&setting, True, &["true or 1 < true", "null < 1 or true or 1 < true", "not (0 and 1 < true)"]);
    all(
        &setting,
        Unknown,
        &["null < (1 < true)", "(null < 1) = (1 < true)", "null has passed since (1 < true)"],
    );
    // Unknown decides nothing, so these get there.
    all_fail(
        &setting,
        "a boolean is neither",
        &["null < 1 and 1 < true", "null < 1 or 1 < true", "1 < true and true"],
    );
    assert_eq!(setting.judge("1 < true and false").0, False);
}

#[test]
fn only_true_opens_a_gate() {
    assert!(True.holds());
    assert!(!False.holds());
    assert!(!Unknown.holds());
}
