//! Neighbors that share deliveries to subscribers and backends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use signalbox_testkit::eventually;
use signalbox_tests::{
    neighbor::{assert_undisturbed, p99},
    receiver::{Answer, Receiver},
    system::System,
};

use crate::bus_api::Bus;
use tokio::time::Instant;

/// The commands that the fabric has executed so far, those in scripts included.
async fn commands(bus: &Bus) -> u64 {
    let text: String = bus.system.cli(System::FABRIC, "INFO commandstats").await;
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    text.lines().filter_map(calls).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_does_not_wait_for_patient_ones_of_its_topic() {
    let bus = Bus::start("patient").await;
    let (receiver, other) = (Receiver::start().await, Receiver::start().await);
    let shop = bus.client("shop").await;
    // The order in which a publish call visits subscribers is that of their digests, so there are several of each kind.
    for n in 0..8 {
        let client = bus.client(&format!("client-{n}")).await;
        let (callback, timeout) = if n % 2 == 0 { (receiver.url(), 200) } else { (other.url(), 60_000) };
        let body = json!({"topics": ["orders"], "callback": callback, "timeout": timeout});
        let answer = bus.call(&client, "POST", "/subscription", Some(&body)).await;
        assert_eq!(answer.status, 204, "{}", answer.text());
    }
    let start = Instant::now();
    bus.publish(&shop, "orders", 1).await;
    receiver.until_events(4).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(other.events().is_empty(), "the patient ones still wait");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_hangs_on_64_lanes_costs_neither_other_subscribers_nor_redis() {
    let bus = Bus::start("hung").await;
    let receiver = Receiver::start().await;
    let (shop, healthy, hung) =
        (bus.client("shop").await, bus.client("healthy").await, bus.client("hung").await);
    bus.subscribe(&healthy, &["orders"], &receiver.url()).await;
    let probe = async || {
        let count = receiver.events().len();
        bus.publish(&shop, "orders", count).await;
        receiver.until_events(count + 1).await;
    };
    let measure = async || {
        let (before, start) = (commands(&bus).await, Instant::now());
        let slowest = p99(20, probe).await;
        (slowest, commands(&bus).await - before, start.elapsed())
    };
    probe().await;
    let (without, used_without, _) = measure().await;

    // It fails once, and then it hangs.
    let failed = Arc::new(AtomicBool::new(false));
    let first = Arc::clone(&failed);
    let hanging = Receiver::answering(move |_| match first.swap(true, Ordering::SeqCst) {
        true => Answer::Hang,
        false => Answer::status("500 Internal Server Error"),
    })
    .await;
    let body = json!({"topics": ["broken"], "callback": hanging.url(), "timeout": 0, "concurrency": 64});
    assert_eq!(bus.call(&hung, "POST", "/subscription", Some(&body)).await.status, 204);
    bus.publish(&shop, "broken", 0).await;
    eventually("its failure", || async {
        let all = bus.call(&hung, "GET", "/subscriptions", None).await.json();
        let mut healths = all.as_array().unwrap().iter().filter_map(|one| one["health"].as_u64());
        if healths.any(|health| health < 100) { Ok(()) } else { Err(all) }
    })
    .await;
    let urls = (1..=300).map(|n| json!({"type": "update", "url": format!("https://shop.example/{n}")}));
    let many = json!(urls.collect::<Vec<_>>());
    assert_eq!(bus.call(&shop, "POST", "/topics/broken/events", Some(&many)).await.status, 200);
    eventually("its lanes to wait", || async {
        let jobs = bus.root("GET", "/bus/metrics", None).await.json()["jobs"].clone();
        if jobs["waiting"].as_u64() > Some(50) { Ok(()) } else { Err(jobs) }
    })
    .await;
    let (with, used, took) = measure().await;
    assert_undisturbed("a delivery", without, with);
    // The same deliveries, and fewer than 50 commands a second. Half as many again is tolerance for maintenance.
    let limit = used_without + used_without / 2 + 75 * (took.as_secs() + 1);
    assert!(used <= limit, "{used} commands in {took:?}, {used_without} without the neighbor");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_answers_410_after_it_was_replaced_does_not_stop_its_successor() {
    let bus = Bus::start("replaced").await;
    let successor = Receiver::start().await;
    let gone = || Box::new(Answer::status("410 Gone"));
    let former = Receiver::answering(move |_| Answer::After(Duration::from_secs(2), gone())).await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &former.url()).await;
    bus.publish(&shop, "orders", 1).await;
    former.until_events(1).await;
    bus.subscribe(&sub, &["orders"], &successor.url()).await;
    bus.publish(&shop, "orders", 2).await;
    successor.until_events(2).await;
    let status = bus.call(&sub, "GET", "/subscriptions", None).await.json();
    assert_eq!(status[0]["disabled"], json!(null));
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_backend_does_not_delay_a_fast_one() {
    let bus = Bus::start("backends").await;
    let received = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&received);
    let fast = Receiver::answering(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Answer::status("200 OK")
    })
    .await;
    let slow = Receiver::answering(|_| Answer::Hang).await;
    let shop = bus.client("shop").await;
    for (name, receiver) in [("fast", &fast), ("slow", &slow)] {
        let body = json!({"prefix": format!("{name}:"), "callback": receiver.url()});
        let made = bus.root("PUT", &format!("/backends/{name}"), Some(&body)).await;
        assert!([200, 201].contains(&made.status), "{}", made.text());
    }
    let send = async |object: String| {
        let body = json!({"events": [{"topic": "works", "type": "update"}]});
        let sent = bus.call(&shop, "POST", &format!("/objects/{object}/events"), Some(&body)).await;
        assert_eq!(sent.status, 202, "{}", sent.text());
    };
    let probe = async || {
        let count = received.load(Ordering::SeqCst);
        send(format!("fast:{count}")).await;
        eventually("the event of the fast backend", || async {
            if received.load(Ordering::SeqCst) > count { Ok(()) } else { Err("not yet") }
        })
        .await;
    };
    probe().await;
    let without = p99(20, probe).await;
    for n in 0..100 {
        send(format!("slow:{n}")).await;
    }
    eventually("the slow backend to be called", || async {
        if slow.deliveries().is_empty() { Err("not yet") } else { Ok(()) }
    })
    .await;
    let with = p99(20, probe).await;
    assert_undisturbed("an event of the fast backend", without, with);
    bus.system.stop().await;
}
