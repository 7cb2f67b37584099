//! Every construct of the grammar is parsed, has its documented meaning, and prints correctly.

use serde_json::json;
use signalbox_condition::{
    MAX_BYTES, MAX_DEPTH,
    Truth::{False, True, Unknown},
};

use crate::setting::{Setting, all, all_hold, parse, refused};

#[test]
fn a_test_may_be_a_bare_value_a_comparison_or_a_property() {
    let setting = Setting::with(json!({"a": 3}));
    all_hold(&setting, &["true", "metadata.a", "metadata.a = 3", "metadata.a is defined"]);
}

#[test]
fn and_joins_two_tests_and_more() {
    let setting = Setting::default();
    all_hold(&setting, &["true and true", "true and true and 1 and \"x\" and 1 < 2"]);
    all(&setting, False, &["true and false", "true and true and 0"]);
}

#[test]
fn or_joins_two_tests_and_more() {
    let setting = Setting::default();
    all_hold(&setting, &["false or true", "0 or \"\" or [] or null or 1"]);
    all(&setting, False, &["false or false", "0 or \"\" or [] or null"]);
}

#[test]
fn not_may_be_repeated_and_applies_to_the_whole_test() {
    let setting = Setting::default();
    all_hold(&setting, &["not false", "not not true", "not not not 0", "not 1 = 2", "not 1 is in [2]"]);
    all(&setting, False, &["not 1 = 1", "not not 0"]);
    all_hold(&setting, &["not null is defined", "not false and true", "(not 0) = true"]);
    // With `not` it is a boolean, without it keeps its type.
    all_hold(&setting, &["(not not 5) = true", "(5) = 5"]);
}

#[test]
fn a_text_of_nothing_but_nots_does_not_exhaust_anything() {
    let text = format!("{}true", "not ".repeat((MAX_BYTES - 4) / 4));
    assert_eq!(Setting::default().truth(&text), ((MAX_BYTES - 4) / 4).is_multiple_of(2).into());
}

#[test]
fn every_comparison_is_known() {
    let setting = Setting::default();
    all_hold(&setting, &["1 = 1", "1 /= 2", "1 < 2", "2 > 1", "1 <= 1", "1 <= 2", "1 >= 1", "2 >= 1"]);
    all(&setting, False, &["1 = 2", "1 /= 1", "1 < 1", "1 > 1", "2 <= 1", "1 >= 2"]);
}

#[test]
fn every_verb_goes_with_every_property_and_with_not() {
    let setting = Setting::with(json!({"a": 1, "wait": 60}));
    for verb in ["is", "has", "was"] {
        for (property, holds) in [
            ("defined", True),
            ("in [1, 60]", True),
            ("passed since system.entered_state", True),
            ("passed since \"2027-01-01T00:00:00Z\"", False),
        ] {
            assert_eq!(
                setting.truth(&format!("metadata.wait {verb} {property}")),
                holds,
                "{verb} {property}"
            );
            assert_eq!(
                setting.truth(&format!("metadata.wait {verb} not {property}")),
                !holds,
                "{verb} not {property}"
            );
        }
    }
}

#[test]
fn a_value_may_be_in_parentheses() {
    let setting = Setting::with(json!({"list": ["x"]}));
    all_hold(
        &setting,
        &["((1 < 2) and true)", "(true or (false))", "(1) = (((1)))", "\"x\" is in (metadata.list)"],
    );
    all_hold(
        &setting,
        &["(1 < 2) = true", "(1 < 2 and 2 < 3) /= (1 > 2)", "(1h) has passed since (system.entered_state)"],
    );
}

#[test]
fn a_parenthesis_too_many_or_too_few_is_refused() {
    assert_eq!(refused("(true))").to_string(), "line 1: this `)` closes nothing\n(true))\n      ^");
    assert_eq!(refused("(true").message, "this `(` is never closed");
    assert_eq!(refused("((true) and").message, "expected a value, not the end");
    assert_eq!(refused("()").hint.as_deref(), Some("parentheses cannot be empty"));
}

#[test]
fn lists_hold_literals_of_every_kind_or_nothing() {
    let setting = Setting::default();
    all_hold(
        &setting,
        &["3 is in [1,2,3]", "null is in [ null ]", "true is in [false, true]", "\"b\" is in ['a','b']"],
    );
    all_hold(&setting, &["60 is in [1m]", "system.time is in [9:00, 18:30]", "-1.5 is in [-1.5]", "[] = []"]);
    all(&setting, False, &["1 is in []", "[1] = [2]"]);
    for text in
        ["[1,]", "[,1]", "[1 2]", "[[1]]", "[metadata.a]", "[1", "[1,", "[(1)]", "[a]", "[not 1]", "["]
    {
        refused(text);
    }
}

