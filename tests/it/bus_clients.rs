//! What the clients of Routemaster, for which the bus is a replacement, depend on apart from the endpoints.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::Request,
    receiver::{self, Answer, Receiver},
    system::System,
};

use crate::bus_api::Bus;

#[tokio::test(flavor = "multi_thread")]
async fn an_array_above_one_mebibyte_is_accepted_through_the_admin_listener() {
    let bus = Bus::start("large-arrays").await;
    let system = &bus.system;
    let text = "x".repeat(5_000);
    let event = |n: usize| json!({"type": "update", "url": format!("https://a.example/{n}"), "data": text});
    let message = |n: usize| json!({"tenant": "1", "type": "page", "name": n.to_string(), "payload": text});
    let bodies: [(&str, Vec<Value>); 2] = [
        ("/topics/orders/events", (0..1_000).map(event).collect()),
        ("/messages", (0..1_000).map(message).collect()),
    ];
    for (target, array) in bodies {
        let request =
            Request::new("POST", &system.admin.to_string(), target).token(&system.token).json(&array.into());
        let answer = request.send(system.admin).await.unwrap();
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        let results = answer.json();
        let results = results.as_array().unwrap();
        assert!(results.len() == 1_000 && results.iter().all(|one| one["status"] == 200), "{target}");
    }
    // Above the limit, the answer is the API's own.
    system.allow("client intended to send too large body");
    let large = json!([{"type": "update", "url": "https://a.example/1", "data": "x".repeat(9 << 20)}]);
    for listener in [system.admin, system.pacemaker] {
        let request = Request::new("POST", &listener.to_string(), "/topics/orders/events");
        let answer = request.token(&system.token).json(&large).send(listener).await.unwrap();
        assert_eq!((answer.status, &answer.json()["code"]), (413, &json!("body_too_large")));
    }
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_lane_a_batch_holds_events_of_several_objects() {
    let bus = Bus::with("full-batches", &[("concurrency", 1)]).await;
    let receiver = Receiver::start().await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    // Routemaster's clients do not know `concurrency`.
    let wanted = json!({"topics": ["orders"], "callback": receiver.url(), "uuid": "x", "timeout": 3_600_000, "max": 5});
    let answer = bus.call(&sub, "POST", "/subscription", Some(&wanted)).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    for number in 0..10 {
        bus.publish(&shop, "orders", number).await;
    }
    receiver.until_events(10).await;
    let sizes: Vec<usize> = receiver.deliveries().iter().map(|delivery| delivery.events().len()).collect();
    assert_eq!(sizes, [5, 5]);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_addresses_of_the_ping_answer_without_a_token() {
    let bus = Bus::start("pings").await;
    for target in ["/health/ping", "/health/ping.json"] {
        let answer = bus.send(bus.request("GET", target)).await;
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        assert!(answer.json()["pong"].as_u64() > Some(1_700_000_000_000), "{target}: {}", answer.text());
    }
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_delivery_names_no_resource_of_a_publisher() {
    let bus = Bus::start("test-url").await;
    let receiver = Receiver::start().await;
    let sub = bus.client("sub").await;
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    let tested = bus.call(&sub, "POST", "/subscriber/test", None).await;
    assert_eq!(tested.json()["delivered"], true, "{}", tested.text());
    // A receiver that records the urls of events as changed resources must not record its own callback.
    let event = receiver.events().remove(0);
    assert_eq!((&event["topic"], &event["type"]), (&json!("signalbox.test"), &json!("noop")));
    let url = event["url"].as_str().unwrap();
    assert!(url.starts_with("https://signalbox.invalid/"), "{url}");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_the_events_of_each_topic_and_the_failures_of_each_subscriber() {
    let mut settings = receiver::allowed();
    settings.insert("topic_metrics".to_owned(), true.into());
    let system = System::with("counters", |builder| builder.pacemaker("bus", settings)).await;
    let bus = Bus { system };
    let receiver = Receiver::answering(|_| Answer::status("500 Oops")).await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    for number in 0..3 {
        bus.publish(&shop, "orders", number).await;
    }
    bus.publish(&shop, "refunds", 1).await;
    eventually("the failed attempts to be counted", || async {
        let numbers = bus.root("GET", "/bus/metrics", None).await.json();
        let failed = numbers["subscribers"]["sub"]["failed"].as_u64();
        if failed > Some(0) && numbers["topics"]["orders"] == 3 { Ok(()) } else { Err(numbers) }
    })
    .await;
    let page = bus.send(bus.request("GET", "/metrics")).await.text();
    let sample =
        |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    assert_eq!(sample(r#"signalbox_bus_topic_events_total{topic="orders"}"#), Some(3), "{page}");
    assert_eq!(sample(r#"signalbox_bus_topic_events_total{topic="refunds"}"#), Some(1));
    assert!(
        sample(r#"signalbox_bus_subscriber_failed_attempts_total{subscriber="sub"}"#) > Some(0),
        "{page}"
    );
    bus.system.stop().await;
}

/// The call of Routemaster's command line, `rtm token del`. It must not report success and leave a leaked token valid.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_the_path_is_revoked_although_tokens_are_not_listed() {
    let bus = Bus::start("revoked-by-path").await;
    let token = "leaked--c8850d6d0123456789";
    let made = bus.root("POST", "/api_tokens", Some(&json!({"name": "leaked", "token": token}))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    bus.publish(token, "evidence", 1).await;
    assert_eq!(bus.root("DELETE", &format!("/api_tokens/{token}"), None).await.status, 204);
    let event = json!({"type": "update", "url": "https://shop.example/orders/1"});
    let refused = bus.call(token, "POST", "/topics/evidence", Some(&event)).await;
    assert_eq!(refused.status, 401, "{}", refused.text());
    assert_eq!(bus.root("GET", "/api_tokens", None).await.json(), json!([]));
    bus.system.stop().await;
}
