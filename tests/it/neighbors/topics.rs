//! Neighbors that share topics and the registry.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_tests::{
    neighbor::{assert_undisturbed, p99},
    receiver::Receiver,
    system::System,
};

use crate::bus_api::Bus;

/// Names of topics: letters, because digits are not allowed.
fn names(prefix: &str, count: usize) -> Vec<String> {
    let letter = |number: usize| char::from(b'a' + u8::try_from(number % 26).unwrap());
    (0..count).map(|n| format!("{prefix}_{}{}", letter(n / 26), letter(n))).collect()
}

async fn publish(bus: &Bus, client: &str, topic: &str) -> (u16, Value) {
    let event = json!({"type": "update", "url": "https://shop.example/1"});
    let answer = bus.call(client, "POST", &format!("/topics/{topic}"), Some(&event)).await;
    (answer.status, if answer.status == 200 { Value::Null } else { answer.json()["code"].clone() })
}

async fn subscribe(bus: &Bus, client: &str, topics: &[String], callback: &str) -> (u16, Value) {
    let body = json!({"topics": topics, "callback": callback, "timeout": 0});
    let answer = bus.call(client, "POST", "/subscription", Some(&body)).await;
    (answer.status, if answer.status == 204 { Value::Null } else { answer.json()["code"].clone() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_creates_topics_does_not_use_up_those_of_others() {
    // Signalbox's own topics count as well.
    let bus = Bus::with("neighbor-topics", &[("topics", 80), ("topics_per_client", 10)]).await;
    let receiver = Receiver::start().await;
    let (noisy, quiet) = (bus.client("noisy").await, bus.client("quiet").await);
    let limit = (403, json!("limit_reached"));
    for (number, topic) in names("published", 15).iter().enumerate() {
        let expected = if number < 10 { (200, Value::Null) } else { limit.clone() };
        assert_eq!(publish(&bus, &noisy, topic).await, expected, "{topic}");
    }
    assert_eq!(
        subscribe(&bus, &noisy, &names("x", 1), &receiver.url()).await,
        limit,
        "it has all of its topics"
    );

    let other = bus.client("other").await;
    for round in 0..12 {
        let topics = names(&format!("round{}", "_".repeat(round)), 10);
        assert_eq!(
            subscribe(&bus, &other, &topics, &receiver.url()).await,
            (204, Value::Null),
            "round {round}"
        );
    }
    assert_eq!(subscribe(&bus, &other, &names("many", 11), &receiver.url()).await, limit);
    assert_eq!(publish(&bus, &quiet, "quiet").await, (200, Value::Null));
    assert_eq!(subscribe(&bus, &quiet, &["quiet".to_owned()], &receiver.url()).await, (204, Value::Null));
    assert_eq!(publish(&bus, &quiet, "quiet").await, (200, Value::Null));
    receiver.until_events(1).await;
    // What only a subscription created ends with it.
    assert_eq!(bus.call(&other, "DELETE", "/subscriber", None).await.status, 204);
    let listed = bus.root("GET", "/topics", None).await.json();
    let left = listed.as_array().unwrap().iter().filter(|topic| {
        topic["name"].as_str().is_some_and(|name| name.starts_with("round") || name.starts_with("many"))
    });
    assert_eq!(left.count(), 0, "{listed}");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_uses_up_its_idempotency_keys_loses_no_key_and_does_not_stop_others() {
    let settings = [("idempotency_keys", 50), ("idempotency_seconds", 600), ("request_events", 100)];
    let bus = Bus::with("neighbor-keys", &settings).await;
    let (noisy, quiet) = (bus.client("noisy").await, bus.client("quiet").await);
    let keyed = async |client: &str, key: &str| {
        let event = json!({"type": "update", "url": "https://shop.example/1"});
        let request = bus.request("POST", &format!("/topics/keys_{client}"));
        bus.send(request.token(client).header("Idempotency-Key", key).json(&event)).await
    };
    let first = keyed(&noisy, "k0").await;
    assert_eq!(first.status, 200, "{}", first.text());
    for number in 1..50 {
        assert_eq!(keyed(&noisy, &format!("k{number}")).await.status, 200);
    }
    for number in 50..60 {
        let refused = keyed(&noisy, &format!("k{number}")).await;
        assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("idempotency_keys_used_up")));
        let seconds: u64 = refused.header("Retry-After").unwrap().parse().unwrap();
        assert!((500..=600).contains(&seconds), "{seconds}");
    }
    let again = keyed(&noisy, "k0").await;
    let id =
        |answer: &signalbox_tests::http::Response| answer.header("X-Signalbox-Event-Id").map(str::to_owned);
    assert_eq!((again.status, id(&again)), (200, id(&first)), "the oldest key is still known");
    assert_eq!(publish(&bus, &noisy, "keys_noisy").await, (200, Value::Null), "without a key");
    assert_eq!(keyed(&quiet, "k0").await.status, 200, "the keys of others");
    let page = bus.root("GET", "/metrics", None).await.text();
    assert!(page.contains(r#"signalbox_bus_idempotency_keys_used_percent{client="noisy"} 100"#), "{page}");
    assert!(!page.contains(r#"idempotency_keys_used_percent{client="quiet"}"#), "{page}");
    bus.system.stop().await;
}

/// On many shards, each change of the registry is written to all of them.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_registry_do_not_delay_publishers() {
    const CLIENTS: usize = 100;
    let redis: toml::Table = "fabric_shards = 8".parse().unwrap();
    let system = System::with("neighbor-registry", |builder| {
        builder.pacemaker("bus", signalbox_tests::receiver::allowed()).pacemaker("redis", redis)
    })
    .await;
    let bus = Bus { system };
    let quiet = bus.client("quiet").await;
    let publishes = async || {
        p99(50, || async { assert_eq!(publish(&bus, &quiet, "quiet").await, (200, Value::Null)) }).await
    };
    publishes().await;
    let without = publishes().await;
    // Clients that subscribed and left: a change does not write them again.
    let noisy = bus.client("noisy").await;
    let callback = "http://127.0.0.1:1/";
    let retire = async |from: usize, to: usize| {
        for number in from..to {
            let name = format!("left{number}");
            bus.client(&name).await;
            let topics = ["quiet".to_owned()];
            assert_eq!(subscribe(&bus, &name, &topics, callback).await, (204, Value::Null));
            assert_eq!(bus.root("DELETE", &format!("/api_tokens/{name}"), None).await.status, 204);
        }
    };
    tokio::join!(
        retire(0, CLIENTS / 4),
        retire(CLIENTS / 4, CLIENTS / 2),
        retire(CLIENTS / 2, CLIENTS * 3 / 4),
        retire(CLIENTS * 3 / 4, CLIENTS)
    );
    let storm = async {
        for round in 0.. {
            let topics = names(if round % 2 == 0 { "even" } else { "odd" }, 5);
            assert_eq!(subscribe(&bus, &noisy, &topics, callback).await, (204, Value::Null));
        }
    };
    let with = tokio::select! {
        with = publishes() => with,
        () = storm => unreachable!("it does not end"),
    };
    assert_undisturbed("a publish", without, with);
    let first = tokio::time::timeout(Duration::from_secs(2), publish(&bus, &quiet, "first"));
    assert_eq!(first.await.expect("a new topic"), (200, Value::Null));
    assert_eq!(bus.root("GET", "/health", None).await.status, 200);
    bus.system.stop().await;
}
