//! Why a condition has its value, and what would open it.

use serde_json::json;
use signalbox_condition::{
    Shape, Source,
    Truth::{False, True, Unknown},
};

use crate::setting::{Setting, parse};

fn fewest(setting: &Setting, text: &str) -> Option<Vec<(String, bool)>> {
    let explanation = parse(text).explain(&setting.facts());
    explanation
        .fewest
        .map(|changes| changes.into_iter().map(|change| (change.text, change.should_be)).collect())
}

fn blocking(setting: &Setting, text: &str) -> Vec<(String, bool)> {
    let explanation = parse(text).explain(&setting.facts());
    explanation.blocking.into_iter().map(|change| (change.text, change.should_be)).collect()
}

fn pairs(expected: &[(&str, bool)]) -> Vec<(String, bool)> {
    expected.iter().map(|(text, should_be)| ((*text).to_owned(), *should_be)).collect()
}

#[test]
fn every_operand_has_its_value_and_its_source() {
    let mut setting = Setting::with(json!({"plan": "pro"}));
    setting.feeds.failed.push("down");
    setting.feeds.not_asked.push("later");
    setting.feeds.values.insert("up".into(), json!({"n": 7}));
    let text = "metadata.plan = \"pro\" and feeds.up.n > 5 and feeds.down.x and feeds.later and system.time >= 9:00 \
        and history.previous_state = \"asked\" and metadata.missing is defined and (1 < 2) = true and 1 is in [1, 9:00]";
    let explanation = parse(text).explain(&setting.facts());
    let operands: Vec<_> = explanation.tree.parts.iter().flat_map(|part| part.operands.clone()).collect();
    let shown: Vec<_> = operands.iter().map(|o| (&*o.text, o.value.clone(), o.source, o.note)).collect();
    assert_eq!(
        shown,
        [
            ("metadata.plan", json!("pro"), Source::Metadata, None),
            ("\"pro\"", json!("pro"), Source::Literal, None),
            ("feeds.up.n", json!(7), Source::Feed, None),
            ("5", json!(5), Source::Literal, None),
            ("feeds.down.x", json!(null), Source::Feed, Some("feed_failed")),
            ("feeds.later", json!(null), Source::Feed, Some("feed_not_asked")),
            ("system.time", json!("18:30"), Source::System, None),
            ("09:00", json!("09:00"), Source::Literal, None),
            ("history.previous_state", json!("asked"), Source::History, None),
            ("\"asked\"", json!("asked"), Source::Literal, None),
            ("metadata.missing", json!(null), Source::Metadata, Some("missing")),
            ("(1 < 2)", json!(true), Source::Tests, None),
            ("true", json!(true), Source::Literal, None),
            ("1", json!(1), Source::Literal, None),
            ("[1, 09:00]", json!([1, "09:00"]), Source::Literal, None),
        ]
    );
    assert_eq!(operands[11].tree.as_ref().unwrap().text, "1 < 2");
    assert_eq!(explanation.truth, False);
}

#[test]
fn the_tree_shows_every_truth_also_of_tests_that_were_not_reached() {
    let explanation =
        parse("false and (1 < 2 or not (1 < \"a\")) and true").explain(&Setting::default().facts());
    let tree = &explanation.tree;
    assert_eq!((tree.shape, tree.truth, tree.reached), (Shape::And, False, true));
    let parts: Vec<_> = tree.parts.iter().map(|part| (part.shape, part.truth, part.reached)).collect();
    assert_eq!(parts, [(Shape::Test, False, true), (Shape::Or, True, false), (Shape::Test, True, false)]);
    let not = &tree.parts[1].parts[1];
    assert_eq!(
        (not.shape, not.truth, not.reached, &*not.text),
        (Shape::Not, Unknown, false, "not (1 < \"a\")")
    );
    assert_eq!(not.parts[0].error.as_deref(), Some("line 1: a number and a string have no order"));
}

#[test]
fn the_tree_as_json() {
    let explanation = parse("not metadata.a and (1 < true)").explain(&Setting::with(json!({"a": 0})).facts());
    assert_eq!(
        explanation.to_json(),
        json!({
            "tree": {"kind": "and", "text": "not metadata.a and (1 < true)", "result": "unknown", "reached": true, "parts": [
                {"kind": "test", "text": "not metadata.a", "result": true, "reached": true,
                 "operands": [{"text": "metadata.a", "value": 0, "source": "metadata"}]},
                {"kind": "test", "text": "1 < true", "result": "unknown", "reached": true,
                 "error": "line 1: a boolean is neither less nor more than anything",
                 "operands": [{"text": "1", "value": 1, "source": "literal"}, {"text": "true", "value": true, "source": "literal"}]},
            ]},
            "blocking": [{"text": "1 < true", "is": "unknown", "should_be": true}],
            "fewest": null,
        })
    );
}

