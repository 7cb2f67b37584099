//! How values are found and compared: a test for each statement of the reference.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use signalbox_condition::{
    Earliest,
    Truth::{False, True, Unknown},
};

use crate::setting::{Setting, all, all_fail, all_hold, at, parse};

#[test]
fn a_missing_path_and_one_through_a_scalar_is_null() {
    let setting = Setting::with(json!({"a": {"b": 1}, "s": "text", "n": null, "list": [1]}));
    all_hold(
        &setting,
        &[
            "metadata.x = null",
            "metadata.a.x = null",
            "metadata.a.b.c = null",
            "metadata.s.length = null",
            "metadata.n = null",
            "metadata.n.x = null",
            "metadata.list.x = null",
            "system.time.hour = null",
            "history.previous_state.x = null",
            "feeds.nothing.x = null",
        ],
    );
}

#[test]
fn metadata_may_be_read_as_a_whole() {
    all_hold(&Setting::with(json!({"a": 1})), &["metadata", "metadata is defined", "\"a\" is in metadata"]);
    all(&Setting::with(json!({})), False, &["metadata"]);
}

#[test]
fn digits_index_a_list_from_zero_and_are_keys_of_an_object() {
    let setting = Setting::with(json!({"list": ["a", ["b"]], "object": {"0": "c", "01": "d"}}));
    all_hold(
        &setting,
        &[
            "metadata.list.0 = \"a\"",
            "metadata.list.1.0 = \"b\"",
            "metadata.list.2 = null",
            "metadata.list.-1 = null",
            "metadata.list.99999999999999999999999 = null",
            "metadata.object.0 = \"c\"",
            "metadata.object.01 = \"d\"",
        ],
    );
}

#[test]
fn a_duration_is_a_number_of_seconds() {
    let setting = Setting::with(json!({"wait": 90}));
    all_hold(&setting, &["metadata.wait = 1m30s", "1h > 59m", "1m = 60.0", "1h /= 1:00"]);
}

#[test]
fn booleans_are_not_numbers() {
    let setting = Setting::with(json!({"yes": true}));
    all(&setting, False, &["metadata.yes = 1", "false = 0", "1 is in [true]"]);
    all_fail(
        &setting,
        "a boolean is neither less nor more than anything",
        &["metadata.yes < 2", "0 < true", "true >= true"],
    );
}

#[test]
fn numbers_compare_by_value_and_integers_exactly() {
    let setting = Setting::with(json!({
        "big": 9_007_199_254_740_993_i64, "near": 9_007_199_254_740_992.0, "most": u64::MAX, "least": i64::MIN, "huge": 1e300,
    }));
    all_hold(
        &setting,
        &[
            "1 = 1.0",
            "1 is in [1.0]",
            "[1] = [1.0]",
            "metadata.big > metadata.near",
            "metadata.big /= 9007199254740992.0",
            "metadata.big = 9007199254740993",
            "metadata.near = 9007199254740992",
            "metadata.most > 18446744073709551614",
            "metadata.most < 18446744073709551616.0",
            "metadata.most < 18446744073709551616",
            "metadata.least = -9223372036854775808",
            "metadata.huge > metadata.most",
            "-1e300 < metadata.least",
            "0.1 = 0.1",
            "0 = -0.0",
            "1e-400 = 0",
        ],
    );
}

#[test]
fn a_number_in_a_condition_is_the_number_that_the_same_digits_are_in_a_fact() {
    for digits in [
        "0.1",
        "0.000011",
        "1.7976931348623157e308",
        "5e-324",
        "123456789012345678901234567890",
        "2.2250738585072011e-308",
        "9007199254740993.0",
    ] {
        let setting = Setting::with(serde_json::from_str(&format!("{{\"n\": {digits}}}")).unwrap());
        assert_eq!(setting.truth(&format!("metadata.n = {digits}")), True, "{digits}");
    }
}

