//! A client that ends its subscription and makes another one gets nothing of the earlier one.

use super::{hands::*, support::*, truth::*};
use crate::{
    EventId, Options, Registry,
    registry::projection_elsewhere,
    store::{Command, Holder, Skipped},
};
use signalbox_testkit::Server;

async fn count(hands: &Hands, command: &'static str, key: &str) -> i64 {
    number(hands.store.shard().redis(), command, &[key]).await
}

/// What the registry's change does to the shard when the subscription ends.
async fn end(hands: &Hands) {
    let redis = hands.store.shard().redis();
    hands.end("s", "1").await;
    for key in ["bus:subscriber:s", "bus:dead:s"] {
        number(redis, "DEL", &[key]).await;
    }
    number(redis, "HDEL", &["bus:dead.bytes", "s"]).await;
}

/// The client subscribes again, with a new generation of lanes, and `url` is published.
async fn subscribe_again(hands: &mut Hands, url: &str) -> u64 {
    hands.fan_out.targets[0].generation = 2;
    hands.publish_urls(&[url]).await[0]
}

async fn purge(hands: &Hands) {
    while hands.store.purge("s", 1_000).await.unwrap() {}
}

/// After the removal, the lanes contain only the event of the new subscription, and nothing is reported with it.
async fn assert_only(hands: &Hands, id: u64) {
    purge(hands).await;
    // A job of the earlier one that could be taken is found to be empty.
    let taken = hands.take("x").await;
    assert_eq!((taken.held.generation.as_str(), taken.items.clone()), ("2", vec![id.to_string()]));
    assert_eq!((taken.gaps.clone(), taken.health, taken.kicks.as_str()), (vec![], 100, "0"));
    assert!(hands.ack(&taken).await);
    assert_true(hands.store.shard().redis(), "the delivery").await;
}

#[tokio::test]
async fn batches_that_wait_are_not_given_to_a_worker() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a", "b"]).await;
    end(&hands).await;
    let id = subscribe_again(&mut hands, "c").await;
    assert_eq!(hands.turn(&["w", "x"]).await.taken, []);
    assert_only(&hands, id).await;
}

#[tokio::test]
async fn a_worker_whose_subscription_ended_is_released_and_continues_with_nothing_of_it() {
    for outcome in ["ack", "nack", "split", "bury", "refuse", "lost", "purged"] {
        let server = Server::in_memory().await;
        let mut hands = Hands::new(&server, vec![subscriber("s", 1, 2, 0)]).await;
        hands.publish_urls(&["a", "b", "c", "d"]).await;
        let taken = hands.take("w").await;
        end(&hands).await;
        let id = subscribe_again(&mut hands, "e").await;
        let was_held = match outcome {
            "ack" => hands.ack(&taken).await,
            "nack" => hands.nack(&taken, 0, false).await,
            "split" => hands.nack(&taken, 0, true).await,
            "bury" => hands.bury(&taken).await,
            "refuse" => hands.store.refuse(&taken.held, None, 0).await.unwrap(),
            "purged" => {
                purge(&hands).await;
                hands.ack(&taken).await
            }
            // The worker asks again for the job that it holds.
            _ => {
                assert_eq!(hands.turn(&["w"]).await.taken, []);
                false
            }
        };
        assert!(!was_held, "{outcome}");
        assert_eq!(count(&hands, "SCARD", "bus:jobs:pending:index:main").await, 0, "{outcome}");
        assert_eq!(count(&hands, "HLEN", "bus:workers").await, 0, "{outcome}");
        for key in ["bus:subscriber:s", "bus:dead:s", "bus:dead.bytes"] {
            assert_eq!(count(&hands, "EXISTS", key).await, 0, "{outcome}: {key}");
        }
        if outcome != "purged" {
            assert_eq!(hands.turn(&["v"]).await.taken, [], "{outcome}");
        }
        assert_only(&hands, id).await;
    }
}

#[tokio::test]
async fn a_lane_behind_a_delivery_of_the_ended_subscription_continues_when_that_ends() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a"]).await;
    let taken = hands.take("w").await;
    end(&hands).await;
    purge(&hands).await;
    let id = subscribe_again(&mut hands, "b").await;
    let next = hands.take("x").await;
    let before = Holder { worker: "w".to_owned(), job: taken.held.job.clone() };
    assert!(hands.store.refuse(&next.held, Some(&before), 50).await.unwrap());
    assert!(!hands.ack(&taken).await);
    assert_only(&hands, id).await;
}

