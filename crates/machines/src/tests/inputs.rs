//! Events of the bus as facts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::json;
use signalbox_access::Author;
use tokio_util::sync::CancellationToken;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{
    faults::from_environment,
    support::{M, Machines, Receiver, World},
};
use crate::{
    Error, Operation,
    fair::{Caps, FairPlaces},
    inputs::{Inputs, Page, Reached},
    record::{Cause, Status},
};
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
async fn begun(world: &World) -> String {
    eventually("events to be taken", async || stored(world).await.ok_or_else(String::new)).await
}

async fn stored(world: &World) -> Option<String> {
    world.servers.fabric().command("HGET").arg("machine:inputs").arg(M).query().await.unwrap()
}

/// A pacemaker that died before it stored how far it was.
async fn reset(world: &World, from: &str) {
    world.servers.fabric().command("HSET").arg("machine:inputs").arg(M).arg(from).run().await.unwrap();
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
async fn an_event_that_the_author_may_not_receive_is_skipped() {
    let world = World::new(ORDERS).await;
    let _taking = Taking::start(&world.machines);
    begun(&world).await;
    assert_eq!(world.apply_by_a_team(ORDERS, 1).await, 2);
    world.publish("payments", "x", json!({"order": 7})).await;
    assert_eq!(world.apply(ORDERS, 2).await, 3);
    world.publish("payments", "x", json!({"order": 8})).await;
    world.until("8", |_| true).await;
    assert!(matches!(world.machines.label_store.label(M, "7").await, Err(Error::NoSuchLabel)));
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
    reset(&world, &from).await;
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
    reset(&world, &from).await;
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

/// A machine whose labels are created by events of a topic.
fn creating(machine: &str, topic: &str) -> String {
    format!(
        "
state_machines:
  {machine}:
    inputs: [{{topic: {topic}, into: got, create: true}}]
    states: [{{gate: open}}]
"
    )
}

/// Waits until an event has created a label.
async fn until_created(world: &World, machine: &str, label: &str) {
    eventually("the label to be created", async || {
        let record = world.machines.label_store.read(machine, label).await.unwrap();
        record.map(drop).ok_or_else(String::new)
    })
    .await;
}

#[tokio::test]
async fn an_input_misses_no_event_while_another_pacemaker_does_not_know_its_machine_yet() {
    let world = World::bare().await;
    world.apply(&creating("known", "xa"), 0).await;
    let other = world.another();
    let _taking = Taking::start(&other);
    eventually("events of the known machine to be taken", async || {
        world.publish("xa", "first", json!({})).await;
        let record = world.machines.label_store.read("known", "first").await.unwrap();
        record.map(drop).ok_or_else(String::new)
    })
    .await;
    world.apply(&creating(M, "xb"), 0).await;
    for n in 0..5 {
        world.publish("xb", &format!("l{n}"), json!({})).await;
        world.publish("xa", &format!("a{n}"), json!({})).await;
    }
    until_created(&world, "known", "a4").await;
    let _serving = Taking::start(&world.machines);
    for n in 0..5 {
        until_created(&world, M, &format!("l{n}")).await;
    }
}

#[tokio::test]
async fn an_event_that_one_machine_cannot_apply_delays_no_event_of_another() {
    let world = World::bare().await;
    world.apply(&creating("broken", "xb"), 0).await;
    world.apply(&creating(M, "xa"), 0).await;
    let taken = async || -> String {
        world.servers.fabric().command("HGET").arg("machine:inputs").arg("broken").query().await.unwrap()
    };
    let before = taken().await;
    // Not even a record that cannot be read: the command that reads it fails.
    let record = "object:machine:broken:l:data";
    world.servers.fabric().command("RPUSH").arg(record).arg("x").run().await.unwrap();
    world.publish("xb", "l", json!({})).await;
    let _taking = Taking::start(&world.machines);
    for n in 0..3 {
        let label = format!("a{n}");
        world.publish("xa", &label, json!({})).await;
        until_created(&world, M, &label).await;
    }
    assert_eq!(taken().await, before, "the position of the machine waits");
    world.servers.fabric().command("DEL").arg(record).run().await.unwrap();
    until_created(&world, "broken", "l").await;
}

/// A later Signalbox stored it, or it is damaged.
#[tokio::test]
async fn events_of_a_definition_that_cannot_be_read_wait_and_those_of_others_are_taken() {
    let world = World::bare().await;
    world.apply(&creating("broken", "xb"), 0).await;
    world.apply(&creating(M, "xa"), 0).await;
    let fabric = world.servers.fabric();
    for key in ["machine:broken:versions", "machine:broken:sources"] {
        let text: String = fabric.command("HGET").arg((key, 1)).query().await.unwrap();
        let later = text.replace("state_machines", "later_machines");
        let unreadable = if later == text { "{" } else { &later };
        fabric.command("HSET").arg((key, 1, unreadable)).run().await.unwrap();
        let label = format!("l{}", unreadable.len());
        world.publish("xb", &label, json!({})).await;
        world.publish("xa", &label, json!({})).await;
        let older = world.another();
        let taking = Taking::start(&older);
        until_created(&world, M, &label).await;
        drop(taking);
        fabric.command("HSET").arg((key, 1, &text)).run().await.unwrap();
        let _taking = Taking::start(&world.machines);
        until_created(&world, "broken", &label).await;
    }
}

#[tokio::test]
async fn events_are_taken_without_a_pause_while_those_of_another_machine_wait() {
    let world = World::bare().await;
    world.apply(&creating("broken", "xb"), 0).await;
    world.apply(&creating(M, "xa"), 0).await;
    let broken = ("machine:broken:versions", 1, "{");
    world.servers.fabric().command("HSET").arg(broken).run().await.unwrap();
    world.publish("xb", "waits", json!({})).await;
    let pause = Duration::from_secs(3_600);
    let inputs = Inputs { pause, ..world.another().service.inputs };
    let shutdown = CancellationToken::new();
    let _taking = Taking(shutdown.clone());
    tokio::spawn(inputs.run(shutdown));
    for label in ["one", "two", "three"] {
        world.publish("xa", label, json!({})).await;
        until_created(&world, M, label).await;
    }
}

#[tokio::test]
async fn a_definition_that_replaces_one_that_cannot_be_read_keeps_the_origin_of_the_machine() {
    let world = World::new(&creating(M, "xa")).await;
    world.apply(&creating(M, "xb"), 1).await;
    let origin = world.machines.definitions.current(M).await.unwrap().origin;
    world.servers.fabric().command("HSET").arg(("machine:m:versions", 2, "{")).run().await.unwrap();
    let later = world.another();
    let next = super::support::machine(&creating(M, "xc"));
    assert_eq!(
        later.applier.apply(&next, 2, &Author::operator(), &BTreeMap::new()).await.unwrap().version,
        3
    );
    assert_eq!(later.definitions.current(M).await.unwrap().origin, origin);
}

#[tokio::test]
async fn a_definition_replaces_one_that_cannot_be_read_and_takes_the_events_that_waited() {
    for damaged in [false, true] {
        let world = World::bare().await;
        world.apply(&creating(M, "xa"), 0).await;
        let fabric = world.servers.fabric();
        let key = if damaged { "machine:m:versions" } else { "machine:m:sources" };
        let text: String = fabric.command("HGET").arg((key, 1)).query().await.unwrap();
        let text = if damaged { "{".to_owned() } else { text.replace("state_machines", "later_machines") };
        fabric.command("HSET").arg((key, 1, text)).run().await.unwrap();
        world.publish("xa", "waits", json!({})).await;
        let later = world.another();
        let _taking = Taking::start(&later);
        let next = super::support::machine(&creating(M, "xa").replace("open", "opened"));
        let map = BTreeMap::from([("open".to_owned(), "opened".to_owned())]);
        let mapped = later.applier.apply(&next, 1, &Author::operator(), &map).await;
        assert!(matches!(mapped, Err(Error::BadMap(_))), "{mapped:?}");
        assert_eq!(
            later.applier.apply(&next, 1, &Author::operator(), &BTreeMap::new()).await.unwrap().version,
            2
        );
        until_created(&world, M, "waits").await;
        world.publish("xa", "new", json!({})).await;
        until_created(&world, M, "new").await;
    }
}

#[tokio::test]
async fn a_version_is_made_active_by_a_pacemaker_that_can_read_it_and_others_are_not_delayed() {
    let world = World::bare().await;
    world.apply(&creating("broken", "xb"), 0).await;
    world.apply(&creating(M, "xa"), 0).await;
    let fabric = world.servers.fabric();
    let sources = "machine:broken:sources";
    let next = |machine: &str, topic: &str| creating(machine, topic).replace("open", "opened");
    for machine in ["broken", M] {
        let text = next(machine, "xc");
        let file = signalbox_machine::definition::load("next", &text).unwrap();
        let author = Author::operator();
        let begun = (world.now_ms(), &author);
        let definitions = &world.machines.definitions;
        definitions.begin(&file.machines[0], 1, "mark", begun, &BTreeMap::new()).await.unwrap();
    }
    let text: String = fabric.command("HGET").arg((sources, 2)).query().await.unwrap();
    fabric
        .command("HSET")
        .arg((sources, 2, text.replace("state_machines", "later_machines")))
        .run()
        .await
        .unwrap();
    let older = world.another();
    assert!(matches!(older.applier.finish_all().await, Err(Error::Unreadable)));
    assert_eq!(older.definitions.current(M).await.unwrap().number, 2);
    assert_eq!(older.definitions.current("broken").await.unwrap().number, 1);
    fabric.command("HSET").arg((sources, 2, &text)).run().await.unwrap();
    world.machines.applier.finish_all().await.unwrap();
    assert_eq!(world.machines.definitions.current("broken").await.unwrap().number, 2);
}

#[tokio::test]
async fn inputs_of_a_machine_take_no_event_from_before_it_was_applied() {
    let world = World::bare().await;
    let taking = Taking::start(&world.machines);
    world.apply(&creating(M, "orders"), 0).await;
    eventually("events to be taken", async || {
        world.publish("orders", "first", json!({})).await;
        let record = world.machines.label_store.read(M, "first").await.unwrap();
        record.map(drop).ok_or_else(String::new)
    })
    .await;
    // No machine with inputs remains, and no pacemaker reads the log.
    drop(taking);
    world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    world.work_off().await;
    for n in 0..3 {
        world.publish("orders", &format!("old{n}"), json!({})).await;
    }
    world.apply(&creating(M, "orders"), 0).await;
    let _taking = Taking::start(&world.machines);
    world.publish("orders", "new", json!({})).await;
    until_created(&world, M, "new").await;
    for n in 0..3 {
        let old = world.machines.label_store.read(M, &format!("old{n}")).await.unwrap();
        assert!(old.is_none(), "{old:?}");
    }
}

/// A version that is active, and its inputs.
type Active = (u64, Vec<(usize, u8)>);

/// A pacemaker that is paused after any step: it has read a page, or has applied one and not stored that it did.
struct Paused {
    machines: Machines,
    read: Vec<Page>,
    applied: Vec<(Page, Vec<Reached>)>,
}

impl Paused {
    async fn step(&mut self) {
        let inputs = &self.machines.service.inputs;
        if let Some((page, applied)) = self.applied.pop() {
            inputs.advance(&page, &applied).await.unwrap();
        } else if let Some(page) = self.read.pop() {
            let applied = inputs.apply(&page).await;
            self.applied.push((page, applied));
        } else {
            self.read = inputs.read(0, inputs.positions.all(0).await.unwrap()).await.unwrap();
        }
    }
}

const TOPICS: [&str; 2] = ["orders", "payments"];

/// A definition with inputs of some topics, each with a path of its own.
fn some_inputs(inputs: &[(usize, u8)]) -> String {
    let input = |(topic, path): &(usize, u8)| {
        format!("{{topic: {}, label: data.label, into: p{path}, create: true}}", TOPICS[*topic])
    };
    let inputs = inputs.iter().map(input).collect::<Vec<_>>().join(", ");
    format!("state_machines: {{m: {{inputs: [{inputs}], states: [{{gate: open}}]}}}}")
}

/// Random interleavings of events, definitions, and two pacemakers, each of which may be paused after any step.
#[tokio::test]
async fn each_event_is_applied_once_by_each_input_that_existed_when_it_was_published() {
    let first = from_environment("SIGNALBOX_SEED", 0);
    for seed in first..first + from_environment("SIGNALBOX_SEEDS", 6) {
        let world = World::bare().await;
        let mut random = StdRng::seed_from_u64(seed);
        let pacemaker = |machines| Paused { machines, read: Vec::new(), applied: Vec::new() };
        let mut pacemakers = [pacemaker(world.machines.clone()), pacemaker(world.another())];
        // The active definition, how often the machine was created, and label → what was applied to it.
        let (mut active, mut life, mut number): (Option<Active>, u32, u32) = (None, 0, 0);
        let mut expected: BTreeMap<String, BTreeSet<(u8, u32)>> = BTreeMap::new();
        for _ in 0..120 {
            match random.random_range(0..20) {
                0..8 => {
                    let topic = random.random_range(0..2);
                    // Labels of another life have other names: the name of a deleted label is not created by events.
                    let label = format!("l{life}-{}", random.random_range(0..3));
                    number += 1;
                    let key = format!("n{number}");
                    world.publish(TOPICS[topic], "x", json!({"label": label, key: true})).await;
                    let inputs = active.iter().flat_map(|(_, inputs)| inputs);
                    for (_, path) in inputs.filter(|(of, _)| *of == topic) {
                        expected.entry(label.clone()).or_default().insert((*path, number));
                    }
                }
                8..10 => {
                    let inputs: Vec<(usize, u8)> = (0..random.random_range(0..4))
                        .map(|path| (random.random_range(0..2), path))
                        .collect();
                    let base = active.as_ref().map_or(0, |(version, _)| *version);
                    let version = world.apply(&some_inputs(&inputs), base).await;
                    active = Some((version, inputs));
                }
                10 if active.take().is_some() => {
                    world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
                    world.work_off().await;
                    life += 1;
                    expected.clear();
                }
                _ => {
                    let steps = random.random_range(1..4);
                    let pacemaker = &mut pacemakers[random.random_range(0..2)];
                    for _ in 0..steps {
                        pacemaker.step().await;
                    }
                }
            }
        }
        for pacemaker in pacemakers.iter_mut().chain([&mut pacemaker(world.another())]) {
            for _ in 0..20 {
                pacemaker.step().await;
            }
        }
        for past in 0..=life {
            for n in 0..3 {
                let label = format!("l{past}-{n}");
                let record = world.machines.label_store.read(M, &label).await.unwrap();
                let record = record.filter(|record| record.status != crate::Status::Deleted);
                let wanted = expected.remove(&label).unwrap_or_default();
                let found = record.as_ref().map_or(0, |record| record.revision);
                assert_eq!(found, wanted.len() as u64, "seed {seed}, {label}: {wanted:?}, {record:?}");
                for (path, number) in wanted {
                    let metadata = &record.as_ref().unwrap().metadata;
                    let value = &metadata[format!("p{path}")][format!("n{number}")];
                    assert_eq!(value, true, "seed {seed}, {label}: {path} {number} not in {metadata}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_event_that_comes_during_an_action_triggers_the_gate_that_follows_if_it_waits_for_that_topic() {
    let receiver = Receiver::holding().await;
    let yaml = format!(
        "
state_machines:
  m:
    inputs: [{{topic: payments, into: payment}}, {{topic: news}}]
    states:
      - {{action: charge, webhook: \"{}\", next: paid}}
      - {{gate: paid, exit_condition: true, triggers: [{{topic: payments}}], next: done}}
      - {{gate: done}}
",
        receiver.url
    );
    let world = World::new(&yaml).await;
    let _taking = Taking::start(&world.machines);
    begun(&world).await;
    for label in ["a", "b", "c"] {
        world.create(label, json!({})).await;
    }
    world.machines.labels.operate(M, "c", &Operation::Suspend).await.unwrap();
    world.publish("payments", "a", json!({"ok": true})).await;
    world.publish("news", "b", json!({})).await;
    world.publish("payments", "c", json!({"ok": true})).await;
    until_counted(&world, "taken", 3).await;
    receiver.held.add_permits(9);
    let record = world.until("a", |record| &*record.state == "done").await;
    let last = record.history.last().unwrap();
    assert_eq!((last.cause, last.trigger.as_deref()), (Cause::Topic, Some("topic payments")));
    // An event of another topic opens nothing, even if the condition is true.
    let record = world.until("b", |record| &*record.state == "paid").await;
    assert!(record.work.topics.is_empty(), "{:?}", record.work);
    let why = world.machines.inspector.explainer.why(M, "b").await.unwrap();
    assert!(why["waits_for"].as_str().unwrap().contains("no trigger has fired"), "{why}");
    // A suspended label remembers the event, too.
    world.until("c", |record| &*record.state != "charge" || record.status != Status::Acting).await;
    world.machines.labels.operate(M, "c", &Operation::Resume).await.unwrap();
    world.until("c", |record| &*record.state == "done").await;
}

/// Each version can have a megabyte of text.
#[tokio::test]
async fn a_machine_that_lags_behind_reads_only_the_versions_that_govern_its_next_events() {
    const VERSIONS: u64 = 12;
    let world = World::bare().await;
    for version in 1..=VERSIONS {
        let topic = "x".repeat(version as usize);
        world.apply(&creating(M, &topic), version - 1).await;
        world.publish(&topic, &format!("l{version}"), json!({})).await;
    }
    let late = world.another();
    let inputs = &late.service.inputs;
    let known = || -> Vec<u64> {
        let read = |version: &u64| late.definitions.known_version(M, *version).is_some();
        (1..=VERSIONS).filter(read).collect()
    };
    let positions = inputs.positions.all(0).await.unwrap();
    assert_eq!(positions[0].versions().count() as u64, VERSIONS);
    let page = inputs.read(0, positions).await.unwrap().remove(0);
    assert_eq!(known(), [1, 2, 3, 4]);
    let applied = inputs.apply(&page).await;
    assert!(inputs.advance(&page, &applied).await.unwrap());
    let left = inputs.positions.all(0).await.unwrap().remove(0);
    assert_eq!(left.versions().collect::<Vec<_>>(), (5..=VERSIONS).collect::<Vec<_>>());
    // All of the rest is taken, page by page.
    let other = world.another();
    let _taking = Taking::start(&other);
    for version in 1..=VERSIONS {
        until_created(&world, M, &format!("l{version}")).await;
    }
}

#[tokio::test]
async fn a_machine_with_many_events_has_turns_and_delays_no_other() {
    let world = World::bare().await;
    world.apply(&creating("busy", "xb"), 0).await;
    world.apply(&creating(M, "xa"), 0).await;
    for n in 0..120 {
        world.publish("xb", &format!("b{n}"), json!({})).await;
    }
    world.publish("xa", "a", json!({})).await;
    let inputs = &world.machines.service.inputs;
    let positions = async || inputs.positions.all(0).await.unwrap();
    let first = inputs.read(0, positions().await).await.unwrap().remove(0);
    let applied = inputs.apply(&first).await;
    until_created(&world, M, "a").await;
    assert!(inputs.advance(&first, &applied).await.unwrap());
    let counted = async || world.machines.records.count_states("busy", &["open"]).await.unwrap()[0];
    assert!((1..=50).contains(&counted().await), "{}", counted().await);
    let _taking = Taking::start(&world.machines);
    until_created(&world, "busy", "b119").await;
    until_counted(&world, "taken", 121).await;
}

#[tokio::test]
async fn a_machine_that_catches_up_delays_no_other() {
    let world = World::bare().await;
    world.apply(&creating("busy", "xb"), 0).await;
    world.apply(&creating(M, "xa"), 0).await;
    // It gets no place.
    let caps = Caps { all: 0, client: 0, machine: 0 };
    let inputs = Inputs { places: FairPlaces::new(caps), ..world.machines.service.inputs.clone() };
    let shutdown = CancellationToken::new();
    let _taking = Taking(shutdown.clone());
    tokio::spawn(inputs.run(shutdown));
    for n in 0..120 {
        world.publish("xb", &format!("b{n}"), json!({})).await;
    }
    for label in ["one", "two", "three"] {
        world.publish("xa", label, json!({})).await;
        until_created(&world, M, label).await;
    }
    let _other = Taking::start(&world.another());
    until_created(&world, "busy", "b119").await;
}

#[tokio::test]
async fn a_machine_whose_events_fail_does_not_slow_down_the_others() {
    for broken in ["object:machine:broken:waits:data", "machine:broken:versions"] {
        let world = World::bare().await;
        world.apply(&creating("broken", "xb"), 0).await;
        world.apply(&creating(M, "xa"), 0).await;
        let machines = world.another();
        machines.definitions.current(M).await.unwrap();
        world.servers.fabric().command("DEL").arg(broken).run().await.unwrap();
        world.servers.fabric().command("RPUSH").arg(broken).arg("x").run().await.unwrap();
        let inputs = Inputs { pause: Duration::from_secs(3_600), ..machines.service.inputs.clone() };
        let shutdown = CancellationToken::new();
        let _taking = Taking(shutdown.clone());
        tokio::spawn(inputs.run(shutdown));
        world.publish("xb", "waits", json!({})).await;
        for label in ["one", "two", "three"] {
            world.publish("xa", label, json!({})).await;
            until_created(&world, M, label).await;
        }
    }
}

#[tokio::test]
async fn an_event_is_governed_by_the_version_that_became_active_after_the_positions_were_read() {
    let world = World::bare().await;
    world.apply(&some_inputs(&[(0, 0)]), 0).await;
    let inputs = &world.machines.service.inputs;
    let old = inputs.positions.all(0).await.unwrap();
    world.apply(&some_inputs(&[(0, 1)]), 1).await;
    world.publish("orders", "x", json!({"label": "a"})).await;
    let mut paused =
        Paused { machines: world.another(), read: inputs.read(0, old).await.unwrap(), applied: Vec::new() };
    for _ in 0..10 {
        paused.step().await;
    }
    assert_eq!(world.label("a").await.metadata, json!({"p1": {"label": "a"}}));
}