#[test]
fn strings_compare_by_code_point() {
    all_hold(
        &Setting::default(),
        &[
            "\"a\" < \"b\"",
            "\"Z\" < \"a\"",
            "\"a\" < \"ab\"",
            "\"é\" > \"z\"",
            "\"10\" < \"9\"",
            "\"\" < \"a\"",
            // In UTF-16 it would be the other way round.
            "\"\u{ffff}\" < \"😀\"",
            // Texts are not normalized.
            "\"é\" /= \"e\u{301}\"",
            "system.date >= \"2026-01-31\"",
        ],
    );
}

#[test]
fn an_instant_compares_with_an_instant_and_with_an_rfc_3339_string() {
    let setting = Setting::with(
        json!({"paid": "2026-01-31T19:30:00+01:00", "late": "2026-02-01T00:00:00Z", "day": "2026-01-31"}),
    );
    all_hold(
        &setting,
        &[
            "system.now > system.entered_state",
            "system.now = metadata.paid",
            "metadata.paid = system.now",
            "metadata.late > system.now",
            "system.now is in [\"2026-01-31T18:30:00Z\"]",
            "system.now /= metadata.day",
            "system.now /= \"soon\"",
            // Two strings are two strings.
            "metadata.paid /= \"2026-01-31T18:30:00Z\"",
        ],
    );
    all_fail(
        &setting,
        "not RFC 3339",
        &["system.now > metadata.day", "metadata.day <= system.entered_state"],
    );
}

#[test]
fn a_time_of_day_compares_with_a_time_and_with_hh_mm_and_hh_mm_ss() {
    let setting =
        Setting::with(json!({"open": "18:30", "exact": "18:30:00", "short": "9:00", "odd": "soon"}));
    all_hold(
        &setting,
        &[
            "system.time = metadata.open",
            "metadata.exact = system.time",
            "system.time >= metadata.open",
            "metadata.open <= 18:30",
            "system.time is in [\"18:30:00\"]",
            "18:30 is in [18:30]",
            "system.time /= metadata.odd",
            "metadata.short /= 9:00",
        ],
    );
    all_fail(&setting, "not HH:MM", &["system.time > metadata.odd", "metadata.short < 9:01"]);
}

#[test]
fn the_time_is_in_whole_seconds() {
    let setting = Setting { now: at("2026-01-31T18:30:00.999999999Z"), ..Setting::default() };
    all_hold(
        &setting,
        &["system.time = 18:30", "system.time <= 18:30:00", "system.now > \"2026-01-31T18:30:00Z\""],
    );
}

#[test]
fn equality_never_fails_and_different_types_are_unequal() {
    let values = ["null", "true", "1", "\"1\"", "1:00", "system.now", "[1]", "metadata.object"];
    let setting = Setting::with(json!({"object": {"a": 1}}));
    for (n, left) in values.iter().enumerate() {
        for (m, right) in values.iter().enumerate() {
            let same = if n == m { True } else { False };
            assert_eq!(setting.judge(&format!("{left} = {right}")), (same, None), "{left} = {right}");
            assert_eq!(setting.judge(&format!("{left} /= {right}")), (!same, None), "{left} /= {right}");
        }
    }
}

#[test]
fn lists_and_objects_are_equal_when_their_parts_are() {
    let setting = Setting::with(json!({
        "a": {"x": [1, {"y": null}]}, "b": {"x": [1.0, {"y": null}]}, "c": {"x": [1, {"z": null}]}, "d": {"x": [1]}, "list": [1, "18:30", true],
    }));
    all_hold(
        &setting,
        &[
            "metadata.a = metadata.b",
            "metadata.a /= metadata.c",
            "metadata.a /= metadata.d",
            "metadata.list = [1, 18:30, true]",
            "metadata.list /= [1, 18:30]",
            "metadata.list /= [1, 18:30, 1]",
            "[1, 2] /= [2, 1]",
        ],
    );
}

