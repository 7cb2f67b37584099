//! The bytes of labels, which count for their machine while memory is short.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use signalbox_access::Author;

use super::support::{M, World, machine};
use crate::{
    Operation,
    recount::{Left, Recounter},
};

const OWNERS: &str = "bus:environments";
const RECOUNTS: &str = "machine:recounts";

/// Two gates, and one from which a label is deleted.
const GATES: &str = "
state_machines:
  m:
    states:
      - {gate: first, exit_condition: metadata.go, triggers: [{metadata: go}], next: second}
      - {gate: second, exit_condition: metadata.back, triggers: [{metadata: back}], next: first}
";

/// The count of the machine, and what it must be: the records of labels that do not expire.
async fn counted(world: &World) -> (u64, u64) {
    let fabric = world.servers.fabric();
    let count: Option<u64> =
        fabric.command("HGET").arg(OWNERS).arg(format!("machine:{M}")).query().await.unwrap();
    let keys: Vec<String> = fabric.command("KEYS").arg("object:machine:m:*:data").query().await.unwrap();
    let mut expected = 0;
    for key in keys {
        let ttl_ms: i64 = fabric.command("PTTL").arg(&key).query().await.unwrap();
        let length: u64 = fabric.command("STRLEN").arg(&key).query().await.unwrap();
        expected += if ttl_ms < 0 { length + 256 } else { 0 };
    }
    (count.unwrap_or(0), expected)
}

/// A change of each kind.
async fn change(world: &World, label: &str, metadata: Value) {
    world.send_update(label, metadata).await;
}

#[tokio::test]
async fn every_change_of_a_label_is_counted_exactly() {
    let world = World::new(GATES).await;
    for n in 0..20 {
        world.create(&format!("l{n}"), json!({"text": "x".repeat(n * 100)})).await;
    }
    for n in 0..20_u64 {
        change(&world, &format!("l{n}"), json!({"text": "y".repeat(2_000), "go": n % 2 == 0})).await;
    }
    for label in ["l3", "l4"] {
        world.machines.labels.delete(M, label).await.unwrap();
    }
    world.machines.labels.create(M, "l3", &json!({"text": "again"}), true, None).await.unwrap();
    for operation in [Operation::Suspend, Operation::Resume, Operation::Evaluate] {
        world.machines.labels.operate(M, "l5", &operation).await.unwrap();
    }
    let (count, expected) = counted(&world).await;
    assert_eq!(count, expected);
    for n in 0..20 {
        world.machines.labels.delete(M, &format!("l{n}")).await.unwrap();
    }
    assert_eq!(counted(&world).await, (0, 0));
}

/// A store of a release that did not count labels, and whose labels have changed since.
async fn not_counted(world: &World, labels: usize, prefix: &str) {
    for n in 0..labels {
        world.create(&format!("{prefix}l{n}"), json!({"text": "x".repeat(n % 30 * 50)})).await;
    }
    world.servers.fabric().command("HDEL").arg(OWNERS).arg("machine:m").run().await.unwrap();
    change(world, &format!("{prefix}l7"), json!({"text": ""})).await;
    world.machines.labels.delete(M, &format!("{prefix}l8")).await.unwrap();
    let (count, expected) = counted(world).await;
    assert_ne!(count, expected);
}

/// What is stored for the recount of a machine.
async fn stored(world: &World, machine: &str) -> Option<String> {
    world.servers.fabric().command("HGET").arg((RECOUNTS, machine)).query().await.unwrap()
}

#[tokio::test]
async fn labels_of_a_store_without_counts_are_counted_after_a_start() {
    let world = World::new(GATES).await;
    not_counted(&world, 30, "").await;
    assert!(world.machines.service.recounter.round(&mut Left::default(), false).await);
    let (count, expected) = counted(&world).await;
    assert_eq!(count, expected);
    assert!(count > 0);
    // It is exact from now on.
    change(&world, "l9", json!({"text": "z".repeat(3_000), "go": true})).await;
    let (count, expected) = counted(&world).await;
    assert_eq!(count, expected);
}

