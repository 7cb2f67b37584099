//! One label: created, updated, moved, deleted; its actions.

use serde_json::json;

use super::support::{M, Receiver, World};
use crate::{
    Error, Update,
    record::{Cause, Status},
};
use signalbox_testkit::eventually;

const TWO_GATES: &str = "
state_machines:
  m:
    states:
      - {gate: asked, exit_condition: metadata.ready, triggers: [{metadata: ready}], next: checked}
      - {gate: checked, exit_condition: metadata.count >= 2, triggers: [{metadata: count}], next: done}
      - {gate: done}
";

#[tokio::test]
async fn updates_move_a_label_and_every_move_is_an_event() {
    let world = World::new(TWO_GATES).await;
    assert_eq!(world.create("a", json!({})).await.state, "asked");
    assert_eq!(world.send_update("a", json!({"count": 5})).await.state, "asked");
    // After a move the same update does not fire the next gate.
    assert_eq!(world.send_update("a", json!({"ready": true, "count": 5})).await.state, "checked");
    let end = world.send_update("a", json!({"count": 2})).await;
    assert_eq!((end.state.as_str(), end.status, end.visit), ("done", Status::Ended, 3));
    let record = world.label("a").await;
    assert_eq!(record.metadata, json!({"count": 2, "ready": true}));
    let rows: Vec<_> =
        record.history.iter().map(|row| (row.visit, row.to.clone().unwrap(), row.cause)).collect();
    assert_eq!(
        rows,
        [
            (1, "asked".into(), Cause::Created),
            (2, "checked".into(), Cause::Metadata),
            (3, "done".into(), Cause::Metadata)
        ]
    );
    // Each row names its event, and the log has them in this order with nothing between.
    let mut window = world.bus.handle.window(0, signalbox_bus::EventId(0));
    let mut events = Vec::new();
    loop {
        let logged = window.next(100).await.unwrap();
        if logged.is_empty() {
            break;
        }
        events.extend(logged.iter().map(|logged| signalbox_bus::Event::from_log(&logged.entry).unwrap()));
    }
    let ids: Vec<u64> = events.iter().map(|event| event.id.0).collect();
    assert_eq!(ids, record.history.iter().map(|row| row.event).collect::<Vec<_>>());
    assert_eq!(events[2].prev, Some(events[1].id));
    assert!(events.iter().all(|event| event.topic == "signalbox.labels" && event.object == "machine:m:a"));
    assert!(!events[2].data.as_ref().unwrap().get().contains("ready"), "never metadata");
}

