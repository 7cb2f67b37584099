//! Defects of the algorithm as it was published, tested on the real scripts: a worker is abandoned between any two of
//! them, and a lost reply is a repeated call.

use std::collections::BTreeSet;

use super::support::*;
use crate::store::{Committed, Failed, Taken};
use signalbox_bus::{OnFailure, WantedBackend};

async fn world() -> World {
    let world = World::start().await;
    world.backend("search", "work:", OnFailure::Park).await;
    world
}

/// `restart()` compared the owner with a literal `2`: a returning worker took another worker's object, or did
/// not get its own.
#[tokio::test]
async fn fault_of_the_published_algorithm_a_returning_worker_takes_no_object_of_another() {
    let world = world().await;
    let ids = world.publish("work:1", 3).await;
    let old = world.take("search", "2").await.unwrap();
    // The worker is paused for longer than its lease. Another continues with the same event under a higher
    // epoch.
    world.advance(LEASE_MS);
    let new = world.take("search", "3").await.unwrap();
    assert_eq!((new.sending.id(), new.held.epoch > old.held.epoch), (ids[0], true));
    world.expect_consistent("after the take-over").await;
    // The old worker returns. Its calls have no effect, and it gets no object while the other worker holds
    // it.
    assert_eq!(world.commit(&old.held, ids[0], 0, true).await, Committed::Lost);
    assert!(!world.fail(&old.held, ids[0], &Failed::Skip).await);
    assert!(world.take("search", "2").await.is_none());
    let Committed::Next(next) = world.commit(&new.held, ids[0], 0, true).await else {
        panic!("its lease is valid")
    };
    assert_eq!(next.id(), ids[1]);
    world.expect_consistent("at the end").await;
}

/// "There are at most as many queued events as future visits" is false even if nothing has failed.
#[tokio::test]
async fn fault_of_the_printed_algorithm_a_backlog_is_always_in_exactly_one_place() {
    let world = world().await;
    world.publish("work:1", 2).await;
    world.expect_consistent("ready").await;
    world.publish("work:1", 1).await;
    world.expect_consistent("ready, and more came").await;
    let taken = world.take("search", "a").await.unwrap();
    world.publish("work:1", 1).await;
    world.expect_consistent("leased, and more came").await;
    assert!(world.take("search", "b").await.is_none(), "a held object is not given to another worker");
    let mut id = taken.sending.id();
    for left in [3, 2, 1] {
        let Committed::Next(next) = world.commit(&taken.held, id, 0, true).await else {
            panic!("{left} are left")
        };
        id = next.id();
        world.expect_consistent("in the middle of a visit").await;
    }
    assert_eq!(world.commit(&taken.held, id, 0, true).await, Committed::Done);
    world.expect_consistent("idle").await;
    for key in ["object:queued", "object:leases", "object:workers", "object:work:1:event.worker"] {
        assert_eq!(number(&world.redis, "EXISTS", &[key]).await, 0, "{key}");
    }
}

#[tokio::test]
async fn fault_of_the_published_algorithm_a_worker_that_never_returns_blocks_nothing() {
    let world = world().await;
    let ids = world.publish("work:1", 1).await;
    world.take("search", "gone").await.unwrap();
    world.advance(LEASE_MS - 1);
    assert!(world.take("search", "b").await.is_none(), "its lease is valid");
    world.advance(1);
    let taken = world.take("search", "b").await.unwrap();
    assert_eq!(
        (taken.sending.id(), taken.sending.attempts),
        (ids[0], 1),
        "perhaps it was sent: that is an attempt"
    );
    assert_eq!(world.commit(&taken.held, ids[0], 0, true).await, Committed::Done);
    world.expect_consistent("at the end").await;
}

/// If a worker did not receive the reply of the `SETNX` that took an object, it assumed that another worker
/// had the object, which then never expired.
#[tokio::test]
async fn fault_of_the_published_algorithm_a_lost_reply_of_a_take_loses_no_object() {
    let world = world().await;
    world.publish("work:1", 2).await;
    world.publish("work:2", 1).await;
    let first = world.take("search", "a").await.unwrap();
    for _ in 0..3 {
        assert_eq!(
            world.take("search", "a").await.as_ref(),
            Some(&first),
            "the same object, epoch and event"
        );
    }
    world.expect_consistent("after repeats").await;
    let other = world.take("search", "b").await.unwrap();
    assert_eq!(other.held.object, "work:2", "a worker holds at most one object");
}

