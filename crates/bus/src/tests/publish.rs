//! The publish script: numbers, repeats, registry, limits, and what it does when something is in its way.

use std::collections::BTreeMap;

use super::{hands::*, support::*, truth::*};
use crate::{
    EventId, NewEvent, Refusal,
    event::lane_hash,
    store::{Accepted, Group, PublishReply, Published},
};
use signalbox_testkit::Server;

fn keyed(url: &str, key: &str) -> NewEvent {
    NewEvent { idempotency_key: Some(key.into()), ..event(url) }
}

#[tokio::test]
async fn ids_are_numbers_with_every_digit_and_follow_the_clock_only_upwards() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 0)]).await;
    let first = hands.publish_urls(&["a", "b"]).await;
    assert_eq!(first, [EventId::at_ms(START_MS).0, EventId::at_ms(START_MS).0 + 64]);
    assert!(first[0] > 600_000_000_000_000 && first[0] < 1 << 53, "{first:?}");
    assert_eq!(
        strings(hands.store.shard().redis(), "MGET", &["bus:last.event.id"]).await,
        [first[1].to_string()]
    );
    hands.time.0.store(START_MS - 60_000, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(
        hands.publish_urls(&["a"]).await,
        [first[1] + 64],
        "a clock that was set back changes nothing"
    );
    hands.time.0.store(START_MS + 5, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(hands.publish_urls(&["a"]).await, [EventId::at_ms(START_MS + 5).0]);
}

#[tokio::test]
async fn ids_rise_also_after_a_failover_that_lost_writes() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    let before = hands.publish_urls(&["a"; 50]).await;
    number(hands.store.shard().redis(), "DEL", &["bus:last.event.id"]).await;
    hands.time.advance(1);
    assert!(hands.publish_urls(&["a"]).await[0] > before[49]);
}

#[tokio::test]
async fn prev_is_the_object_s_and_tprev_the_object_and_topic_s() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    hands.fan_out.topics = vec![("t".into(), Vec::new()), ("u".into(), Vec::new())];
    let got = hands.publish(&[(0, event("a")), (1, event("a")), (0, event("b")), (0, event("a"))]).await;
    let ids: Vec<_> = got.iter().map(|(id, _, _)| *id).collect();
    let links: Vec<_> = got.iter().map(|(_, prev, tprev)| (*prev, *tprev)).collect();
    assert_eq!(links, [(None, None), (Some(ids[0]), None), (None, None), (Some(ids[1]), Some(ids[0]))]);
    let later = hands.publish(&[(1, event("a"))]).await;
    assert_eq!((later[0].1, later[0].2), (Some(ids[3]), Some(ids[1])));
}

#[tokio::test]
async fn objects_are_remembered_for_one_period_at_least_and_forgotten_after_two() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    let first = hands.publish_urls(&["quiet"]).await;
    hands.time.advance(1_000_000);
    hands.publish_urls(&["other"]).await;
    assert_eq!(hands.publish(&[(0, event("quiet"))]).await[0].1, Some(EventId(first[0])));
    hands.time.advance(1_000_000);
    hands.publish_urls(&["other"]).await;
    hands.time.advance(1_000_000);
    hands.publish_urls(&["other"]).await;
    assert_eq!(hands.publish(&[(0, event("quiet"))]).await[0].1, None);
    // And there are never more than two fields for each object of the limit.
    hands.options.objects = 10;
    for n in 0..200 {
        hands.publish_urls(&[&format!("o{n}")]).await;
    }
    let redis = hands.store.shard().redis();
    let held =
        number(redis, "HLEN", &["bus:objects"]).await + number(redis, "HLEN", &["bus:objects:old"]).await;
    assert!(held <= 22, "{held}");
}

/// The original crashed between the steps of ingest and left a partial fan-out; here a repeat is the first call.
#[tokio::test]
async fn a_call_whose_reply_was_lost_is_repeated_without_doing_it_twice() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 0)]).await;
    let events = [(0, event("a")), (0, event("a"))];
    hands.sequence = 7;
    let first = hands.send(&events).await.unwrap();
    hands.fan_out.stamp = "2.b".into();
    assert_eq!(hands.send(&events).await.unwrap(), first, "even after the registry moved on");
    assert_eq!(number(hands.store.shard().redis(), "HGET", &["bus:batches:gauges:event", "s"]).await, 2);
    hands.sequence = 6;
    assert_eq!(
        hands.send(&events).await.unwrap(),
        PublishReply::Late,
        "an abandoned call is never executed later"
    );
    assert_true(hands.store.shard().redis(), "repeats").await;
}

