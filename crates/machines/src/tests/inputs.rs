//! Events of the bus as facts.

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::support::{M, Machines, World};
use crate::{Error, record::Cause};
use signalbox_testkit::eventually;

const ORDERS: &str = "
state_machines:
  m:
    inputs:
      - {topic: orders, into: order}
      - {topic: payments, label: data.order, into: payment, create: true}
    states:
      - {gate: open, exit_condition: metadata.order.items >= 2, triggers: [{metadata: order}, {topic: payments}], next: paying}
      - {gate: paying, exit_condition: metadata.payment.done, triggers: [{topic: payments}], next: done}
      - {gate: done}
";

/// A pacemaker that takes events until the value goes.
struct Taking(CancellationToken);

impl Taking {
    fn start(machines: &Machines) -> Self {
        let shutdown = CancellationToken::new();
        tokio::spawn(machines.service.inputs.clone().run(shutdown.clone()));
        Self(shutdown)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Where the taking of events begins; from then on none is missed.
async fn begun(world: &World) -> u64 {
    eventually("events to be taken", async || {
        world.machines.taken.up_to(0).await.unwrap().ok_or_else(String::new)
    })
    .await
}

fn counted(result: &str) -> String {
    format!("signalbox_machines_inputs_total{{result=\"{result}\"}}")
}

async fn until_counted(world: &World, result: &str, count: u64) {
    eventually("the events to be counted", async || {
        let found = world.metric(&counted(result)).await;
        if found == count { Ok(()) } else { Err(format!("{result}: {found}")) }
    })
    .await;
}

#[tokio::test]
async fn an_event_updates_the_label_that_it_names() {
    let world = World::bare().await;
    // The inputs of a machine are read when it is applied.
    let _taking = Taking::start(&world.machines);
    world.publish("orders", "a", json!({"items": 9})).await;
    world.apply(ORDERS, 0).await;
    begun(&world).await;
    world.create("a", json!({"x": 1})).await;
    world.publish("orders", "a", json!({"items": 1})).await;
    let record = world.until("a", |record| record.metadata["order"]["items"] == 1).await;
    assert_eq!((&*record.state, &record.metadata["x"], record.revision), ("open", &json!(1), 2));
    // These events name no existing label, or no valid name.
    world.publish("orders", "nobody", json!({})).await;
    for name in [json!(true), json!(null), json!(1.5), json!(""), json!({"a": 1})] {
        world.publish("payments", "x", json!({"order": name})).await;
    }
    world.publish("orders", "a", json!({"items": 2})).await;
    let record = world.until("a", |record| &*record.state == "paying").await;
    assert_eq!(record.history.last().unwrap().cause, Cause::Metadata);
    assert!(matches!(world.machines.label_store.label(M, "nobody").await, Err(Error::NoSuchLabel)));
    until_counted(&world, "no_label", 1).await;
    until_counted(&world, "unnamed", 5).await;
    // The topic's own trigger.
    world.publish("payments", "x", json!({"order": "a", "done": true})).await;
    let record = world.until("a", |record| &*record.state == "done").await;
    assert_eq!(record.history.last().unwrap().cause, Cause::Topic);
    until_counted(&world, "taken", 3).await;
}

#[tokio::test]
async fn an_event_can_create_a_label_and_is_evaluated_at_its_first_gate() {
    let world = World::new(ORDERS).await;
    let taking = Taking::start(&world.machines);
    begun(&world).await;
    world.publish("payments", "x", json!({"order": 7, "done": true})).await;
    let record = world.until("7", |_| true).await;
    assert_eq!(record.metadata, json!({"payment": {"order": 7, "done": true}}));
    assert_eq!((&*record.state, record.visit), ("open", 1));
    drop(taking);

    // A gate that only the topic fires opens by the very event that created the label.
    let yaml = ORDERS.replace("metadata.order.items >= 2", "metadata.payment.done");
    let world = World::new(&yaml).await;
    let _taking = Taking::start(&world.machines);
    begun(&world).await;
    world.publish("payments", "x", json!({"order": 8, "done": true})).await;
    let record = world.until("8", |_| true).await;
    assert_eq!((&*record.state, record.visit, record.revision), ("paying", 2, 1));
    let rows: Vec<_> = record.history.iter().map(|row| row.cause).collect();
    assert_eq!(rows, [Cause::Created, Cause::Topic]);
}

#[tokio::test]
async fn an_event_that_is_read_twice_is_taken_once() {
    let world = World::new(ORDERS).await;
    let taking = Taking::start(&world.machines);
    let from = begun(&world).await;
    for label in ["a", "b", "last"] {
        world.create(label, json!({})).await;
    }
    for items in [0, 1, 0] {
        world.publish("orders", "a", json!({"items": items, format!("seen{items}"): true})).await;
    }
    world.publish("payments", "x", json!({"order": "new"})).await;
    world.publish("orders", "b", json!({"items": 0})).await;
    world.until("b", |record| record.revision == 2).await;
    let (a, new) = (world.label("a").await, world.label("new").await);
    assert_eq!(a.revision, 4);
    // A pacemaker that died before it stored its position.
    drop(taking);
    world.machines.taken.set(0, from).await.unwrap();
    let other = world.another();
    let _taking = Taking::start(&other);
    world.publish("orders", "last", json!({"items": 0})).await;
    world.until("last", |record| record.revision == 2).await;
    assert_eq!(world.label("a").await, a);
    assert_eq!(world.label("new").await, new);
    assert_eq!(world.label("b").await.revision, 2);
}

/// An event that changes nothing is stored as taken like others: taken again after later updates, it would undo them.
#[tokio::test]
async fn an_event_that_changed_nothing_is_not_taken_after_a_later_one() {
    let world = World::new(ORDERS).await;
    let taking = Taking::start(&world.machines);
    let from = begun(&world).await;
    world.create("a", json!({"order": {"items": 0}})).await;
    world.create("last", json!({})).await;
    for n in 0..20 {
        world.publish("orders", "a", json!({"items": u8::from(n > 0), "n": if n > 0 { n } else { 1 }})).await;
    }
    let taken = world.until("a", |record| record.metadata["order"]["n"] == 19).await;
    drop(taking);
    // Twenty events later, a pacemaker that was paused continues from its old position.
    world.machines.taken.set(0, from).await.unwrap();
    let other = world.another();
    let _taking = Taking::start(&other);
    world.publish("orders", "last", json!({"items": 0})).await;
    world.until("last", |record| record.revision == 2).await;
    assert_eq!(world.label("a").await, taken);
}

#[tokio::test]
async fn two_inputs_of_a_topic_both_take_an_event() {
    let yaml = "
state_machines:
  m:
    inputs: [{topic: orders, into: one}, {topic: orders, into: two}, {topic: orders, label: data.other, into: three}]
    states: [{gate: open}]
";
    let world = World::new(yaml).await;
    let _taking = Taking::start(&world.machines);
    begun(&world).await;
    world.create("a", json!({})).await;
    world.publish("orders", "a", json!({"n": 1, "other": "a"})).await;
    let record = world.until("a", |record| record.metadata["three"]["n"] == 1).await;
    assert_eq!((&record.metadata["one"]["n"], &record.metadata["two"]["n"]), (&json!(1), &json!(1)));
    assert_eq!(record.revision, 4);
}

#[tokio::test]
async fn an_event_for_an_unreadable_label_does_not_delay_other_events() {
    let world = World::new(ORDERS).await;
    let _taking = Taking::start(&world.machines);
    begun(&world).await;
    for label in ["a", "bad"] {
        world.create(label, json!({})).await;
    }
    let key = "object:machine:m:bad:data";
    world
        .servers
        .fabric()
        .command("SET")
        .arg(key)
        .arg("no record at all, whatever it is")
        .run()
        .await
        .unwrap();
    for label in ["bad", "a", "bad"] {
        world.publish("orders", label, json!({"items": 1})).await;
    }
    world.until("a", |record| record.metadata["order"]["items"] == 1).await;
    until_counted(&world, "unreadable", 2).await;
    assert_eq!(world.metric("signalbox_machines_unreadable_total").await, 2);
}
