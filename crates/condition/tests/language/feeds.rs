//! Feeds that have failed, and feeds that were not queried yet.

use serde_json::json;
use signalbox_condition::{
    Condition, KnownFeeds, NeedsFeed,
    Truth::{False, True, Unknown},
};

use crate::setting::{Setting, all, parse};

fn failed() -> Setting {
    let mut setting = Setting::default();
    setting.feeds.failed.push("down");
    setting.feeds.values.insert("up".into(), json!({"n": 1}));
    setting
}

#[test]
fn a_value_of_a_failed_feed_is_unknown() {
    all(
        &failed(),
        Unknown,
        &[
            "feeds.down",
            "not feeds.down",
            "feeds.down.x",
            "feeds.down.x = 1",
            "feeds.down.x /= 1",
            "feeds.down = null",
            "feeds.down.x is defined",
            "feeds.down.x is not defined",
            "feeds.down.x < 1",
            "1 is in feeds.down.x",
            "feeds.down.x is in [1]",
            "1h has passed since feeds.down.x",
            "feeds.up.n and feeds.down",
        ],
    );
    all(&failed(), True, &["feeds.up.n = 1 or feeds.down", "feeds.down or feeds.up.n"]);
    all(&failed(), False, &["feeds.down and feeds.up.x"]);
}

#[test]
fn a_feed_is_asked_only_when_the_evaluation_gets_to_it() {
    let mut setting = Setting::with(json!({"a": true}));
    setting.feeds.not_asked.extend(["one", "two"]);
    let needs = |setting: &Setting, text: &str| {
        let condition = parse(text);
        let facts = setting.facts();
        condition.evaluate(&facts).map(|verdict| verdict.truth).map_err(|NeedsFeed(name)| name.to_owned())
    };
    assert_eq!(needs(&setting, "metadata.a or feeds.one"), Ok(True));
    assert_eq!(needs(&setting, "metadata.b and feeds.one"), Ok(False));
    assert_eq!(needs(&setting, "null < (feeds.one)"), Ok(Unknown));
    assert_eq!(needs(&setting, "metadata.a and feeds.two.x > 1 and feeds.one"), Err("two".into()));
    assert_eq!(needs(&setting, "not (feeds.one and metadata.b) or metadata.a"), Err("one".into()));
    setting.feeds.not_asked.retain(|name| *name != "one");
    setting.feeds.values.insert("one".into(), json!(1));
    assert_eq!(needs(&setting, "not (feeds.one and metadata.b) or feeds.two"), Ok(True));
}

#[test]
fn the_feeds_of_a_condition_are_known() {
    let condition = parse("feeds.b.x and (feeds.a = feeds.b.y or not (1 < feeds.c))");
    assert_eq!(condition.feeds().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(!condition.reads_clock());
}

#[test]
fn a_feed_that_does_not_exist_is_refused_where_the_feeds_are_known() {
    let known = KnownFeeds::Only(&["split_tests", "extra"]);
    assert!(Condition::parse("feeds.extra and feeds.split_tests.x", known).is_ok());
    let error = Condition::parse("feeds.split_test.x", known).unwrap_err();
    assert_eq!(
        (&*error.message, error.hint.as_deref()),
        ("unknown feed `split_test`", Some("did you mean `feeds.split_tests`?"))
    );
    let error = Condition::parse("feeds.other", known).unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("the feeds are split_tests, extra"));
    let error = Condition::parse("feeds.other", KnownFeeds::Only(&[])).unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("the state machine has no feeds"));
}

#[test]
fn metadata_paths_are_known_as_keys() {
    let condition = parse("metadata.a.\"b c\" and (metadata.a.0 or metadata) and metadata.a.\"b c\" > 1");
    let paths: Vec<Vec<&str>> =
        condition.metadata_paths().map(|path| path.iter().map(|key| &**key).collect()).collect();
    assert_eq!(paths, [vec![], vec!["a", "0"], vec!["a", "b c"]]);
    assert_eq!(condition.variables().collect::<Vec<_>>(), ["metadata", "metadata.a.\"b c\"", "metadata.a.0"]);
}

#[test]
fn the_clock_is_read_by_its_paths_and_by_passed_since() {
    for text in [
        "system.time > 9:00",
        "system.date = \"x\"",
        "system.now > \"x\"",
        "(not (system.weekday = \"monday\"))",
        "1h has passed since metadata.x",
    ] {
        assert!(parse(text).reads_clock(), "{text}");
    }
    for text in ["system.entered_state > metadata.x", "system.label = \"x\"", "1h = metadata.x"] {
        assert!(!parse(text).reads_clock(), "{text}");
    }
}