#[test]
fn paths_have_roots_words_digits_hyphens_and_quoted_keys() {
    let setting = Setting::with(json!({
        "a": {"b-c": {"d_e": 1}}, "any key": {"": 2}, "list": [{"x": 3}], "5xx_percentage": 4, "größe": 5,
        "with\"quote": 6, "and": {"is": 7}, "-": 8, "a.b": 9, "tab\t": 10,
    }));
    all_hold(
        &setting,
        &[
            "metadata.a.b-c.d_e = 1",
            "metadata.\"any key\".\"\" = 2",
            "metadata.list.0.x = 3",
            "metadata.5xx_percentage = 4",
            "metadata.größe = 5",
            "metadata.\"with\\\"quote\" = 6",
            "metadata.and.is = 7",
            "metadata.- = 8",
            "metadata.\"a.b\" = 9",
            "metadata.\"tab\\t\" = 10",
            "metadata.\"a\".\"b-c\" = metadata.a.b-c",
        ],
    );
    for text in [
        "metadata.",
        "metadata..a",
        "metadata.'a'",
        "metadata .a",
        "metadata. a",
        ".a",
        "metadata.a.",
        "metadata.ä!",
    ] {
        refused(text);
    }
}

#[test]
fn every_root_is_known() {
    let mut setting = Setting::with(json!({"a": 1}));
    setting.feeds.values.insert("five".into(), json!({"requests": 7}));
    all_hold(
        &setting,
        &[
            "metadata = metadata",
            "metadata.a = 1",
            "feeds.five.requests = 7",
            "history.entered_state = system.entered_state",
            "system.entered_state = \"2026-01-31T06:00:00Z\"",
            "history.previous_state = \"asked\"",
            "system.time = 18:30",
            "system.date = \"2026-01-31\"",
            "system.now = \"2026-01-31T18:30:00Z\"",
            "system.weekday = \"saturday\"",
            "system.state_machine = \"drip\"",
            "system.label = \"88625\"",
        ],
    );
    setting.previous = None;
    all_hold(&setting, &["history.previous_state is not defined"]);
}

#[test]
fn numbers_are_those_of_json() {
    let setting = Setting::default();
    all_hold(
        &setting,
        &["0 = -0", "1 = 1.0", "-5 < 3", "1e3 = 1000", "1E+3 = 1000", "25e-1 = 2.5", "1.5 > 1"],
    );
    all_hold(
        &setting,
        &["9223372036854775807 < 9223372036854775808", "18446744073709551615 > -9223372036854775808"],
    );
    for text in ["01", "1.", ".5", "+1", "1e", "1e+", "0x1f", "1_000", "--1", "-", "- 1", "1.2.3", "١"] {
        refused(text);
    }
}

#[test]
fn durations_have_their_units_in_order_each_at_most_once() {
    let setting = Setting::default();
    all_hold(
        &setting,
        &[
            "1d2h30m5s = 95405",
            "1d = 86400",
            "12h = 43200",
            "90m = 5400",
            "0s = 0",
            "1d5s = 86405",
            "05m = 300",
        ],
    );
    for text in ["5s1d", "1h1h", "1.5h", "1D", "2w", "100ms", "1h30", "-5m", "1d-2h", "h", "12hours", "1 h"] {
        refused(text);
    }
    assert!(refused("99999999999999999999d").message.contains("too long"));
    assert!(refused("106751991167301d").message.contains("too long"));
}

#[test]
fn times_have_one_or_two_digits_for_the_hour_and_perhaps_seconds() {
    let setting = Setting::default();
    all_hold(
        &setting,
        &["9:05 = 09:05", "9:05:00 = 9:05", "0:00 < 23:59:59", "18:30 = system.time", "9:59 < 10:00"],
    );
    for text in ["24:00", "9:5", "9:60", "9:05:60", "009:05", "9:", ":05", "9:05:1", "9:05pm", "1:2:3"] {
        refused(text);
    }
}

#[test]
fn strings_have_either_quotes_and_the_escapes_of_json() {
    let setting = Setting::with(json!({"s": "\u{8}\u{c}\n\r\t\"\\/ é 😀"}));
    all_hold(
        &setting,
        &[
            r#"metadata.s = "\b\f\n\r\t\"\\\/ \u00e9 \uD83D\uDE00""#,
            r#"metadata.s = '\b\f\n\r\t"\\/ é 😀'"#,
            r#"'a' = "a""#,
            r#""'" = "\u0027""#,
            "\"# no comment\" /= \"\"",
            r#""(" = '('"#,
        ],
    );
    for text in [
        r#""open"#,
        "\"two\nlines\"",
        "\"two\rlines\"",
        r#""\x""#,
        r#"'\''"#,
        r#""\u12""#,
        r#""\u12g4""#,
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        r#""\u+123""#,
        r#"""""#,
        r#""\"#,
        r#"'a""#,
    ] {
        refused(text);
    }
}

#[test]
fn words_of_the_language_are_lower_case() {
    all_hold(&Setting::default(), &["true", "not false", "not null"]);
    for (text, meant) in
        [("True", "`true`"), ("1 = NULL", "`null`"), ("true AND true", "`and`"), ("NOT true", "`not`")]
    {
        assert!(refused(text).hint.unwrap().contains(meant), "{text}");
    }
}