#[test]
fn in_asks_a_list_for_a_member_an_object_for_a_key_and_a_string_for_a_part() {
    let setting =
        Setting::with(json!({"list": [1, "a", null, [2]], "object": {"key": null}, "text": "some text"}));
    all_hold(
        &setting,
        &[
            "1.0 is in metadata.list",
            "null is in metadata.list",
            "[2] is in metadata.list",
            "metadata.missing is in metadata.list",
            "\"key\" is in metadata.object",
            "\"me te\" is in metadata.text",
            "\"\" is in metadata.text",
            "2 is not in metadata.list",
        ],
    );
    all(
        &setting,
        False,
        &["\"1\" is in metadata.list", "\"nokey\" is in metadata.object", "\"Text\" is in metadata.text"],
    );
}

#[test]
fn in_takes_nothing_else() {
    let setting = Setting::with(json!({"object": {"1": 2}, "text": "1", "n": 1}));
    all_fail(
        &setting,
        "nothing is in",
        &["1 is in 2", "1 is in metadata.n", "1 is in true", "1 is in 9:00", "1 is in system.now"],
    );
    all_fail(
        &setting,
        "only a string can",
        &[
            "1 is in metadata.text",
            "1 is in metadata.object",
            "null is in metadata.text",
            "true is not in metadata.object",
        ],
    );
}

#[test]
fn in_is_unknown_without_anything_to_look_into() {
    all(
        &Setting::default(),
        Unknown,
        &["1 is in metadata.missing", "1 is not in metadata.missing", "null is in null"],
    );
}

#[test]
fn passed_since_is_inclusive() {
    let mut setting = Setting { entered: at("2026-01-31T06:30:00Z"), ..Setting::default() };
    all_hold(&setting, &["12h has passed since system.entered_state"]);
    setting.entered = at("2026-01-31T06:30:00.000000001Z");
    all(&setting, False, &["12h has passed since system.entered_state"]);
    all_hold(&setting, &["12h has not passed since system.entered_state", "0s has passed since system.now"]);
}

#[test]
fn passed_since_takes_seconds_from_anywhere_and_an_instant_or_a_string() {
    let setting =
        Setting::with(json!({"wait": 3600, "half": 0.5, "paid": "2026-01-31T17:30:00Z", "early": -60}));
    all_hold(
        &setting,
        &[
            "metadata.wait has passed since system.entered_state",
            "metadata.wait has passed since metadata.paid",
            "metadata.half has passed since metadata.paid",
            "3600 has passed since metadata.paid",
            "1h has passed since \"2026-01-31T18:30:00+01:00\"",
            "metadata.early has passed since \"2026-01-31T18:31:00Z\"",
            "1h1s has not passed since metadata.paid",
            "1e300 has not passed since metadata.paid",
            "-1e300 has passed since metadata.paid",
        ],
    );
}

#[test]
fn passed_since_takes_nothing_else() {
    let setting = Setting::with(json!({"text": "12h", "day": "2026-01-31", "n": 5}));
    all_fail(
        &setting,
        "needs a number of seconds",
        &[
            "metadata.text has passed since system.now",
            "true has passed since metadata.missing",
            "9:00 has passed since system.now",
        ],
    );
    all_fail(
        &setting,
        "needs an instant",
        &[
            "1h has passed since metadata.day",
            "1h has passed since metadata.n",
            "1h has passed since system.time",
            "1h has passed since [1]",
        ],
    );
}

#[test]
fn a_bare_value_counts_as_false_when_it_is_nothing() {
    for (value, counts) in [
        (json!(false), false),
        (json!(null), false),
        (json!(0), false),
        (json!(0.0), false),
        (json!(-0.0), false),
        (json!(""), false),
        (json!([]), false),
        (json!({}), false),
        (json!(true), true),
        (json!(1), true),
        (json!(-0.5), true),
        (json!("false"), true),
        (json!(" "), true),
        (json!([null]), true),
        (json!({"a": null}), true),
    ] as [(Json, bool); 15]
    {
        let setting = Setting::with(json!({"v": value}));
        assert_eq!(setting.judge("metadata.v"), (counts.into(), None), "{value}");
        assert_eq!(setting.judge("not metadata.v"), ((!counts).into(), None), "{value}");
        assert_eq!(setting.judge("(metadata.v)"), (counts.into(), None), "{value}");
    }
    all(&Setting::default(), False, &["0s", "metadata.missing", "[]"]);
    all_hold(&Setting::default(), &["0:00", "system.time", "system.now"]);
}