#[tokio::test]
async fn labels_are_not_counted_again_at_a_start_that_is_long_after_an_upgrade() {
    let world = World::new(GATES).await;
    not_counted(&world, 10, "").await;
    let recounter = &world.machines.service.recounter;
    // Pacemakers of the release before may still run.
    assert!(recounter.round(&mut Left::default(), false).await);
    assert_eq!(stored(&world, M).await, None);
    change(&world, "l2", json!({"text": "y".repeat(500)})).await;
    world.servers.fabric().command("HDEL").arg((OWNERS, "machine:m")).run().await.unwrap();
    assert!(recounter.round(&mut Left::default(), true).await);
    change(&world, "l3", json!({"text": "y".repeat(500)})).await;
    let (count, expected) = counted(&world).await;
    assert_eq!(count, expected);
    let mark = stored(&world, M).await;
    assert!(mark.is_some());
    world.servers.fabric().command("HSET").arg((OWNERS, "machine:m", 1)).run().await.unwrap();
    for is_last in [false, true] {
        assert!(recounter.round(&mut Left::default(), is_last).await);
        assert_eq!((counted(&world).await.0, stored(&world, M).await), (1, mark.clone()));
    }
}

#[tokio::test]
async fn labels_that_change_during_a_recount_are_counted_once() {
    // Names that differ early, and late.
    for prefix in ["", &"n".repeat(40)] {
        let world = World::new(GATES).await;
        not_counted(&world, 300, prefix).await;
        let recounter = Recounter { page: 1, ..world.machines.service.recounter.clone() };
        let states = ["first".to_owned(), "second".to_owned()];
        recounter.bytes.begin(0, M).await.unwrap();
        // Changes before and behind the place of the recount: of size and state, creations and deletions.
        for n in 0..60_u64 {
            let done = recounter.next(0, M, &states).await.unwrap();
            for label in [format!("{prefix}l{}", n % 7), format!("{prefix}l{}", 99 - n % 50)] {
                let back = n % 2 == 0;
                let metadata = json!({"text": "y".repeat(n as usize * 9), "go": !back, "back": back});
                change(&world, &label, metadata).await;
            }
            let labels = &world.machines.labels;
            match n {
                3 | 20 => drop(world.create(&format!("{prefix}a{n}"), json!({"text": "new"})).await),
                5 | 22 => drop(world.create(&format!("{prefix}z{n}"), json!({"text": "new"})).await),
                9 => drop(labels.delete(M, &format!("{prefix}l10")).await.unwrap()),
                10 => drop(labels.delete(M, &format!("{prefix}l19")).await.unwrap()),
                // Another pacemaker does the same, and begins again.
                12 => recounter.bytes.begin(0, M).await.unwrap(),
                _ => {}
            }
            assert!(!done || n > 30, "{n}");
        }
        while !recounter.next(0, M, &states).await.unwrap() {}
        let (count, expected) = counted(&world).await;
        assert_eq!(count, expected, "{prefix}");
    }
}

/// Stores labels with the longest names, which begin alike, in many states in turn. Returns the states.
pub(super) async fn in_many_states(world: &World, labels: usize) -> Vec<String> {
    let states: Vec<String> = (0..250).map(|n| format!("s{n}")).collect();
    let (fabric, name) = (world.servers.fabric(), |n: usize| format!("{}{n:06}", "n".repeat(250)));
    for (at, state) in states.iter().enumerate() {
        let add = fabric.command("ZADD").arg(format!("machine:{M}:in:{state}"));
        let names = (at..labels).step_by(states.len());
        names.clone().fold(add, |add, n| add.arg(0).arg(name(n))).run().await.unwrap();
        let set = names.fold(fabric.command("MSET"), |set, n| {
            set.arg(format!("object:machine:{M}:{}:data", name(n))).arg("x".repeat(n % 500))
        });
        set.run().await.unwrap();
    }
    states
}

