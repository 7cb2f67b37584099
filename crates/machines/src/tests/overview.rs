//! Overviews for the dashboard: labels by name, what is due next, the health of feeds.

use serde_json::json;

use super::support::{Feeder, M, Say, World};
use crate::Waking;

const EVENING: &str = "
state_machines:
  m:
    timezone: {metadata: zone, default: UTC}
    states:
      - gate: waiting
        exit_condition: metadata.go or 365d has passed since system.entered_state
        triggers: [{time: 18h30m}, {interval: 30d}]
        next: done
      - {gate: done}
";

#[tokio::test]
async fn upcoming_sweeps_show_their_gate_and_number_of_labels() {
    let world = World::new(EVENING).await;
    for (label, zone) in [("a", "UTC"), ("b", "UTC"), ("c", "Asia/Tokyo")] {
        world.create(label, json!({"zone": zone})).await;
    }
    let wakes = world.machines.inspector.overview.wakes(M).await.unwrap();
    assert!(wakes.is_sorted_by_key(|wake| wake.at_ms), "{wakes:?}");
    let mut labels = Vec::new();
    let mut gates = Vec::new();
    for wake in wakes {
        match wake.what {
            Waking::Label(label) => labels.push(label),
            Waking::Gate { gate, time, zone, labels } => gates.push((zone, gate, time, labels)),
        }
    }
    labels.sort();
    gates.sort();
    assert_eq!(labels, ["a", "b", "c"], "each has a separate interval");
    let gate = |zone: &str, labels| (zone.to_owned(), "waiting".to_owned(), "18:30:00".to_owned(), labels);
    assert!(gates.contains(&gate("Asia/Tokyo", 1)), "{gates:?}");
    assert!(gates.iter().any(|(zone, _, _, labels)| zone == "UTC" && (2..=3).contains(labels)), "{gates:?}");
    assert!(gates.iter().all(|(_, of, time, _)| of == "waiting" && time == "18:30:00"), "{gates:?}");
    assert_eq!(world.machines.inspector.overview.wakes("another").await.unwrap(), []);
}

#[tokio::test]
async fn records_are_ordered_by_name_and_omit_deleted_labels() {
    let world = World::new(EVENING).await;
    for label in ["b", "a", "c"] {
        world.create(label, json!({})).await;
    }
    world.machines.labels.delete(M, "b").await.unwrap();
    let names = ["c", "b", "a", "never"].map(str::to_owned).to_vec();
    let found = world.machines.label_store.records(M, names).await.unwrap();
    assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
}

#[tokio::test]
async fn a_feed_is_reported_as_failing_until_it_answers() {
    let feeder = Feeder::start(&[Say::Status(500), Say::Json(json!({"value": 9}))]).await;
    let definition = format!(
        "
state_machines:
  m:
    feeds: [{{name: load, url: \"{}/<label>\"}}]
    states:
      - {{gate: busy, exit_condition: feeds.load.value < 5, triggers: [{{metadata: look}}, {{interval: 30d}}], next: done}}
      - {{gate: done}}
",
        feeder.url
    );
    let world = World::new(&definition).await;
    world.create("a", json!({})).await;
    assert!(world.machines.inspector.overview.feed_health(M).is_empty(), "it was not asked yet");
    world.machines.inspector.explainer.why(M, "a").await.unwrap();
    let health = world.machines.inspector.overview.feed_health(M).remove("load").unwrap();
    assert_eq!((health.answered, health.failed, health.failing), (0, 1, 1));
    assert!(health.why.is_some_and(|why| why.contains("500")) && health.last_failure.is_some());
    let revision = world.send_update("a", json!({"look": 1})).await.revision;
    world.until("a", |record| record.revision > revision && record.work.held.is_none()).await;
    let health = world.machines.inspector.overview.feed_health(M).remove("load").unwrap();
    assert_eq!((health.answered, health.failed, health.failing), (1, 1, 0));
    assert!(health.last_answer.is_some());
}