/// Subscribers with as many lanes share the division of a call's events into lanes, unless they have different topics in it.
/// Their batches fill separately.
#[tokio::test]
async fn every_subscriber_gets_the_events_of_its_topics_whatever_the_number_of_lanes() {
    let server = Server::in_memory().await;
    let targets = vec![
        subscriber("whole", 4, 100, 0),
        subscriber("pairs", 4, 2, 0),
        subscriber("both", 4, 100, 0),
        subscriber("one-lane", 1, 5, 0),
    ];
    let mut hands = Hands::new(&server, targets).await;
    hands.fan_out.topics = vec![("t".into(), vec![0, 1, 2, 3]), ("u".into(), vec![2])];
    let urls = ["a", "b", "c", "d", "e", "f", "g"];
    let (mut of_t, mut of_all) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let events: Vec<_> =
            (0..40).map(|n| (usize::from(n % 3 == 0), event(urls[n % urls.len()]))).collect();
        for ((topic, _), (id, _, _)) in events.iter().zip(hands.publish(&events).await) {
            of_all.push(id);
            of_t.extend((*topic == 0).then_some(id));
        }
        assert_true(hands.store.shard().redis(), "a publish").await;
    }
    let mut got: BTreeMap<String, Vec<EventId>> = BTreeMap::new();
    loop {
        let turn = hands.turn(&["w1", "w2", "w3", "w4", "w5", "w6", "w7"]).await;
        if turn.taken.is_empty() {
            break;
        }
        for taken in &turn.taken {
            let limit = match &*taken.held.token {
                "pairs" => 2,
                "one-lane" => 5,
                _ => 100,
            };
            assert!(taken.items.len() <= limit, "{}: {:?}", taken.held.token, taken.items);
            let ids = taken.items.iter().map(|id| EventId(id.parse().unwrap()));
            got.entry(taken.held.token.clone()).or_default().extend(ids);
            assert!(hands.ack(taken).await);
        }
    }
    assert_true(hands.store.shard().redis(), "all deliveries").await;
    got.values_mut().for_each(|ids| ids.sort_unstable());
    for (token, expected) in [("whole", &of_t), ("pairs", &of_t), ("both", &of_all), ("one-lane", &of_t)] {
        assert_eq!(got[token], *expected, "{token}");
    }
}

#[tokio::test]
async fn a_server_that_lost_acknowledged_calls_is_recognized_before_it_accepts_more() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 0)]).await;
    hands.publish(&[(0, event("a"))]).await;
    // A replica was promoted that has the first call only.
    hands.sequence = 4;
    hands.acknowledged = 3;
    assert_eq!(hands.send(&[(0, event("a"))]).await.unwrap(), PublishReply::Lost(1));
    assert_eq!(number(hands.store.shard().redis(), "HGET", &["bus:batches:gauges:event", "s"]).await, 1);
    hands.store.count_lost(2).await.unwrap();
    assert_eq!(hands.store.numbers().await.unwrap().counters["events.lost"], 2);
    // The loss is known: the call is accepted when it is sent again.
    hands.acknowledged = 0;
    assert!(matches!(hands.send(&[(0, event("a"))]).await.unwrap(), PublishReply::Accepted(_)));
    hands.acknowledged = 4;
    hands.sequence = 5;
    assert!(matches!(hands.send(&[(0, event("a"))]).await.unwrap(), PublishReply::Accepted(_)));
}

#[tokio::test]
async fn a_stale_registry_or_none_does_nothing() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 0)]).await;
    hands.fan_out.stamp = "0.z".into();
    hands.sequence = 1;
    assert_eq!(hands.send(&[(0, event("a"))]).await.unwrap(), PublishReply::Stale);
    number(hands.store.shard().redis(), "DEL", &["bus:registry"]).await;
    assert_eq!(hands.send(&[(0, event("a"))]).await.unwrap(), PublishReply::Empty);
    assert_eq!(number(hands.store.shard().redis(), "DBSIZE", &[]).await, 0);
}

