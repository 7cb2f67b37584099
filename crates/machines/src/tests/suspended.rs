//! Suspended labels: what happens in the meantime takes effect when they are resumed.

use serde_json::json;
use signalbox_testkit::eventually;
use tokio::sync::Semaphore;

use super::{
    faults::quiet,
    support::{M, Receiver, World},
};
use crate::{
    Error, Operation,
    record::{Cause, Record, Status},
};

async fn operate(world: &World, label: &str, operation: Operation) -> Result<String, Error> {
    let operated = world.machines.labels.by("ada").operate(M, label, &operation).await?;
    Ok(operated.answer.map_or_else(String::new, |answer| answer.state))
}

/// Two actions with gates between them that open on entry; the failure of the first action leads to `failed`.
fn chain(url: &str) -> String {
    format!(
        "
state_machines:
  m:
    states:
      - {{action: first, webhook: \"{url}\", retry: {{attempts: 1}}, on_error: [{{next: failed}}], next: between}}
      - {{gate: between, exit_condition: \"true\", triggers: [{{event: entry}}], next: second}}
      - {{action: second, webhook: \"{url}\", next: over}}
      - {{gate: over}}
      - {{gate: failed, exit_condition: \"true\", triggers: [{{event: entry}}], next: second}}
"
    )
}

/// The states of a label's history.
fn path(record: &Record) -> Vec<&str> {
    record.history.iter().map(|row| row.to.as_deref().unwrap_or_default()).collect()
}

#[tokio::test]
async fn the_outcome_of_an_attempt_moves_a_suspended_label_when_it_is_resumed() {
    for (answer, next) in [(200, "between"), (422, "failed")] {
        let receiver = Receiver::start(&[answer]).await;
        receiver.held.forget_permits(Semaphore::MAX_PERMITS);
        let world = World::new(&chain(&receiver.url)).await;
        world.create("a", json!({})).await;
        eventually("the attempt", async || {
            let seen = receiver.seen();
            if seen.len() == 1 { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        operate(&world, "a", Operation::Suspend).await.unwrap();
        receiver.held.add_permits(1);
        quiet([&world.machines]).await;
        let record = world.label("a").await;
        assert_eq!(path(&record), ["first"], "{record:?}");
        assert_eq!(record.due_ms(), None);
        receiver.held.add_permits(10);
        operate(&world, "a", Operation::Resume).await.unwrap();
        let record = world.until("a", |record| &*record.state == "over").await;
        assert_eq!(path(&record), ["first", next, "second", "over"]);
        assert_eq!(receiver.seen().len(), 2);
    }
}

#[tokio::test]
async fn a_suspended_label_that_is_moved_or_skipped_continues_when_it_is_resumed() {
    let receiver = Receiver::holding().await;
    let world = World::new(&chain(&receiver.url)).await;
    for label in ["moved", "skipped", "acting"] {
        world.create(label, json!({})).await;
        operate(&world, label, Operation::Suspend).await.unwrap();
    }
    operate(&world, "moved", Operation::Move { to: "between".to_owned() }).await.unwrap();
    operate(&world, "acting", Operation::Move { to: "second".to_owned() }).await.unwrap();
    operate(&world, "skipped", Operation::Skip).await.unwrap();
    assert_eq!(path(&world.label("moved").await), ["first", "between"]);
    assert_eq!(path(&world.label("acting").await), ["first", "second"]);
    assert_eq!(path(&world.label("skipped").await), ["first"]);
    receiver.held.add_permits(10);
    for label in ["moved", "skipped", "acting"] {
        operate(&world, label, Operation::Resume).await.unwrap();
        world.until(label, |record| &*record.state == "over").await;
    }
    for label in ["moved", "skipped"] {
        let record = world.label(label).await;
        assert_eq!(path(&record), ["first", "between", "second", "over"], "{record:?}");
        assert_eq!(record.history[1].cause, Cause::Moved, "{record:?}");
    }
}

#[tokio::test]
async fn a_suspended_label_meets_another_definition_when_it_is_resumed() {
    let receiver = Receiver::start(&[]).await;
    let with = |gate: &str, last: &str| {
        format!(
            "
state_machines:
  m:
    states:
      - {{gate: first, exit_condition: {gate}, triggers: [{{metadata: go}}], deadline: {{after: 90d, next: last}}, next: over}}
      - {last}
      - {{gate: over}}
"
        )
    };
    let action = format!("{{action: last, webhook: \"{}\"}}", receiver.url);
    let gate = "{gate: last, exit_condition: \"true\", triggers: [{event: entry}], next: over}";
    let world = World::new(&with("metadata.go = 2", &action)).await;
    for label in ["gate", "kind"] {
        world.create(label, json!({"go": 1})).await;
    }
    operate(&world, "kind", Operation::Move { to: "last".to_owned() }).await.unwrap();
    world.until("kind", |record| record.status == Status::Ended).await;
    for label in ["gate", "kind"] {
        operate(&world, label, Operation::Suspend).await.unwrap();
    }
    world.apply(&with("metadata.go = 1", gate), 1).await;
    assert_eq!(path(&world.label("gate").await), ["first"]);
    assert_eq!(path(&world.label("kind").await), ["first", "last"]);
    for label in ["gate", "kind"] {
        assert_eq!(operate(&world, label, Operation::Resume).await.unwrap(), "over");
    }
}

#[tokio::test]
async fn a_resumed_label_is_evaluated_for_a_time_in_its_metadata_and_not_for_intervals_that_passed() {
    let gates = "
state_machines:
  m:
    states:
      - {gate: first, exit_condition: metadata.open, triggers: [{at: metadata.due}, {interval: 1h}], next: over}
      - {gate: over}
";
    let world = World::new(gates).await;
    let due = crate::instant(world.now_ms() + 5_000).to_string();
    world.create("interval", json!({"open": true})).await;
    world.create("due", json!({"open": true, "due": due})).await;
    for label in ["interval", "due"] {
        operate(&world, label, Operation::Suspend).await.unwrap();
    }
    world.time.advance(3_601_000);
    world.work_off().await;
    // An update does not cancel the time that has passed.
    world.send_update("due", json!({"other": 1})).await;
    assert_eq!(operate(&world, "due", Operation::Resume).await.unwrap(), "over");
    assert_eq!(operate(&world, "interval", Operation::Resume).await.unwrap(), "first");
    world.work_off().await;
    let record = world.label("interval").await;
    assert_eq!((&*record.state, record.due_ms()), ("first", Some(record.entered_ms + 7_200_000)));
}

#[tokio::test]
async fn every_time_in_the_metadata_that_has_passed_counts_when_a_label_is_resumed() {
    let gates = "
state_machines:
  m:
    states:
      - gate: first
        exit_condition: metadata.open
        triggers: [{at: metadata.early}, {at: metadata.due}, {interval: 1m}]
        next: over
      - {gate: over}
";
    let world = World::new(gates).await;
    let at = |ms: u64| crate::instant(world.now_ms() + ms).to_string();
    let minutes = 600_000;
    // An interval, or another time, passes first.
    world.create("interval", json!({"open": true, "due": at(minutes)})).await;
    world.create("twice", json!({"open": true, "early": at(5_000), "due": at(minutes)})).await;
    world.create("sent", json!({"open": true})).await;
    world.create("future", json!({"open": true, "due": at(10 * minutes)})).await;
    let past = at(minutes - 1);
    for label in ["interval", "twice", "sent", "future"] {
        operate(&world, label, Operation::Suspend).await.unwrap();
    }
    world.time.advance(minutes + 1_000);
    world.work_off().await;
    world.send_update("twice", json!({"early": at(20 * minutes)})).await;
    // It has passed already when the update arrives.
    world.send_update("sent", json!({"due": past})).await;
    for label in ["interval", "twice", "sent"] {
        assert_eq!(operate(&world, label, Operation::Resume).await.unwrap(), "over", "{label}");
    }
    assert_eq!(operate(&world, "future", Operation::Resume).await.unwrap(), "first");
}

#[tokio::test]
async fn a_deadline_that_has_passed_takes_effect_when_a_label_is_resumed() {
    let receiver = Receiver::start(&[503]).await;
    let yaml = format!(
        "
state_machines:
  m:
    states:
      - {{gate: start, triggers: [{{metadata: go}}], exit_condition: metadata.go, deadline: {{after: 5s, next: late}}, next: act}}
      - {{action: act, webhook: \"{}\", deadline: {{after: 5s, next: late}}, next: done}}
      - {{gate: done}}
      - {{gate: late}}
",
        receiver.url
    );
    let world = World::new(&yaml).await;
    // It waits at a gate, and metadata comes; it is between two attempts; it was moved to an action.
    for label in ["waits", "retries", "moved", "early"] {
        world.create(label, json!({})).await;
    }
    world.send_update("retries", json!({"go": true})).await;
    world.until("retries", |record| record.work.held.is_some()).await;
    for label in ["waits", "retries", "moved", "early"] {
        operate(&world, label, Operation::Suspend).await.unwrap();
    }
    world.send_update("waits", json!({"go": true})).await;
    operate(&world, "moved", Operation::Move { to: "act".to_owned() }).await.unwrap();
    world.time.advance(4_000);
    assert_eq!(operate(&world, "early", Operation::Resume).await.unwrap(), "start");
    world.time.advance(4_000);
    world.work_off().await;
    for label in ["waits", "retries", "moved"] {
        assert_eq!(operate(&world, label, Operation::Resume).await.unwrap(), "late", "{label}");
        assert_eq!(world.label(label).await.history.last().unwrap().cause, Cause::Deadline, "{label}");
    }
    quiet([&world.machines]).await;
    assert_eq!(receiver.seen().len(), 1, "no attempt follows");
}

#[tokio::test]
async fn of_an_outcome_and_a_deadline_of_a_suspended_label_the_first_takes_effect() {
    for (answer, before, next) in
        [(200, 1_000, "done"), (422, 1_000, "failed"), (200, 6_000, "late"), (422, 6_000, "late")]
    {
        let receiver = Receiver::start(&[answer]).await;
        receiver.held.forget_permits(Semaphore::MAX_PERMITS);
        let yaml = format!(
            "
state_machines:
  m:
    states:
      - {{action: act, webhook: \"{}\", retry: {{attempts: 1}}, on_error: [{{next: failed}}], deadline: {{after: 5s, next: late}}, next: done}}
      - {{gate: done}}
      - {{gate: failed}}
      - {{gate: late}}
",
            receiver.url
        );
        let world = World::new(&yaml).await;
        world.create("a", json!({})).await;
        operate(&world, "a", Operation::Suspend).await.unwrap();
        world.time.advance(before);
        receiver.held.add_permits(1);
        quiet([&world.machines]).await;
        world.time.advance(8_000);
        assert_eq!(
            operate(&world, "a", Operation::Resume).await.unwrap(),
            next,
            "{answer} after {before} ms"
        );
    }
}