#[tokio::test]
async fn gaps_of_an_ended_subscription_are_not_reported_by_the_next_one() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a", "b"]).await;
    let taken = hands.take("w").await;
    assert!(hands.bury(&taken).await);
    assert_eq!(count(&hands, "LLEN", "bus:gaps:s:1.0").await, 1);
    end(&hands).await;
    let id = subscribe_again(&mut hands, "c").await;
    assert_only(&hands, id).await;
}

#[tokio::test]
async fn an_event_of_an_ended_subscription_cannot_be_skipped() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    let old = hands.publish_urls(&["a"]).await[0];
    end(&hands).await;
    let id = subscribe_again(&mut hands, "b").await;
    let cursor = Default::default();
    let found = hands.store.skip("s", EventId(old), Some(0), (10, 1000), &cursor).await.unwrap();
    assert_eq!(found, Skipped::Absent);
    assert_eq!(count(&hands, "EXISTS", "bus:dead:s").await, 0);
    assert_only(&hands, id).await;
}

#[tokio::test]
async fn a_shard_that_is_informed_after_the_client_subscribed_again_forgets_the_ended_subscription() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server, Vec::new()).await;
    let mut registry = Registry::default();
    registry.subscribe("s", wanted(&["t"]), 1, &Options::default()).unwrap();
    let before = registry.clone();
    assert!(registry.end_subscription("s"));
    registry.subscribe("s", wanted(&["t"]), 2, &Options::default()).unwrap();
    assert!(registry.has_ended("s", "1") && !registry.has_ended("s", "2"));
    let commands = projection_elsewhere(hands.store.shard().tag(), &before, &registry);
    let bus = hands.store.bus();
    for key in [bus.subscriber("s"), bus.dead("s"), bus.replay("s")] {
        let forget = Command { name: "DEL", key, args: Vec::new() };
        assert!(commands.contains(&forget), "{forget:?} is missing in {commands:?}");
    }
    for key in [bus.gauges_event(), bus.gauges_batch()] {
        let forget = Command { name: "HDEL", key, args: vec!["s".to_owned()] };
        assert!(commands.contains(&forget), "{forget:?} is missing in {commands:?}");
    }
}

#[tokio::test]
async fn events_of_an_ended_subscription_do_not_count_for_the_next_one() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 2, 0)]).await;
    hands.publish_urls(&["a", "b", "c", "d"]).await;
    let taken = hands.take("w").await;
    end(&hands).await;
    let id = subscribe_again(&mut hands, "e").await;
    assert_eq!(hands.store.waiting("s").await.unwrap(), 1);
    let numbers = hands.store.numbers().await.unwrap();
    assert_eq!((numbers.events["s"], numbers.batches["s"]), (1, 1));
    // One event waits for it, as many as it may keep, whatever waits to be removed.
    assert_eq!(hands.store.drop_above("s", "limit", 1).await.unwrap(), None);
    assert!(!hands.ack(&taken).await);
    purge(&hands).await;
    assert_eq!(hands.store.waiting("s").await.unwrap(), 1, "the removal does not lower it");
    assert_only(&hands, id).await;
    assert_eq!(hands.store.waiting("s").await.unwrap(), 0);
}

#[tokio::test]
async fn batches_of_an_ended_subscription_are_not_dropped_in_place_of_those_of_the_next_one() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a", "b"]).await;
    end(&hands).await;
    hands.time.advance(1);
    subscribe_again(&mut hands, "c").await;
    assert_eq!(hands.store.drop_oldest("s", "limit").await.unwrap(), Some(1));
    assert_eq!(hands.store.waiting("s").await.unwrap(), 0, "the one of the present subscription");
    assert_eq!(hands.store.drop_oldest("s", "limit").await.unwrap(), None);
    purge(&hands).await;
    // Jobs that could be taken are found to be empty.
    assert_eq!(hands.turn(&["w", "x"]).await.taken, []);
    assert_true(hands.store.shard().redis(), "the removal").await;
}
