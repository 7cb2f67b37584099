//! Deliveries as subscribers see them: format, signatures, misbehaving receivers, dead letters and redrive.

use serde_json::{Value, json};
use signalbox_client::Time;
use signalbox_testkit::eventually;
use signalbox_tests::http::moment;
use signalbox_tests::receiver::{Answer, Receiver};

use crate::bus_api::Bus;

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_written_for_routemaster_gets_what_it_expects() {
    let bus = Bus::start("format").await;
    // The original's own receiver compares the media type as text and the credential.
    let receiver = Receiver::answering(|delivery| {
        let json = delivery.header("Content-Type") == Some("application/json");
        let known = delivery.basic().as_deref() == Some("sub-uuid:x");
        match (json, known) {
            (true, true) => Answer::status("204 No Content"),
            (false, _) => Answer::status("415 Unsupported Media Type"),
            (_, false) => Answer::status("401 Unauthorized"),
        }
    })
    .await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    let body = r#"{"type":"create","url":"https://shop.example/1","timestamp":1700000000000,"data":{ "n":1.0e1,"n":[] }}"#;
    let first = bus.call_raw(&shop, "POST", "/topics/orders", Some(body)).await;
    let first: u64 = first.header("X-Signalbox-Event-Id").unwrap().parse().unwrap();
    receiver.until_events(1).await;
    let delivery = receiver.deliveries().remove(0);
    assert_eq!(delivery.line, "POST /events HTTP/1.1");
    assert_eq!(
        String::from_utf8(delivery.body.clone()).unwrap(),
        format!(
            r#"[{{"topic":"orders","type":"create","url":"https://shop.example/1","t":1700000000000,"data":{{ "n":1.0e1,"n":[] }},"id":{first}}}]"#
        ),
        "data comes as it was sent, byte for byte"
    );
    let id = delivery.header("webhook-id").unwrap();
    assert!(!id.is_empty() && delivery.header("webhook-timestamp").unwrap().parse::<u64>().is_ok());
    assert!(delivery.header("webhook-signature").unwrap().starts_with("v1,"));
    bus.publish(&shop, "orders", 2).await;
    let second = bus.call_raw(&shop, "POST", "/topics/orders", Some(body)).await;
    assert_eq!(second.status, 200);
    let events = receiver.until_events(3).await;
    let again = events.iter().rfind(|event| event["url"] == "https://shop.example/1").unwrap();
    assert_eq!((&again["prev"], &again["tprev"]), (&json!(first), &json!(first)));
    let status = bus.call(&sub, "GET", "/subscriptions", None).await.json();
    assert_eq!(status[0]["health"], 100);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_of_routemaster_a_far_future_timestamp_withheld_the_delivery() {
    let bus = Bus::start("future").await;
    let receiver = Receiver::start().await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    for timestamp in [4_102_444_800_000_u64, (1 << 53) - 1, 0] {
        let event = json!({"type": "update", "url": "https://shop.example/1", "timestamp": timestamp});
        assert_eq!(bus.call(&shop, "POST", "/topics/orders", Some(&event)).await.status, 200);
    }
    let events = receiver.until_events(3).await;
    let times: Vec<&Value> = events.iter().map(|event| &event["t"]).collect();
    assert_eq!(
        times,
        [&json!(4_102_444_800_000_u64), &json!((1_u64 << 53) - 1), &json!(0)],
        "in order of acceptance"
    );
    bus.system.stop().await;
}

/// The fan-out of the original failed half-way over a string in place of a number.
#[tokio::test(flavor = "multi_thread")]
async fn fault_of_routemaster_a_string_timestamp_reached_some_subscribers() {
    let bus = Bus::start("string-time").await;
    let shop = bus.client("shop").await;
    let mut receivers = Vec::new();
    for name in ["one", "two", "three"] {
        let receiver = Receiver::start().await;
        let client = bus.client(name).await;
        bus.subscribe(&client, &["orders"], &receiver.url()).await;
        receivers.push(receiver);
    }
    let bad = json!({"type": "update", "url": "https://shop.example/1", "timestamp": "1700000000000"});
    assert_eq!(bus.call(&shop, "POST", "/topics/orders", Some(&bad)).await.status, 400);
    let id = bus.publish(&shop, "orders", 2).await;
    for receiver in &receivers {
        let events = receiver.until_events(1).await;
        assert_eq!((events.len(), events[0]["id"].as_u64()), (1, Some(id)), "{events:?}");
    }
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn six_hundred_events_of_one_url_arrive_in_order() {
    let bus = Bus::start("order").await;
    let receiver = Receiver::start().await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    for _ in 0..6 {
        let event = json!({"type": "update", "url": "https://shop.example/1"});
        let many =
            bus.call(&shop, "POST", "/topics/orders/events", Some(&Value::Array(vec![event; 100]))).await;
        assert!(many.json().as_array().unwrap().iter().all(|result| result["status"] == 200));
    }
    let events = receiver.until_events(600).await;
    let ids: Vec<u64> = events.iter().map(|event| event["id"].as_u64().unwrap()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "inversions or doubles in {ids:?}");
    for pair in events.windows(2) {
        assert_eq!(pair[1]["prev"], pair[0]["id"]);
    }
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn misbehaving_receivers_cost_no_other_its_deliveries() {
    let bus = Bus::with("misbehaving", &[("workers", 4), ("slow_ms", 50), ("delivery_ms", 2_000)]).await;
    let shop = bus.client("shop").await;
    let target = Receiver::start().await;
    let elsewhere = format!("302 Found\r\nLocation: {}", target.url());
    let answers = [
        ("hangs", Answer::Hang),
        ("endless", Answer::Endless),
        ("closes", Answer::Close),
        ("redirects", Answer::status(&elsewhere)),
        ("noise", Answer::Bytes(b"220 mail.example ESMTP\r\n".to_vec())),
        ("fails", Answer::status("500 Internal Server Error")),
    ];
    let mut bad = Vec::new();
    for (name, answer) in answers {
        let receiver = Receiver::answering(move |_| answer.clone()).await;
        let client = bus.client(name).await;
        bus.subscribe(&client, &["orders"], &receiver.url()).await;
        bad.push(receiver);
    }
    // An address that is never called is rejected before anything is published.
    let private = bus.client("private").await;
    let wanted = json!({"topics": ["orders"], "callback": "http://10.255.255.1:9/events"});
    let rejected = bus.call(&private, "POST", "/subscription", Some(&wanted)).await;
    assert_eq!((rejected.status, &rejected.json()["code"]), (400, &json!("invalid_subscription")));
    let good = Receiver::start().await;
    let well = bus.client("good").await;
    bus.subscribe(&well, &["orders"], &good.url()).await;
    for number in 0..50 {
        bus.publish(&shop, "orders", number).await;
    }
    good.until_events(50).await;
    assert!(bad.iter().all(|receiver| !receiver.deliveries().is_empty()));
    assert_eq!(target.deliveries().len(), 0, "no redirect was followed");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_delivery_reports_its_result() {
    let bus = Bus::start("test-delivery").await;
    let receiver = Receiver::answering(|_| Answer::status("418 I'm a teapot")).await;
    let sub = bus.client("sub").await;
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    let failed = bus.call(&sub, "POST", "/subscriber/test", None).await.json();
    assert_eq!((&failed["delivered"], &failed["why"]), (&json!(false), &json!("answered 418")));
    receiver.decide(|_| Answer::status("200 OK"));
    let done = bus.root("POST", "/subscriber/test?subscriber=sub", None).await.json();
    assert_eq!((&done["delivered"], done.get("why")), (&json!(true), None));
    let delivery = receiver.deliveries().remove(1);
    assert_eq!(delivery.basic().as_deref(), Some("sub-uuid:x"));
    assert!(delivery.header("webhook-signature").is_some());
    assert_eq!(delivery.events()[0]["topic"], "signalbox.test");
    let status = bus.call(&sub, "GET", "/subscriptions", None).await.json();
    assert_eq!(
        (&status[0]["health"], &status[0]["events"]["sent"]),
        (&json!(100), &json!(0)),
        "nothing is counted"
    );
    // A success also ends the pause of what failed before.
    receiver.decide(|_| Answer::status("503 Later\r\nRetry-After: 600"));
    let shop = bus.client("shop").await;
    bus.publish(&shop, "orders", 1).await;
    receiver.until_events(3).await;
    eventually("the failure to be counted and the lane to pause", async || {
        let status = bus.call(&sub, "GET", "/subscriptions", None).await.json();
        if status[0]["health"] == json!(98) { Ok(()) } else { Err(status) }
    })
    .await;
    receiver.decide(|_| Answer::status("200 OK"));
    bus.root("POST", "/subscriber/test?subscriber=sub", None).await;
    receiver.until_events(5).await;
    let retried = bus.root("POST", "/subscriber/retry?subscriber=sub", None).await;
    assert_eq!((retried.status, retried.json()), (200, json!({"retried": 0})));
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_why_deliveries_fail_and_moves_the_subscription_to_another_receiver() {
    let bus = Bus::start("repair").await;
    let body = "column \"vat\"\tis missing";
    let failing = Receiver::answering(move |_| {
        let head = format!("HTTP/1.1 500 Oops\r\nContent-Length: {}\r\n\r\n", body.len());
        Answer::Bytes([head.as_bytes(), body.as_bytes()].concat())
    })
    .await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &failing.url()).await;
    let limits = json!({"max_attempts": 5, "retry_seconds": [600]});
    assert_eq!(bus.call(&sub, "PATCH", "/subscription", Some(&limits)).await.status, 204);
    bus.publish(&shop, "orders", 1).await;
    let first = signalbox_testkit::eventually("an attempt", || async {
        let log = bus.root("GET", "/subscriber/deliveries?subscriber=sub", None).await.json();
        log["deliveries"].get(0).cloned().ok_or(log)
    })
    .await;
    assert_eq!((&first["status"], &first["result"]), (&json!(500), &json!("retried")), "{first}");
    assert_eq!(first["response"], "column \"vat\" is missing");
    let waits = moment(&first["next"]) - moment(&first["at"]);
    assert!(waits >= 600_000, "{first}");
    for (caller, change) in [
        (&sub, json!({"disabled": true})),
        (&sub, json!({"callback": "http://10.255.255.1/"})),
        (&sub, json!({"topics": []})),
    ] {
        let answer = bus.call(caller, "PATCH", "/subscriber", Some(&change)).await;
        assert!([400, 403].contains(&answer.status), "{change}: {}", answer.text());
    }
    let unknown = bus.call(&sub, "POST", "/subscriber/skip", Some(&json!({"id": 64}))).await;
    assert_eq!((unknown.status, &unknown.json()["code"]), (404, &json!("unknown_event")));
    let receiver = Receiver::start().await;
    let moved =
        bus.root("PATCH", "/subscriber?subscriber=sub", Some(&json!({"callback": receiver.url()}))).await;
    assert_eq!(moved.status, 204, "{}", moved.text());
    receiver.until_events(1).await;
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_replaced_while_both_sign() {
    let bus = Bus::start("rotation").await;
    let receiver = Receiver::start().await;
    let sub = bus.client("sub").await;
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    let secret = |answer: &Value| answer["secret"].as_str().unwrap().to_owned();
    let first = secret(&bus.call(&sub, "GET", "/subscriber/secret", None).await.json());
    let rotated = bus.call(&sub, "POST", "/subscriber/secret", None).await;
    assert_eq!(rotated.status, 200, "{}", rotated.text());
    let rotated = rotated.json();
    assert_ne!(secret(&rotated), first);
    assert_eq!(rotated["previous"][0]["secret"], json!(first));
    bus.call(&sub, "POST", "/subscriber/test", None).await;
    let signatures = receiver.deliveries()[0].header("webhook-signature").unwrap().to_owned();
    assert_eq!(signatures.split(' ').filter(|one| one.starts_with("v1,")).count(), 2, "{signatures}");
    let own = json!({"secret": "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "overlap_seconds": 0});
    let own = bus.call(&sub, "POST", "/subscriber/secret", Some(&own)).await.json();
    assert_eq!(own, json!({"secret": "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "previous": []}));
    for bad in [
        json!({"secret": "x"}),
        json!({"secret": "whsec_AAAA"}),
        json!({"overlap_seconds": 2_592_001}),
        json!([]),
    ] {
        let answer = bus.call(&sub, "POST", "/subscriber/secret", Some(&bad)).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid_secret")), "{bad}");
    }
    // Subscribing again keeps what receivers verify with, and the credential that was not given again.
    let again = json!({"topics": ["orders"], "callback": receiver.url()});
    assert_eq!(bus.call(&sub, "POST", "/subscription", Some(&again)).await.status, 204);
    assert_eq!(bus.call(&sub, "GET", "/subscriber/secret", None).await.json(), own);
    assert_eq!(bus.call(&sub, "GET", "/subscriptions", None).await.json()[0]["uuid"], "sub-uuid");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_can_be_read_redriven_and_deleted() {
    let bus = Bus::with("dead", &[("max_attempts", 1)]).await;
    let receiver = Receiver::answering(|_| Answer::status("500 Internal Server Error")).await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    let dead = || async { bus.call(&sub, "GET", "/subscriber/dead", None).await.json() };
    let until_dead = |count: usize| {
        eventually("dead letters", move || async move {
            let letters = dead().await;
            if letters["dead"].as_array().unwrap().len() == count { Ok(letters) } else { Err(letters) }
        })
    };
    assert_eq!(dead().await, json!({"dead": [], "cursor": null}));
    let first = bus.publish(&shop, "orders", 1).await;
    let letters = until_dead(1).await;
    let letter = &letters["dead"][0];
    assert_eq!((&letter["event"]["id"], &letter["reason"]), (&json!(first), &json!("answered 500")));
    assert!(letter["attempts"].as_u64() >= Some(1) && moment(&letter["died_at"]) > 1_700_000_000_000);
    receiver.decide(|_| Answer::status("200 OK"));
    let redriven = bus.root("POST", "/subscriber/dead/redrive?subscriber=sub", None).await;
    assert_eq!((redriven.status, redriven.json()), (200, json!({"redriven": 1})));
    eventually("the dead letter to be redelivered", || async {
        let ids: Vec<Value> = receiver.events().iter().map(|event| event["id"].clone()).collect();
        if ids.iter().filter(|id| **id == json!(first)).count() >= 2 { Ok(()) } else { Err(ids) }
    })
    .await;
    receiver.decide(|_| Answer::status("500 Internal Server Error"));
    bus.publish(&shop, "orders", 1).await;
    until_dead(1).await;
    let dropped = bus.call(&sub, "DELETE", "/subscriber/dead", None).await;
    assert_eq!((dropped.status, dropped.json()), (200, json!({"dropped": 1})));
    assert_eq!(dead().await, json!({"dead": [], "cursor": null}));
    for query in ["limit=0", "limit=201", "limit=x", "colour=red"] {
        let answer = bus.call(&sub, "GET", &format!("/subscriber/dead?{query}"), None).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
    }
    // The lane's next event reports what is missing.
    receiver.decide(|_| Answer::status("200 OK"));
    let next = bus.publish(&shop, "orders", 1).await;
    let next = eventually("the next event", || async {
        let events = receiver.events();
        events.iter().rfind(|event| event["id"] == json!(next)).cloned().ok_or(events.len())
    })
    .await;
    assert_eq!(next["gap"][0]["reason"], "dead", "{next}");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_gone_gets_nothing_until_it_subscribes_again() {
    let bus = Bus::start("gone").await;
    let receiver = Receiver::answering(|_| Answer::status("410 Gone")).await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    bus.publish(&shop, "orders", 1).await;
    eventually("the subscription to be disabled", || async {
        let status = bus.call(&sub, "GET", "/subscriptions", None).await.json();
        if status[0]["disabled"].is_string() { Ok(()) } else { Err(status) }
    })
    .await;
    receiver.decide(|_| Answer::status("200 OK"));
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    bus.publish(&shop, "orders", 2).await;
    eventually("deliveries to begin again", || async {
        let urls: Vec<Value> = receiver.events().iter().map(|event| event["url"].clone()).collect();
        if urls.contains(&json!("https://shop.example/orders/2")) { Ok(()) } else { Err(urls) }
    })
    .await;
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_range_is_replayed() {
    let bus = Bus::start("replay").await;
    let receiver = Receiver::start().await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    for number in 0..5 {
        bus.publish(&shop, "orders", number).await;
    }
    let first = receiver.until_events(5).await;
    let day = 24 * 3600 * 1000;
    let now = bus.root("GET", "/health/ping", None).await.json()["pong"].as_u64().unwrap();
    let range = json!({"from": Time::from_ms(now - day), "to": Time::from_ms(now + day), "rate": 1000});
    let begun = bus.call(&sub, "POST", "/subscriber/replay", Some(&range)).await;
    assert_eq!((begun.status, begun.json()), (202, range));
    let all = receiver.until_events(10).await;
    let ids = |events: &[Value]| {
        let mut ids: Vec<u64> = events.iter().map(|event| event["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids(&all[5..]), ids(&first), "the same events under the same ids");
    for bad in [
        json!({}),
        json!({"from": 1}),
        json!({"from": "x", "to": 2}),
        json!({"from": "2026-01-31T18:30:00Z", "to": "2026-01-31T18:30:01Z", "rate": 0}),
        json!([]),
    ] {
        assert_eq!(bus.call(&sub, "POST", "/subscriber/replay", Some(&bad)).await.status, 400, "{bad}");
    }
    bus.system.stop().await;
}
