//! No call of a script blocks Redis for long, however many labels there are. Usually the commands of a call are counted. The test
//! that `make soak` runs prints the longest time of each operation, for the table in `docs/performance.md`.

use futures_util::{StreamExt as _, stream};
use serde_json::json;
use signalbox_testkit::work::Operations;

use super::{
    recounts,
    support::{M, World, send_update},
};
use crate::{
    faults::Faults,
    store::{FlowCounts, Shards},
};

const DAILY: &str = "
state_machines:
  m:
    states:
      - {gate: waiting, exit_condition: metadata.go, triggers: [{time: 18h30m}, {metadata: go}], next: done}
      - {gate: done}
";

/// Labels whose changes share calls.
const TOGETHER: usize = 500;

/// Creates, moves and counts so many labels.
async fn work(labels: usize, most: Option<u64>) {
    let world = World::new(DAILY).await;
    let redis = world.servers.fabric();
    let observed = most.map_or_else(|| Operations::timed(&redis), |most| Operations::counted(&redis, most));
    let size = &*format!("{labels} labels");
    let create = |n: usize| {
        let world = &world;
        async move { world.create(&format!("l{n:06}"), json!({"go": false})).await }
    };
    observed
        .run("create labels, many in a call", size, async {
            stream::iter((0..labels).map(create)).buffer_unordered(TOGETHER).collect::<Vec<_>>().await
        })
        .await;
    let machines = &world.machines;
    let go = json!({"go": true});
    observed
        .run("update labels, which move", size, async {
            let updates = (0..labels / 2).map(|n| {
                let go = &go;
                async move { send_update(machines, &format!("l{n:06}"), go).await }
            });
            stream::iter(updates).buffer_unordered(TOGETHER).collect::<Vec<_>>().await
        })
        .await;
    let due = machines.due.next(0).await.unwrap().unwrap();
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    observed.run("evaluate all labels at a time of day", size, world.work_off()).await;
    let counts: Vec<(String, u64)> = (0..crate::flow::PART).map(|n| (format!("waiting>{n}"), 1)).collect();
    let flow = FlowCounts(Shards::new(&redis, 1, Faults::default()));
    observed.run("add to 500 counters", size, flow.add(M, 1, 1_000, &counts)).await.unwrap();
    let entries = (0..500).flat_map(|n| [n.to_string(), format!("l m old{n}")]);
    redis.command("ZADD").arg("machine:due").arg(Vec::from_iter(entries)).run().await.unwrap();
    let adopted = machines.due.adopt(0, 500);
    assert_eq!(observed.run("adopt 500 entries of an earlier version", size, adopted).await.unwrap(), 500);
    let world = World::bare().await;
    let redis = world.servers.fabric();
    let observed = most.map_or_else(|| Operations::timed(&redis), |most| Operations::counted(&redis, most));
    let states = recounts::in_many_states(&world, labels).await;
    let size = format!("{labels} labels in {} states", states.len());
    observed.run("count the bytes of labels again", &size, recounts::count_pages(&world, &states)).await;
}

#[tokio::test]
async fn changes_of_labels_share_calls_of_a_limited_length() {
    Box::pin(work(1_000, Some(5_000))).await;
}

#[tokio::test]
#[ignore = "prints times; make soak"]
async fn soak_of_many_labels() {
    Box::pin(work(20_000, None)).await;
}
