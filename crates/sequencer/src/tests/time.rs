//! No call of a script blocks Redis for long, however much waits. Usually the commands of a call are counted. The test that
//! `make soak` runs prints the longest time of each operation, for the table in `docs/performance.md`.

use signalbox_store::FabricRole;
use signalbox_testkit::work::Operations;

use super::support::*;
use crate::{
    store::{Commit, Failed, MAX_COMMITS, Taken},
    worker::{MAX_ASKED, PART},
};
use signalbox_bus::{OnFailure, Queued, WantedBackend};

/// A backlog of `events` for each of `objects`.
async fn backlog(objects: usize, events: usize) -> World {
    let world = World::start().await;
    let one = WantedBackend { workers: 64, ..wanted("work:", OnFailure::Block) };
    world.bus.handle.put_backend("search", one, "whsec_").await.unwrap();
    let names: Vec<String> = (0..objects).map(|n| format!("work:{n}")).collect();
    for part in names.chunks(300) {
        let publishes =
            part.iter().map(|object| world.bus.handle.publish_group("shop", group(object, events)));
        assert!(futures_util::future::join_all(publishes).await.iter().all(Result::is_ok));
    }
    world
}

/// As many free workers as a call gets objects for.
fn workers() -> Vec<(String, Vec<String>)> {
    vec![("search".to_owned(), (0..MAX_ASKED).map(|n| format!("w{n}")).collect())]
}

/// Works on a backlog in each way that a script does.
async fn work_off(world: &World, observed: Operations<'_, FabricRole>, size: &str) {
    let store = &world.stores[0];
    let taken =
        observed.run("take 128 objects", size, store.take(&workers(), LEASE_MS, PART)).await.unwrap().taken;
    assert_eq!(taken.len(), MAX_ASKED);
    let held: Vec<_> = taken.iter().map(|taken| taken.held.clone()).collect();
    observed.run("heartbeat of 128 workers", size, store.beat(&held, LEASE_MS)).await.unwrap();
    let commit =
        |one: &Taken| Commit { id: one.sending.id(), held: one.held.clone(), reported: 0, more: true };
    let commits: Vec<Commit> = taken.iter().take(MAX_COMMITS).map(commit).collect();
    observed.run("commit 64 events", size, store.commit(&commits, LEASE_MS)).await.unwrap();
    let last = taken.last().unwrap();
    let skipped = store.fail(&last.held, last.sending.id(), &Failed::Skip, "answered 500", 10_000, 0);
    assert!(observed.run("skip an event", size, skipped).await.unwrap());
    world.advance(2 * LEASE_MS);
    observed.run("sweep 100 leases", size, store.take(&[], LEASE_MS, PART)).await.unwrap();
    let handle = world.handle();
    observed.run("check", size, handle.check()).await.unwrap();
    observed
        .run("remove the backend, its events become dead letters", size, async {
            handle.remove_backend("search", Some(Queued::Dead)).await.unwrap();
        })
        .await;
}

#[tokio::test]
async fn a_call_works_on_a_limited_number_of_objects() {
    let world = backlog(1_000, 2).await;
    work_off(&world, Operations::counted(&world.redis, 2_500), "1,000 objects").await;
}

#[tokio::test]
#[ignore = "prints times; make soak"]
async fn soak_of_a_large_backlog() {
    let world = backlog(20_000, 2).await;
    work_off(&world, Operations::timed(&world.redis), "20,000 objects of a backend").await;
}
