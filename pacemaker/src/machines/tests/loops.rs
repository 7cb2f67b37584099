//! Labels that go round in a circle.

use serde_json::json;

use super::support::{M, World};
use crate::machines::record::Status;

const CIRCLE: &str = "
state_machines:
  m:
    states:
      - {gate: tick, exit_condition: not metadata.stop, triggers: [{event: entry}, {metadata: stop}], next: tock}
      - {gate: tock, exit_condition: not metadata.stop, triggers: [{event: entry}, {metadata: stop}], next: tick}
";

#[tokio::test]
async fn after_fifty_moves_a_label_pauses_and_then_goes_on() {
    let world = World::new(CIRCLE).await;
    let created = world.create("a", json!({})).await;
    assert_eq!((created.status, created.visit), (Status::Looping, 51));
    let record = world.label("a").await;
    assert_eq!(record.due_ms(), Some(world.now_ms() + 1_000));
    assert_eq!(world.engine.list(M, &[], Some(Status::Looping), None, 10).await.unwrap(), ["a"]);
    // Every move was an event, in order, and the newest twenty are history.
    let events = world.events("signalbox.labels").await;
    assert_eq!(events.len(), 51);
    assert!(events.windows(2).all(|pair| pair[1].prev == Some(pair[0].id)));
    assert_eq!(record.history.len(), 20);
    assert_eq!(record.history.last().unwrap().event, events.last().unwrap().id.0);

    world.time.advance(999);
    world.work_off().await;
    assert_eq!(world.label("a").await.visit, 51, "its second is not over");
    world.time.advance(1);
    world.work_off().await;
    let record = world.label("a").await;
    assert_eq!((record.status, record.visit), (Status::Looping, 101));

    // Facts are taken meanwhile, and end it.
    world.tell("a", json!({"stop": true})).await;
    world.time.advance(1_000);
    world.work_off().await;
    let record = world.label("a").await;
    assert_eq!((record.status, record.visit, record.due_ms()), (Status::Waiting, 101, None));
    assert!(world.engine.list(M, &[], Some(Status::Looping), None, 10).await.unwrap().is_empty());
}
