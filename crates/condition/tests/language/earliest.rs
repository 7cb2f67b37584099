//! When time alone opens a gate, in zones and across their jumps.

use jiff::{SignedDuration, tz::TimeZone};
use serde_json::json;
use signalbox_condition::{Earliest, Truth};

use crate::setting::{Setting, at, parse};

fn earliest(setting: &Setting, text: &str) -> Earliest {
    parse(text).earliest(&setting.facts())
}

#[track_caller]
fn opens(setting: &Setting, text: &str, when: &str) {
    assert_eq!(earliest(setting, text), Earliest::At(at(when)), "{text}");
    // Verified: true then, and not a moment before.
    let mut setting = setting.clone();
    setting.now = at(when);
    assert_eq!(setting.truth(text), Truth::True, "{text} at {when}");
    setting.now = at(when) - SignedDuration::from_nanos(1);
    assert_ne!(setting.truth(text), Truth::True, "{text} before {when}");
}

#[test]
fn a_wait_ends_when_it_has_passed() {
    let setting = Setting::with(json!({"wait": 100, "paid": "2026-03-01T00:00:00Z", "half": 50_000.5}));
    opens(&setting, "13h has passed since system.entered_state", "2026-01-31T19:00:00Z");
    opens(&setting, "(metadata.wait) has passed since (metadata.paid)", "2026-03-01T00:01:40Z");
    opens(&setting, "metadata.half has passed since system.entered_state", "2026-01-31T19:53:20.5Z");
    assert_eq!(earliest(&setting, "12h has passed since system.entered_state"), Earliest::Now);
    assert_eq!(earliest(&setting, "12h has not passed since system.entered_state"), Earliest::Never);
    assert_eq!(earliest(&setting, "13h has not passed since system.entered_state"), Earliest::Now);
    assert_eq!(earliest(&setting, "metadata.missing has passed since system.entered_state"), Earliest::Never);
    assert_eq!(earliest(&setting, "1e300 has passed since system.entered_state"), Earliest::Never);
}

#[test]
fn facts_alone_never_change_by_time() {
    let setting = Setting::with(json!({"yes": true}));
    assert_eq!(earliest(&setting, "metadata.yes"), Earliest::Now);
    assert_eq!(earliest(&setting, "metadata.no"), Earliest::Never);
    assert_eq!(earliest(&setting, "metadata.no and system.time > 9:00"), Earliest::Never);
    assert_eq!(
        earliest(&setting, "metadata.no or 13h has passed since system.entered_state"),
        Earliest::At(at("2026-01-31T19:00:00Z"))
    );
}

#[test]
fn a_time_of_day_comes_today_or_tomorrow() {
    let mut setting = Setting::with(json!({"open": "20:15"}));
    opens(&setting, "system.time >= 19:00", "2026-01-31T19:00:00Z");
    opens(&setting, "system.time > 19:00", "2026-01-31T19:00:01Z");
    opens(&setting, "19:00:30 = system.time", "2026-01-31T19:00:30Z");
    opens(&setting, "system.time < 12:00", "2026-02-01T00:00:00Z");
    opens(&setting, "metadata.open <= (system.time)", "2026-01-31T20:15:00Z");
    opens(&setting, "system.time is in [6:00, \"19:30\"]", "2026-01-31T19:30:00Z");
    opens(&setting, "not system.time >= 18:00", "2026-02-01T00:00:00Z");
    setting.now = at("2026-01-31T18:29:59.5Z");
    opens(&setting, "system.time >= 18:30", "2026-01-31T18:30:00Z");
}

#[test]
fn a_long_wait_and_an_evening_are_found_together() {
    let setting = Setting::with(json!({"ready": true}));
    opens(
        &setting,
        "metadata.ready and 60d has passed since system.entered_state and system.time >= 18:30",
        "2026-04-01T18:30:00Z",
    );
    opens(
        &setting,
        "12h31m has passed since system.entered_state and system.time >= 18:30",
        "2026-01-31T18:31:00Z",
    );
}

#[test]
fn a_weekday_and_a_date_come() {
    let setting = Setting::default();
    opens(&setting, "system.weekday = \"wednesday\" and system.time >= 9:00", "2026-02-04T09:00:00Z");
    opens(&setting, "system.date >= \"2026-02-10\"", "2026-02-10T00:00:00Z");
    opens(&setting, "\"-02-\" is in system.date", "2026-02-01T00:00:00Z");
    // Beyond the searched period: not before.
    assert_eq!(
        earliest(&setting, "system.date = \"2027-02-10\""),
        Earliest::NotBefore(at("2026-03-12T00:00:00Z"))
    );
    assert_eq!(
        earliest(&setting, "system.weekday = \"caturday\""),
        Earliest::NotBefore(at("2026-02-09T00:00:00Z"))
    );
}