#[tokio::test]
async fn a_lost_reply_of_a_commit_commits_once() {
    let world = world().await;
    let ids = world.publish("work:1", 3).await;
    let taken = world.take("search", "a").await.unwrap();
    let Committed::Next(next) = world.commit(&taken.held, ids[0], 0, true).await else {
        panic!("more is there")
    };
    assert_eq!(world.commit(&taken.held, ids[0], 0, true).await, Committed::Next(next.clone()));
    assert_eq!(next.id(), ids[1]);
    assert_eq!(world.commit(&taken.held, ids[1], 0, false).await, Committed::Done, "the visit is over");
    assert_eq!(world.commit(&taken.held, ids[1], 0, false).await, Committed::Lost);
    assert_eq!(strings(&world.redis, "LRANGE", &["object:work:1:events", "0", "-1"]).await.len(), 1);
    assert_eq!(strings(&world.redis, "MGET", &["object:work:1:last.event.id"]).await, [ids[1].to_string()]);
    world.expect_consistent("at the end").await;
}

#[tokio::test]
async fn a_lost_reply_of_a_failure_fails_once() {
    let world = world().await;
    let ids = world.publish("work:1", 2).await;
    let taken = world.take("search", "a").await.unwrap();
    assert!(world.fail(&taken.held, ids[0], &Failed::Retry { pause_ms: 1_000 }).await);
    assert!(!world.fail(&taken.held, ids[0], &Failed::Retry { pause_ms: 1_000 }).await);
    world.expect_consistent("waiting for its retry").await;
    assert!(world.take("search", "a").await.is_none());
    world.publish("work:1", 1).await;
    assert!(world.take("search", "a").await.is_none(), "what comes does not shorten the pause");
    world.advance(1_000);
    let again = world.take("search", "a").await.unwrap();
    assert_eq!((again.sending.id(), again.sending.attempts), (ids[0], 1));
}

/// Three parts of the objects that wait for a retry, and those of another backend among them.
#[tokio::test]
async fn a_changed_backend_ends_the_pauses_of_all_its_objects_and_of_no_others() {
    let world = world().await;
    world.backend("other", "rest:", OnFailure::Block).await;
    const OBJECTS: usize = 250;
    for n in 0..OBJECTS {
        world.publish(&format!("work:{n}"), 1).await;
        world.publish(&format!("rest:{n}"), 1).await;
    }
    let free = |backend: &str| {
        (backend.to_owned(), (0..2 * OBJECTS).map(|n| format!("{backend}{n}")).collect::<Vec<_>>())
    };
    let all = [free("search"), free("other")];
    let take = async || world.stores[0].take(&all, LEASE_MS, 100).await.unwrap();
    let fail = async |taken: &Taken| {
        assert!(world.fail(&taken.held, taken.sending.id(), &Failed::Retry { pause_ms: 1_000_000 }).await);
    };
    let turn = take().await;
    assert_eq!(turn.taken.len(), 2 * OBJECTS);
    // One attempt is under way while the backend is changed. Its failure says nothing about the new one.
    let late = turn.taken.iter().find(|taken| taken.backend == "search").unwrap();
    for taken in turn.taken.iter().filter(|taken| *taken != late) {
        fail(taken).await;
    }
    assert_eq!(take().await.taken, std::slice::from_ref(late), "all others wait");
    let changed =
        WantedBackend { callback: "https://new.example/".into(), ..wanted("work:", OnFailure::Block) };
    world.bus.handle.put_backend("search", changed, "whsec_").await.unwrap();
    fail(late).await;
    let mut taken = BTreeSet::new();
    for _ in 0..20 {
        let turn = take().await;
        taken.extend(turn.taken.into_iter().map(|one| (one.backend, one.held.object)));
        if taken.len() < OBJECTS {
            assert_eq!(turn.next_due_ms, Some(turn.now_ms), "the next part is due now");
        }
    }
    assert_eq!(taken.len(), OBJECTS);
    assert!(taken.iter().all(|(backend, _)| backend == "search"));
    world.expect_consistent("all taken").await;
}

/// An event that always failed blocked its object and the worker. The worker chooses one of the policies;
/// this test checks the effect of each.
#[tokio::test]
async fn fault_of_the_printed_algorithm_a_poison_event_that_is_skipped_leaves_a_gap() {
    let world = world().await;
    let ids = world.publish("work:1", 2).await;
    let taken = world.take("search", "a").await.unwrap();
    assert!(world.fail(&taken.held, ids[0], &Failed::Skip).await);
    world.expect_consistent("skipped").await;
    let next = world.take("search", "a").await.unwrap();
    assert_eq!(next.sending.id(), ids[1]);
    assert_eq!(next.sending.gaps, [format!("{} {} 1 dead", ids[0], ids[0])]);
    assert_eq!(world.commit(&next.held, ids[1], 1, true).await, Committed::Done);
    assert_eq!(number(&world.redis, "EXISTS", &["object:work:1:gaps"]).await, 0, "reported once");
    let dead = world.handle().dead("search", 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].attempts, &*dead[0].why), (1, 1, "answered 500"));
    assert!(dead[0].event.get().starts_with(&format!("{{\"id\":{}", ids[0])));
    world.expect_consistent("at the end").await;
}

