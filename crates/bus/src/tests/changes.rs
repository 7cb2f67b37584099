//! Changes of labels: written in the step that publishes their events, or not at all.

use std::collections::BTreeSet;

use super::support::{Pacemaker, Time, event, strings, with_fixed_clock};
use crate::{Change, EventId, Index, Refusal};
use signalbox_store::{FabricRole, Notice};
use signalbox_testkit::Server;

const OBJECT: &str = "machine:m:a";

/// A header as records begin with one, identified by its revision.
fn header(revision: u8) -> Vec<u8> {
    let mut header = vec![1; 20];
    header.push(revision);
    header
}

fn change(expected: Option<u8>, revision: u8) -> Change {
    Change {
        machine: "m".into(),
        expected: expected.map(header).unwrap_or_default(),
        version: Some(7),
        head: header(revision),
        tail: b"tail".to_vec(),
        ttl_ms: None,
        prev: None,
        replaced: 0,
        log: crate::Log::default(),
        indexes: vec![
            Index { key: "m:in:old".into(), member: "a".into(), score: None },
            Index { key: "m:in:new".into(), member: "a".into(), score: Some(0) },
        ],
    }
}

async fn world() -> (Server, signalbox_store::Fabric, Pacemaker) {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let bus = with_fixed_clock(&redis, 1, &Time::default(), 100_000).await;
    redis.command("SET").arg(&["machine:m:current", "7"]).run().await.unwrap();
    redis.command("ZADD").arg(&["machine:m:in:old", "0", "a"]).run().await.unwrap();
    (server, redis, bus)
}

async fn record(redis: &signalbox_store::Fabric) -> Vec<u8> {
    redis.command("GET").arg("object:machine:m:a:data").query().await.unwrap()
}

#[tokio::test]
async fn a_change_and_its_events_happen_together() {
    let (_server, redis, bus) = world().await;
    let events = vec![event("https://a.example/1"), event("https://a.example/2")];
    let id = bus.handle.change(OBJECT.into(), "labels", events, change(None, 1)).await.unwrap();
    let expected = [&header(1)[..], &id.0.to_be_bytes(), b"tail"].concat();
    assert_eq!(record(&redis).await, expected);
    assert_eq!(strings(&redis, "ZRANGE", &["machine:m:in:new", "0", "-1"]).await, ["a"]);
    assert!(strings(&redis, "ZRANGE", &["machine:m:in:old", "0", "-1"]).await.is_empty());
    // The last event of a label is in its record, not among those of other objects.
    assert!(strings(&redis, "HKEYS", &["bus:objects"]).await.is_empty());
    // Facts alone: no event, and the id is 0.
    let facts = bus.handle.change(OBJECT.into(), "labels", Vec::new(), change(Some(1), 2)).await;
    assert_eq!(facts, Ok(EventId(0)));
    assert_eq!(record(&redis).await, [&header(2)[..], &[0; 8], b"tail"].concat());
}

/// IDs with `prev` and `tprev` of all events in the log, in their order.
async fn logged(bus: &Pacemaker) -> Vec<(u64, Option<u64>, Option<u64>)> {
    let entries = bus.handle.window(0, EventId(0)).next(1_000).await.unwrap();
    let number = |id: Option<EventId>| id.map(|EventId(id)| id);
    let events = entries.iter().map(|logged| crate::Event::from_log(&logged.entry).unwrap());
    events.map(|event| (event.id.0, number(event.prev), number(event.tprev))).collect()
}

#[tokio::test]
async fn the_first_event_of_a_change_follows_the_label_s_last_event() {
    let (_server, _redis, bus) = world().await;
    let events = || vec![event("https://a.example/1"), event("https://a.example/2")];
    let attempt =
        async |change: Change| bus.handle.change(OBJECT.into(), "labels", events(), change).await.unwrap().0;
    let first = attempt(change(None, 1)).await;
    let next = Change { prev: Some(EventId(first + 64)), ..change(Some(1), 2) };
    let second = attempt(next).await;
    let chain = |id, prev| [(id, prev, prev), (id + 64, Some(id), Some(id))];
    assert_eq!(logged(&bus).await, [chain(first, None), chain(second, Some(first + 64))].concat());
}

