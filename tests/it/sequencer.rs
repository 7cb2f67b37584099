//! Objects with a backend, as producers and backends see them: events arrive in order, whichever part dies.

mod order;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::credential,
    receiver::{Answer, Delivery, Receiver},
    system::System,
};

use crate::bus_api::Bus;

fn event(topic: &str) -> Value {
    json!({"topic": topic, "type": "update"})
}

fn backend(receiver: &Receiver) -> Value {
    json!({"prefix": "work:", "callback": receiver.url(), "uuid": "sequencer", "on_failure": "park", "max_attempts": 2})
}

/// The one event of a delivery to a backend.
fn body(delivery: &Delivery) -> Value {
    serde_json::from_slice(&delivery.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_state_and_events_and_the_bus_is_its_sink_without_a_backend() {
    let bus = Bus::start("groups").await;
    let receiver = Receiver::start().await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["works", "posts"], &receiver.url()).await;
    // A slash in the name of an object is written %2F.
    let target = "/objects/work%2F1%20a/events";
    let group =
        json!({"data": {"v": 1}, "events": [event("works"), event("posts")], "idempotency_key": "k-1"});
    let made = bus.call(&shop, "POST", target, Some(&group)).await;
    assert_eq!(made.status, 202, "{}", made.text());
    let ids: Vec<u64> = serde_json::from_value(made.json()["ids"].clone()).unwrap();
    assert_eq!((ids.len(), ids[1] - ids[0]), (2, 64));
    let again = bus.call(&shop, "POST", target, Some(&group)).await;
    assert_eq!((again.status, again.json()), (202, made.json()), "a repeat under its key");
    let other = json!({"events": [event("works")], "idempotency_key": "k-1"});
    let refused = bus.call(&shop, "POST", target, Some(&other)).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("idempotency_conflict")));
    let events = receiver.until_events(2).await;
    let received: Vec<(&Value, &Value)> =
        events.iter().map(|event| (&event["id"], &event["topic"])).collect();
    assert_eq!(received, [(&json!(ids[0]), &json!("works")), (&json!(ids[1]), &json!("posts"))]);
    assert_eq!(events[1]["prev"], json!(ids[0]));
    let object = bus.call(&shop, "GET", "/objects/work%2F1%20a", None).await.json();
    assert_eq!(
        (&object["data"], &object["last_id"], &object["queued"]),
        (&json!({"v": 1}), &json!(ids[1]), &json!(0))
    );
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_gets_one_event_at_a_time_signed_and_numbered_and_a_poison_event_waits_for_a_decision() {
    let bus = Bus::start("backend").await;
    let poison = Arc::new(AtomicBool::new(true));
    let bad = Arc::clone(&poison);
    let receiver = Receiver::answering(move |delivery| {
        let fails = bad.load(Ordering::SeqCst) && body(delivery)["topic"] == "posts";
        Answer::status(if fails { "500 Internal Server Error" } else { "204 No Content" })
    })
    .await;
    let shop = bus.client("shop").await;
    let made = bus.root("PUT", "/backends/search", Some(&backend(&receiver))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    assert!(made.json()["secret"].as_str().unwrap().starts_with("whsec_"));
    let group = json!({"data": 7, "events": [event("works"), event("posts"), event("works")]});
    let ids = bus.call(&shop, "POST", "/objects/work:1/events", Some(&group)).await.json()["ids"].clone();
    let parked = eventually("the object to be parked", || async {
        let object = bus.root("GET", "/objects/work:1", None).await.json();
        if object["parked"] == true { Ok(object) } else { Err(object) }
    })
    .await;
    assert_eq!(
        (&parked["queued"], &parked["attempts"], &parked["backend"]),
        (&json!(2), &json!(2), &json!("search"))
    );
    assert_eq!(parked["last_error"], "answered 500");
    let first = receiver.deliveries().remove(0);
    assert_eq!(first.basic().as_deref(), Some("sequencer:x"));
    assert_eq!(first.header("webhook-id").unwrap(), ids[0].to_string());
    assert!(first.header("webhook-signature").unwrap().starts_with("v1,"));
    assert!(first.header("X-Signalbox-Epoch").unwrap().parse::<u64>().is_ok());
    assert_eq!((&body(&first)["id"], &body(&first)["object"]), (&ids[0], &json!("work:1")));
    // An event published to the topic directly waits behind it; other objects do not wait.
    let direct = json!({"type": "noop", "url": "https://shop.example/1", "object": "work:1"});
    assert_eq!(bus.call(&shop, "POST", "/topics/works", Some(&direct)).await.status, 200);
    let one = json!({"events": [event("works")]});
    assert_eq!(bus.call(&shop, "POST", "/objects/work:2/events", Some(&one)).await.status, 202);
    eventually("the other object's event", || async {
        let came = receiver.deliveries().iter().any(|delivery| body(delivery)["object"] == "work:2");
        if came { Ok(()) } else { Err("not yet") }
    })
    .await;
    assert_eq!(parked["next_id"], ids[1]);
    let skip = json!({"id": ids[1]});
    assert_eq!(
        bus.call(&shop, "POST", "/objects/work:1/skip", Some(&skip)).await.status,
        403,
        "root decides"
    );
    let other = bus.root("POST", "/objects/work:1/skip", Some(&json!({"id": ids[2]}))).await;
    assert_eq!((other.status, &other.json()["code"]), (409, &json!("another_event")));
    assert_eq!(bus.root("POST", "/objects/work:1/skip", Some(&skip)).await.status, 204);
    let last = eventually("the rest of the object's events", || async {
        let came: Vec<Value> =
            receiver.deliveries().iter().map(body).filter(|event| event["object"] == "work:1").collect();
        if came.last().is_some_and(|event| event["type"] == "noop") { Ok(came) } else { Err(came.len()) }
    })
    .await;
    let third = last.iter().find(|event| event["id"] == ids[2]).unwrap();
    assert_eq!(third["gap"], json!([{"first": ids[1], "last": ids[1], "count": 1, "reason": "dead"}]));
    let dead = bus.root("GET", "/backends/search/dead", None).await.json();
    assert_eq!((&dead[0]["event"]["id"], &dead[0]["attempts"]), (&ids[1], &json!(2)));
    // After the fault is fixed, dead letters are redelivered: late, with their original ID, and
    // marked.
    poison.store(false, Ordering::SeqCst);
    let redriven = bus.root("POST", "/backends/search/dead/redrive", None).await;
    assert_eq!((redriven.status, redriven.json()), (200, json!({"redriven": 1, "left": 0})));
    eventually("the redriven event", || async {
        let came = receiver
            .deliveries()
            .iter()
            .map(body)
            .any(|event| event["redriven"] == true && event["id"] == ids[1]);
        if came { Ok(()) } else { Err("not yet") }
    })
    .await;
    assert_eq!(bus.root("GET", "/backends/search/dead", None).await.json(), json!([]));
    let again = bus.root("POST", "/objects/work:1/unpark", None).await;
    assert!(matches!(again.status, 404 | 409), "{}", again.text());
    assert_eq!(bus.root("GET", "/check", None).await.json()["findings"], json!([]));
    eventually("nothing to be queued", || async {
        let shown = bus.root("GET", "/backends/search", None).await.json();
        if shown["events"] == 0 { Ok(()) } else { Err(shown) }
    })
    .await;
    poison.store(true, Ordering::SeqCst);
    let posts = json!({"events": [event("posts"), event("works")]});
    assert_eq!(bus.call(&shop, "POST", "/objects/work:3/events", Some(&posts)).await.status, 202);
    let refused = bus.root("DELETE", "/backends/search", None).await;
    let received = refused.json();
    assert_eq!(
        (refused.status, &received["code"], &received["events"]),
        (409, &json!("backend_not_empty"), &json!(2))
    );
    assert_eq!(received["choices"], json!(["send", "dead", "discard"]));
    let unknown = bus.root("DELETE", "/backends/search?queued=burn", None).await;
    assert_eq!((unknown.status, &unknown.json()["code"]), (400, &json!("invalid_query")));
    // 202 while the backend holds an event whose delivery is not settled.
    let removed = bus.root("DELETE", "/backends/search?queued=dead", None).await.status;
    assert!(matches!(removed, 202 | 204), "{removed}");
    eventually("the backend to be gone", || async {
        let shown = bus.root("GET", "/backends/search", None).await;
        if shown.status == 404 { Ok(()) } else { Err(shown.text()) }
    })
    .await;
    assert_eq!(bus.root("GET", "/backends/search/dead", None).await.json().as_array().unwrap().len(), 2);
    assert_eq!(bus.root("POST", "/backends/search/dead/redrive", None).await.status, 404);
    assert_eq!(bus.root("DELETE", "/backends/search/dead", None).await.json(), json!({"dropped": 2}));
    bus.system.stop().await;
}

/// Counted in events: while others wait, a hot object is served for one visit (`sequencer.quantum`, 16) and no more, however
/// much it has and though it was first.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_object_delays_others_by_one_visit() {
    const QUANTUM: usize = 16;
    let bus = Bus::start("hot").await;
    let open = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&open);
    let receiver = Receiver::answering(move |_| {
        Answer::status(if seen.load(Ordering::SeqCst) { "204 No Content" } else { "410 Gone" })
    })
    .await;
    let shop = bus.client("shop").await;
    let backend = json!({"prefix": "work:", "callback": receiver.url(), "workers": 1});
    assert_eq!(bus.root("PUT", "/backends/search", Some(&backend)).await.status, 201);
    let publish = async |object: &str, events: usize| {
        let group = json!({"events": vec![event("works"); events]});
        let target = format!("/objects/{object}/events");
        assert_eq!(bus.call(&shop, "POST", &target, Some(&group)).await.status, 202);
    };
    // The backend answers that it is gone, so everything waits until it is defined again.
    publish("work:hot", 1).await;
    eventually("the backend to be stopped", || async {
        let shown = bus.root("GET", "/backends/search", None).await.json();
        if shown["disabled"].is_string() { Ok(()) } else { Err(shown) }
    })
    .await;
    let (others, hot) = (20, 100);
    publish("work:hot", hot).await;
    for n in 0..others {
        publish(&format!("work:{n}"), 1).await;
    }
    let before = receiver.deliveries().len();
    open.store(true, Ordering::SeqCst);
    assert_eq!(bus.root("PUT", "/backends/search", Some(&backend)).await.status, 200);
    let came: Vec<String> = eventually("all events", || async {
        let came: Vec<String> = receiver
            .deliveries()
            .iter()
            .skip(before)
            .map(|one| body(one)["object"].as_str().unwrap().to_owned())
            .collect();
        if came.len() == 1 + hot + others { Ok(came) } else { Err(came.len()) }
    })
    .await;
    let last = came.iter().rposition(|object| object != "work:hot").unwrap();
    let hot_before = came[..last].iter().filter(|object| *object == "work:hot").count();
    assert!(
        hot_before <= QUANTUM,
        "{hot_before} events of the hot object came before others had theirs: {came:?}"
    );
    bus.system.stop().await;
}