#[tokio::test]
async fn a_repeat_under_its_key_returns_the_first_id_and_another_event_is_refused() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 0)]).await;
    let other = NewEvent { timestamp_ms: Some(1), ..keyed("a", "k") };
    let id = EventId::at_ms(START_MS);
    hands.sequence = 1;
    let reply = hands.send(&[(0, keyed("a", "k")), (0, keyed("a", "k")), (0, other.clone())]).await.unwrap();
    let new = Accepted::New(vec![(id, None, None)]);
    assert_eq!(
        reply,
        PublishReply::Accepted(vec![new, Accepted::Repeat(id), Accepted::Refused(Refusal::Conflict)])
    );
    hands.sequence = 2;
    let reply = hands.send(&[(0, keyed("a", "k")), (0, other)]).await.unwrap();
    assert_eq!(
        reply,
        PublishReply::Accepted(vec![Accepted::Repeat(id), Accepted::Refused(Refusal::Conflict)])
    );
    assert_eq!(number(hands.store.shard().redis(), "HGET", &["bus:batches:gauges:event", "s"]).await, 1);
    hands.time.advance(600_000);
    hands.sequence = 3;
    let reply = hands.send(&[(0, keyed("a", "k"))]).await.unwrap();
    assert!(
        matches!(reply, PublishReply::Accepted(got) if matches!(got[0], Accepted::New(_))),
        "ten minutes later"
    );
    assert_true(hands.store.shard().redis(), "keys").await;
}

#[tokio::test]
async fn a_group_is_accepted_as_a_whole_with_the_state_of_its_object() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 0)]).await;
    let rest = event("work:1").rest("t", "shop");
    let one = || Published {
        topic: Some(0),
        channel: "shop:update:t",
        rest: &rest,
        queues: Vec::new(),
        delay: None,
    };
    let group = |state, body, events| Group {
        object: "work:1",
        hash: lane_hash("work:1"),
        state,
        backend: None,
        client: 0,
        idempotency: Some(("key", body)),
        events,
        change: None,
    };
    let id = |n: u64| EventId(EventId::at_ms(START_MS).0 + n * 64);
    hands.sequence = 1;
    let groups = [
        group(Some("{\"v\":1}"), "body", vec![one(), one(), one()]),
        group(Some("{\"v\":1}"), "body", vec![one(), one(), one()]),
        group(Some("{\"v\":2}"), "other", vec![one()]),
    ];
    let numbers =
        vec![(id(0), None, None), (id(1), Some(id(0)), Some(id(0))), (id(2), Some(id(1)), Some(id(1)))];
    let reply = hands.send_groups(&groups).await.unwrap();
    let first = [Accepted::New(numbers), Accepted::Repeat(id(0)), Accepted::Refused(Refusal::Conflict)];
    assert_eq!(reply, PublishReply::Accepted(first.to_vec()));
    assert_eq!(hands.send_groups(&groups).await.unwrap(), reply, "a lost reply");
    let redis = hands.store.shard().redis().clone();
    assert_eq!(strings(&redis, "MGET", &["object:work:1:data"]).await, ["{\"v\":1}"]);
    assert_eq!(number(&redis, "HGET", &["bus:batches:gauges:event", "s"]).await, 3);
    hands.sequence = 2;
    let reply = hands.send_groups(&groups[..1]).await.unwrap();
    assert_eq!(reply, PublishReply::Accepted(vec![Accepted::Repeat(id(0))]), "a repeat in a later call");
    assert_true(&redis, "a group").await;
}

/// Otherwise its event could be published twice, and the faster a client publishes, the sooner.
#[tokio::test]
async fn an_idempotency_key_is_remembered_for_its_time_at_any_rate() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    hands.options.idempotency_keys = 20;
    hands.options.idempotency_seconds = 10;
    for n in 0..20 {
        hands.publish(&[(0, keyed("a", &format!("k{n}")))]).await;
        hands.time.advance(100);
    }
    hands.sequence += 1;
    let reply = hands.send(&[(0, keyed("a", "k0")), (0, keyed("a", "more")), (0, event("a"))]).await.unwrap();
    let PublishReply::Accepted(got) = reply else { panic!("{reply:?}") };
    assert!(matches!(got[0], Accepted::Repeat(_)), "the first key: {got:?}");
    assert_eq!(got[1], Accepted::Refused(Refusal::KeysUsedUp { retry_ms: 8_000 }), "no key is left");
    assert!(matches!(got[2], Accepted::New(_)), "an event without a key: {got:?}");
    let redis = hands.store.shard().redis().clone();
    assert_eq!(hands.store.idempotency_used(10_000).await.unwrap(), [("shop".to_owned(), 20)]);

    hands.time.advance(8_000);
    hands.publish(&[(0, keyed("a", "k0"))]).await;
    hands.sequence += 1;
    let reply = hands.send(&[(0, keyed("a", "k1")), (0, keyed("a", "more"))]).await.unwrap();
    let PublishReply::Accepted(got) = reply else { panic!("{reply:?}") };
    assert!(matches!(got[0], Accepted::Repeat(_)), "it has not expired: {got:?}");
    assert_eq!(got[1], Accepted::Refused(Refusal::KeysUsedUp { retry_ms: 100 }));

    hands.time.advance(20_000);
    assert_eq!(hands.store.idempotency_used(10_000).await.unwrap(), [], "it was counted long ago");
    for n in 0..20 {
        hands.publish(&[(0, keyed("a", &format!("next{n}")))]).await;
    }
    for (command, key) in [("HLEN", "bus:idempotency:keys:shop"), ("ZCARD", "bus:idempotency:ages:shop")] {
        assert_eq!(number(&redis, command, &[key]).await, 20, "{key} has expired keys");
    }
    assert!(number(&redis, "PTTL", &["bus:idempotency:keys:shop"]).await > 0);
    assert_true(&redis, "keys").await;
}

