//! Several shards: labels are spread over them, and requests about a machine cover all of them.

use signalbox_access::Author;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::support::{M, World, machine, send_update};
use crate::record::{Cause, Status};

const SHARDS: usize = 3;

const OLD: &str = "
state_machines:
  m:
    states:
      - {gate: first, exit_condition: metadata.go, triggers: [{metadata: go}], next: second}
      - {gate: second, exit_condition: 10m has passed since system.entered_state, triggers: [{interval: 1m}], next: done}
      - {gate: done}
";

#[tokio::test]
async fn labels_of_all_shards_are_listed_counted_moved_and_evaluated() {
    let world = World::on_shards(SHARDS).await;
    world.apply(OLD, 0).await;
    let names: Vec<String> = (0..30).map(|n| format!("l{n:02}")).collect();
    let shards = world.machines.records.shards();
    let used: BTreeSet<usize> = names.iter().map(|name| shards.of(M, name)).collect();
    assert_eq!(used.len(), SHARDS, "the names of this test are on all shards");
    for name in &names {
        world.create(name, json!({})).await;
    }
    // In order, page by page.
    let mut listed: Vec<String> = Vec::new();
    loop {
        let after = listed.last().cloned();
        let page = world
            .machines
            .label_store
            .list(M, &["first", "second"], None, after.as_deref(), 7)
            .await
            .unwrap();
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    assert_eq!(listed, names);
    for name in &names[..20] {
        assert_eq!(world.send_update(name, json!({"go": true})).await.state, "second");
    }
    assert_eq!(
        world.machines.records.count_states(M, &["first", "second", "done"]).await.unwrap(),
        [10, 20, 0]
    );

    // Another pacemaker knows the old definition; each shard has the new one.
    let other = world.another();
    send_update(&other, "l29", &json!({"x": 1})).await;
    let new = machine(&OLD.replace("second", "third"));
    let map = BTreeMap::from([("second".to_owned(), "third".to_owned())]);
    assert_eq!(world.machines.applier.apply(&new, 1, &Author::operator(), &map).await.unwrap().version, 2);
    for shard in 0..SHARDS {
        assert_eq!(world.machines.versions.current(shard, M).await.unwrap(), Some(2));
    }
    assert_eq!(
        world.machines.records.count_states(M, &["first", "second", "third", "done"]).await.unwrap(),
        [10, 0, 20, 0]
    );
    for name in &names[..20] {
        let record = world.label(name).await;
        assert_eq!((&*record.state, record.history.last().unwrap().cause), ("third", Cause::Migrated));
    }
    assert_eq!(send_update(&other, "l29", &json!({"go": true})).await.state, "third");

    // Each shard has separate times.
    world.time.advance(600_000);
    world.work_off().await;
    assert_eq!(
        world.machines.records.count_states(M, &["first", "third", "done"]).await.unwrap(),
        [9, 0, 21]
    );
    for shard in 0..SHARDS {
        assert_eq!(world.machines.due.next(shard).await.unwrap(), None);
    }
    assert_eq!(world.label("l00").await.status, Status::Ended);
}