/// Counts all labels in these states. Returns the number of pages.
pub(super) async fn count_pages(world: &World, states: &[String]) -> usize {
    let recounter = &world.machines.service.recounter;
    recounter.bytes.begin(0, M).await.unwrap();
    let mut pages = 1;
    while !recounter.next(0, M, states).await.unwrap() {
        pages += 1;
    }
    pages
}

#[tokio::test]
async fn a_page_of_a_recount_counts_the_labels_whose_names_it_has_read() {
    let world = World::new(GATES).await;
    let labels = 2_500;
    let states = in_many_states(&world, labels).await;
    let pages = count_pages(&world, &states).await;
    assert!(pages <= labels / 100, "{pages}");
    let (count, expected) = counted(&world).await;
    // An empty record is none.
    assert_eq!(count, expected - 256 * labels.div_ceil(500) as u64);
}

#[tokio::test]
async fn a_machine_whose_labels_cannot_be_counted_delays_no_other() {
    let world = World::new(GATES).await;
    world.apply(&GATES.replace("  m:", "  a:"), 0).await;
    not_counted(&world, 10, "").await;
    let fabric = world.servers.fabric();
    fabric.command("SET").arg(("machine:a:in:second", "not an index")).run().await.unwrap();
    let (recounter, mut left) = (&world.machines.service.recounter, Left::default());
    for _ in 0..2 {
        assert!(!recounter.round(&mut left, true).await);
        assert_eq!(left.machines.as_deref(), Some(&["a".to_owned()][..]));
        let (count, expected) = counted(&world).await;
        assert_eq!(count, expected);
    }
    fabric.command("DEL").arg("machine:a:in:second").run().await.unwrap();
    assert!(recounter.round(&mut left, true).await);
    assert_eq!(stored(&world, "a").await, stored(&world, M).await);
}

#[tokio::test]
async fn a_count_is_not_replaced_while_states_with_labels_are_unknown() {
    let world = World::new(GATES).await;
    for n in 0..10 {
        world.create(&format!("l{n}"), json!({"text": "x".repeat(n * 50)})).await;
    }
    let (fabric, versions) = (world.servers.fabric(), "machine:m:versions");
    let text: String = fabric.command("HGET").arg((versions, 1)).query().await.unwrap();
    fabric.command("HSET").arg((versions, 1, "{")).run().await.unwrap();
    // The labels stay in states that the next versions do not have.
    let later = world.another();
    let next = GATES.replace("first", "one").replace("second", "two");
    for (base, yaml) in [(1, next.clone()), (2, next.replace("one", "three"))] {
        let applied =
            later.applier.apply(&machine(&yaml), base, &Author::operator(), &BTreeMap::new()).await.unwrap();
        assert_eq!(applied.version, base + 1);
    }
    let recounter = &later.service.recounter;
    // It is not tried again by this process, and gets no mark.
    assert!(recounter.round(&mut Left::default(), true).await);
    let (count, expected) = counted(&world).await;
    assert!(count == expected && count > 0, "{count} {expected}");
    assert_eq!(stored(&world, M).await, None);
    fabric.command("HSET").arg((versions, 1, text)).run().await.unwrap();
    fabric.command("HDEL").arg((OWNERS, "machine:m")).run().await.unwrap();
    assert!(recounter.round(&mut Left::default(), true).await);
    assert_eq!(counted(&world).await, (count, expected));
}

#[tokio::test]
async fn a_deleted_machine_leaves_no_count() {
    let world = World::new(GATES).await;
    world.create("good", json!({})).await;
    world.create("bad", json!({})).await;
    assert!(world.machines.service.recounter.round(&mut Left::default(), true).await);
    let fabric = world.servers.fabric();
    fabric.command("SET").arg(("object:machine:m:bad:data", "no record at all")).run().await.unwrap();
    world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    world.work_off().await;
    assert_eq!(stored(&world, M).await, None);
    let left: Option<String> = fabric.command("HGET").arg((OWNERS, "machine:m")).query().await.unwrap();
    assert_eq!(left, None);
}