/// A client that has used all of its keys does not take those of others.
#[tokio::test]
async fn the_idempotency_keys_of_a_client_are_its_own() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    hands.options.idempotency_keys = 3;
    hands.publish(&[(0, keyed("a", "1")), (0, keyed("a", "2")), (0, keyed("a", "3"))]).await;
    hands.fan_out.clients = vec!["shop".into(), "other".into()];
    let one = || Published {
        topic: Some(0),
        channel: "shop:update:t",
        rest: b"\"url\":\"a\"}",
        queues: Vec::new(),
        delay: None,
    };
    let group = |client, key| Group {
        object: "a",
        hash: lane_hash("a"),
        state: None,
        backend: None,
        client,
        idempotency: Some((key, "body")),
        events: vec![one()],
        change: None,
    };
    hands.sequence += 1;
    let reply = hands.send_groups(&[group(0, "4"), group(1, "4")]).await.unwrap();
    let PublishReply::Accepted(got) = reply else { panic!("{reply:?}") };
    assert!(matches!(got[0], Accepted::Refused(Refusal::KeysUsedUp { .. })), "{got:?}");
    assert!(matches!(got[1], Accepted::New(_)), "{got:?}");
}

/// Redis does not undo a script that fails half-way, so a key of another type must be found before the first write.
#[tokio::test]
async fn an_unexpected_key_type_rejects_the_whole_call() {
    let every = [
        "bus:batches:index",
        "bus:batches:gauges:event",
        "bus:batches:gauges:batch",
        "bus:jobs:index:main",
        "bus:jobs:scheduled:main",
        "bus:jobs:instant:main",
        "bus:counters",
        "bus:last.event.id",
        "bus:objects",
        "bus:objects:old",
        "bus:objects:state",
        "bus:log",
        "bus:topic:t",
        "bus:batches:current:s",
        "bus:batches:ready:s:1.0",
        "bus:generations:s",
        "bus:idempotency:keys:shop",
        "bus:idempotency:ages:shop",
        "bus:idempotency:used",
    ];
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 0)]).await;
    let redis = hands.store.shard().redis().clone();
    let segment = EventId::at_ms(START_MS).0 / 64_000_000;
    let of_log = [format!("bus:log:{segment}"), format!("bus:log:{segment}:order")];
    for key in every.into_iter().chain(of_log.iter().map(String::as_str)) {
        // A stream is none of the types that the bus uses.
        redis.command("XADD").arg(&[key, "*", "a", "b"][..]).run().await.unwrap();
        let before = number(&redis, "DBSIZE", &[]).await;
        hands.sequence += 1;
        let error = hands.send(&[(0, event("a")), (0, keyed("b", "k"))]).await.expect_err(key);
        assert_eq!(error.code(), Some("WRONGTYPE"), "{key}: {error:?}");
        assert_eq!(number(&redis, "DBSIZE", &[]).await, before, "{key}: something was written");
        number(&redis, "DEL", &[key]).await;
    }
    hands.publish_urls(&["a"]).await;
    assert_true(&redis, "the obstacles").await;
}

