//! Redriven dead letters, and backends that are removed while events are queued for them.

use std::collections::BTreeMap;

use super::support::*;
use crate::{
    Removed,
    removal::{self, Step},
    store::{Committed, Failed},
};
use signalbox_bus::{Error, OnFailure, Queued};

async fn world() -> World {
    let world = World::start().await;
    world.backend("search", "work:", OnFailure::Skip).await;
    world
}

/// Takes and commits as one worker until nothing is left. Returns the sent events with their mark.
async fn send_all(world: &World) -> Vec<(String, u64, bool)> {
    let mut sent = Vec::new();
    while let Some(taken) = world.take("search", "w").await {
        let mut sending = taken.sending;
        loop {
            sent.push((taken.held.object.clone(), sending.id(), sending.is_redriven()));
            match world.commit(&taken.held, sending.id(), sending.gaps.len(), true).await {
                Committed::Next(next) => sending = next,
                Committed::Done => break,
                Committed::Lost => panic!("the lease is valid"),
            }
        }
    }
    sent
}

async fn bury_the_first(world: &World, object: &str) {
    let taken = world.take("search", "a").await.unwrap();
    assert_eq!(taken.held.object, object);
    assert!(world.fail(&taken.held, taken.sending.id(), &Failed::Skip).await);
}

#[tokio::test]
async fn a_redriven_event_keeps_its_id_is_marked_and_is_queued_last() {
    let world = world().await;
    let ids = world.publish("work:1", 3).await;
    bury_the_first(&world, "work:1").await;
    assert_eq!(world.handle().redrive("search").await.unwrap(), (1, 0));
    world.expect_consistent("redriven").await;
    let one = |id: u64, redriven: bool| ("work:1".to_owned(), id, redriven);
    assert_eq!(send_all(&world).await, [one(ids[1], false), one(ids[2], false), one(ids[0], true)]);
    let status = world.stores[0].status("work:1").await.unwrap().unwrap();
    assert_eq!(status.last_sent_id, Some(ids[2]), "the latest one stays the latest");
    assert_eq!(world.handle().redrive("search").await.unwrap(), (0, 0), "a repeat finds nothing");
    assert!(matches!(world.handle().redrive("other").await, Err(Error::NoSuchBackend)));
    world.expect_consistent("at the end").await;
}

#[tokio::test]
async fn a_letter_that_dies_again_is_marked_once_and_stays_if_the_queue_is_full() {
    let world = world().await;
    let ids = world.publish("work:1", 1).await;
    for round in 0..3 {
        bury_the_first(&world, "work:1").await;
        assert_eq!(world.handle().redrive("search").await.unwrap(), (1, 0), "{round}");
        world.expect_consistent("redriven").await;
    }
    let queued = strings(&world.redis, "LRANGE", &["object:work:1:events", "0", "-1"]).await;
    assert_eq!(queued.len(), 1);
    assert_eq!(queued[0].matches("redriven").count(), 1, "{queued:?}");
    let gaps = strings(&world.redis, "LRANGE", &["object:work:1:gaps", "0", "-1"]).await;
    assert_eq!(gaps, [format!("{0} {0} 1 dead", ids[0])], "one event is one gap, however often it dies");
    bury_the_first(&world, "work:1").await;
    for _ in 0..10 {
        world.publish("work:1", 100).await;
    }
    world.publish("work:2", 1).await;
    assert_eq!(world.handle().redrive("search").await.unwrap(), (0, 1), "its queue is full");
    assert_eq!(world.handle().dead("search", 10).await.unwrap().len(), 1);
    world.expect_consistent("at the end").await;
}

/// In the order in which they became dead letters, in more than one call of the script.
#[tokio::test]
async fn many_letters_of_many_objects_are_redriven_completely() {
    let world = world().await;
    let mut wanted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for n in 0..30 {
        let object = format!("work:{n}");
        wanted.insert(object.clone(), world.publish(&object, 9).await);
    }
    world.bus.handle.drain_backend("search", Queued::Dead).await.unwrap();
    assert!(matches!(world.handle().redrive("search").await, Err(Error::NoSuchBackend)));
    assert_eq!(world.handle().remove_backend("search", None).await.unwrap(), Removed::Gone);
    world.backend("search", "work:", OnFailure::Skip).await;
    assert_eq!(world.handle().redrive("search").await.unwrap(), (270, 0));
    world.expect_consistent("redriven").await;
    let mut sent: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (object, id, redriven) in send_all(&world).await {
        assert!(redriven);
        sent.entry(object).or_default().push(id);
    }
    assert_eq!(sent, wanted);
}

