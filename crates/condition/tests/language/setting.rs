//! A label at a gate, with the facts that the tests use.

use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value as Json, json};
use signalbox_condition::{Condition, Error, Facts, Feed, Feeds, KnownFeeds, Truth, Visit};

/// Feeds of which some have failed and some were not asked.
#[derive(Debug, Default, Clone)]
pub(crate) struct TestFeeds {
    pub(crate) values: Map<String, Json>,
    pub(crate) failed: Vec<&'static str>,
    pub(crate) not_asked: Vec<&'static str>,
}

impl Feeds for TestFeeds {
    fn feed(&self, name: &str) -> Feed<'_> {
        if self.failed.contains(&name) {
            Feed::Failed
        } else if self.not_asked.contains(&name) {
            Feed::NotAsked
        } else {
            self.values.feed(name)
        }
    }
}

/// Facts that own what they are made of.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) metadata: Json,
    pub(crate) feeds: TestFeeds,
    pub(crate) entered: Timestamp,
    pub(crate) now: Timestamp,
    pub(crate) zone: TimeZone,
    pub(crate) previous: Option<&'static str>,
}

impl Default for Setting {
    /// A Saturday evening, twelve hours and a half after the label entered.
    fn default() -> Self {
        Self {
            metadata: json!({}),
            feeds: TestFeeds::default(),
            entered: at("2026-01-31T06:00:00Z"),
            now: at("2026-01-31T18:30:00Z"),
            zone: TimeZone::UTC,
            previous: Some("asked"),
        }
    }
}

impl Setting {
    pub(crate) fn with(metadata: Json) -> Self {
        Self { metadata, ..Self::default() }
    }

    pub(crate) fn facts(&self) -> Facts<'_> {
        let visit = Visit {
            entered: self.entered,
            previous_state: self.previous,
            state_machine: Some("drip"),
            label: Some("88625"),
        };
        Facts::new(&self.metadata, &self.feeds, visit, self.now, &self.zone)
    }

    /// The truth and the recorded error of a condition that must be in order.
    pub(crate) fn judge(&self, text: &str) -> (Truth, Option<String>) {
        let condition = parse(text);
        let facts = self.facts();
        let verdict = condition.evaluate(&facts).unwrap_or_else(|needs| panic!("{text}: {needs}"));
        (verdict.truth, condition.error_of(&verdict))
    }

    pub(crate) fn truth(&self, text: &str) -> Truth {
        self.judge(text).0
    }
}

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub(crate) fn parse(text: &str) -> Condition {
    Condition::parse(text, KnownFeeds::Any).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

pub(crate) fn refused(text: &str) -> Error {
    match Condition::parse(text, KnownFeeds::Any) {
        Err(error) => error,
        Ok(condition) => panic!("{text} was read as {condition}"),
    }
}

/// Each of the conditions holds.
pub(crate) fn all_hold(setting: &Setting, texts: &[&str]) {
    all(setting, Truth::True, texts);
}

/// Each of the conditions has this value, without an error.
pub(crate) fn all(setting: &Setting, truth: Truth, texts: &[&str]) {
    for text in texts {
        assert_eq!(setting.judge(text), (truth, None), "{text}");
    }
}

/// Each of the conditions is unknown, with this error.
pub(crate) fn all_fail(setting: &Setting, message: &str, texts: &[&str]) {
    for text in texts {
        let (truth, error) = setting.judge(text);
        assert_eq!(truth, Truth::Unknown, "{text}");
        assert!(
            error.as_ref().is_some_and(|error| error.contains(message)),
            "{text}: {error:?} is not {message:?}"
        );
    }
}
