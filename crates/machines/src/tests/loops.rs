//! Labels that move in a loop.

use serde_json::json;

use super::support::{Feeder, M, Say, World};
use crate::{Assumptions, record::Status};

const CIRCLE: &str = "
state_machines:
  m:
    states:
      - {gate: tick, exit_condition: not metadata.stop, triggers: [{event: entry}, {metadata: stop}], next: tock}
      - {gate: tock, exit_condition: not metadata.stop, triggers: [{event: entry}, {metadata: stop}], next: tick}
";

#[tokio::test]
async fn a_label_pauses_after_fifty_moves_and_then_continues() {
    let world = World::new(CIRCLE).await;
    let created = world.create("a", json!({})).await;
    assert_eq!((created.status, created.visit), (Status::Looping, 51));
    let record = world.label("a").await;
    assert_eq!(record.due_ms(), Some(world.now_ms() + 1_000));
    assert_eq!(
        world.machines.label_store.list(M, &[], Some(Status::Looping), None, 10).await.unwrap(),
        ["a"]
    );
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

    // Updates are accepted during the pause, and end the loop.
    world.send_update("a", json!({"stop": true})).await;
    world.time.advance(1_000);
    world.work_off().await;
    let record = world.label("a").await;
    assert_eq!((record.status, record.visit, record.due_ms()), (Status::Waiting, 101, None));
    assert!(
        world.machines.label_store.list(M, &[], Some(Status::Looping), None, 10).await.unwrap().is_empty()
    );
}

/// Two actions that are done immediately, and a gate with a feed between them.
fn actions(feed: &str) -> String {
    format!(
        "
state_machines:
  m:
    feeds: [{{name: f, url: \"{feed}/<label>\"}}]
    states:
      - {{action: send_update, publish: {{topic: updated, url: 'https://shop.test/<label>'}}, next: tock}}
      - {{gate: tock, exit_condition: feeds.f.go, triggers: [{{event: entry}}, {{interval: 1h}}], next: again}}
      - {{action: again, publish: {{topic: updated, url: 'https://shop.test/<label>'}}, next: send_update}}
"
    )
}

#[tokio::test]
async fn a_loop_of_actions_pauses_as_well() {
    let feeder = Feeder::start(&[Say::Json(json!({"go": true}))]).await;
    let world = World::new(&actions(&feeder.url)).await;
    let until = jiff::Timestamp::from_millisecond(i64::try_from(world.now_ms() + 2_000).unwrap()).unwrap();
    world.create("a", json!({})).await;
    let record = world.until("a", |record| record.status == Status::Looping).await;
    assert_eq!((record.visit, record.due_ms()), (51, Some(world.now_ms() + 1_000)));
    let why = world.machines.inspector.explainer.why(M, "a").await.unwrap();
    assert_eq!(why["reason"], "it moved fifty times in a row and continues a second later", "{why}");
    let asking = Assumptions {
        until: Some(until),
        feeds: [("f".to_owned(), Some(json!({"go": true})))].into(),
        ..Assumptions::default()
    };
    let simulated = world.machines.inspector.explainer.simulate(M, "a", asking).await.unwrap();
    let moves = simulated["steps"].as_array().unwrap().iter().filter(|step| step["to"].is_string()).count();
    assert_eq!((moves, &simulated["status"]), (100, &json!("looping")), "{simulated}");
    // Facts wait for a gate, also in front of an action that pauses.
    world.send_update("a", json!({"x": 1})).await;
    for visit in [101, 151] {
        world.time.advance(1_000);
        world.work_off().await;
        let record = world.until("a", |record| record.visit == visit).await;
        assert_eq!(record.status, Status::Looping);
    }
    // A state that is no longer an action is not performed.
    let gates = actions(&feeder.url).replace(
        "action: again, publish: {topic: updated, url: 'https://shop.test/<label>'}",
        "gate: again, exit_condition: metadata.x, triggers: [{metadata: x}]",
    );
    let gates = gates.replace(
        "action: send_update, publish: {topic: updated, url: 'https://shop.test/<label>'}",
        "gate: send_update, exit_condition: metadata.x, triggers: [{metadata: x}]",
    );
    let state = world.label("a").await.state;
    world.apply(&gates, 1).await;
    let record = world.until("a", |record| record.status == Status::Waiting).await;
    assert_eq!((&record.state, record.visit, record.due_ms()), (&state, 151, None));
}

#[tokio::test]
async fn a_loop_through_a_deadline_that_has_passed_pauses_after_fifty_moves() {
    let receiver = super::support::Receiver::start(&[]).await;
    let world = World::new(&format!(
        "
state_machines:
  m:
    states:
      - {{gate: sent, exit_condition: metadata.paid, triggers: [{{metadata: paid}}], next: done, deadline: {{at: metadata.due, next: remind}}}}
      - {{action: remind, webhook: \"{}\", next: sent}}
      - {{gate: done}}
",
        receiver.url
    ))
    .await;
    world.create("a", json!({"due": world.now_ms() / 1_000 - 60})).await;
    let record = world.until("a", |record| record.status == Status::Looping).await;
    assert_eq!(record.due_ms(), Some(world.now_ms() + 1_000));
    let calls = receiver.seen().len();
    assert!((20..=50).contains(&calls), "{calls}");
    world.work_off().await;
    assert_eq!(receiver.seen().len(), calls, "it pauses");
}

#[tokio::test]
async fn a_time_that_cannot_be_read_is_reported() {
    let world = World::new(
        "
state_machines:
  m:
    states:
      - {gate: sent, exit_condition: metadata.paid, triggers: [{metadata: paid}], next: done, deadline: {at: metadata.due, next: done}}
      - {gate: done}
",
    )
    .await;
    world.create("a", json!({"due": "2026-11-24 12:00"})).await;
    let error = world.label("a").await.work.error.unwrap();
    assert!(error.contains("metadata.due"), "{error}");
    world.send_update("a", json!({"due": "2099-11-24T12:00:00Z"})).await;
    let record = world.label("a").await;
    assert_eq!(record.work.error, None);
    assert!(record.work.deadline_ms.is_some());
}
