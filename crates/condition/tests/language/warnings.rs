//! Conditions that are valid, but probably unintended.

use crate::setting::parse;

fn warnings(text: &str) -> Vec<String> {
    parse(text).warnings().iter().map(|warning| warning.message.clone()).collect()
}

#[test]
fn a_condition_that_is_always_true_is_named() {
    for text in [
        "true",
        "1 < 2",
        "metadata.s = \"a\" or \"b\"",
        "not (metadata.a and false)",
        "system.time /= 5 and 1",
    ] {
        assert!(
            warnings(text).contains(&"the condition is always true".to_owned()),
            "{text}: {:?}",
            warnings(text)
        );
    }
}

#[test]
fn a_condition_that_can_never_be_true_is_named() {
    for text in [
        "false",
        "metadata.a and 2 < 1",
        "null < 1",
        "not (1 or metadata.a)",
        "system.time > 5",
        "\"x\" is in 9:00",
    ] {
        assert!(
            warnings(text).contains(&"the condition can never be true".to_owned()),
            "{text}: {:?}",
            warnings(text)
        );
    }
}

#[test]
fn a_test_whose_types_decide_it_is_named() {
    for (text, why) in [
        (
            "metadata.a or system.time < 5",
            "this test is always unknown: a time of day and a number have no order",
        ),
        (
            "metadata.a or system.time = \"9:30\"",
            "this test is always false: \"9:30\" is not HH:MM or HH:MM:SS",
        ),
        (
            "metadata.a or system.now > \"2026-01-31\"",
            "this test is always unknown: \"2026-01-31\" is not RFC 3339",
        ),
        ("metadata.a or system.time /= 1", "this test is always true: a time of day never equals a number"),
        (
            "metadata.a or metadata.b < [1]",
            "this test is always unknown: a list is neither less nor more than anything",
        ),
        ("metadata.a or metadata.b is in 5", "this test is always unknown: nothing is in a number"),
        ("metadata.a or 5 is in system.date", "this test is always unknown: a number cannot be in a string"),
        (
            "metadata.a or 9:00 has passed since metadata.b",
            "this test is always unknown: a time of day is not a number of seconds",
        ),
        (
            "metadata.a or 1h has passed since system.date",
            "this test is always unknown: a date is not an instant",
        ),
        (
            "metadata.a or 1h has passed since system.time",
            "this test is always unknown: a time of day is not an instant",
        ),
        (
            "metadata.a or (1 < (system.time < 5))",
            "this test is always unknown: a time of day and a number have no order",
        ),
    ] {
        assert!(warnings(text).contains(&why.to_owned()), "{text}: {:?}", warnings(text));
    }
}

#[test]
fn a_path_beyond_a_scalar_is_named() {
    assert_eq!(
        warnings("metadata.a or system.time.hour = metadata.b"),
        ["`system.time.hour` is always null: nothing lies below the value before its last key"]
    );
}

#[test]
fn plausible_conditions_cause_no_warning() {
    for text in [
        "metadata.a",
        "metadata.a < 5 and metadata.a > 7",
        "system.time > \"18:30\"",
        "system.now > \"2026-01-31T00:00:00Z\"",
        "system.date >= \"2026-01-31\"",
        "system.weekday is in [\"saturday\", \"sunday\"]",
        "\"2026-01\" is in system.date",
        "12h has passed since \"2026-01-31T00:00:00Z\"",
        "(metadata.a) has passed since (system.entered_state)",
        "(1h has passed since \"2026-01-31T00:00:00Z\") = false",
        "1 < metadata.n and metadata.n < 5",
        "not metadata.a = null",
        "(metadata.a < 1) /= system.time",
    ] {
        assert_eq!(warnings(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn a_warning_points_to_its_test() {
    let warning = &parse("metadata.a or\n system.time < 5").warnings()[0];
    assert_eq!((warning.line, warning.column, warning.length), (2, 2, 15));
}