/// `signalbox check`: its exit code and what it printed.
async fn check(bus: &Bus, token: &str) -> (Option<i32>, String) {
    let test = std::env::current_exe().unwrap();
    // target/<profile>/deps/it-… → target/<profile>/signalbox
    let program = test.ancestors().nth(2).unwrap().join("signalbox");
    let url = format!("http://{}", bus.system.pacemaker);
    let mut command = tokio::process::Command::new(program);
    let done = command
        .args(["check", "--json", "--url", &url])
        .env("SIGNALBOX_TOKEN", token)
        .output()
        .await
        .unwrap();
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_names_each_fault_and_sets_its_exit_code() {
    let bus = Bus::start("check").await;
    let receiver = Receiver::answering(|_| Answer::status("500 Internal Server Error")).await;
    let shop = bus.client("shop").await;
    assert_eq!(bus.root("PUT", "/backends/search", Some(&backend(&receiver))).await.status, 201);
    bus.subscribe(&shop, &["orders"], &receiver.url()).await;
    bus.publish(&shop, "orders", 1).await;
    let group = json!({"events": [event("works")]});
    assert_eq!(bus.call(&shop, "POST", "/objects/work:1/events", Some(&group)).await.status, 202);
    let (code, said) = check(&bus, &bus.system.token).await;
    assert_eq!(code, Some(0), "{said}");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["consistent"], &said["findings"]), (&json!(true), &json!([])));
    eventually("the object to be parked", || async {
        let object = bus.root("GET", "/objects/work:1", None).await.json();
        if object["parked"] == true { Ok(()) } else { Err(object) }
    })
    .await;
    let _: i64 = bus.system.cli(System::FABRIC, "ZREM object:parked work:1").await;
    // A client is known by the digest of its first token.
    let digest = ring::digest::digest(&ring::digest::SHA256, credential("shop").as_bytes());
    let client: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let _: i64 =
        bus.system.cli(System::FABRIC, &format!("HINCRBY bus:batches:gauges:batch {client} 1")).await;
    let (code, said) = check(&bus, &bus.system.token).await;
    assert_eq!(code, Some(1), "{said}");
    let said: Value = serde_json::from_str(&said).unwrap();
    let found = said["findings"].as_array().unwrap().iter();
    let found: BTreeSet<(&str, &str, &str)> = found
        .map(|one| {
            let word = |member: &str| one[member].as_str().unwrap();
            (word("subsystem"), word("predicate"), word("name"))
        })
        .collect();
    assert!(found.contains(&("sequencer", "O6", "work:1")), "{found:?}");
    assert!(found.contains(&("bus", "B2", "shop")), "{found:?}");
    assert_eq!(check(&bus, "nobody").await.0, Some(77), "a token that may not read");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_names_and_groups_are_rejected_and_leave_nothing_behind() {
    let bus = Bus::start("bad-objects").await;
    let shop = bus.client("shop").await;
    let good = json!({"events": [event("works")]});
    let long = "x".repeat(4096);
    for (name, status, code) in [
        (&*long, 400, "invalid_object"),
        ("a%0Ab", 400, "invalid_object"),
        ("a%00", 400, "invalid_object"),
        ("%7F", 400, "invalid_object"),
        ("%FF", 400, "invalid_path"),
        ("machine:x", 403, "reserved_object"),
        ("signalbox:x", 403, "reserved_object"),
        ("machine%3Ax", 403, "reserved_object"),
    ] {
        let answer = bus.call(&shop, "POST", &format!("/objects/{name}/events"), Some(&good)).await;
        let received = answer.json();
        assert_eq!((answer.status, &received["code"]), (status, &json!(code)), "{name:.20}: {received}");
    }
    for (group, code) in [
        (json!({}), "invalid_event"),
        (json!({"events": []}), "invalid_event"),
        (json!({"events": vec![event("works"); 101]}), "too_many_events"),
        (json!({"events": [event("Works")]}), "invalid_topic"),
        (json!({"events": [event("signalbox.x")]}), "invalid_topic"),
        (json!({"events": [{"topic": "works"}]}), "invalid_event"),
        (json!({"events": [event("works")], "idempotency_key": ""}), "invalid_idempotency_key"),
        (json!({"events": [event("works")], "state": 1}), "invalid_event"),
    ] {
        let answer = bus.call(&shop, "POST", "/objects/work:1/events", Some(&group)).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!(code)), "{group}");
    }
    let key = bus
        .request("POST", "/objects/work:1/events")
        .token(&shop)
        .header("Content-Type", "application/json")
        .header("Idempotency-Key", "other")
        .body(json!({"events": [event("works")], "idempotency_key": "one"}).to_string());
    assert_eq!(bus.send(key).await.json()["code"], "invalid_idempotency_key");
    // One event of another's topic refuses the whole group.
    let rival = bus.client("rival").await;
    bus.publish(&rival, "posts", 1).await;
    let mixed = json!({"data": 1, "events": [event("works"), event("posts")]});
    let answer = bus.call(&shop, "POST", "/objects/work:1/events", Some(&mixed)).await;
    assert_eq!((answer.status, &answer.json()["code"]), (403, &json!("topic_claimed")));
    assert_eq!(
        bus.call(&shop, "GET", "/objects/work:1", None).await.status,
        404,
        "nothing is left of any of it"
    );
    for (name, body, code) in [
        ("A", json!({}), "invalid_backend"),
        ("search", json!({"prefix": "machine:", "callback": "http://127.0.0.1:1/"}), "invalid_backend"),
        ("search", json!({"prefix": "work:", "callback": "ftp://a/"}), "invalid_backend"),
    ] {
        let answer = bus.root("PUT", &format!("/backends/{name}"), Some(&body)).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!(code)), "{body}");
    }
    assert_eq!(bus.call(&shop, "PUT", "/backends/search", Some(&good)).await.status, 403);
    bus.system.stop().await;
}