#[tokio::test]
async fn fault_of_the_printed_algorithm_a_poison_event_that_is_parked_waits_for_a_decision() {
    let world = world().await;
    let ids = world.publish("work:1", 3).await;
    let decide = async |skip: bool| {
        if skip { world.skip("work:1", ids[0]).await } else { world.unpark("work:1").await }
    };
    for skip in [false, true] {
        let taken = world.take("search", "a").await.unwrap();
        assert_eq!((taken.sending.id(), taken.sending.attempts), (ids[0], 0), "{skip}");
        assert_eq!(decide(skip).await, "leased");
        assert!(world.fail(&taken.held, ids[0], &Failed::Park).await);
        world.expect_consistent("parked").await;
        world.advance(LEASE_MS * 100);
        world.publish("work:1", 1).await;
        assert!(world.take("search", "a").await.is_none(), "nothing overtakes a parked event");
        assert_eq!(decide(skip).await, "done");
        // The reply was lost, and the decision is repeated: it must not skip another event.
        assert_eq!(decide(skip).await, if skip { "other" } else { "ready" });
        world.expect_consistent("decided").await;
    }
    let next = world.take("search", "a").await.unwrap();
    assert_eq!((next.sending.id(), next.sending.gaps.len()), (ids[1], 1));
    assert_eq!(world.skip("work:9", 1).await, "idle");
}

#[tokio::test]
async fn a_worker_without_its_lease_beats_for_nothing_and_one_with_it_keeps_it() {
    let world = world().await;
    world.publish("work:1", 1).await;
    let taken = world.take("search", "a").await.unwrap();
    for _ in 0..5 {
        world.advance(LEASE_MS - 1);
        assert_eq!(world.stores[0].beat(std::slice::from_ref(&taken.held), LEASE_MS).await.unwrap(), 1);
        assert!(world.take("search", "b").await.is_none());
    }
    world.advance(LEASE_MS);
    let other = world.take("search", "b").await.unwrap();
    assert_eq!(world.stores[0].beat(&[taken.held], LEASE_MS).await.unwrap(), 0);
    assert_eq!(world.stores[0].beat(&[other.held], LEASE_MS).await.unwrap(), 1);
}

/// Backends use epochs as fencing tokens, so epochs rise even if the fabric lost the last one.
#[tokio::test]
async fn epochs_rise_also_after_a_failover_that_lost_writes() {
    let world = world().await;
    world.publish("work:1", 2).await;
    let first = world.take("search", "a").await.unwrap();
    number(&world.redis, "HDEL", &["object:numbers", "epoch"]).await;
    world.advance(LEASE_MS);
    assert!(world.take("search", "b").await.unwrap().held.epoch > first.held.epoch);
}

#[tokio::test]
async fn a_direct_publish_never_overtakes_and_a_full_queue_refuses() {
    let world = world().await;
    let bus = &world.bus.handle;
    let mut ids = world.publish("work:1", 2).await;
    let direct = || {
        let event = signalbox_bus_testkit::event("https://a.example/1");
        vec![signalbox_bus::NewEvent { object: Some("work:1".to_owned()), ..event }]
    };
    ids.push(bus.publish("shop", "works", direct()).await.remove(0).unwrap().0);
    // The same applies while the backend is being removed: queued events are sent first, and later ones are
    // queued behind them.
    bus.drain_backend("search", signalbox_bus::Queued::Send).await.unwrap();
    ids.push(bus.publish("shop", "works", direct()).await.remove(0).unwrap().0);
    let taken = world.take("search", "a").await.unwrap();
    let mut id = taken.sending.id();
    let mut sent = vec![id];
    while let Committed::Next(next) = world.commit(&taken.held, id, 0, true).await {
        id = next.id();
        sent.push(id);
    }
    assert_eq!(sent, ids);
    world.expect_consistent("drained").await;
    // Nothing is queued now, so the bus accepts the event.
    let log = number(&world.redis, "HLEN", &["bus:log"]).await;
    bus.publish("shop", "works", direct()).await.remove(0).unwrap();
    assert_eq!(number(&world.redis, "HLEN", &["bus:log"]).await, log + 1);
    // The queue accepts events up to the limit, including the one in flight.
    world.backend("search", "work:", OnFailure::Block).await;
    for _ in 0..10 {
        world.publish("work:2", 100).await;
    }
    assert_eq!(world.try_publish("work:2", 1).await, Err(signalbox_bus::Refusal::QueueFull));
    let taken = world.take("search", "a").await.unwrap();
    assert_eq!(world.try_publish("work:2", 1).await, Err(signalbox_bus::Refusal::QueueFull));
    world.commit(&taken.held, taken.sending.id(), 0, true).await;
    assert_eq!(world.publish("work:2", 1).await.len(), 1);
    world.expect_consistent("at the end").await;
}

