//! Why labels stay.

use serde_json::json;
use signalbox_machine::{
    step::{Known, Label, Status},
    why::why,
};

use crate::steps::{at, machine};

#[test]
fn a_waiting_label_is_explained_with_its_blockers_and_times() {
    let machine = machine(
        "    timezone: {metadata: zone, default: Europe/London}\n    states:\n      - gate: a\n        exit_condition: |\n          \
         metadata.has_recommendations and\n          12h has passed since system.entered_state and\n          system.time >= 18:30\n        \
         triggers: [{time: 18:30}]\n        next: b\n      - gate: b\n",
    );
    let metadata = json!({"zone": "Mars/Olympus"});
    let mut label = Label {
        name: "88625",
        state: machine.initial().index(),
        status: Status::Waiting,
        metadata: &metadata,
        entered: at("2026-01-31T10:00:00Z"),
        previous_state: None,
        facts_waiting: false,
        topics_waiting: &[],
    };
    let now = at("2026-01-31T18:45:00Z");
    let said = why(&machine, &label, &Known::nothing(&machine), now, None).unwrap().to_json();
    assert_eq!(said["result"], json!(false));
    let blocking: Vec<&str> =
        said["blocking"].as_array().unwrap().iter().map(|leaf| leaf["text"].as_str().unwrap()).collect();
    assert_eq!(blocking, ["metadata.has_recommendations", "12h has passed since system.entered_state"]);
    assert_eq!(said["fewest"].as_array().unwrap().len(), 2);
    // Without the update, time alone opens nothing; the gate is evaluated anyway.
    assert_eq!(said["earliest"], json!(null));
    assert_eq!(
        said["next"],
        json!({"at": "2026-02-01T18:30:00.000Z", "trigger": "time 18:30 metadata.zone"})
    );
    assert_eq!(
        (&said["timezone"], &said["timezone_instead_of"]),
        (&json!("Europe/London"), &json!("Mars/Olympus"))
    );
    assert_eq!(said["stuck"], json!(null));

    let metadata = json!({"has_recommendations": true});
    label.metadata = &metadata;
    let said = why(&machine, &label, &Known::nothing(&machine), now, None).unwrap();
    // The condition is true at 22:00, and evaluated at half past six.
    assert_eq!(said.to_json()["earliest"], json!("2026-02-01T18:30:00.000Z"));
}

#[test]
fn a_label_without_further_evaluations_is_reported_as_stuck() {
    let machine = machine(
        "    states:\n      - {gate: a, exit_condition: metadata.a, triggers: [{metadata: a}], next: b}\n      - gate: b\n",
    );
    let metadata = json!({});
    let label = Label {
        name: "l",
        state: machine.initial().index(),
        status: Status::Waiting,
        metadata: &metadata,
        entered: at("2026-01-31T10:00:00Z"),
        previous_state: None,
        facts_waiting: false,
        topics_waiting: &[],
    };
    let feeds = Known::nothing(&machine);
    let said = why(&machine, &label, &feeds, at("2026-01-31T18:45:00Z"), None).unwrap();
    assert!(said.is_stuck());
    assert_eq!(said.triggers, ["metadata.a"]);
    assert!(said.to_json()["waits_for"].is_string() && said.to_json()["stuck"].is_null());
    let ended = Label { state: machine.state("b").unwrap().index(), ..label };
    assert!(why(&machine, &ended, &feeds, at("2026-01-31T18:45:00Z"), None).is_none());
}

#[test]
fn a_gate_that_waits_for_a_failed_feed_could_open_at_the_next_request_to_the_feed() {
    let machine = machine(
        "    feeds: [{name: load, url: 'http://h/'}]\n    states:\n      - gate: a\n        exit_condition: feeds.load < 5 and metadata.go\n        \
         triggers: [{interval: 1h}]\n        next: b\n      - gate: b\n",
    );
    let metadata = json!({"go": true});
    let label = Label {
        name: "l",
        state: machine.initial().index(),
        status: Status::Waiting,
        metadata: &metadata,
        entered: at("2026-01-31T10:00:00Z"),
        previous_state: None,
        facts_waiting: false,
        topics_waiting: &[],
    };
    let now = at("2026-01-31T10:15:00Z");
    let mut feeds = Known::nothing(&machine);
    feeds.learn("load", None);
    let said = |feeds: &Known<'_>, label: &Label<'_>, again: Option<&str>| {
        let said = why(&machine, label, feeds, now, again.map(at)).unwrap().to_json();
        assert_eq!(said["stuck"], json!(null), "{said}");
        (said["earliest"].clone(), said["next"].clone())
    };
    let hour = (
        json!("2026-01-31T11:00:00.000Z"),
        json!({"at": "2026-01-31T11:00:00.000Z", "trigger": "interval 1h"}),
    );
    assert_eq!(said(&feeds, &label, None), hour, "it failed for the explanation only");
    let again = Some("2026-01-31T10:15:02Z");
    let next = json!({"at": "2026-01-31T10:15:02.000Z", "trigger": "feed"});
    assert_eq!(said(&feeds, &label, again), (json!("2026-01-31T10:15:02.000Z"), next));
    feeds.learn("load", Some(json!(9)));
    assert_eq!(said(&feeds, &label, None), hour, "its answer may differ then");
    feeds.learn("load", Some(json!(1)));
    assert_eq!(said(&feeds, &label, None), hour, "it is true, and evaluated then");
    // While only facts can help the interval rests; any fact that helps wakes it.
    let metadata = json!({"go": false});
    let label = Label { metadata: &metadata, ..label };
    assert_eq!(said(&feeds, &label, None), (json!(null), json!(null)));
    let label = Label { status: Status::Looping, ..label };
    assert_eq!(said(&feeds, &label, again).1["trigger"], json!("looping"));
}