#[tokio::test]
async fn a_deleted_name_is_reserved_until_it_is_recreated() {
    let world = World::new(TWO_GATES).await;
    let machines = &world.machines;
    world.create("a", json!({"x": {"y": 1}})).await;
    assert!(matches!(machines.labels.create(M, "a", &json!({}), false, None).await, Err(Error::Exists)));
    assert!(matches!(machines.label_store.label(M, "b").await, Err(Error::NoSuchLabel)));
    assert!(matches!(machines.label_store.label("none", "b").await, Err(Error::NoSuchMachine)));
    machines.labels.delete(M, "b").await.unwrap();
    machines.labels.delete(M, "a").await.unwrap();
    machines.labels.delete(M, "a").await.unwrap();
    assert!(matches!(machines.label_store.label(M, "a").await, Err(Error::Gone)));
    let update = Update { metadata: &json!({}), patch: false, key: None };
    assert!(matches!(machines.labels.update(M, "a", &update).await, Err(Error::Gone)));
    assert!(matches!(machines.labels.create(M, "a", &json!({}), false, None).await, Err(Error::Deleted)));
    assert!(machines.label_store.list(M, &["asked"], None, None, 10).await.unwrap().is_empty());
    let tombstone = machines.label_store.label_or_tombstone(M, "a").await.unwrap();
    assert_eq!((tombstone.metadata, tombstone.history.len()), (json!({}), 2));
    assert_eq!(machines.labels.create(M, "a", &json!({}), true, None).await.unwrap().visit, 2);
    assert_eq!(world.label("a").await.incarnation, 2);
    let deep = (0..33).fold(json!({}), |below, _| json!({"a": below}));
    assert!(matches!(machines.labels.create(M, "c", &deep, false, None).await, Err(Error::BadMetadata(_))));
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_answer_and_changes_nothing() {
    let world = World::new(TWO_GATES).await;
    let first = world.machines.labels.create(M, "a", &json!({}), false, Some("k")).await.unwrap();
    let ready = json!({"ready": true});
    let update = Update { metadata: &ready, patch: false, key: Some("k2") };
    let moved = world.machines.labels.update(M, "a", &update).await.unwrap();
    world.send_update("a", json!({"count": 2})).await;
    let again = world.machines.labels.update(M, "a", &update).await.unwrap();
    assert!(again.repeated && !moved.repeated);
    assert_eq!((again.state.as_str(), again.revision), ("checked", moved.revision));
    let again = world.machines.labels.create(M, "a", &json!({}), false, Some("k")).await.unwrap();
    assert_eq!((again.state, again.revision), (first.state, first.revision));
    let other = json!({"ready": false});
    let other = Update { metadata: &other, ..update };
    assert!(matches!(world.machines.labels.update(M, "a", &other).await, Err(Error::Conflict)));
    assert_eq!(&*world.label("a").await.state, "done");
}

fn hooked(url: &str, attempts: u32) -> String {
    format!(
        "
state_machines:
  m:
    states:
      - {{gate: asked, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: send}}
      - {{action: send, webhook: \"{url}\", timeout: 5s, retry: {{attempts: {attempts}, first: 1s, longest: 1s}}, next: sent}}
      - {{gate: sent}}
"
    )
}

#[tokio::test]
async fn attempts_of_an_action_carry_one_token_until_it_is_done() {
    let receiver = Receiver::start(&[500, 302]).await;
    let world = World::new(&hooked(&receiver.url, 20)).await;
    world.create("a", json!({})).await;
    assert_eq!(world.send_update("a", json!({"go": true})).await.status, Status::Acting);
    for attempts in 1..3 {
        eventually("the attempt to fail", async || {
            let record = world.label("a").await;
            let failed = record.work.error.is_some() && receiver.seen().len() == attempts;
            let waits = record.work.again_ms.is_some_and(|again_ms| again_ms <= world.now_ms() + 1_000);
            if failed && waits { Ok(()) } else { Err(format!("{record:?}")) }
        })
        .await;
        world.time.advance(1_001);
        world.work_off().await;
    }
    eventually("the label to arrive", async || {
        let record = world.label("a").await;
        if &*record.state == "sent" { Ok(()) } else { Err(format!("{record:?}")) }
    })
    .await;
    let tokens = receiver.seen();
    assert_eq!(tokens.len(), 3);
    assert!(tokens.iter().all(|token| *token == tokens[0]));
    assert_eq!(world.machines.due.next(0).await.unwrap(), None);
}

#[tokio::test]
async fn a_permanent_failure_ends_an_action_until_a_client_retries_it() {
    let receiver = Receiver::start(&[410]).await;
    let world = World::new(&hooked(&receiver.url, 20)).await;
    world.create("a", json!({"go": false})).await;
    world.send_update("a", json!({"go": true})).await;
    eventually("the label to err", async || {
        let record = world.label("a").await;
        if record.status == Status::Errored { Ok(()) } else { Err(format!("{record:?}")) }
    })
    .await;
    assert_eq!(
        world.machines.label_store.list(M, &[], Some(Status::Errored), None, 10).await.unwrap(),
        ["a"]
    );
    let why = world.machines.inspector.explainer.why(M, "a").await.unwrap();
    assert!(why["stuck"].is_string() && why["last_error"] == "answered 410", "{why}");
    world.machines.labels.retry(M, "a").await.unwrap();
    eventually("the label to arrive", async || {
        let record = world.label("a").await;
        if &*record.state == "sent" { Ok(()) } else { Err(format!("{record:?}")) }
    })
    .await;
    assert!(matches!(world.machines.labels.retry(M, "a").await, Err(Error::NotErrored)));
    let tokens = receiver.seen();
    assert_eq!((tokens.len(), &tokens[0]), (2, &tokens[1]));
}

#[tokio::test]
async fn an_attempt_without_an_outcome_is_repeated_by_another_pacemaker() {
    let receiver = Receiver::start(&[]).await;
    let world = World::new(&hooked(&receiver.url, 20)).await;
    world.create("a", json!({})).await;
    // A pacemaker that dies right after the commit: its background work never runs.
    let dying = world.another();
    dying.stopped.cancel();
    super::support::send_update(&dying, "a", &json!({"go": true})).await;
    assert_eq!(world.label("a").await.work.attempts, 1);
    assert!(receiver.seen().is_empty());
    world.work_off().await;
    assert!(receiver.seen().is_empty(), "it is not due yet");
    world.time.advance(10_001);
    world.work_off().await;
    eventually("the label to arrive", async || {
        let record = world.label("a").await;
        if &*record.state == "sent" { Ok(()) } else { Err(format!("{record:?}")) }
    })
    .await;
    assert_eq!(receiver.seen().len(), 1);
}
