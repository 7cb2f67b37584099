//! Scripts at the largest values that the configuration allows.

use std::collections::BTreeSet;

use super::support::*;
use crate::{Options, store::Commit};
use signalbox_bus::{OnFailure, WantedBackend};

/// Backends and the workers of each that the configuration and the API allow.
const BACKENDS: usize = 100;
const WORKERS: u64 = 64;
/// Objects of each backend. All their events are taken by one call if the script is asked for them.
const OBJECTS: usize = 30;

/// A backlog on 3,000 objects of 100 backends.
async fn backlog() -> World {
    let world = World::start().await;
    for backend in 0..BACKENDS {
        let one = wanted(&format!("b{backend}/"), OnFailure::Block);
        let one = WantedBackend { workers: WORKERS, ..one };
        world.bus.handle.put_backend(&format!("b{backend}"), one, "whsec_").await.unwrap();
    }
    let objects: Vec<String> = (0..BACKENDS * OBJECTS).map(|n| format!("b{}/{n}", n % BACKENDS)).collect();
    for part in objects.chunks(300) {
        let publishes = part.iter().map(|object| world.bus.handle.publish_group("shop", group(object, 2)));
        let accepted = futures_util::future::join_all(publishes).await;
        assert!(accepted.iter().all(Result::is_ok));
    }
    world
}

#[tokio::test]
async fn one_call_leases_thousands_of_objects_and_loses_no_event() {
    let world = backlog().await;
    let store = &world.stores[0];
    let workers = |backend: usize| (0..WORKERS).map(|n| format!("w{backend}.{n}")).collect();
    let free: Vec<(String, Vec<String>)> =
        (0..BACKENDS).map(|backend| (format!("b{backend}"), workers(backend))).collect();
    let turn = store.take(&free, LEASE_MS, 100).await.unwrap();
    assert_eq!(turn.taken.len(), BACKENDS * OBJECTS);
    world.expect_consistent("after all leases began").await;

    // A repeat finds the same leases.
    let again = store.take(&free, LEASE_MS, 100).await.unwrap();
    let held = |turn: &crate::store::Turn| -> BTreeSet<(String, u64)> {
        turn.taken.iter().map(|taken| (taken.held.object.clone(), taken.sending.id())).collect()
    };
    assert_eq!(held(&again), held(&turn));

    let commits: Vec<Commit> = turn
        .taken
        .into_iter()
        .map(|taken| Commit { id: taken.sending.id(), held: taken.held, reported: 0, more: true })
        .collect();
    let beats: Vec<_> = commits.iter().map(|commit| commit.held.clone()).collect();
    assert_eq!(store.beat(&beats, LEASE_MS).await.unwrap(), (BACKENDS * OBJECTS) as u64);
    let replies = store.commit(&commits, LEASE_MS).await.unwrap();
    assert_eq!(replies.len(), BACKENDS * OBJECTS);
    world.expect_consistent("after all commits").await;

    // Every lease ends without a commit: they are swept in parts.
    world.advance(2 * LEASE_MS);
    for _ in 0..BACKENDS * OBJECTS / 100 {
        store.take(&[], LEASE_MS, 100).await.unwrap();
    }
    world.expect_consistent("after all leases were swept").await;
    assert_eq!(number(&world.redis, "ZCARD", &["object:leases"]).await, 0);
}

#[tokio::test]
async fn a_pacemaker_that_starts_with_a_backlog_on_3000_objects_sends_all_of_it() {
    let world = backlog().await;
    let receiver = Receiver::new();
    let running = Running::start(&world, Options::default(), &receiver);
    let events = 2 * BACKENDS * OBJECTS;
    eventually("every event to arrive", || async { equal(receiver.log().len(), events) }).await;
    in_order(&receiver.log());
    assert!(running.handle.check().await.unwrap().is_empty());
    running.stop().await;
}
