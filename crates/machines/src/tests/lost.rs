//! Data that Redis has lost is restored, and unreadable labels are skipped.

use signalbox_access::Author;
use std::collections::BTreeMap;

use serde_json::json;

use super::support::{M, World, machine, send_update};

const DAILY: &str = "
state_machines:
  m:
    timezone: {metadata: zone, default: UTC}
    states:
      - gate: waiting
        exit_condition: metadata.go
        triggers: [{time: 18h30m}, {metadata: go}, {interval: 9d}]
        next: done
      - {gate: done}
";

impl World {
    /// Removes every sweep from the due set.
    async fn lose_sweeps(&self) -> Vec<(String, u64)> {
        let due = self.machines.due.due(0, u64::MAX >> 12, 100).await.unwrap();
        let sweeps: Vec<_> = due.into_iter().filter(|(member, _)| !member.starts_with("l ")).collect();
        for (member, _) in &sweeps {
            self.machines.due.set(0, member, None).await.unwrap();
        }
        sweeps
    }

    async fn sweeps(&self) -> Vec<(String, u64)> {
        let due = self.machines.due.due(0, u64::MAX >> 12, 100).await.unwrap();
        due.into_iter().filter(|(member, _)| !member.starts_with("l ")).collect()
    }
}

#[tokio::test]
async fn lost_sweeps_are_restored() {
    let world = World::new(DAILY).await;
    world.create("here", json!({})).await;
    world.create("tokyo", json!({"zone": "Asia/Tokyo"})).await;
    let mut lost = world.lose_sweeps().await;
    assert_eq!(lost.len(), 2, "one for all, one for those in Tokyo");
    // This process remembers them, so a label that enters the gate does not add them again.
    world.create("there", json!({"zone": "Asia/Tokyo"})).await;
    assert_eq!(world.sweeps().await, []);
    assert_eq!(world.machines.service.reconciler.restore().await.unwrap(), 2);
    let mut found = world.sweeps().await;
    lost.sort();
    found.sort();
    assert_eq!(found, lost);
    assert_eq!(world.machines.service.reconciler.restore().await.unwrap(), 0);

    // A time that passes before the check is made up for.
    let (member, due) = lost.iter().find(|(member, _)| member.starts_with("w ")).unwrap();
    for label in ["here", "there"] {
        let facts = json!({"go": true});
        // Written directly, so that no gate is evaluated.
        let bytes = {
            let mut record = world.label(label).await;
            record.metadata["go"] = facts["go"].clone();
            [record.header(), 0_u64.to_be_bytes().to_vec(), record.tail(0)].concat()
        };
        let key = format!("object:machine:m:{label}:data");
        world.servers.fabric().command("SET").arg(key).arg(bytes).run().await.unwrap();
    }
    world.machines.due.set(0, member, None).await.unwrap();
    world.time.0.store(due + 30_000, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(world.machines.service.reconciler.restore().await.unwrap(), 1);
    world.work_off().await;
    assert_eq!(&*world.label("here").await.state, "done");
}

#[tokio::test]
async fn assumptions_are_forgotten_after_a_lost_connection() {
    let world = World::new(DAILY).await;
    world.create("a", json!({})).await;
    world.lose_sweeps().await;
    world.machines.label_store.forget_assumptions();
    world.create("b", json!({})).await;
    assert_eq!(world.sweeps().await.len(), 1);
    // A definition whose number was lost, and given to another.
    let other = world.another();
    send_update(&other, "a", &json!({"x": 1})).await;
    world
        .machines
        .applier
        .apply(
            &machine(&DAILY.replace("metadata.go", "metadata.stop")),
            1,
            &Author::operator(),
            &BTreeMap::new(),
        )
        .await
        .unwrap();
    send_update(&other, "a", &json!({"x": 2})).await;
    for key in ["machine:m:current", "machine:m:versions", "machine:seen"] {
        let fabric = world.servers.fabric();
        if key == "machine:m:current" {
            fabric.command("SET").arg(key).arg(1).run().await.unwrap();
        } else if key == "machine:m:versions" {
            fabric.command("HDEL").arg(key).arg(2).run().await.unwrap();
        }
    }
    world
        .machines
        .applier
        .apply(
            &machine(&DAILY.replace("metadata.go", "metadata.x = 3")),
            1,
            &Author::operator(),
            &BTreeMap::new(),
        )
        .await
        .unwrap();
    other.label_store.forget_assumptions();
    assert_eq!(send_update(&other, "a", &json!({"x": 3, "go": 1})).await.state, "done");
}

#[tokio::test]
async fn an_unreadable_label_does_not_delay_other_labels() {
    let world = World::new(DAILY).await;
    for label in ["a", "bad", "c"] {
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
    // It is due, with all others.
    world.machines.due.set(0, "l m bad", Some(world.now_ms())).await.unwrap();
    world.time.advance(86_400_000);
    world.work_off().await;
    assert!(
        world.metric("signalbox_machines_unreadable_total").await >= 2,
        "its pending time and its time of day"
    );
    let due = world.machines.due.due(0, u64::MAX >> 12, 100).await.unwrap();
    let entry = due.iter().find(|(member, _)| member == "l m bad");
    assert_eq!(entry.map(|(_, at_ms)| *at_ms), Some(world.now_ms() + 60_000), "read again later");
    // Another definition is still applied.
    let new = machine(&DAILY.replace("gate: waiting", "gate: ready"));
    let map = [("waiting".to_owned(), "ready".to_owned())].into();
    world.machines.applier.apply(&new, 1, &Author::operator(), &map).await.unwrap();
    for label in ["a", "c"] {
        assert_eq!(&*world.label(label).await.state, "ready");
        assert_eq!(send_update(&world.machines, label, &json!({"go": true})).await.state, "done");
    }
    let found = world.machines.inspector.checker.check(crate::CheckCursor::default()).await.unwrap().findings;
    assert!(
        found.iter().any(|one| one.name == format!("{M}:bad") && one.what.contains("cannot be read")),
        "{found:?}"
    );
}
