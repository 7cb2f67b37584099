//! Labels whose calls wait for a place among the outgoing calls of the process.

use serde_json::json;
use signalbox_access::Author;
use signalbox_egress::{Budget, Calls, Limits};
use signalbox_testkit::eventually;

use super::support::{M, Machines, Receiver, World};
use crate::record::{Record, Status};

const LABELS: usize = 12;

fn yaml(url: &str, other: &str) -> String {
    format!(
        "
state_machines:
  m:
    states:
      - {{gate: asked, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: act}}
      - {{action: act, webhook: \"{url}\", timeout: 2s, retry: {{attempts: 1}}, next: done}}
      - {{gate: done}}
  other:
    states:
      - {{gate: asked, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: act}}
      - {{action: act, webhook: \"{other}\", next: done}}
      - {{gate: done}}
"
    )
}

/// A pacemaker with four places for each owner, and a receiver that does not respond yet.
async fn world() -> (World, Machines, Budget, Receiver, Receiver) {
    let (hanging, quick) = (Receiver::holding().await, Receiver::start(&[]).await);
    let world = World::bare().await;
    for machine in &signalbox_machine::load("test", &yaml(&hanging.url, &quick.url)).unwrap().machines {
        world.machines.applier.apply(machine, 0, &Author::operator(), &Default::default()).await.unwrap();
    }
    let budget = Budget::new(Limits::of_files(64));
    let machines = world.another_with(budget.clone());
    for n in 0..LABELS {
        world.create(&n.to_string(), json!({})).await;
    }
    for n in 0..LABELS {
        super::support::send_update(&machines, &n.to_string(), &json!({"go": true})).await;
    }
    (world, machines, budget, hanging, quick)
}

fn waits(record: &Record) -> bool {
    record.status == Status::Acting && record.work.place().is_some() && record.work.attempts == 0
}

async fn waiting(world: &World) -> Vec<String> {
    let mut names = Vec::new();
    for n in 0..LABELS {
        if waits(&world.label(&n.to_string()).await) {
            names.push(n.to_string());
        }
    }
    names
}

#[tokio::test]
async fn labels_beyond_the_budget_wait_without_an_attempt_and_all_calls_are_made_once() {
    let (world, machines, budget, hanging, quick) = world().await;
    let names = eventually("all but four labels to wait", async || {
        let names = waiting(&world).await;
        if names.len() == LABELS - 4 { Ok(names) } else { Err(names) }
    })
    .await;
    let calls = eventually("all calls to be in the queue", async || {
        let calls = budget.calls();
        if calls.waiting == LABELS - 4 { Ok(calls) } else { Err(calls) }
    })
    .await;
    assert_eq!(calls.running, 4);
    let why = machines.inspector.explainer.why(M, &names[0]).await.unwrap();
    assert!(why["reason"].as_str().unwrap().contains("waits for a place among the outgoing calls"), "{why}");
    assert!(
        why["action"]["waits_for_place"]["destination"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{why}"
    );
    // Another machine is not delayed.
    machines.labels.create("other", "x", &json!({"go": true}), false, None).await.unwrap();
    machines
        .labels
        .update(
            "other",
            "x",
            &crate::labels::Update { metadata: &json!({"go": true}), patch: false, key: None },
        )
        .await
        .unwrap();
    eventually("the other machine's call", async || {
        let seen = quick.seen();
        if seen.len() == 1 { Ok(()) } else { Err(seen) }
    })
    .await;
    // The receiver responds: each label is called once.
    hanging.held.add_permits(LABELS);
    for n in 0..LABELS {
        world.until(&n.to_string(), |record| &*record.state == "done").await;
    }
    let mut tokens = hanging.seen();
    tokens.sort();
    tokens.dedup();
    assert_eq!((tokens.len(), hanging.seen().len()), (LABELS, LABELS));
    eventually("all places to be free", async || {
        let calls = budget.calls();
        if calls == (Calls { running: 0, waiting: 0 }) { Ok(()) } else { Err(calls) }
    })
    .await;
}

#[tokio::test]
async fn a_label_that_waits_for_a_place_is_taken_over_when_its_process_dies() {
    let (world, machines, _, hanging, _) = world().await;
    let names = eventually("all but four labels to wait", async || {
        let names = waiting(&world).await;
        if names.len() == LABELS - 4 { Ok(names) } else { Err(names) }
    })
    .await;
    machines.stopped.cancel();
    // The other pacemaker, which has free places.
    hanging.held.add_permits(LABELS);
    world.time.0.fetch_add(61_000, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    for name in &names {
        let record = world.until(name, |record| &*record.state == "done").await;
        assert_eq!(record.history.iter().filter(|row| row.to.as_deref() == Some("done")).count(), 1);
    }
}
