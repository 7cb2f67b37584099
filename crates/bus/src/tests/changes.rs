//! Changes of labels: written in the step that publishes their events, or not at all.

use std::collections::BTreeSet;

use super::support::{Pacemaker, Time, event, strings, with_fixed_clock};
use crate::{Change, EventId, Index, Refusal};
use signalbox_store::FabricRole;
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
    let memory = strings(&redis, "HMGET", &["bus:objects", OBJECT]).await;
    let second = id.0 + 64;
    assert_eq!(memory, [format!("{second} signalbox.labels {second}")]);
    // Facts alone: no event, and the id is 0.
    let facts = bus.handle.change(OBJECT.into(), "labels", Vec::new(), change(Some(1), 2)).await;
    assert_eq!(facts, Ok(EventId(0)));
    assert_eq!(record(&redis).await, [&header(2)[..], &[0; 8], b"tail"].concat());
    assert_eq!(strings(&redis, "HMGET", &["bus:objects", OBJECT]).await, memory);
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