/// One object in each state that an object can be in: ready, leased, waiting for its retry, parked.
async fn every_state(world: &World) -> BTreeMap<&'static str, Vec<u64>> {
    let mut ids = BTreeMap::new();
    for (object, failed) in [
        ("work:parked", Some(Failed::Park)),
        ("work:retry", Some(Failed::Retry { pause_ms: 60_000 })),
        ("work:leased", None),
    ] {
        ids.insert(object, world.publish(object, 2).await);
        let taken = world.take("search", object).await.unwrap();
        if let Some(failed) = failed {
            assert!(world.fail(&taken.held, taken.sending.id(), &failed).await);
        }
    }
    ids.insert("work:ready", world.publish("work:ready", 2).await);
    ids
}

#[tokio::test]
async fn a_backend_with_events_is_not_removed_without_a_word() {
    let world = world().await;
    every_state(&world).await;
    let handle = world.handle();
    let not_empty = Removed::NotEmpty { objects: 4, events: 8 };
    assert_eq!(handle.remove_backend("search", None).await.unwrap(), not_empty);
    assert!(!world.bus.handle.registry().backends["search"].draining, "nothing was done");
    assert_eq!(handle.remove_backend("search", Some(Queued::Send)).await.unwrap(), Removed::Going);
    assert_eq!(handle.remove_backend("search", None).await.unwrap(), Removed::Going, "a repeat continues");
    // An operator does not want to wait for a hanging backend, and changes the treatment of its events.
    assert_eq!(handle.remove_backend("search", Some(Queued::Dead)).await.unwrap(), Removed::Gone);
    assert!(matches!(handle.remove_backend("search", None).await, Err(Error::NoSuchBackend)));
    world.expect_consistent("gone").await;
}

#[tokio::test]
async fn dead_keeps_every_event_and_discard_none_and_both_leave_a_gap() {
    for queued in [Queued::Dead, Queued::Discard] {
        let world = world().await;
        let ids = every_state(&world).await;
        let leased = world.take("search", "work:leased").await.unwrap();
        let handle = world.handle();
        assert_eq!(handle.remove_backend("search", Some(queued)).await.unwrap(), Removed::Gone);
        world.expect_consistent("gone").await;
        let numbers = strings(&world.redis, "HKEYS", &["object:numbers"]).await;
        assert!(!numbers.iter().any(|field| field.contains('@')), "{numbers:?}");
        for key in ["queued", "leases", "retry", "parked", "workers"] {
            assert_eq!(number(&world.redis, "EXISTS", &[&format!("object:{key}")]).await, 0, "{key}");
        }
        // A worker that is sending now has lost its lease.
        assert_eq!(world.commit(&leased.held, leased.sending.id(), 0, true).await, Committed::Lost);
        let dead: Vec<String> =
            handle.dead("search", 100).await.unwrap().iter().map(|one| one.event.get().to_owned()).collect();
        assert_eq!(dead.len(), if queued == Queued::Dead { 8 } else { 0 });
        for (object, ids) in &ids {
            for id in ids {
                let found = dead.iter().filter(|event| event.starts_with(&format!("{{\"id\":{id},"))).count();
                assert_eq!(found, dead.len() / 8, "{object}");
            }
            let gaps = strings(&world.redis, "LRANGE", &[&format!("object:{object}:gaps"), "0", "-1"]).await;
            let why = if queued == Queued::Dead { "dead" } else { "discarded" };
            assert_eq!(gaps, [format!("{} {} 2 {why}", ids[0], ids[1])]);
        }
        // New events are published to the bus. Once the backend exists again, its next event reports the gap.
        let log = number(&world.redis, "HLEN", &["bus:log"]).await;
        world.publish("work:ready", 1).await;
        assert_eq!(number(&world.redis, "HLEN", &["bus:log"]).await, log + 1);
        world.backend("search", "work:", OnFailure::Skip).await;
        world.publish("work:ready", 1).await;
        let taken = world.take("search", "w").await.unwrap();
        assert_eq!(taken.sending.gaps.len(), 1);
    }
}