#[test]
fn now_can_be_compared_with_an_instant() {
    let setting = Setting::with(json!({"launch": "2026-05-01T12:00:00+02:00"}));
    opens(&setting, "system.now >= metadata.launch", "2026-05-01T10:00:00Z");
    opens(&setting, "metadata.launch < system.now", "2026-05-01T10:00:00.000000001Z");
    opens(&setting, "system.now is in [\"2026-05-01T10:00:00Z\"]", "2026-05-01T10:00:00Z");
    assert_eq!(earliest(&setting, "system.now > \"never\""), Earliest::Never);
}

#[test]
fn the_future_value_of_a_feed_is_unknown() {
    let mut setting = Setting::default();
    setting.feeds.values.insert("f".into(), json!(false));
    assert_eq!(earliest(&setting, "feeds.f"), Earliest::Now);
    assert_eq!(
        earliest(&setting, "feeds.f and 13h has passed since system.entered_state"),
        Earliest::At(at("2026-01-31T19:00:00Z"))
    );
    assert_eq!(earliest(&setting, "feeds.f and metadata.no"), Earliest::Never);
    setting.feeds.not_asked.push("f");
    assert_eq!(
        earliest(&setting, "not (1 < feeds.f) and system.time >= 19:00"),
        Earliest::At(at("2026-01-31T19:00:00Z"))
    );
}

#[test]
fn a_time_that_the_zone_jumps_over_opens_at_the_jump() {
    // London, 29 March 2026: 01:00 is followed by 02:00.
    let mut setting = Setting { zone: TimeZone::get("Europe/London").unwrap(), ..Setting::default() };
    setting.now = at("2026-03-29T00:30:00Z");
    opens(&setting, "system.time >= 01:30", "2026-03-29T01:00:00Z");
    // 01:30 itself comes only on the day after.
    opens(&setting, "system.time = 01:30", "2026-03-30T00:30:00Z");
}

#[test]
fn a_time_that_comes_twice_opens_at_its_first() {
    // London, 25 October 2026: 02:00 is followed by 01:00.
    let mut setting = Setting { zone: TimeZone::get("Europe/London").unwrap(), ..Setting::default() };
    setting.now = at("2026-10-24T23:30:00Z");
    opens(&setting, "system.time >= 01:30", "2026-10-25T00:30:00Z");
    setting.now = at("2026-10-25T00:45:00Z");
    opens(&setting, "system.time = 01:30", "2026-10-25T01:30:00Z");
    // Set back, the clock shows a quarter past one again.
    opens(&setting, "system.time < 01:30", "2026-10-25T01:00:00Z");
}

#[test]
fn midnight_is_that_of_the_zone() {
    let setting = Setting { zone: TimeZone::get("Asia/Tokyo").unwrap(), ..Setting::default() };
    opens(&setting, "system.date = \"2026-02-02\"", "2026-02-01T15:00:00Z");
    opens(&setting, "system.weekday = \"monday\"", "2026-02-01T15:00:00Z");
}

#[test]
fn the_latest_representable_time_is_handled() {
    let mut setting = Setting { now: jiff::Timestamp::MAX, ..Setting::default() };
    assert_eq!(earliest(&setting, "1d has passed since system.now and system.time < 12:00"), Earliest::Never);
    earliest(&setting, "system.date = \"x\" or system.weekday = \"y\"");
    setting.now = jiff::Timestamp::MIN;
    earliest(&setting, "system.date = \"x\" or system.time = 12:00:01");
}

#[test]
fn hundreds_of_turns_are_not_all_judged() {
    let with = |count: i64| {
        let times: Vec<String> = (0..count).map(|n| format!("{:02}:{:02}:00", n / 60, n % 60)).collect();
        let moments = (0..count).map(|n| at("2026-02-01T00:00:00Z") + SignedDuration::from_secs(n));
        let moments: Vec<String> = moments.map(|at| at.to_string()).collect();
        Setting::with(json!({"times": times, "moments": moments}))
    };
    let setting = with(90);
    let text = "system.time is in metadata.times and system.weekday = \"none\"";
    let Earliest::NotBefore(moment) = earliest(&setting, text) else { panic!("all were judged") };
    assert!(moment > setting.now && moment < at("2026-02-05T00:00:00Z"), "{moment}");
    // Of a list with too many times, none is judged.
    let setting = with(700);
    for text in [text, "system.now is in metadata.moments and metadata.no"] {
        assert_eq!(earliest(&setting, text), Earliest::NotBefore(setting.now), "{text}");
    }
}
