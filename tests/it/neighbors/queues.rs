//! Neighbors that share pull queues.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::Response,
    neighbor::{assert_undisturbed, p99},
    system::System,
};

/// Quick housekeeping.
const EVERY_MS: i64 = 200;

async fn start(name: &str) -> System {
    System::with(name, |builder| {
        let settings = [("housekeeping_ms".to_owned(), toml::Value::Integer(EVERY_MS))];
        builder.without_sidecar().pacemaker("bus", toml::Table::from_iter(settings))
    })
    .await
}

async fn call(system: &System, method: &str, target: &str, body: Value) -> Response {
    let body = if body.is_null() { None } else { Some(body) };
    system.api_at(system.pacemaker, method, target, body).await
}

async fn ok(system: &System, method: &str, target: &str, body: Value) -> Value {
    let answer = call(system, method, target, body).await;
    assert!((200..300).contains(&answer.status), "{method} {target}: {} {}", answer.status, answer.text());
    if answer.text().is_empty() { Value::Null } else { answer.json() }
}

/// Sends messages of a tenant. Returns how many have each status.
async fn send(system: &System, tenant: &str, count: usize) -> BTreeMap<u64, usize> {
    let mut statuses = BTreeMap::new();
    let one = json!({"tenant": tenant, "type": "job", "name": "done"});
    for part in vec![one; count].chunks(500) {
        let answer = call(system, "POST", "/messages", Value::Array(part.to_vec())).await;
        for result in answer.json().as_array().unwrap_or_else(|| panic!("{}", answer.text())) {
            *statuses.entry(result["status"].as_u64().unwrap()).or_default() += 1;
        }
    }
    statuses
}