#[test]
fn defined_is_everything_but_null() {
    let setting = Setting::with(json!({"null": null, "false": false, "empty": ""}));
    all_hold(
        &setting,
        &[
            "metadata.false is defined",
            "metadata.empty is defined",
            "metadata.null is not defined",
            "metadata.x is not defined",
            "(1 > 2) is defined",
        ],
    );
    all(&setting, False, &["metadata.null is defined", "metadata.x has defined", "null was defined"]);
}

#[test]
fn a_value_in_parentheses_is_that_value_and_and_or_not_give_booleans() {
    let setting = Setting::with(json!({"n": 5, "list": [1]}));
    all_hold(
        &setting,
        &[
            "(metadata.n) = 5",
            "((metadata.list)) = [1]",
            "(metadata.n and 1) = true",
            "(metadata.n or 1) = true",
            "(not metadata.n) = false",
            "(0 or 0) = false",
            "(metadata.n) > 4",
            "(metadata.n > 4) = true",
        ],
    );
}

#[test]
fn facts_of_every_depth_are_compared_without_trouble() {
    // As deep as JSON is read.
    let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
    let metadata = serde_json::from_str(&format!("{{\"a\":{deep},\"b\":{deep}}}")).unwrap();
    all_hold(&Setting::with(metadata), &["metadata.a = metadata.b"]);
}

#[test]
fn a_recorded_error_names_the_line_of_its_test_and_is_the_first() {
    let setting = Setting::with(json!({"text": "x"}));
    let text = "1 = 2 or\r\n# comment\r1 < metadata.text or\n  true > 1";
    assert_eq!(setting.judge(text), (Unknown, Some("line 3: a number and a string have no order".into())));
    assert_eq!(
        setting.judge("1 < \"a\" or true"),
        (True, Some("line 1: a number and a string have no order".into()))
    );
    assert_eq!(parse("1 < \"a\"").text(), "1 < \"a\"");
}

/// A condition that searches a list of 32,000 values 500 times: an evaluation of the whole takes seconds.
fn expensive(also: &str) -> (Setting, String) {
    let list = vec![json!(0); 32_000];
    let nested = json!([list.clone()]);
    let setting = Setting::with(json!({"l": list, "n": nested, "m": nested}));
    let searches = vec!["metadata.x is in metadata.l"; 250].join(" or ");
    let equal = vec!["metadata.n /= metadata.m"; 250].join(" or ");
    (setting, format!("{searches} or {equal} or {also}"))
}

#[test]
#[allow(clippy::disallowed_methods, reason = "without the limit, it takes minutes")]
fn an_evaluation_compares_a_limited_number_of_values() {
    let (setting, text) = expensive("metadata.l is in [1]");
    let start = Instant::now();
    let (truth, error) = setting.judge(&text);
    assert_eq!(truth, Unknown);
    assert_eq!(error.unwrap(), "line 1: more than 1000000 values were compared before it");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    // Tests that compare nothing are evaluated in any case.
    assert_eq!(setting.truth(&text.replace("metadata.l is in [1]", "metadata.l")), True);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "without the limit, it takes minutes")]
fn the_search_for_the_earliest_time_compares_a_limited_number_of_values() {
    let (setting, text) = expensive("13h has passed since system.entered_state");
    let text = format!("({text}) and system.time >= 19:00 and system.date is in [\"2027-01-01\"]");
    let start = Instant::now();
    assert_ne!(parse(&text).earliest(&setting.facts()), Earliest::Never);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