/// Redis does not undo a script that fails halfway, so a key of the wrong type must be found before the first
/// write.
#[tokio::test]
async fn an_unexpected_key_of_one_object_does_not_stop_others() {
    let world = world().await;
    world.publish("work:1", 1).await;
    world.publish("work:2", 1).await;
    strings(&world.redis, "LRANGE", &["object:work:1:events", "0", "0"]).await;
    number(&world.redis, "SADD", &["object:work:1:gaps", "x"]).await;
    let taken = world.take("search", "a").await.unwrap();
    assert_eq!(taken.held.object, "work:2");
    world.expect_consistent("one is set aside").await;
    number(&world.redis, "DEL", &["object:work:1:gaps"]).await;
    assert_eq!(world.unpark("work:1").await, "done");
    assert_eq!(world.take("search", "b").await.unwrap().held.object, "work:1");
}

/// A stream that follows the log detects missing events by `last`. Events that were sent to a backend are not
/// missing.
#[tokio::test]
async fn events_of_a_backend_leave_no_hole_in_the_log() {
    let world = world().await;
    let mut chain = Vec::new();
    for object in ["page:1", "work:1", "work:2", "page:1", "page:2", "work:1", "page:1"] {
        let ids = world.publish(object, 1).await;
        if object.starts_with("page:") {
            chain.push(ids[0]);
        }
    }
    let segment = format!("bus:log:{}", chain[0] / 64_000_000);
    let later = format!("bus:log:{}", chain[0] / 64_000_000 + 1);
    let mut entries = strings(&world.redis, "HVALS", &[&segment]).await;
    entries.extend(strings(&world.redis, "HVALS", &[&later]).await);
    assert_eq!(entries.len(), chain.len(), "the log holds what the bus took");
    for pair in chain.windows(2) {
        let entry = entries.iter().find(|entry| entry.starts_with(&format!("{{\"id\":{}", pair[1]))).unwrap();
        assert!(entry.contains(&format!(",\"last\":{},", pair[0])), "{entry}");
    }
    assert_eq!(number(&world.redis, "HEXISTS", &["bus:objects:state", "logged"]).await, 0);
}

/// The type of the key to which an event is appended is checked before the first write.
#[tokio::test]
async fn an_unexpected_key_of_a_queue_rejects_the_event_and_changes_nothing() {
    for key in
        ["object:work:1:events", "object:objects.with.events@search", "object:numbers", "object:leases"]
    {
        let world = world().await;
        strings(&world.redis, "KEYS", &["*"]).await;
        number(&world.redis, "DEL", &[key]).await;
        number(&world.redis, "PFADD", &[key, "x"]).await;
        assert!(world.try_publish("work:1", 1).await.is_err(), "{key}");
        assert_eq!(number(&world.redis, "EXISTS", &["object:queued", "bus:objects"]).await, 0, "{key}");
        number(&world.redis, "DEL", &[key]).await;
        world.publish("work:1", 1).await;
        world.expect_consistent(key).await;
    }
}

#[tokio::test]
async fn the_list_of_dead_letters_ends_after_some_megabytes_with_the_latest() {
    let world = world().await;
    let event = format!(r#"{{"id":64,"object":"work:1","data":"{}"}}"#, "x".repeat(60_000));
    for died in 1..=100 {
        let letter = format!("{died} 1 3 bad{event}");
        number(&world.redis, "RPUSH", &["object:dead@search", &letter]).await;
    }
    let dead = world.handle().dead("search", 1_000).await.unwrap();
    assert!((60..90).contains(&dead.len()), "{}", dead.len());
    assert_eq!(dead.last().unwrap().died_at.ms(), 100, "the latest, in order");
    assert!(dead.windows(2).all(|two| two[0].died_at.ms() + 1 == two[1].died_at.ms()));
}

#[tokio::test]
async fn an_event_that_cannot_be_read_is_parked_and_can_be_skipped() {
    let world = world().await;
    let ids = world.publish("work:1", 2).await;
    world.redis.command("LSET").arg(("object:work:1:events", 0, "?")).run().await.unwrap();
    let taken = world.take("search", "a").await.unwrap();
    assert_eq!(taken.sending.id(), 0);
    assert!(world.fail(&taken.held, 0, &Failed::Park).await);
    assert_eq!(number(&world.redis, "ZCARD", &["object:parked"]).await, 1);
    assert_eq!(world.skip("work:1", 0).await, "done");
    let next = world.take("search", "a").await.unwrap();
    assert_eq!((next.sending.id(), next.sending.gaps.len()), (ids[1], 0), "its ID cannot be reported");
    assert_eq!(world.commit(&next.held, ids[1], 0, true).await, Committed::Done);
    assert_eq!(number(&world.redis, "LLEN", &["object:dead@search"]).await, 1);
}
