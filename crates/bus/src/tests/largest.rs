//! Scripts at the largest values that the configuration allows, and beyond.

use super::{hands::*, support::*};
use signalbox_testkit::Server;

/// More events than Lua can pass to a function.
const EVENTS: usize = 8_400;

async fn expect_consistent(hands: &Hands, token: &str, when: &str) {
    assert_eq!(hands.store.audit(token, 10_000, &[]).await.unwrap(), [], "{when}");
}

#[tokio::test]
async fn one_call_publishes_more_events_than_lua_can_pass_to_a_function() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 4, 10_000, 500)]).await;
    let objects: Vec<String> = (0..EVENTS).map(|n| format!("o{n}")).collect();
    let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
    let ids = hands.publish_urls(&objects).await;
    assert_eq!(ids.len(), EVENTS);
    expect_consistent(&hands, "s", "after the call").await;
    let redis = hands.store.shard().redis();
    assert_eq!(number(redis, "HGET", &["bus:batches:gauges:event", "s"]).await, EVENTS as i64);
    // Each event knows the one before it of its object.
    let again = hands.publish(&objects.iter().map(|url| (0, event(url))).collect::<Vec<_>>()).await;
    assert!(again.iter().zip(&ids).all(|((_, prev, _), id)| prev.map(|prev| prev.0) == Some(*id)));
}

#[tokio::test]
async fn a_batch_of_more_events_than_lua_can_pass_to_a_function_is_halved_or_buried() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 10_000, 500)]).await;
    hands.options.batch_bytes = 8 << 20;
    for _ in 0..EVENTS / 400 {
        hands.publish_urls(&["a"; 400]).await;
    }
    hands.time.advance(500);
    let taken = hands.take("w").await;
    assert_eq!(taken.items.len(), EVENTS);
    assert!(hands.nack(&taken, 0, false).await);
    let taken = hands.take("w").await;
    assert!(hands.bury(&taken).await);
    expect_consistent(&hands, "s", "after the batch was buried").await;
    let redis = hands.store.shard().redis();
    assert_eq!(strings(redis, "HGETALL", &["bus:batches:gauges:event"]).await, Vec::<String>::new());
    assert_eq!(hands.store.dead_part("s", 0, 2_000).await.unwrap().len(), 1_000, "the limit of dead letters");

    for _ in 0..EVENTS / 400 {
        hands.publish_urls(&["a"; 400]).await;
    }
    hands.time.advance(500);
    let taken = hands.take("w").await;
    assert!(hands.nack(&taken, 0, true).await);
    expect_consistent(&hands, "s", "after the batch was halved").await;
    assert_eq!(hands.take("w").await.items.len(), EVENTS / 2);
}

#[tokio::test]
async fn ten_thousand_workers_get_jobs_in_few_calls() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    for part in 0..100 {
        hands.fan_out.targets = (0..100).map(|n| subscriber(&format!("s{part}:{n}"), 1, 1, 0)).collect();
        hands.fan_out.topics = vec![("t".into(), (0..100).collect())];
        hands.publish_urls(&["a"]).await;
    }
    let workers: Vec<String> = (0..10_000).map(|n| format!("w{n}")).collect();
    let (mut taken, mut calls) = (0, 0);
    while taken < workers.len() {
        let turn = hands.store.acquire(&workers[taken..], 1000, workers.len()).await.expect("a turn");
        (taken, calls) = (taken + turn.taken.len(), calls + 1);
        assert!(calls <= 10, "{taken} jobs in {calls} calls");
    }
    assert_eq!(hands.store.beat(&workers).await.unwrap(), 10_000);
    for token in ["s0:0", "s99:99"] {
        expect_consistent(&hands, token, "after all jobs were taken").await;
    }
}

#[tokio::test]
async fn one_call_that_takes_jobs_reads_a_few_thousand_events() {
    let server = Server::in_memory().await;
    let targets = ["a", "b", "c", "d", "e"].map(|token| subscriber(token, 1, 1_000, 0)).to_vec();
    let mut hands = Hands::new(&server, targets).await;
    for _ in 0..5 {
        hands.publish_urls(&["x"; 200]).await;
    }
    let workers = ["1", "2", "3", "4", "5"];
    let turn = hands.turn(&workers).await;
    assert_eq!((turn.taken.len(), turn.left), (2, 3));
    assert_eq!(hands.turn(&workers[2..]).await.taken.len(), 2);
    assert_eq!(hands.turn(&workers[4..]).await.taken.len(), 1);
}
