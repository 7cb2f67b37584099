//! Results of actions, what follows a failure, deadlines, and times in metadata.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::support::{M, Receiver, World};
use crate::{
    Assumptions,
    record::{Cause, Status},
};

fn ordering(url: &str) -> String {
    format!(
        "
state_machines:
  m:
    index: [metadata.order]
    states:
      - action: reserve
        webhook: \"{url}\"
        result: {{metadata.order.id: response.id, metadata.status: status}}
        retry: {{attempts: 2, first: 1s, longest: 1s, except: [409]}}
        on_error: [{{status: 409, next: sold_out}}, {{next: failed, into: metadata.failure}}]
        next: reserved
      - {{gate: reserved, exit_condition: metadata.order.id > 6, triggers: [{{metadata: order.id}}], next: done}}
      - {{gate: done}}
      - {{gate: sold_out}}
      - {{gate: failed}}
"
    )
}

#[tokio::test]
async fn parts_of_an_answer_become_metadata_and_trigger_the_next_gate() {
    let receiver = Receiver::start(&[201]).await;
    let world = World::new(&ordering(&receiver.answers(json!({"id": 7, "secret": 1})))).await;
    world.create("a", json!({"order": {"items": 2}})).await;
    let record = world.until("a", |record| record.status == Status::Ended).await;
    assert_eq!(&*record.state, "done");
    assert_eq!(record.metadata, json!({"order": {"items": 2, "id": 7}, "status": 201}));
}

#[tokio::test]
async fn an_answer_without_the_result_fails_and_leads_to_the_state_of_the_failure() {
    let receiver = Receiver::start(&[]).await;
    let world = World::new(&ordering(&receiver.answers(json!({"other": 7})))).await;
    world.create("a", json!({})).await;
    world.until("a", |record| record.work.error.is_some()).await;
    world.time.advance(1_000);
    world.work_off().await;
    let record = world.until("a", |record| record.status == Status::Ended).await;
    assert_eq!((&*record.state, receiver.seen().len()), ("failed", 2));
    let last = record.history.last().unwrap();
    assert_eq!((last.cause, last.trigger.as_deref()), (Cause::Failed, Some("no_answer")));
    let failure = &record.metadata["failure"];
    assert_eq!((&failure["attempts"], &failure["status"]), (&json!(2), &json!(null)));
    assert!(failure["error"].as_str().unwrap().contains("response.id"), "{failure}");
    // Both attempts had one token.
    assert_eq!(receiver.seen()[0], receiver.seen()[1]);
}

#[tokio::test]
async fn a_status_that_is_not_retried_leads_to_its_own_state() {
    let receiver = Receiver::start(&[409]).await;
    let world = World::new(&ordering(&receiver.answers(json!({})))).await;
    world.create("a", json!({})).await;
    let record = world.until("a", |record| record.status == Status::Ended).await;
    assert_eq!((&*record.state, receiver.seen().len()), ("sold_out", 1));
    assert_eq!(record.history.last().unwrap().trigger.as_deref(), Some("409"));
}

#[tokio::test]
async fn a_result_that_is_too_large_for_the_metadata_fails_the_action() {
    let receiver = Receiver::start(&[]).await;
    let world = World::new(&ordering(&receiver.answers(json!({"id": "x".repeat(40_000)})))).await;
    world.create("a", json!({"much": "y".repeat(30_000)})).await;
    let record = world.until("a", |record| record.status == Status::Ended).await;
    assert_eq!(
        (&*record.state, record.history.last().unwrap().trigger.as_deref()),
        ("failed", Some("invalid"))
    );
    assert_eq!(record.metadata["much"].as_str().map(str::len), Some(30_000));
}

const LIMITED: &str = "
state_machines:
  m:
    states:
      - gate: waiting
        exit_condition: metadata.go
        triggers: [{metadata: go}]
        deadline: {after: 1h, next: timed}
        next: gone
      - gate: timed
        deadline: {at: metadata.due, next: late}
      - gate: late
      - gate: gone
";