/// The pacemaker that executes the removal crashes after any number of steps. Another pacemaker continues,
/// and so does a repeated request.
#[tokio::test]
async fn a_removal_whose_pacemaker_died_is_finished_by_another() {
    let world = world().await;
    for n in 0..6 {
        for _ in 0..2 {
            world.publish(&format!("work:{n}"), 100).await;
        }
    }
    // The registry is changed and one step is done; then the process stops.
    world.bus.handle.drain_backend("search", Queued::Dead).await.unwrap();
    let mut cursor = "0".to_owned();
    let stepped =
        removal::step(&world.bus.handle, &world.stores[0], "search", &mut cursor, 10_000).await.unwrap();
    assert_eq!(stepped, Step::Going, "there is more than one step has time for");
    world.expect_consistent("half way").await;
    let receiver = Receiver::new();
    let running = Running::start(&world, hasty(), &receiver);
    eventually("the backend to be gone", || async {
        world.bus.handle.refresh_registry().await.unwrap();
        if !world.bus.handle.registry().backends.contains_key("search") { Ok(()) } else { Err("not yet") }
    })
    .await;
    assert_eq!(receiver.log().len(), 0, "nothing is sent to a backend whose events are dropped");
    assert_eq!(number(&world.redis, "LLEN", &["object:dead@search"]).await, 1_200);
    world.expect_consistent("gone").await;
    running.stop().await;
}

#[tokio::test]
async fn a_backend_defined_again_during_its_removal_keeps_the_remaining_events() {
    let world = world().await;
    world.publish("work:1", 2).await;
    world.bus.handle.drain_backend("search", Queued::Discard).await.unwrap();
    let old = world.bus.handle.stamp();
    world.backend("search", "work:", OnFailure::Skip).await;
    let cleared = world.stores[0].clear(&old, "search", Queued::Discard, "0", 10_000).await.unwrap();
    assert_eq!((cleared.dropped, cleared.left), (0, None), "a call that comes too late does nothing");
    let mut cursor = "0".to_owned();
    let stepped =
        removal::step(&world.bus.handle, &world.stores[0], "search", &mut cursor, 10_000).await.unwrap();
    assert_eq!(stepped, Step::Stale);
    assert_eq!(send_all(&world).await.len(), 2);
}

/// Every shard has a part of a backend's objects and dead letters. The backend is removed when the last shard
/// has none.
#[tokio::test]
async fn a_backend_that_was_defined_and_removed_again_is_not_forgotten_because_it_was_empty_before() {
    let world = world().await;
    world.bus.handle.drain_backend("search", Queued::Send).await.unwrap();
    let seen = world.bus.handle.registry().backends["search"].drained_in;
    world.backend("search", "work:", OnFailure::Skip).await;
    let ids = world.publish("work:1", 2).await;
    world.bus.handle.drain_backend("search", Queued::Send).await.unwrap();
    assert!(!world.bus.handle.forget_backend("search", seen).await.unwrap());
    let sent: Vec<u64> = send_all(&world).await.into_iter().map(|(_, id, _)| id).collect();
    assert_eq!(sent, ids);
    let empty = removal::forget_if_empty(&world.bus.handle, &world.stores, "search").await.unwrap();
    assert!(empty);
    assert!(!world.bus.handle.registry().backends.contains_key("search"));
}

#[tokio::test]
async fn in_four_shards_a_removal_clears_each_and_a_redrive_reaches_each() {
    let world = World::start_on(Server::cluster().await, 4).await;
    world.backend("search", "work:", OnFailure::Skip).await;
    for n in 0..20 {
        world.publish(&format!("work:{n}"), 3).await;
    }
    let handle = world.handle();
    let not_empty = Removed::NotEmpty { objects: 20, events: 60 };
    assert_eq!(handle.remove_backend("search", None).await.unwrap(), not_empty);
    assert_eq!(handle.remove_backend("search", Some(Queued::Dead)).await.unwrap(), Removed::Gone);
    world.expect_consistent("gone").await;
    assert_eq!(handle.dead("search", 100).await.unwrap().len(), 60);
    world.backend("search", "work:", OnFailure::Skip).await;
    assert_eq!(handle.redrive("search").await.unwrap(), (60, 0));
    world.expect_consistent("redriven").await;
    let receiver = Receiver::new();
    let running = Running::start(&world, hasty(), &receiver);
    eventually("all of them", || async {
        equal(receiver.log().iter().filter(|one| one.redriven).count(), 60)
    })
    .await;
    assert_eq!(receiver.log().len(), 60);
    running.stop().await;
}

#[tokio::test]
async fn a_removed_backend_keeps_no_more_dead_letters_than_others_and_counts_the_rest() {
    let world = world().await;
    let ids = every_state(&world).await;
    assert!(ids.values().map(Vec::len).sum::<usize>() >= 8);
    let mut cursor = "0".to_owned();
    world.bus.handle.drain_backend("search", Queued::Dead).await.unwrap();
    while removal::step(&world.bus.handle, &world.stores[0], "search", &mut cursor, 3).await.unwrap()
        == Step::Going
    {}
    assert_eq!(number(&world.redis, "LLEN", &["object:dead@search"]).await, 3);
    assert_eq!(number(&world.redis, "HGET", &["object:numbers", "dead_forgotten"]).await, 5);
}
