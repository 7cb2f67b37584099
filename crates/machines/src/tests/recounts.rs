//! The bytes of labels, which count for their machine while memory is short.

use serde_json::{Value, json};

use super::support::{M, World};
use crate::Operation;

const OWNERS: &str = "bus:environments";

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
async fn not_counted(world: &World) {
    for n in 0..30 {
        world.create(&format!("l{n}"), json!({"text": "x".repeat(n * 50)})).await;
    }
    world.servers.fabric().command("HDEL").arg(OWNERS).arg("machine:m").run().await.unwrap();
    change(world, "l7", json!({"text": ""})).await;
    world.machines.labels.delete(M, "l8").await.unwrap();
    let (count, expected) = counted(world).await;
    assert_ne!(count, expected);
}

#[tokio::test]
async fn labels_of_a_store_without_counts_are_counted_after_a_start() {
    let world = World::new(GATES).await;
    not_counted(&world).await;
    world.machines.service.recounter.run().await.unwrap();
    let (count, expected) = counted(&world).await;
    assert_eq!(count, expected);
    assert!(count > 0);
    // It is exact from now on.
    change(&world, "l9", json!({"text": "z".repeat(3_000), "go": true})).await;
    let (count, expected) = counted(&world).await;
    assert_eq!(count, expected);
}

#[tokio::test]
async fn labels_that_change_during_a_recount_are_counted_once() {
    let world = World::new(GATES).await;
    not_counted(&world).await;
    let recounter = crate::recount::Recounter { page: 1, ..world.machines.service.recounter.clone() };
    let states = ["first".to_owned(), "second".to_owned()];
    recounter.bytes.begin(0, M).await.unwrap();
    // Changes before and behind the place of the recount: of size and state, creations and deletions.
    for n in 0..60_u64 {
        let done = recounter.next(0, M, &states).await.unwrap();
        for label in [format!("l{}", n % 7), format!("l{}", 29 - n % 7)] {
            let back = n % 2 == 0;
            change(&world, &label, json!({"text": "y".repeat(n as usize * 9), "go": !back, "back": back}))
                .await;
        }
        match n {
            3 | 20 => drop(world.create(&format!("a{n}"), json!({"text": "new"})).await),
            5 | 22 => drop(world.create(&format!("z{n}"), json!({"text": "new"})).await),
            9 => drop(world.machines.labels.delete(M, "l10").await.unwrap()),
            10 => drop(world.machines.labels.delete(M, "l19").await.unwrap()),
            // Another pacemaker does the same, and begins again.
            12 => recounter.bytes.begin(0, M).await.unwrap(),
            _ => {}
        }
        assert!(!done || n > 30, "{n}");
    }
    assert!(recounter.next(0, M, &states).await.unwrap());
    let (count, expected) = counted(&world).await;
    assert_eq!(count, expected);
}