#[test]
fn space_tab_and_line_ends_separate_and_operators_need_none() {
    let setting = Setting::with(json!({"a": 1}));
    all_hold(
        &setting,
        &["1<2", "metadata.a=1", "1>=-1", "\ttrue\r\nand\rtrue\n", "(1<2)and(2<3)", "'a'<\"b\"or(false)"],
    );
    all_hold(&setting, &["not(false)", "1 is in[1]", "metadata.a/=2", "true#c"]);
    assert!(refused("1\u{a0}< 2").message.contains("U+00A0"));
}

#[test]
fn a_comment_goes_to_the_end_of_its_line() {
    let setting = Setting::default();
    all_hold(
        &setting,
        &["true # and false", "# first\ntrue", "# a\r# b\r\n# c\ntrue and # d\r true", "true#"],
    );
    assert_eq!(refused("# nothing else").message, "the condition is empty");
}

#[test]
fn an_empty_text_is_not_a_condition() {
    for text in ["", " \t\r\n", "#"] {
        assert_eq!(refused(text).message, "the condition is empty", "{text:?}");
    }
}

#[test]
fn nothing_chains() {
    for text in
        ["1 < 2 < 3", "1 = 1 = true", "1 is in [1] is defined", "1 < 2 is defined", "null is defined = false"]
    {
        assert_eq!(refused(text).message, "a test compares once, nothing chains", "{text}");
    }
}

#[test]
fn parentheses_may_nest_sixty_four_deep_and_no_deeper() {
    let nested = |depth: usize| format!("{}true{}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(Setting::default().truth(&nested(MAX_DEPTH)), True);
    let error = refused(&nested(MAX_DEPTH + 1));
    assert_eq!((&*error.message, error.column), ("parentheses nest deeper than 64", MAX_DEPTH + 1));
    // Side by side is not deep.
    assert_eq!(Setting::default().truth(&format!("{}true", "(true) and ".repeat(200))), True);
}

#[test]
fn a_text_may_have_sixteen_kibibytes_and_no_more() {
    let text = |length: usize| format!("true{}", " ".repeat(length - 4));
    assert_eq!(MAX_BYTES, 16_384);
    assert_eq!(Setting::default().truth(&text(MAX_BYTES)), True);
    let error = refused(&text(MAX_BYTES + 1));
    assert!(error.message.contains("16385 bytes"), "{error}");
}

#[test]
fn mixed_and_or_is_refused_with_both_ways_to_write_it() {
    for (text, ways) in [
        ("1 and 2 or 3", "write `(1 and 2) or 3`, or `1 and (2 or 3)`"),
        ("1 or 2 and 3", "write `1 or (2 and 3)`, or `(1 or 2) and 3`"),
        (
            "1 and 2 or 3 and 4 and not 5 or 6",
            "write `(1 and 2) or (3 and 4 and not 5) or 6`, or `1 and (2 or 3) and 4 and (not 5 or 6)`",
        ),
        ("(1 and\n 2 # x\n or 3)", "write `(1 and 2) or 3`, or `1 and (2 or 3)`"),
    ] {
        let error = refused(text);
        assert!(error.message.contains("`and` and `or`"), "{error}");
        assert_eq!(error.hint.as_deref(), Some(ways), "{text}");
    }
    // Both ways are conditions, and differ.
    assert_eq!(Setting::default().truth("(0 and 0) or 1"), True);
    assert_eq!(Setting::default().truth("0 and (0 or 1)"), False);
}

#[test]
fn mixed_and_or_points_to_the_second_kind() {
    let error = refused("true and true\n  or )");
    assert_eq!((error.line, error.column, error.length), (2, 3, 2));
    assert_eq!(error.hint.as_deref(), Some("write `(a and b) or c`, or `a and (b or c)`"));
}

#[test]
fn a_condition_prints_in_one_line_with_as_few_quotes_as_possible() {
    for (text, printed) in [
        ("not  not(metadata . x)", None),
        ("not  not(metadata.\"x\")", Some("not not (metadata.x)")),
        ("metadata.\"a b\".\"0\"/='it'# c", Some("metadata.\"a b\".0 /= \"it\"")),
        (
            "90m has  not\npassed since history.entered_state",
            Some("1h30m has not passed since history.entered_state"),
        ),
        ("[ 1 ,2.0,1e300 ,-0, 9:05 ,09:05:07, null]", Some("[1, 2.0, 1e300, -0.0, 09:05, 09:05:07, null]")),
        ("( 1=1or 2<=3 )", None),
        ("( (1=1)or 2<=3 ) is defined", Some("((1 = 1) or 2 <= 3) is defined")),
    ] {
        match printed {
            Some(printed) => assert_eq!(parse(text).to_string(), printed),
            None => {
                refused(text);
            }
        }
    }
}

#[test]
fn an_unknown_value_is_neither_true_nor_false() {
    assert_eq!(Setting::default().truth("metadata.missing > 1"), Unknown);
}
