//! Times of day where labels live, across the changes of clocks, by the same simulation that the engine agrees with.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan};
use serde_json::json;
use signalbox_machine::{
    definition::Zone,
    simulate::{Assumed, Simulator, Start, What},
};

use crate::steps::{at, machine};

/// When a label of a zone passes a gate at `time`, day after day.
fn passes(zone: &str, time: &str, from: &str, days: i64) -> Vec<String> {
    let machine = machine(&format!(
        "    timezone: {{metadata: zone, default: UTC}}\n    states:\n      - gate: a\n        exit_condition: system.time >= {time}\n        \
         triggers: [{{time: '{time}'}}]\n        next: b\n      - gate: b\n        exit_condition: 1s has passed since system.entered_state\n        \
         triggers: [{{interval: 1s}}]\n        next: a\n"
    ));
    let start = Start::fresh(&machine, "l", json!({ "zone": zone }), at(from));
    let mut simulator = Simulator::new(&machine, start, &Assumed::default(), at(from));
    simulator.run_until(at(from) + (days * 24).hours());
    let passed = simulator.steps().iter().filter_map(|step| match &step.what {
        What::Moves { to, .. } if to == "b" => Some(step.at.to_string()),
        _ => None,
    });
    passed.collect()
}

#[test]
fn half_past_six_is_there_where_the_label_lives() {
    let from = "2026-03-28T00:00:00Z";
    assert_eq!(passes("Asia/Tokyo", "18:30", from, 2), ["2026-03-28T09:30:00Z", "2026-03-29T09:30:00Z"]);
    assert_eq!(passes("Europe/London", "18:30", from, 2), ["2026-03-28T18:30:00Z", "2026-03-29T17:30:00Z"]);
    assert_eq!(
        passes("America/New_York", "18:30", "2026-03-07T12:00:00Z", 2),
        ["2026-03-07T23:30:00Z", "2026-03-08T22:30:00Z"]
    );
    // An unknown zone is the default.
    assert_eq!(passes("Mars/Olympus", "18:30", from, 1), ["2026-03-28T18:30:00Z"]);
}

#[test]
fn a_time_that_is_skipped_comes_later_and_one_that_is_doubled_comes_once() {
    assert_eq!(
        passes("Europe/London", "01:30", "2026-03-28T12:00:00Z", 2),
        ["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"]
    );
    assert_eq!(
        passes("Europe/London", "01:30", "2026-10-24T12:00:00Z", 2),
        ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    );
    assert_eq!(
        passes("America/New_York", "02:30", "2026-03-07T12:00:00Z", 2),
        ["2026-03-08T07:30:00Z", "2026-03-09T06:30:00Z"]
    );
    assert_eq!(
        passes("America/New_York", "01:30", "2026-10-31T12:00:00Z", 2),
        ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]
    );
}

#[test]
fn system_time_is_that_of_the_time_triggers_where_they_agree() {
    let zones = |triggers: &str| {
        let machine = machine(&format!(
            "    timezone: Europe/London\n    states:\n      - gate: a\n        exit_condition: system.time >= 18:30\n        \
             triggers: [{triggers}]\n        next: b\n      - gate: b\n"
        ));
        machine.initial().gate().unwrap().zone.of(&json!({"home": "Asia/Tokyo"})).zone
    };
    let named = |name: &str| Zone::named(name).unwrap();
    assert_eq!(zones("{time: 18:30}"), named("Europe/London"));
    assert_eq!(zones("{time: 18:30, timezone: Asia/Tokyo}, {interval: 1m}"), named("Asia/Tokyo"));
    assert_eq!(zones("{time: 18:30, timezone: Asia/Tokyo}, {time: 19:30}"), named("Europe/London"));
    assert_eq!(zones("{time: 18:30, timezone: metadata.home}"), named("Asia/Tokyo"));
}

#[test]
fn a_trigger_s_time_is_the_clock_s_time() {
    // The instants of a trigger, read by the clock of the condition, are at or after its time on every day of a year.
    let mut now: Timestamp = at("2026-01-01T00:00:00Z");
    let zones: BTreeMap<&str, Zone> = ["Europe/London", "America/New_York", "Asia/Tokyo"]
        .map(|name| (name, Zone::named(name).unwrap()))
        .into();
    for zone in zones.values() {
        for _ in 0..370 {
            now = signalbox_machine::schedule::Schedule::daily(jiff::civil::time(1, 30, 0, 0))
                .next(zone.rules(), now)
                .unwrap();
            let local = zone.rules().to_datetime(now);
            assert!(local.time() == jiff::civil::time(1, 30, 0, 0) || local.hour() == 2, "{local}");
        }
        now = at("2026-01-01T00:00:00Z");
    }
}
