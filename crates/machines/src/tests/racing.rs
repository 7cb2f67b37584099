//! Two pacemakers on one label.

use futures_util::future::join_all;
use serde_json::json;

use super::support::{World, send_update};

const COUNTING: &str = "
state_machines:
  m:
    states:
      - {gate: even, exit_condition: metadata.odd, triggers: [{metadata: odd}], next: odd}
      - {gate: odd, exit_condition: not metadata.odd, triggers: [{metadata: odd}], next: even}
";

#[tokio::test]
async fn concurrent_updates_by_two_pacemakers_are_each_written_once() {
    let world = World::new(COUNTING).await;
    world.create("a", json!({"odd": false})).await;
    let other = world.another();
    let tells = (0..60).map(|n| {
        let machines = if n % 2 == 0 { &world.machines } else { &other };
        let key = format!("k{n}");
        async move { send_update(machines, "a", &json!({"odd": n % 3 == 0, key: n})).await }
    });
    join_all(tells).await;
    let record = world.label("a").await;
    assert_eq!(record.revision, 61, "each of them was written once");
    for n in 0..60 {
        assert_eq!(record.metadata[format!("k{n}")], json!(n));
    }
    // History has no gap: visits follow each other, and each row begins where the one before ended.
    assert_eq!(record.history.last().unwrap().visit, record.visit);
    for pair in record.history.windows(2) {
        assert_eq!(pair[1].visit, pair[0].visit + 1);
        assert_eq!(pair[1].from, pair[0].to);
        assert!(pair[1].event > pair[0].event);
    }
}
