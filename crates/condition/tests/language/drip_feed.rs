//! The condition that the language was made for: an e-mail goes out when there is something to recommend, the last one
//! was half a day ago, and it is evening.

use jiff::tz::TimeZone;
use serde_json::json;
use signalbox_condition::Truth::{self, False, True, Unknown};

use crate::setting::{Setting, at, parse};

const CONDITION: &str =
    "metadata.has_recommendations and\n12h has passed since system.entered_state and\nsystem.time >= 18:30";

#[test]
fn the_drip_feed_opens_only_when_all_three_hold() {
    let cases: [(serde_json::Value, &str, &str, Truth); 10] = [
        (json!({"has_recommendations": true}), "2026-01-31T06:30:00Z", "2026-01-31T18:30:00Z", True),
        (json!({"has_recommendations": true}), "2026-01-31T06:30:00Z", "2026-01-31T23:59:59Z", True),
        // Each of the three alone keeps it.
        (json!({"has_recommendations": false}), "2026-01-31T06:30:00Z", "2026-01-31T18:30:00Z", False),
        (json!({}), "2026-01-31T06:30:00Z", "2026-01-31T18:30:00Z", False),
        (
            json!({"has_recommendations": true}),
            "2026-01-31T06:30:00.000000001Z",
            "2026-01-31T18:30:00Z",
            False,
        ),
        (json!({"has_recommendations": true}), "2026-01-31T06:00:00Z", "2026-01-31T18:29:59.999Z", False),
        // After midnight it is morning again.
        (json!({"has_recommendations": true}), "2026-01-31T06:00:00Z", "2026-02-01T00:00:00Z", False),
        (json!({"has_recommendations": true}), "2026-01-01T00:00:00Z", "2026-02-01T19:00:00Z", True),
        // The program that pushes the recommendations defines their form.
        (json!({"has_recommendations": ["a"]}), "2026-01-31T06:00:00Z", "2026-01-31T18:30:00Z", True),
        (json!({"has_recommendations": []}), "2026-01-31T06:00:00Z", "2026-01-31T18:30:00Z", False),
    ];
    for (metadata, entered, now, expected) in cases {
        let setting =
            Setting { metadata: metadata.clone(), entered: at(entered), now: at(now), ..Setting::default() };
        assert_eq!(setting.judge(CONDITION), (expected, None), "{metadata} {entered} {now}");
    }
}

#[test]
fn the_evening_is_that_of_the_zone() {
    let mut setting = Setting::with(json!({"has_recommendations": true}));
    setting.now = at("2026-01-31T23:30:00Z");
    for (zone, expected) in [("America/New_York", True), ("Europe/London", True), ("Asia/Tokyo", False)] {
        setting.zone = TimeZone::get(zone).unwrap();
        assert_eq!(setting.truth(CONDITION), expected, "{zone}");
    }
}

#[test]
fn the_drip_feed_reads_three_things() {
    let condition = parse(CONDITION);
    let variables: Vec<&str> = condition.variables().collect();
    assert_eq!(variables, ["metadata.has_recommendations", "system.entered_state", "system.time"]);
    assert!(condition.reads_clock());
    assert_eq!(condition.warnings(), []);
    assert_eq!(Setting::default().truth("metadata.wait has passed since system.entered_state"), Unknown);
}