#[tokio::test]
async fn a_deadline_moves_a_label_that_waits_too_long() {
    let world = World::new(LIMITED).await;
    world.create("a", json!({})).await;
    world.create("b", json!({})).await;
    world.time.advance(3_599_999);
    world.work_off().await;
    world.send_update("b", json!({"go": true})).await;
    assert_eq!(&*world.label("a").await.state, "waiting");
    world.time.advance(1);
    world.work_off().await;
    let record = world.label("a").await;
    let last = record.history.last().unwrap();
    assert_eq!((&*record.state, last.cause), ("timed", Cause::Deadline));
    assert_eq!(last.trigger.as_deref(), Some("deadline 1h"));
    assert_eq!(&*world.label("b").await.state, "gone");
    // The other deadline is a time in the metadata, and follows it.
    assert_eq!(record.due_ms(), None);
    let soon = crate::instant(world.now_ms() + 5_000).to_string();
    world.send_update("a", json!({"due": soon})).await;
    assert_eq!(world.label("a").await.due_ms(), Some(world.now_ms() + 5_000));
    let later = crate::instant(world.now_ms() + 9_000).to_string();
    world.send_update("a", json!({"due": later})).await;
    world.time.advance(8_999);
    world.work_off().await;
    assert_eq!(&*world.label("a").await.state, "timed");
    world.time.advance(1);
    world.work_off().await;
    assert_eq!((&*world.label("a").await.state, world.label("a").await.due_ms()), ("late", None));
}

#[tokio::test]
async fn a_deadline_ends_an_action_that_is_still_retried() {
    let receiver = Receiver::start(&[500; 9]).await;
    let yaml = format!(
        "
state_machines:
  m:
    states:
      - {{action: act, webhook: \"{}\", retry: {{first: 1h, longest: 1h}}, deadline: {{after: 2s, next: late}}, next: done}}
      - {{gate: late}}
      - {{gate: done}}
",
        receiver.url
    );
    let world = World::new(&yaml).await;
    world.create("a", json!({})).await;
    world.until("a", |record| record.work.error.is_some()).await;
    world.time.advance(2_000);
    world.work_off().await;
    assert_eq!((&*world.label("a").await.state, receiver.seen().len()), ("late", 1));
}

const MOMENT: &str = "
state_machines:
  m:
    states:
      - {gate: first, exit_condition: true, triggers: [{at: metadata.due}], next: second}
      - {gate: second, exit_condition: true, triggers: [{at: metadata.due}], next: done}
      - {gate: done}
";

#[tokio::test]
async fn a_gate_is_evaluated_at_the_time_that_the_metadata_holds() {
    let world = World::new(MOMENT).await;
    let at = |ms| json!({"due": crate::instant(ms).to_string()});
    world.create("a", at(world.now_ms() + 10_000)).await;
    world.time.advance(9_999);
    world.work_off().await;
    assert_eq!(&*world.label("a").await.state, "first");
    // Put off before it is over.
    world.send_update("a", at(world.now_ms() + 2_000)).await;
    world.time.advance(1_999);
    world.work_off().await;
    assert_eq!(&*world.label("a").await.state, "first");
    world.time.advance(1);
    world.work_off().await;
    // The next gate is not held by a time that is over already.
    assert_eq!(&*world.label("a").await.state, "done");
    world.create("b", json!({})).await;
    let moved = world.send_update("b", at(world.now_ms() - 1)).await;
    assert_eq!(moved.state, "done");
    assert!(world.machines.label_store.label(M, "b").await.unwrap().due_ms().is_none());
}

#[tokio::test]
async fn a_simulation_counts_the_attempts_that_failed_and_waits_for_the_next() {
    let receiver = Receiver::start(&[500, 500]).await;
    let world = World::new(&ordering(&receiver.url)).await;
    world.create("a", json!({})).await;
    let waiting = world.until("a", |record| record.work.error.is_some()).await;
    let at_ms = waiting.work.again_ms.unwrap();
    let asking = Assumptions {
        span: Duration::from_secs(60),
        webhooks: BTreeMap::from([("reserve".to_owned(), 500.into())]),
        ..Assumptions::default()
    };
    let said = world.machines.inspector.explainer.simulate(M, "a", asking).await.unwrap();
    world.time.advance(at_ms - world.now_ms());
    world.work_off().await;
    let record = world.until("a", |record| &*record.state == "failed").await;
    assert_eq!(receiver.seen().len(), 2);
    let at = crate::instant(at_ms).to_string();
    assert_eq!(said["steps"][0], json!({"at": at, "attempt": "reserve", "status": 500}), "{said}");
    assert_eq!((&said["steps"][1]["to"], &said["steps"][1]["at"]), (&json!("failed"), &json!(at)), "{said}");
    assert_eq!(said["since"], json!(crate::instant(record.entered_ms).to_string()));
}