async fn waiting(system: &System, queue: &str) -> u64 {
    ok(system, "GET", &format!("/queues/{queue}"), Value::Null).await["messages"]["waiting"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_fills_a_queue_takes_no_space_of_a_quiet_one() {
    let system = start("neighbors-full-queue").await;
    for overflow in ["drop_oldest", "reject"] {
        let definition = json!({"pattern": ".*:job:.*", "max_waiting": 100, "overflow": overflow});
        ok(&system, "PUT", "/queues/jobs", definition).await;
        let noisy = send(&system, "noisy", 200).await;
        assert_eq!(noisy.get(&200).copied(), Some(if overflow == "reject" { 100 } else { 200 }), "{noisy:?}");
        assert_eq!(send(&system, "quiet", 5).await, BTreeMap::from([(200, 5)]), "{overflow}");
        let quiet = ok(&system, "GET", "/queues/jobs/tenants/quiet", Value::Null).await;
        assert_eq!(quiet["waiting"], 5, "{overflow}");
        ok(&system, "DELETE", "/queues/jobs", Value::Null).await;
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_that_matches_everything_stops_no_publisher_of_events() {
    let system = start("neighbors-trap").await;
    ok(&system, "PUT", "/queues/trap", json!({"pattern": ".*", "max_waiting": 1})).await;
    ok(&system, "PUT", "/queues/orders", json!({"pattern": "shop:.*:orders"})).await;
    let publisher = system.token("shop", &["publish"]).await;
    for number in 0..20 {
        let event = json!({"type": "update", "url": format!("https://shop.example/{number}")});
        let request =
            signalbox_tests::http::Request::new("POST", &system.pacemaker.to_string(), "/topics/orders");
        let answer = request.token(&publisher).json(&event).send(system.pacemaker).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(waiting(&system, "orders").await, 20);
    let gaps = ok(&system, "GET", "/queues/trap/gaps", Value::Null).await;
    let missing: u64 =
        gaps["gaps"].as_array().unwrap().iter().map(|gap| gap["messages"].as_u64().unwrap()).sum();
    assert!(missing >= 19, "{gaps}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_many_tenants_is_changed_while_others_work() {
    let system = start("neighbors-many-tenants").await;
    ok(&system, "PUT", "/queues/many", json!({"pattern": ".*:many:.*"})).await;
    ok(&system, "PUT", "/queues/jobs", json!({"pattern": ".*:job:.*"})).await;
    for part in 0..20 {
        let one = |n: usize| json!({"tenant": format!("t{part}-{n}"), "type": "many", "name": "x"});
        ok(&system, "POST", "/messages", Value::Array((0..1_000).map(one).collect())).await;
    }
    let publish = || async {
        let message = json!({"tenant": "1", "type": "job", "name": "done"});
        ok(&system, "POST", "/messages", message).await;
    };
    let without = p99(50, publish).await;
    let change = async {
        for limit in 1..4 {
            let limited = json!({"pattern": ".*:many:.*", "in_flight_limit": limit});
            ok(&system, "PUT", "/queues/many", limited).await;
            ok(&system, "PATCH", "/queues/many/tenants/t1-1", json!({"paused": limit % 2 == 0})).await;
        }
    };
    let others = async {
        // Each changes the registry.
        for number in 0..10 {
            ok(&system, "PUT", &format!("/queues/other{number}"), json!({"pattern": "x:y:z"})).await;
        }
    };
    let (with, (), ()) = tokio::join!(p99(50, publish), change, others);
    assert_undisturbed("a publish", without, with);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_queue_is_bounded_by_its_retention() {
    let system = start("neighbors-forgotten").await;
    ok(&system, "PUT", "/queues/forgotten", json!({"pattern": ".*", "retention_seconds": 1})).await;
    for part in 0..10 {
        send(&system, &part.to_string(), 2_000).await;
    }
    eventually("the retention to be enforced", || async {
        let waiting = waiting(&system, "forgotten").await;
        if waiting == 0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    system.stop().await;
}

/// Clients delete queues and do not wait for the end. The names are used again while housekeeping removes the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_created_again_keeps_its_messages_next_to_queues_that_are_removed() {
    let system = start("neighbors-created-again").await;
    for name in ["a-large", "small"] {
        ok(&system, "PUT", &format!("/queues/{name}"), json!({"pattern": format!("{name}:.*")})).await;
    }
    for part in 0..10 {
        let one = |n: usize| json!({"tenant": "a-large", "type": "t", "name": format!("n{part}-{n}")});
        ok(&system, "POST", "/messages", Value::Array((0..1_000).map(one).collect())).await;
    }
    // The client of the large one does not wait: housekeeping removes the rest. A request that was abandoned before the pacemaker
    // read it has deleted nothing.
    eventually("the large one to be deleted", || async {
        let delete = call(&system, "DELETE", "/queues/a-large", Value::Null);
        let _ = tokio::time::timeout(Duration::from_millis(20), delete).await;
        let found = call(&system, "GET", "/queues/a-large", Value::Null).await.status;
        if found == 404 { Ok(()) } else { Err(found) }
    })
    .await;
    for round in 0..10 {
        ok(&system, "DELETE", "/queues/small", Value::Null).await;
        ok(&system, "PUT", "/queues/small", json!({"pattern": "small:.*"})).await;
        assert_eq!(send(&system, "small", 100).await, BTreeMap::from([(200, 100)]));
        assert_eq!(waiting(&system, "small").await, 100, "round {round}");
    }
    eventually("the large one to be removed", || async {
        let left: u64 = system.cli(System::FABRIC, "EXISTS queue:a-large|facets queue:a-large|count").await;
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    assert_eq!(waiting(&system, "small").await, 100);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_queue_delays_no_other() {
    let system = start("neighbors-damaged-queue").await;
    ok(&system, "PUT", "/queues/damaged", json!({"pattern": "damaged:.*", "lease_seconds": 1})).await;
    ok(&system, "PUT", "/queues/jobs", json!({"pattern": ".*:job:.*", "lease_seconds": 1})).await;
    // Its lease ends after the damage.
    ok(&system, "POST", "/messages", json!({"tenant": "damaged", "type": "t", "name": "n"})).await;
    ok(&system, "POST", "/queues/damaged/pull", json!({"max": 1})).await;
    let _: i64 = system.cli(System::FABRIC, "DEL queue:damaged|settings").await;
    let _: String = system.cli(System::FABRIC, "SET queue:damaged|settings x").await;
    eventually("the damaged queue to be postponed", || async {
        let log = system.log_text(&System::PACEMAKER);
        if log.contains("queue not swept") { Ok(()) } else { Err(log.lines().count()) }
    })
    .await;
    send(&system, "1", 1).await;
    let pulled = ok(&system, "POST", "/queues/jobs/pull", json!({"max": 1})).await;
    assert_eq!(pulled["messages"].as_array().unwrap().len(), 1);
    eventually("the lease to end", || async {
        let again = ok(&system, "POST", "/queues/jobs/pull", json!({"max": 1})).await;
        if again["messages"][0]["attempt"] == 2 { Ok(()) } else { Err(again) }
    })
    .await;
    system.stop().await;
}
