//! Neighbors that share time of the fabric's Redis.

use std::ops::AsyncFn;

use serde_json::{Value, json};
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    neighbor::{assert_undisturbed, p99},
    system::System,
};

use crate::bus_api::Bus;

/// Messages of the neighbor, each of another tenant: the most that a message costs.
const MESSAGES: usize = 10_000;
/// Messages and events in a request.
const PART: usize = 1_000;

async fn ok(bus: &Bus, method: &str, target: &str, body: Value) -> Value {
    let body = if body.is_null() { None } else { Some(&body) };
    let answer = bus.root(method, target, body).await;
    assert!((200..300).contains(&answer.status), "{method} {target}: {} {}", answer.status, answer.text());
    if answer.text().is_empty() { Value::Null } else { answer.json() }
}

async fn fill(bus: &Bus) {
    for from in (0..MESSAGES).step_by(PART) {
        let one = |n: usize| json!({"tenant": format!("t{n}"), "type": "many", "name": "x"});
        ok(bus, "POST", "/messages", (from..from + PART).map(one).collect()).await;
    }
}

/// Asserts that an application publishes as fast as before while `neighbor` works.
async fn assert_publishes(bus: &Bus, what: &str, neighbor: impl AsyncFn()) {
    let publish = || async {
        bus.publish("shop", "orders", 1).await;
    };
    publish().await;
    let without = p99(50, publish).await;
    let (with, ()) = tokio::join!(p99(50, publish), neighbor());
    assert_undisturbed(&format!("a publish next to {what}"), without, with);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_publishes_pulls_and_the_purge_of_a_queue_of_many_tenants_delay_no_publisher() {
    let bus = Bus::start("redis-time-queue").await;
    bus.client("shop").await;
    ok(&bus, "PUT", "/queues/many", json!({"pattern": ".*:many:.*"})).await;
    assert_publishes(&bus, "large publishes", async || fill(&bus).await).await;
    assert_publishes(&bus, "large pulls", async || {
        for _ in 0..3 {
            let pulled = ok(&bus, "POST", "/queues/many/pull", json!({"max": PART})).await;
            let messages = pulled["messages"].as_array().unwrap();
            assert_eq!(messages.len(), PART, "a pull returns as many as it asks for");
            let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
            let settled = ok(&bus, "POST", "/queues/many/nack", json!({"receipts": receipts})).await;
            assert_eq!(settled["results"].as_array().map(Vec::len), Some(PART), "{settled}");
        }
    })
    .await;
    assert_publishes(&bus, "a purge", async || {
        let purged = ok(&bus, "POST", "/queues/many/purge", json!({})).await;
        assert_eq!(purged["messages"], MESSAGES, "{purged}");
    })
    .await;
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_subscription_with_a_large_backlog_delays_no_publisher() {
    let bus = Bus::with("redis-time-backlog", &[("housekeeping_ms", 100)]).await;
    for name in ["shop", "noisy", "gone"] {
        bus.client(name).await;
    }
    // Its events wait until a batch is full, or for an hour.
    let subscription = json!({
        "topics": ["noise"], "callback": "https://gone.example/events", "timeout": 3_600_000, "max": 10_000,
        "concurrency": 64,
    });
    assert_eq!(bus.call("gone", "POST", "/subscription", Some(&subscription)).await.status, 204);
    for part in 0..MESSAGES / PART {
        let url = |n: usize| format!("https://noisy.example/{part}/{n}");
        let events: Value = (0..PART).map(|n| json!({"type": "update", "url": url(n)})).collect();
        let answer = bus.call("noisy", "POST", "/topics/noise/events", Some(&events)).await;
        assert!((200..300).contains(&answer.status), "{}", answer.text());
    }
    assert_publishes(&bus, "the end of a subscription", async || {
        assert_eq!(bus.call("gone", "DELETE", "/subscriber", None).await.status, 204);
        let waiting = async || {
            let left: u64 = bus.system.cli(System::FABRIC, "HLEN bus:batches:gauges:event").await;
            equal(left, 0)
        };
        eventually("no event to wait", waiting).await;
    })
    .await;
    bus.system.stop().await;
}