#[test]
fn false_and_unknown_leaves_block() {
    let setting = Setting::with(json!({"yes": true, "no": false}));
    assert_eq!(
        blocking(
            &setting,
            "metadata.yes and metadata.no and metadata.x > 1 and (metadata.no or metadata.yes)"
        ),
        pairs(&[("metadata.no", true), ("metadata.x > 1", true)])
    );
    assert_eq!(
        blocking(&setting, "not metadata.yes and not (metadata.no or metadata.yes)"),
        pairs(&[("metadata.yes", false)])
    );
    assert_eq!(blocking(&setting, "metadata.yes or metadata.no"), []);
}

#[test]
fn the_fewest_changes_are_found() {
    let setting = Setting::with(json!({"yes": true, "no": false}));
    for (text, expected) in [
        ("metadata.yes", Some(&[][..])),
        ("metadata.no", Some(&[("metadata.no", true)])),
        ("not metadata.yes", Some(&[("metadata.yes", false)])),
        ("metadata.a and metadata.b", Some(&[("metadata.a", true), ("metadata.b", true)])),
        ("(metadata.a and metadata.b) or metadata.c", Some(&[("metadata.c", true)])),
        ("metadata.a > 1 or (metadata.b and metadata.yes)", Some(&[("metadata.a > 1", true)])),
        ("not (metadata.yes and metadata.b)", Some(&[])),
        ("not (metadata.yes or metadata.b > 1)", Some(&[("metadata.yes", false), ("metadata.b > 1", false)])),
        // A constant cannot be changed.
        ("1 > 2 or metadata.a", Some(&[("metadata.a", true)])),
        ("1 > 2 and metadata.a", None),
        ("metadata.yes and 1 < \"a\"", None),
    ] {
        assert_eq!(fewest(&setting, text), expected.map(pairs), "{text}");
    }
}

#[test]
fn what_time_and_feeds_change_is_preferred_to_metadata() {
    let setting = Setting::with(json!({"calm": 864000}));
    for (text, expected) in [
        (
            "metadata.abort or metadata.calm has passed since system.entered_state",
            "metadata.calm has passed since system.entered_state",
        ),
        ("metadata.abort or feeds.five.requests >= 100", "feeds.five.requests >= 100"),
        (
            "feeds.five.requests >= 100 or 10d has passed since system.entered_state",
            "10d has passed since system.entered_state",
        ),
        // It will never be known.
        ("metadata.abort or metadata.other has passed since system.entered_state", "metadata.abort"),
    ] {
        assert_eq!(fewest(&setting, text), Some(pairs(&[(expected, true)])), "{text}");
    }
}

#[test]
fn a_leaf_in_two_places_changes_once() {
    let setting = Setting::with(json!({"yes": true}));
    // Apart, (a or b) would take a, and (b or c) would take b.
    assert_eq!(
        fewest(&setting, "(metadata.a or metadata.b) and (metadata.b or metadata.c)"),
        Some(pairs(&[("metadata.b", true)]))
    );
    assert_eq!(fewest(&setting, "metadata.a and not metadata.a"), None);
    assert_eq!(
        fewest(&setting, "(metadata.a or metadata.b) and not metadata.a"),
        Some(pairs(&[("metadata.b", true)]))
    );
    assert_eq!(
        fewest(
            &setting,
            "(metadata.a or (metadata.b and metadata.c and metadata.e)) and (not metadata.a or metadata.d)"
        ),
        Some(pairs(&[("metadata.a", true), ("metadata.d", true)]))
    );
}

#[test]
fn sixty_four_leaves_are_searched_and_no_more() {
    let all = |n: usize| (0..n).map(|n| format!("metadata.x{n}")).collect::<Vec<_>>().join(" and ");
    assert_eq!(fewest(&Setting::default(), &all(64)).unwrap().len(), 64);
    assert_eq!(fewest(&Setting::default(), &all(65)), None);
    assert_eq!(blocking(&Setting::default(), &all(65)).len(), 65);
}

#[test]
fn a_search_that_would_take_too_long_returns_its_result_so_far() {
    // Thirty choices that all meet again.
    let text = (0..30).map(|n| format!("(metadata.a{n} or metadata.b{n})")).collect::<Vec<_>>().join(" and ");
    let text = format!("{text} and (metadata.a0 or metadata.c)");
    assert!(fewest(&Setting::default(), &text).unwrap().len() <= 31);
}