#[tokio::test]
async fn at_the_memory_limit_no_change_is_partial_and_freeing_memory_works() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    let ids = hands.publish_urls(&["a", "b", "c", "d"]).await;
    let taken = hands.take("w").await;
    let redis = hands.store.shard().redis().clone();
    let limit = |bytes: &'static str| {
        let redis = redis.clone();
        async move { redis.command("CONFIG").arg(&["SET", "maxmemory", bytes][..]).run().await.unwrap() }
    };
    limit("1").await;
    let before = number(&redis, "DBSIZE", &[]).await;
    hands.sequence += 1;
    let error = hands.send(&[(0, event("a"))]).await.expect_err("no memory left");
    assert_eq!(error.kind(), signalbox_store::Kind::Refused);
    assert_eq!(number(&redis, "DBSIZE", &[]).await, before);
    // A full server must not make workers appear dead, and deliveries must continue, or nothing drains.
    assert_eq!(hands.store.beat(&["w".into()]).await.unwrap(), 1);
    assert!(hands.ack(&taken).await);
    let taken = hands.take("w").await;
    assert!(hands.nack(&taken, 0, false).await);
    let taken = hands.take("w").await;
    assert!(hands.bury(&taken).await);
    assert_eq!(hands.store.drop_oldest("s", "autodropped").await.unwrap(), Some(1));
    let taken = hands.take("w").await;
    assert_eq!(taken.items, [ids[3].to_string()]);
    assert_eq!(taken.gaps.len(), 2, "{:?}", taken.gaps);
    let beat = hands.store.heartbeats().await.unwrap()[0].1.clone();
    assert_eq!(hands.store.scrub("w", &beat).await.unwrap(), Some(1));
    let taken = hands.take("w").await;
    assert!(hands.ack(&taken).await);
    limit("0").await;
    hands.publish_urls(&["a"]).await;
    assert_true(&redis, "the limit").await;
}

#[tokio::test]
async fn every_event_is_published_live_with_the_shard_s_previous_id() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    let mut live = hands.store.shard().redis().subscribe(&["shop:update:t"]);
    assert_eq!(live.next().await, signalbox_store::Notice::Resumed);
    let ids = hands.publish_urls(&["a", "b"]).await;
    let mut got: Vec<serde_json::Value> = Vec::new();
    while got.len() < 2 {
        if let signalbox_store::Notice::Message { payload, .. } = live.next().await {
            got.push(serde_json::from_str(&payload).unwrap());
        }
    }
    assert_eq!((got[0]["id"].as_u64(), got[0]["last"].as_u64()), (Some(ids[0]), Some(0)));
    assert_eq!((got[1]["id"].as_u64(), got[1]["last"].as_u64()), (Some(ids[1]), Some(ids[0])));
    assert_eq!(got[1]["url"], "b");
}

#[tokio::test]
async fn a_body_is_stored_once_and_its_segment_stays_while_a_batch_needs_it() {
    let server = Server::in_memory().await;
    let targets = (0..50).map(|n| subscriber(&format!("s{n}"), 4, 100, 0)).collect();
    let mut hands = Hands::new(&server, targets).await;
    let ids = hands.publish_urls(&["a"]).await;
    let redis = hands.store.shard().redis().clone();
    let first = ids[0] / 64_000_000;
    assert_eq!(number(&redis, "HLEN", &[&format!("bus:log:{first}")]).await, 1);
    hands.time.advance(60_000);
    hands.publish_urls(&["b"]).await;
    assert_eq!(hands.store.trim(&[first]).await.unwrap(), (1, 0), "fifty batches need it");
    for _ in 0..50 {
        let taken = hands.take("w").await;
        assert!(hands.ack(&taken).await);
    }
    assert_true(&redis, "deliveries").await;
    let second = first + 6;
    assert_eq!(hands.store.trim(&[first, second]).await.unwrap(), (2, 1), "the present one stays");
    assert_eq!(
        number(&redis, "EXISTS", &[&format!("bus:log:{first}"), &format!("bus:log:{first}:order")]).await,
        0
    );
    assert_eq!(hands.store.segments().await.unwrap().into_keys().collect::<Vec<_>>(), [second]);
}

#[tokio::test]
async fn gaps_of_a_lane_are_merged_beyond_a_number() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.extend(hands.publish_urls(&["a"]).await);
    }
    for _ in 0..99 {
        assert_eq!(hands.store.drop_oldest("s", "autodropped").await.unwrap(), Some(1));
    }
    let taken = hands.take("w").await;
    assert_eq!(taken.gaps.len(), 64);
    let gaps: Vec<_> = taken.gaps.iter().map(|gap| crate::Gap::from_words(gap).unwrap()).collect();
    assert_eq!(gaps.iter().map(|gap| gap.count).sum::<u64>(), 99);
    assert_eq!((gaps[0].first.0, gaps[63].last.0), (ids[0], ids[98]));
    assert_true(hands.store.shard().redis(), "ninety-nine gaps").await;
}