#[tokio::test]
async fn changes_of_many_labels_in_one_call_are_all_written() {
    let (_server, redis, bus) = world().await;
    let index = |key: &str, member: String, score| Index { key: key.into(), member, score };
    let attempts = (0..300_u64).map(|n| {
        let mut one = change(None, 1);
        one.log = crate::Log {
            lines: vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()],
            keep: 2,
            ttl_ms: 1_000_000,
        };
        one.indexes = vec![
            index("m:in:new", format!("l{n}"), Some(n)),
            index("m:due", format!("l m l{n}"), Some(9_000_000_000_000 - n)),
        ];
        one.ttl_ms = (n % 3 == 0).then_some(1_000_000);
        bus.handle.change(format!("machine:m:l{n}"), "labels", vec![event("https://a.example/1")], one)
    });
    let results = futures_util::future::join_all(attempts).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(logged(&bus).await.len(), 300);
    assert_eq!(strings(&redis, "ZRANGE", &["machine:m:in:new", "0", "-1"]).await.len(), 300);
    assert_eq!(strings(&redis, "ZRANGE", &["machine:m:due", "0", "0"]).await, ["l m l299"]);
    let machines = strings(&redis, "ZRANGE", &["machine:next", "0", "-1", "WITHSCORES"]).await;
    assert_eq!(machines, ["m", "8999999999701"], "as due as its first label");
    for n in [0, 1, 299] {
        let key = format!("object:machine:m:l{n}:data");
        let stored: Vec<u8> = redis.command("GET").arg(&key).query().await.unwrap();
        assert!(stored.starts_with(&header(1)) && stored.ends_with(b"tail"), "{stored:?}");
        let ttl_ms: i64 = redis.command("PTTL").arg(&key).query().await.unwrap();
        assert_eq!(ttl_ms > 0, n % 3 == 0, "{n}: {ttl_ms}");
        let log = format!("object:machine:m:l{n}:log");
        assert_eq!(strings(&redis, "LRANGE", &[&log, "0", "-1"]).await, ["b", "c"]);
        let ttl_ms: i64 = redis.command("PTTL").arg(&log).query().await.unwrap();
        assert!(ttl_ms > 0, "{ttl_ms}");
    }
}

#[tokio::test]
async fn a_label_that_is_due_first_wakes_the_workers() {
    let (_server, redis, bus) = world().await;
    let mut heard = redis.subscribe(&["machine:wake"]);
    assert!(matches!(heard.next().await, Notice::Resumed));
    let attempt = async |before, revision, due_ms: u64| {
        let mut one = change(before, revision);
        one.indexes = vec![Index { key: "m:due".into(), member: "l m a".into(), score: Some(due_ms) }];
        bus.handle.change(OBJECT.into(), "labels", Vec::new(), one).await.unwrap();
    };
    redis.command("ZADD").arg(&["machine:next", "5000", "other"]).run().await.unwrap();
    attempt(None, 1, 7_000).await;
    attempt(Some(1), 2, 3_000).await;
    attempt(Some(2), 3, 2_000).await;
    let mut next = async || loop {
        if let Notice::Message { payload, .. } = heard.next().await {
            return payload;
        }
    };
    // The first change was not the earliest.
    assert_eq!((next().await, next().await), ("3000".to_owned(), "2000".to_owned()));
}

#[tokio::test]
async fn a_change_of_an_outdated_record_does_nothing() {
    let (_server, redis, bus) = world().await;
    let attempt = async |change: Change| {
        bus.handle.change(OBJECT.into(), "labels", vec![event("https://a.example/1")], change).await
    };
    attempt(change(None, 1)).await.unwrap();
    let before = record(&redis).await;
    assert_eq!(attempt(change(None, 2)).await, Err(Refusal::Outdated));
    assert_eq!(attempt(change(Some(3), 4)).await, Err(Refusal::Outdated));
    let other_version = Change { version: Some(8), ..change(Some(1), 2) };
    assert_eq!(attempt(other_version).await, Err(Refusal::Outdated));
    assert_eq!(record(&redis).await, before);
    let counters: BTreeSet<String> =
        strings(&redis, "HGETALL", &["bus:topic:signalbox.labels"]).await.into_iter().collect();
    assert!(counters.contains("1"), "{counters:?}");
    attempt(change(Some(1), 2)).await.unwrap();
}

#[tokio::test]
async fn of_changes_that_meet_in_one_call_one_wins() {
    let (_server, redis, bus) = world().await;
    bus.handle.change(OBJECT.into(), "labels", Vec::new(), change(None, 1)).await.unwrap();
    let attempts = (0..50).map(|_| {
        bus.handle.change(OBJECT.into(), "labels", vec![event("https://a.example/1")], change(Some(1), 2))
    });
    let results = futures_util::future::join_all(attempts).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert_eq!(results.iter().filter(|result| **result == Err(Refusal::Outdated)).count(), 49);
    assert_eq!(record(&redis).await[..21], header(2));
}
