//! Whole sequencers on a real Redis.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::support::*;
use crate::{Decided, Decision, Options, Removed};
use signalbox_bus::{Error, OnFailure, Queued, WantedBackend};
use signalbox_egress::Outcome;

async fn all_taken(receiver: &Receiver, wanted: &BTreeMap<String, Vec<u64>>) {
    eventually("every event to be taken", || async {
        if wanted.iter().all(|(object, ids)| receiver.taken(object).len() >= ids.len()) {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    for (object, ids) in wanted {
        assert_eq!(receiver.taken(object), *ids, "{object}");
    }
}

/// With one worker, a ready object waits for at most one visit of each object before it.
#[tokio::test]
async fn fault_of_the_printed_algorithm_a_hot_object_starves_no_other() {
    let world = World::start().await;
    let mut one = wanted("work:", OnFailure::Block);
    one.workers = 1;
    world.bus.handle.put_backend("search", one, "whsec_").await.unwrap();
    let receiver = Receiver::new();
    for _ in 0..3 {
        world.publish("work:hot", 100).await;
    }
    for n in 0..5 {
        world.publish(&format!("work:{n}"), 1).await;
    }
    let quantum = 4;
    let running = Running::start(&world, Options { quantum, ..hasty() }, &receiver);
    eventually("all", || async { equal(receiver.log().len(), 305) }).await;
    let log = receiver.log();
    let last_of_others = log.iter().rposition(|one| one.object != "work:hot").unwrap();
    // The object with many events was ready first, and then again behind the five others.
    assert!(last_of_others < quantum as usize + 5, "{last_of_others}");
    in_order(&log);
    assert!(running.handle.check().await.unwrap().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn events_arrive_once_and_in_order_through_workers_that_die_and_a_server_that_restarts() {
    let world = World::start_on(Server::durable().await, 1).await;
    world.backend("search", "work:", OnFailure::Block).await;
    let receiver = Receiver::new();
    receiver.answers(|call| {
        // Every seventh event fails once.
        let fails = call.attempts == 0 && (call.event.id.0 / 64).is_multiple_of(7);
        (Duration::from_millis(1), if fails { failed() } else { Outcome::Delivered })
    });
    let mut world = world;
    let mut wanted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut running: Vec<Running> = Vec::new();
    for round in 0..6 {
        // Three pacemakers run; in each round the oldest one crashes.
        while running.len() < 3 {
            running.push(Running::start(&world, hasty(), &receiver));
        }
        for n in 0..40 {
            let object = format!("work:{}", if n % 2 == 0 { 0 } else { n });
            let ids = world.publish(&object, 1 + n % 3).await;
            wanted.entry(object).or_default().extend(ids);
        }
        if round == 3 {
            world.server.restart().await;
        }
        running.remove(0).abandon();
    }
    running.push(Running::start(&world, hasty(), &receiver));
    all_taken(&receiver, &wanted).await;
    in_order(&receiver.log());
    eventually("nothing to be queued", || async {
        equal(number(&world.redis, "EXISTS", &["object:queued", "object:leases"]).await, 0)
    })
    .await;
    assert!(running[0].handle.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn four_shards_each_have_their_queues_and_their_workers() {
    let world = World::start_on(Server::cluster().await, 4).await;
    world.backend("search", "work:", OnFailure::Block).await;
    let receiver = Receiver::new();
    let running = Running::start(&world, hasty(), &receiver);
    let mut wanted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for n in 0..120 {
        let object = format!("work:{}", n % 30);
        let ids = world.publish(&object, 2).await;
        wanted.entry(object).or_default().extend(ids);
    }
    all_taken(&receiver, &wanted).await;
    in_order(&receiver.log());
    assert_eq!(running.handle.check().await.unwrap(), []);
    let status = running.handle.object("work:1").await.unwrap().unwrap();
    let last = wanted["work:1"].last().copied();
    assert_eq!(status.last_id, last);
    // For every object: a delivered event may not be committed yet, and then it delays the removal of a
    // backend.
    for (object, ids) in &wanted {
        eventually("the last commit", || async {
            let status = running.handle.object(object).await.unwrap().unwrap();
            if status.last_sent_id == ids.last().copied() && status.backend.is_none() {
                Ok(())
            } else {
                Err("not yet")
            }
        })
        .await;
    }
    assert!(running.handle.object("work:unknown").await.unwrap().is_none());
    // The worker that committed last may be about to take more events. The backend is removed after that.
    eventually("the backend to be gone", || async {
        let removed = running.handle.remove_backend("search", None).await;
        if matches!(removed, Ok(Removed::Gone) | Err(Error::NoSuchBackend)) { Ok(()) } else { Err("not yet") }
    })
    .await;
}

/// The bus's own handle stores the change and does nothing else, like a process that dies after it.
#[tokio::test]
async fn a_changed_backend_is_tried_again_soon_even_if_the_process_that_changed_it_dies() {
    let world = World::start_on(Server::cluster().await, 2).await;
    world.backend("search", "work:", OnFailure::Block).await;
    let receiver = Receiver::new();
    receiver.answers(|_| {
        let retry_after = Some(Duration::from_secs(3600));
        (Duration::ZERO, Outcome::Failed { why: "answered 503".to_owned(), retry_after })
    });
    let options = Options { first_pause_ms: 3_600_000, longest_pause_ms: 3_600_000, ..hasty() };
    let running = Running::start(&world, options, &receiver);
    for n in 0..10 {
        world.publish(&format!("work:{n}"), 1).await;
    }
    eventually("the pauses", || async { equal(running.handle.numbers().await.unwrap().retry, 10) }).await;
    receiver.answers(|_| (Duration::ZERO, Outcome::Delivered));
    let changed =
        WantedBackend { callback: "https://new.example/".into(), ..wanted("work:", OnFailure::Block) };
    world.bus.handle.put_backend("search", changed, "whsec_").await.unwrap();
    eventually("the events", || async { equal(receiver.log().iter().filter(|one| one.taken).count(), 10) })
        .await;
    running.stop().await;
}

#[tokio::test]
async fn each_policy_handles_a_poison_event_and_other_objects_continue() {
    let world = World::start().await;
    world.backend("blocks", "block:", OnFailure::Block).await;
    world.backend("skips", "skip:", OnFailure::Skip).await;
    world.backend("parks", "park:", OnFailure::Park).await;
    let receiver = Receiver::new();
    let poison: Vec<u64> = [
        world.publish("block:1", 2).await[0],
        world.publish("skip:1", 2).await[0],
        world.publish("park:1", 2).await[0],
    ]
    .to_vec();
    let healed = std::sync::Arc::new(AtomicBool::new(false));
    let (bad, well) = (poison.clone(), std::sync::Arc::clone(&healed));
    receiver.answers(move |call| {
        let fails = bad.contains(&call.event.id.0) && !well.load(Ordering::SeqCst);
        (Duration::ZERO, if fails { failed() } else { Outcome::Delivered })
    });
    let running = Running::start(&world, hasty(), &receiver);
    let handle = &running.handle;
    eventually("the skipped event's successor", || async { equal(receiver.taken("skip:1").len(), 1) }).await;
    eventually("the parked object", || async {
        if handle.object("park:1").await.unwrap().is_some_and(|one| one.parked_since.is_some()) {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    eventually("the blocked object to be tried beyond its limit", || async {
        if receiver.log().iter().filter(|one| one.id == poison[0]).count() > 5 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    assert_eq!(receiver.taken("block:1"), [0; 0], "nothing overtakes a blocked event");
    let reported: Vec<_> =
        receiver.log().into_iter().filter(|one| one.object == "skip:1" && one.taken).collect();
    assert_eq!(reported[0].gaps, [(poison[1], poison[1])]);
    let status = handle.object("park:1").await.unwrap().unwrap();
    assert_eq!((status.attempts, status.queued, status.last_error.as_deref()), (3, 2, Some("answered 500")));
    assert_eq!(handle.parked(10).await.unwrap()[0].0, "park:1");
    assert_eq!(handle.dead("skips", 10).await.unwrap().len(), 1);
    assert!(handle.check().await.unwrap().is_empty(), "all of it is consistent");
    healed.store(true, Ordering::SeqCst);
    assert_eq!(handle.decide("park:1", Decision::Unpark).await.unwrap(), Decided::Done);
    eventually("the others", || async {
        equal((receiver.taken("park:1").len(), receiver.taken("block:1").len()), (2, 2))
    })
    .await;
    in_order(&receiver.log());
    assert_eq!(handle.drop_dead("skips").await.unwrap(), 1);
}

#[tokio::test]
async fn a_backend_that_is_gone_is_stopped_until_it_is_defined_again() {
    let world = World::start().await;
    world.backend("search", "work:", OnFailure::Skip).await;
    let receiver = Receiver::new();
    receiver.answers(|_| (Duration::ZERO, Outcome::Gone));
    let running = Running::start(&world, hasty(), &receiver);
    let ids = world.publish("work:1", 3).await;
    eventually("the backend to be stopped", || async {
        if world.bus.handle.registry().backends["search"].disabled.is_some() {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    let more = world.publish("work:1", 1).await;
    receiver.answers(|_| (Duration::ZERO, Outcome::Delivered));
    running.handle.put_backend("search", wanted("work:", OnFailure::Skip), "whsec_").await.unwrap();
    let wanted = BTreeMap::from([("work:1".to_owned(), [ids, more].concat())]);
    all_taken(&receiver, &wanted).await;
    assert!(
        receiver.log().iter().all(|one| one.attempts == 0),
        "a backend that is gone causes no failed attempt"
    );
}

#[tokio::test]
async fn a_removed_backend_is_drained_and_then_forgotten() {
    let world = World::start().await;
    world.backend("search", "work:", OnFailure::Block).await;
    let receiver = Receiver::new();
    let open = std::sync::Arc::new(AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&open);
    receiver.answers(move |_| {
        (Duration::ZERO, if seen.load(Ordering::SeqCst) { Outcome::Delivered } else { failed() })
    });
    let running = Running::start(&world, hasty(), &receiver);
    let mut ids = world.publish("work:1", 2).await;
    let (objects, events) = (1, 2);
    let refused = running.handle.remove_backend("search", None).await.unwrap();
    assert_eq!(refused, Removed::NotEmpty { objects, events });
    let begun = running.handle.remove_backend("search", Some(Queued::Send)).await.unwrap();
    assert_eq!(begun, Removed::Going, "events are queued for it");
    ids.extend(world.publish("work:1", 1).await);
    world.publish("work:2", 1).await;
    open.store(true, Ordering::SeqCst);
    eventually("the backend to be forgotten", || async {
        if !world.bus.handle.registry().backends.contains_key("search") { Ok(()) } else { Err("not yet") }
    })
    .await;
    all_taken(&receiver, &BTreeMap::from([("work:1".to_owned(), ids)])).await;
    assert_eq!(receiver.taken("work:2"), [0; 0], "it took no new objects");
}
