//! Signalbox's own events: changes of the route table and of subscribers arrive at webhooks, whichever part is killed.

use std::{collections::BTreeSet, net::SocketAddr};

use serde_json::{Value, json};
use signalbox_testkit::{PATIENCE, eventually, eventually_within};
use signalbox_tests::{
    http::credential,
    receiver::{Answer, Receiver},
    system::System,
    upstream::App,
};

use crate::bus_api::{Bus, applications_topics};

const INSTANCE_TOPICS: [&str; 9] = [
    "signalbox.instance.registered",
    "signalbox.instance.altered",
    "signalbox.instance.draining",
    "signalbox.instance.resumed",
    "signalbox.instance.drained",
    "signalbox.instance.removed",
    "signalbox.instance.lease_expired",
    "signalbox.instance.unhealthy",
    "signalbox.host.removed",
];
const RESYNCED: &str = "signalbox.table.resynced";

/// Subscribes a client to everything about the table, on one lane: events come in the order of the serials.
async fn watch(bus: &Bus) -> Receiver {
    let receiver = Receiver::start().await;
    let client = bus.client("ops").await;
    let topics: Vec<&str> = INSTANCE_TOPICS.into_iter().chain([RESYNCED]).collect();
    let body = json!({"topics": topics, "callback": receiver.url(), "timeout": 0, "concurrency": 1});
    let answer = bus.call(&client, "POST", "/subscription", Some(&body)).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    receiver
}

/// How soon the living take over from a pacemaker that was killed in the middle of a delivery.
const SOON: [(&str, i64); 3] = [("beat_ms", 200), ("dead_after_ms", 1_000), ("housekeeping_ms", 200)];

/// The received events, in order. A delivery whose sender died before recording it is repeated with
/// the same IDs.
fn events(receiver: &Receiver) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    receiver.events().into_iter().filter(|event| seen.insert(event["id"].as_u64())).collect()
}

/// `topic subject` of what came, in order.
fn published(receiver: &Receiver) -> Vec<String> {
    let mut published = Vec::new();
    for event in events(receiver) {
        let topic = event["topic"].as_str().unwrap();
        let data = &event["data"];
        let subject = ["id", "hostname", "reason"].into_iter().find_map(|field| data[field].as_str());
        let line = format!("{} {}", topic.trim_start_matches("signalbox."), subject.unwrap());
        published.push(line);
    }
    published
}

async fn until_published(receiver: &Receiver, expected: &[&str]) -> Vec<Value> {
    eventually(&format!("{expected:?} to be published"), || async {
        let published = published(receiver);
        if expected.iter().all(|line| published.iter().any(|one| one == line)) {
            Ok(())
        } else {
            Err(published)
        }
    })
    .await;
    events(receiver)
}

fn count(receiver: &Receiver, line: &str) -> usize {
    published(receiver).iter().filter(|one| *one == line).count()
}

/// Serials never go back.
fn expect_serials_in_order(events: &[Value]) {
    let published = events.iter().filter(|event| event["topic"] != RESYNCED);
    let serials: Vec<u64> = published.map(|event| event["data"]["serial"].as_u64().unwrap()).collect();
    assert!(serials.is_sorted(), "{serials:?}");
}

async fn put(system: &System, at: SocketAddr, id: &str, body: Value) {
    let answer = system.api_at(at, "PUT", &format!("/instances/{id}"), Some(body)).await;
    assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
}

fn at(app: &App, hosts: &[&str]) -> Value {
    json!({"address": app.address.to_string(), "hostnames": hosts, "version_type_id": "1"})
}

/// Keeps the pacemaker from announcing, as if it had died after the change. Another process then
/// finds the lease taken; a process that holds the lease relies on it for part of its duration.
async fn hold_the_lease(system: &System) {
    system.kill(System::PACEMAKER).await;
    system.cli::<i64>(System::FABRIC, "HSET lease:announcer holder nobody until_ms 99999999999999").await;
    system.start_part(System::PACEMAKER).await;
}

async fn release_the_lease(system: &System) {
    system.cli::<i64>(System::FABRIC, "HSET lease:announcer until_ms 0").await;
}

async fn serial(system: &System) -> u64 {
    system.cli(System::PRIMARY, "GET serial").await
}

async fn announced(system: &System) -> u64 {
    system.cli::<Option<u64>>(System::FABRIC, "HGET routes:announced serial").await.unwrap_or(0)
}

