//! Intervals and times of day.

use futures_util::{StreamExt as _, stream};
use serde_json::json;

use super::support::{M, World};

const DAILY: &str = "
state_machines:
  m:
    timezone: {metadata: zone, default: UTC}
    states:
      - {gate: waiting, exit_condition: metadata.go, triggers: [{time: 18h30m}, {metadata: nothing}], next: done}
      - {gate: done}
";

const DAY_MS: u64 = 86_400_000;

#[tokio::test]
async fn a_wave_judges_every_label_once_page_by_page() {
    let world = World::new(DAILY).await;
    let creations = (0..250).map(|n| world.create_owned(format!("l{n:03}"), json!({"go": n % 10 == 0})));
    stream::iter(creations).buffer_unordered(32).collect::<Vec<_>>().await;
    let due = world.engine.0.store.next_due(0).await.unwrap().unwrap();
    assert!(due > world.now_ms() && due <= world.now_ms() + DAY_MS);
    world.work_off().await;
    assert_eq!(world.counts().await, [250, 0], "nothing before its time");
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    assert_eq!(world.counts().await, [225, 25]);
    assert_eq!(world.engine.0.store.next_due(0).await.unwrap(), Some(due + DAY_MS));
}

#[tokio::test]
async fn a_wave_that_was_interrupted_goes_on_where_it_was() {
    let world = World::new(DAILY).await;
    for label in ["a", "b", "c"] {
        world.create(label, json!({"go": true})).await;
    }
    let due = world.engine.0.store.next_due(0).await.unwrap().unwrap();
    let member = world.engine.0.store.due(0, due, 1).await.unwrap().remove(0).0;
    // Another pacemaker had judged up to `b` when it died: what it noted is believed.
    world.engine.0.store.set_wave(0, &member, due, "b").await.unwrap();
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    assert_eq!(world.counts().await, [2, 1]);
    assert_eq!(&*world.label("c").await.state, "done");
}

#[tokio::test]
async fn a_label_with_a_zone_of_its_own_waits_for_its_own_evening() {
    let world = World::new(DAILY).await;
    world.create("here", json!({"go": true})).await;
    world.create("tokyo", json!({"go": true, "zone": "Asia/Tokyo"})).await;
    let mut moved = Vec::new();
    for _ in 0..2 {
        let due = world.engine.0.store.next_due(0).await.unwrap().unwrap();
        world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
        world.work_off().await;
        for label in ["here", "tokyo"] {
            if &*world.label(label).await.state == "done" && !moved.contains(&label) {
                moved.push(label);
            }
        }
        assert!(!moved.is_empty());
    }
    assert_eq!(moved.len(), 2, "each in its own wave: {moved:?}");
}

const INTERVAL: &str = "
state_machines:
  m:
    states:
      - {gate: waiting, exit_condition: 10m has passed since system.entered_state, triggers: [{interval: 1m}], next: done}
      - {gate: done}
";

#[tokio::test]
async fn an_interval_looks_when_it_can_first_open() {
    let world = World::new(INTERVAL).await;
    world.create("a", json!({})).await;
    let entered = world.now_ms();
    let due = world.engine.0.store.next_due(0).await.unwrap().unwrap();
    assert_eq!(due, entered + 600_000, "nine looks that cannot succeed are passed over");
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    assert_eq!(&*world.label("a").await.state, "done");
    assert_eq!(world.engine.0.store.next_due(0).await.unwrap(), None);
}

impl World {
    async fn create_owned(&self, label: String, metadata: serde_json::Value) {
        self.create(&label, metadata).await;
    }

    async fn counts(&self) -> Vec<u64> {
        self.engine.0.store.count_states(M, &["waiting", "done"]).await.unwrap()
    }
}
