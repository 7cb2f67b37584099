//! The whole product on a fabric that is a Redis Cluster, divided into four shards.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use signalbox_testkit::{Server, eventually};
use signalbox_tests::{events::Stream, http::Request, receiver::Receiver, system::System, upstream::App};

use crate::bus_api::Bus;

const SHARDS: usize = 4;
const OBJECTS: usize = 40;
const ROUNDS: usize = 10;

async fn start(cluster: &Server, name: &str) -> Bus {
    let table = |text: &str| text.parse::<toml::Table>().unwrap();
    let redis = table(&format!("fabric = '{}'\nfabric_shards = {SHARDS}", cluster.url()));
    let system = System::with(name, |builder| {
        builder
            .pacemaker("bus", table("allow_http = true\nallow_networks = ['127.0.0.0/8']"))
            .pacemaker("redis", redis)
    })
    .await;
    Bus { system }
}

/// Events of every object, `ROUNDS` of each, in arrays; object → ids.
async fn publish(bus: &Bus, client: &str, prefix: &str) -> BTreeMap<String, Vec<u64>> {
    let mut accepted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let objects: Vec<String> = (0..OBJECTS).map(|number| format!("{prefix}{number}")).collect();
        let events: Vec<Value> = objects
            .iter()
            .map(|object| json!({"type": "update", "url": "https://shop.example/1", "object": object}))
            .collect();
        let answer = bus.call(client, "POST", "/topics/orders/events", Some(&json!(events))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        for (object, result) in objects.iter().zip(answer.json().as_array().unwrap()) {
            accepted.entry(object.clone()).or_default().push(result["id"].as_u64().unwrap());
        }
    }
    accepted
}

/// First deliveries by object.
fn by_object(events: &[Value]) -> BTreeMap<String, Vec<u64>> {
    let mut seen = BTreeSet::new();
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for event in events {
        let id = event["id"].as_u64().unwrap();
        if seen.insert(id) {
            // The object is present only when it differs from the URL.
            let object = event["object"].as_str().or(event["url"].as_str()).unwrap();
            found.entry(object.to_owned()).or_default().push(id);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_on_four_shards_of_a_cluster_and_after_its_restart() {
    let mut cluster = Server::cluster().await;
    let bus = start(&cluster, "shards").await;
    let system = &bus.system;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    let (receiver, backend) = (Receiver::start().await, Receiver::start().await);

    // The route table: its desired state is not divided, and its scripts run in one slot.
    let app = App::start("app").await;
    system.register("i-1", &app, "shop.test", "17").await;
    system.until_answered_by("shop.test", &app).await;
    let _confined = system.token("reader", &["read"]).await;

    // Pushed, pulled and watched, from every shard, in order for each object.
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    let queue = json!({"pattern": ".*:update:orders"});
    assert_eq!(bus.root("PUT", "/queues/all", Some(&queue)).await.status, 201);
    let sink = json!({"prefix": "work:", "callback": backend.url(), "uuid": "b"});
    assert_eq!(bus.root("PUT", "/backends/works", Some(&sink)).await.status, 201);
    let mut stream = Stream::open(system.pacemaker, &system.token, "/events?topic=orders", None).await;
    let accepted = publish(&bus, &shop, "order:").await;
    let count = OBJECTS * ROUNDS;
    let shards: BTreeSet<u64> = accepted.values().flatten().map(|id| id % 64).collect();
    assert_eq!(shards, (0..SHARDS as u64).collect(), "every shard numbers some of them");
    assert_eq!(by_object(&receiver.until_events(count).await), accepted);
    let watched = stream.take(count).await;
    assert_eq!(by_object(&watched.iter().map(|message| message.json()).collect::<Vec<_>>()), accepted);

    let mut pulled = Vec::new();
    while pulled.len() < count {
        let wanted = json!({"max": 50, "auto_ack": true, "wait_seconds": 5});
        let answer = bus.root("POST", "/queues/all/pull", Some(&wanted)).await.json();
        let messages = answer["messages"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        assert!(!messages.is_empty(), "{answer} after {}", pulled.len());
        pulled.extend(messages.iter().map(|message| message["id"].as_u64().unwrap()));
    }
    let all: BTreeSet<u64> = accepted.values().flatten().copied().collect();
    assert_eq!((pulled.len(), pulled.into_iter().collect::<BTreeSet<u64>>()), (count, all));

    // Objects with a backend live in all shards as well.
    let sequenced = publish(&bus, &shop, "work:").await;
    eventually("the backend to have everything", || async {
        let got = by_object(&backend.deliveries().iter().map(body).collect::<Vec<_>>());
        if got == sequenced { Ok(()) } else { Err(got.values().map(Vec::len).sum::<usize>()) }
    })
    .await;

    // Nothing is lost with the process, and a stream continues at its position in each shard.
    let id = watched.last().and_then(|message| message.id.clone()).unwrap();
    assert_eq!(id.split('.').count(), SHARDS, "{id}");
    cluster.restart().await;
    eventually("events to be accepted again", || async {
        let event = json!({"type": "noop", "url": "https://shop.example/again"});
        let answer = bus.call(&shop, "POST", "/topics/orders", Some(&event)).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    let later = publish(&bus, &shop, "later:").await;
    let mut stream = Stream::open(system.pacemaker, &system.token, "/events?topic=orders", Some(&id)).await;
    let mut seen = Vec::new();
    while by_object(&seen)
        .iter()
        .filter(|(object, _)| object.starts_with("later:"))
        .map(|(_, ids)| ids.len())
        .sum::<usize>()
        < count
    {
        let message = stream.next().await.expect("an open stream");
        assert_eq!(message.event, "message", "{message:?}");
        seen.push(message.json());
    }
    let mut found = by_object(&seen);
    found.retain(|object, _| object.starts_with("later:"));
    assert_eq!(found, later);
    let delivered = eventually("the subscriber to have everything", || async {
        let mut got = by_object(&receiver.events());
        got.retain(|object, _| object.starts_with("later:"));
        if got == later { Ok(got) } else { Err(got.values().map(Vec::len).sum::<usize>()) }
    })
    .await;
    assert_eq!(delivered.len(), OBJECTS);
    eventually("the check to find nothing", || async {
        let check = system.api("GET", "/check", None).await.json();
        if check["consistent"] == true { Ok(()) } else { Err(check) }
    })
    .await;

    // Keys that are not sharded are in the first shard, and every key has a shard.
    let stray: Vec<String> =
        cluster.cli(&["KEYS", "*"]).lines().filter(|key| !key.starts_with("{s")).map(str::to_owned).collect();
    assert_eq!(stray, [""; 0]);
    assert_eq!(Request::get("shop.test", "/").send(system.edge).await.unwrap().status, 200);
    bus.system.stop().await;
}

fn body(delivery: &signalbox_tests::receiver::Delivery) -> Value {
    serde_json::from_slice(&delivery.body).unwrap()
}