/// Waits until nothing is left to publish.
async fn until_all_is_published(system: &System) {
    eventually("everything to be published", || async {
        let (there, published) = (serial(system).await, announced(system).await);
        if there == published { Ok(()) } else { Err((there, published)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_an_instance_arrives_at_a_webhook() {
    let bus = Bus::start("own-kinds").await;
    let system = &bus.system;
    let receiver = watch(&bus).await;
    let [one, two] = [App::start("one").await, App::start("two").await];
    put(system, system.admin, "i-1", at(&one, &["a.test"])).await;
    put(system, system.admin, "i-1", at(&one, &["a.test", "b.test"])).await;
    let fault = json!({"message": "answers 500", "fault_id": "f-1"});
    assert_eq!(system.api("POST", "/instances/i-1/errors", Some(fault)).await.status, 200);
    let drain = |seconds| Some(json!({"deadline_seconds": seconds}));
    assert_eq!(system.api("POST", "/instances/i-1/drain", drain(300)).await.status, 200);
    assert_eq!(system.api("DELETE", "/instances/i-1/drain", None).await.status, 200);
    put(system, system.admin, "i-2", at(&one, &["a.test"])).await;
    assert_eq!(system.api("POST", "/instances/i-2/drain", drain(1)).await.status, 200);
    let mut leased = at(&two, &["c.test"]);
    leased["lease_seconds"] = json!(1);
    put(system, system.admin, "i-3", leased).await;
    until_published(&receiver, &["instance.lease_expired i-3", "instance.drained i-2"]).await;
    put(system, system.admin, "i-4", at(&two, &["d.test"])).await;
    assert_eq!(system.api("DELETE", "/instances/i-4", None).await.status, 204);
    assert!(matches!(system.api("DELETE", "/hosts/d.test", None).await.status, 200 | 204));
    let events = until_published(
        &receiver,
        &[
            "instance.registered i-1",
            "instance.altered i-1",
            "instance.unhealthy i-1",
            "instance.draining i-1",
            "instance.resumed i-1",
            "instance.removed i-1",
            "instance.registered i-2",
            "instance.draining i-2",
            "instance.drained i-2",
            "instance.registered i-3",
            "instance.lease_expired i-3",
            "instance.registered i-4",
            "instance.removed i-4",
            "host.removed d.test",
        ],
    )
    .await;
    assert_eq!(events.len(), 14, "each once, and nothing else: {:?}", published(&receiver));
    expect_serials_in_order(&events);
    let of = |topic: &str, id: &str| {
        let topic = format!("signalbox.{topic}");
        events.iter().find(|event| event["topic"] == topic && event["data"]["id"] == id).unwrap().clone()
    };
    let registered = of("instance.registered", "i-4");
    assert_eq!((&registered["type"], &registered["url"]), (&json!("create"), &json!("/instances/i-4")));
    let epoch: String = system.cli(System::PRIMARY, "GET epoch").await;
    assert_eq!(
        registered["data"],
        json!({"id": "i-4", "address": two.address.to_string(), "hostnames": ["d.test"], "version_type_id": "1",
            "weight": 1, "serial": registered["data"]["serial"], "epoch": epoch})
    );
    assert_eq!(of("instance.removed", "i-1")["data"]["displaced_by"], "i-2");
    assert_eq!(of("instance.unhealthy", "i-1")["data"]["fault"], "answers 500");
    assert_eq!(of("instance.drained", "i-2")["type"], "delete");
    // All events about one instance belong to one object: each names its predecessor.
    let own: Vec<&Value> = events.iter().filter(|event| event["url"] == "/instances/i-1").collect();
    assert_eq!(own.len(), 6);
    for pair in own.windows(2) {
        assert_eq!(pair[1]["prev"], pair[0]["id"]);
    }
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_application_publishes_as_signalbox() {
    let bus = Bus::start("own-reserved").await;
    let shop = bus.client("shop").await;
    let event = json!({"type": "update", "url": "https://shop.example/1"});
    for topic in ["signalbox.instance.registered", "signalbox.table.resynced", "signalbox.x", "signalbox."] {
        for token in [&shop, &bus.system.token] {
            let one = bus.call(token, "POST", &format!("/topics/{topic}"), Some(&event)).await;
            assert_eq!((one.status, &one.json()["code"]), (400, &json!("invalid_topic")), "{topic}");
            let path = format!("/topics/{topic}/events");
            let many = bus.call(token, "POST", &path, Some(&json!([event]))).await;
            assert_eq!(many.status, 400, "{topic}: {}", many.text());
        }
    }
    let topics = bus.root("GET", "/topics", None).await;
    assert_eq!(applications_topics(&topics), [Value::Null; 0]);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_follows_its_change_though_the_pacemaker_was_killed_between() {
    let bus = Bus::with("own-killed", &SOON).await;
    let system = &bus.system;
    let receiver = watch(&bus).await;
    let app = App::start("app").await;
    put(system, system.admin, "before", at(&app, &["a.test"])).await;
    until_published(&receiver, &["instance.registered before"]).await;
    hold_the_lease(system).await;
    put(system, system.admin, "between", at(&app, &["b.test"])).await;
    assert!(announced(system).await < serial(system).await, "the change is made and not published");
    system.kill(System::PACEMAKER).await;
    release_the_lease(system).await;
    system.start_part(System::PACEMAKER).await;
    put(system, system.admin, "after", at(&app, &["c.test"])).await;
    let events = until_published(&receiver, &["instance.registered after"]).await;
    // The address went from one to the next.
    assert_eq!(
        published(&receiver),
        [
            "instance.registered before",
            "instance.removed before",
            "instance.registered between",
            "instance.removed between",
            "instance.registered after",
        ]
        .map(str::to_owned),
        "each once, in order, and no table to be read again"
    );
    expect_serials_in_order(&events);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_can_no_longer_be_published_become_one_resync() {
    let bus = Bus::with("own-lost", &SOON).await;
    let system = &bus.system;
    let receiver = watch(&bus).await;
    let app = App::start("app").await;
    put(system, system.admin, "before", at(&app, &["a.test"])).await;
    until_published(&receiver, &["instance.registered before"]).await;
    let published_up_to = announced(system).await;
    hold_the_lease(system).await;
    for n in 0..5 {
        put(system, system.admin, "between", at(&app, &[&format!("h{n}.test")])).await;
    }
    system.kill(System::PACEMAKER).await;
    // Its recorded changes are lost with it.
    system.cli::<i64>(System::PRIMARY, "DEL changes").await;
    release_the_lease(system).await;
    system.start_part(System::PACEMAKER).await;
    until_published(&receiver, &["table.resynced gap"]).await;
    put(system, system.admin, "after", at(&app, &["c.test"])).await;
    let events = until_published(&receiver, &["instance.registered after"]).await;
    assert_eq!(count(&receiver, "table.resynced gap"), 1);
    let resynced = events.iter().find(|event| event["topic"] == RESYNCED).unwrap();
    let epoch: String = system.cli(System::PRIMARY, "GET epoch").await;
    assert_eq!(
        resynced["data"],
        json!({"from": published_up_to + 1, "to": published_up_to + 5, "reason": "gap", "epoch": epoch})
    );
    let url = resynced["url"].as_str().unwrap();
    assert_eq!(system.api("GET", url, None).await.status, 200, "{url} can be read");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_while_the_fabric_is_down_are_published_when_it_is_back() {
    let bus = Bus::start("own-fabric-away").await;
    let system = &bus.system;
    let receiver = watch(&bus).await;
    let app = App::start("app").await;
    put(system, system.admin, "i-1", at(&app, &["a.test"])).await;
    until_published(&receiver, &["instance.registered i-1"]).await;
    until_all_is_published(system).await;
    // The published events must be on its disk, or they would correctly be published again.
    system.cli::<()>(System::FABRIC, "SAVE").await;
    system.restart(System::FABRIC).await;
    let published_up_to = serial(system).await;
    system.kill(System::FABRIC).await;
    // Only an operator can change the table now, and no pacemaker knows how.
    for n in 0..3 {
        system.cli::<i64>(System::PRIMARY, &format!("SADD instances:byhand{n}.test {}", app.address)).await;
        system.cli::<i64>(System::PRIMARY, "INCR serial").await;
    }
    system.start_part(System::FABRIC).await;
    until_published(&receiver, &["table.resynced gap"]).await;
    put(system, system.admin, "i-2", at(&app, &["b.test"])).await;
    let events = until_published(&receiver, &["instance.registered i-2"]).await;
    let resyncs: Vec<&Value> = events.iter().filter(|event| event["topic"] == RESYNCED).collect();
    assert_eq!(resyncs.len(), 1, "{resyncs:?}");
    let data = &resyncs[0]["data"];
    assert_eq!((&data["from"], &data["to"]), (&json!(published_up_to + 1), &json!(published_up_to + 3)));
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_lost_and_created_again_is_one_resync() {
    let bus = Bus::start("own-reseeded").await;
    let system = &bus.system;
    let receiver = watch(&bus).await;
    let app = App::start("app").await;
    for n in 0..4 {
        put(system, system.admin, "i-1", at(&app, &[&format!("h{n}.test")])).await;
    }
    until_all_is_published(system).await;
    let before = receiver.until_events(4).await.len();
    system.restart_empty(System::PRIMARY).await;
    until_published(&receiver, &["table.resynced reseeded"]).await;
    put(system, system.admin, "i-2", at(&app, &["b.test"])).await;
    let events = until_published(&receiver, &["instance.registered i-2"]).await;
    let since: Vec<&Value> = events[before..].iter().map(|event| &event["topic"]).collect();
    assert_eq!(
        since,
        [RESYNCED, "signalbox.instance.removed", "signalbox.instance.registered"],
        "nothing of the seeding itself"
    );
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pacemakers_that_announce_for_each_other_cause_no_resync() {
    let bus = Bus::with("own-several", &SOON).await;
    let system = &bus.system;
    let receiver = watch(&bus).await;
    let second = system.stack.add_pacemaker().await.unwrap();
    let other: SocketAddr = second.address().trim_start_matches("http://").parse().unwrap();
    let app = App::start("app").await;
    let port = app.address.port();
    let rounds = 60;
    // Both change the same instances at the same time, and one of them dies in the middle of it.
    let change = async |to: SocketAddr, shift: u16| {
        for n in 0..rounds {
            let id = format!("i-{}", n % 7);
            let host = format!("h{}.test", n + shift);
            let body = json!({"address": format!("127.0.2.{}:{port}", n % 7 + 1), "hostnames": [host],
                "version_type_id": "1"});
            if to == other && n == rounds / 2 {
                second.kill().await.unwrap();
                return;
            }
            put(system, to, &id, body).await;
        }
    };
    tokio::join!(change(system.pacemaker, 0), change(other, 1000));
    until_all_is_published(system).await;
    put(system, system.pacemaker, "last", at(&app, &["last.test"])).await;
    let events = until_published(&receiver, &["instance.registered last"]).await;
    expect_serials_in_order(&events);
    let mut serials: Vec<u64> =
        events.iter().map(|event| event["data"]["serial"].as_u64().unwrap_or(0)).collect();
    serials.sort_unstable();
    assert!(events.iter().all(|event| event["topic"] != RESYNCED), "{:?}", published(&receiver));
    let last = *serials.last().unwrap();
    let first = last + 1 - serials.len() as u64;
    assert_eq!(serials, (first..=last).collect::<Vec<_>>(), "every serial is published exactly once");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_about_a_subscriber_name_it() {
    let settings: Vec<_> = SOON.into_iter().chain([("queued_events", 20)]).collect();
    let bus = Bus::with("own-subscribers", &settings).await;
    let receiver = Receiver::start().await;
    let ops = bus.client("ops").await;
    let topics =
        ["signalbox.subscriber.paced", "signalbox.subscriber.disabled", "signalbox.subscriber.autodropped"];
    bus.subscribe(&ops, &topics, &receiver.url()).await;
    let shop = bus.client("shop").await;
    let made = bus
        .root("POST", "/api_tokens", Some(&json!({"name": "billing", "token": credential("its-credential")})))
        .await;
    assert_eq!(made.status, 201, "{}", made.text());
    let billing = Receiver::answering(|_| Answer::status("500 Internal Server Error")).await;
    bus.subscribe("its-credential", &["orders"], &billing.url()).await;
    let published = |topic: &'static str| {
        let receiver = &receiver;
        eventually(topic, move || async move {
            let events = receiver.events();
            let found = events.iter().find(|event| event["topic"] == topic).cloned();
            found.ok_or_else(|| format!("{events:?}"))
        })
    };
    // Deliveries fail repeatedly on every lane; the alarm is published once.
    for number in 0..8 {
        bus.publish(&shop, "orders", number).await;
    }
    let paced = published("signalbox.subscriber.paced").await;
    assert_eq!((&paced["data"]["subscriber"], &paced["url"]), (&json!("billing"), &json!("/subscriptions")));
    for number in 8..60 {
        bus.publish(&shop, "orders", number).await;
    }
    let dropped = published("signalbox.subscriber.autodropped").await;
    assert_eq!(
        (&dropped["data"]["subscriber"], &dropped["data"]["reason"]),
        (&json!("billing"), &json!("limit"))
    );
    assert!(dropped["data"]["events"].as_u64() > Some(0), "{dropped}");
    billing.decide(|_| Answer::status("410 Gone"));
    let disabled = published("signalbox.subscriber.disabled").await;
    assert_eq!(disabled["data"], json!({"subscriber": "billing", "reason": "gone"}));
    let events = receiver.events();
    let paced = events.iter().filter(|event| event["topic"] == "signalbox.subscriber.paced").count();
    assert_eq!(paced, 1, "{events:?}");
    assert!(!format!("{events:?}").contains("its-credential"), "a client's token is its credential");
    bus.system.stop().await;
}

/// The published changes of routers, each with its alarm. Repeated entries count once: while it
/// moves to another primary, a replica may alternate between two states.
fn standings(receiver: &Receiver) -> Vec<(String, Option<String>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let published = events(receiver);
    let published = published.iter().filter(|event| event["topic"] == "signalbox.routers");
    let mut standings: Vec<_> = published
        .map(|event| (text(&event["data"]["change"]).unwrap(), text(&event["data"]["alarm"])))
        .collect();
    standings.dedup_by(|after, before| after.0 == before.0);
    standings
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_rejects_the_table_or_goes_silent_is_reported() {
    let bus = Bus::start("own-routers").await;
    let system = &bus.system;
    let receiver = Receiver::start().await;
    bus.subscribe(&bus.client("ops").await, &["signalbox.routers"], &receiver.url()).await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "17").await;
    let until = async |expected: &[&str]| {
        // Ten seconds make a router silent, and three more make it sure.
        eventually_within(3 * PATIENCE, &format!("{expected:?} to be published"), || async {
            let published = standings(&receiver);
            let changes: Vec<&str> = published.iter().map(|(change, _)| change.as_str()).collect();
            if changes == expected { Ok(()) } else { Err(format!("{published:?}")) }
        })
        .await;
    };
    system.until_answered_by("app.test", &app).await;
    // The replica on the router shows another installation's table.
    system.cli::<()>(System::REPLICA, "REPLICAOF NO ONE").await;
    system.cli::<()>(System::REPLICA, "CONFIG SET replica-read-only no").await;
    system.cli::<()>(System::REPLICA, "SET epoch stranger").await;
    system.cli::<i64>(System::REPLICA, "INCR serial").await;
    until(&["rejects"]).await;
    assert_eq!(standings(&receiver)[0].1.as_deref(), Some("epoch_unknown"));
    assert_eq!(system.get("app.test", "/").await.text(), "app", "the last good table is served");
    let primary = system.stack.ports().routes;
    system.cli::<()>(System::REPLICA, &format!("REPLICAOF 127.0.0.1 {primary}")).await;
    until(&["rejects", "accepts"]).await;
    // Without its sidecar the router's serial is unknown: first it is waited for, then no longer.
    system.kill(System::SIDECAR).await;
    until(&["rejects", "accepts", "silent"]).await;
    let convergence = system.api("GET", "/routes/convergence", None).await.json();
    assert_eq!(
        (&convergence["excluded"], &convergence["converged"]),
        (&json!(1), &json!(false)),
        "{convergence}"
    );
    system.start_part(System::SIDECAR).await;
    until(&["rejects", "accepts", "silent", "reports"]).await;
    let published = events(&receiver);
    let router = convergence["routers"][0]["node"].as_str().unwrap();
    for event in &published {
        assert_eq!(event["data"]["router"], router, "{event}");
        assert_eq!(event["object"], format!("signalbox:router:{router}"), "{event}");
    }
    for pair in published.windows(2) {
        assert_eq!(pair[1]["prev"], pair[0]["id"], "one object's, each names the one before");
    }
    bus.system.stop().await;
}
