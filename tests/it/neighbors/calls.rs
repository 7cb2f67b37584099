//! Neighbors that share outgoing connections and file descriptors.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    neighbor::{assert_undisturbed, p99},
    receiver::{Answer, Receiver},
    upstream::App,
};

use crate::bus_api::Bus;

/// A receiver that accepts everything, and how many calls came.
async fn counting() -> (Receiver, Arc<AtomicUsize>) {
    let came = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&came);
    let receiver = Receiver::answering(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Answer::status("200 OK")
    })
    .await;
    (receiver, came)
}

async fn create_labels(bus: &Bus, machine: &str, names: impl Iterator<Item = String>) {
    let labels: Vec<Value> = names.map(|name| json!({"name": name, "metadata": {}})).collect();
    let target = format!("/state-machines/{machine}/labels");
    let created = bus.root("POST", &target, Some(&json!({"labels": labels}))).await.json();
    let results = created["results"].as_array().unwrap_or_else(|| panic!("{created}"));
    assert!(results.iter().all(|one| one["result"] == 201), "{created}");
}

/// Labels of a machine that call a receiver, and whose call was received.
async fn call_once(bus: &Bus, machine: &str, came: &AtomicUsize) {
    let before = came.load(Ordering::SeqCst);
    create_labels(bus, machine, std::iter::once(format!("label-{before}"))).await;
    eventually(
        "the call",
        async || if came.load(Ordering::SeqCst) > before { Ok(()) } else { Err("not yet") },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_at_a_receiver_that_hangs_leave_calls_and_requests_of_others_as_they_were() {
    let bus = Bus::start("neighbor-labels").await;
    let (receiver, came) = counting().await;
    let app = App::start("app").await;
    let hanging = Receiver::passing(|_| Answer::Hang).await;
    for (machine, url) in [("quiet", receiver.url()), ("noisy", hanging.url())] {
        let states =
            format!("[{{action: call, webhook: \"{url}\", timeout: 1m, next: done}}, {{gate: done}}]");
        bus.system.apply(machine, &format!("state_machines:\n  {machine}:\n    states: {states}\n")).await;
    }
    let webhook = || call_once(&bus, "quiet", &came);
    let register = async || {
        let answer = bus.system.try_register("victim", &app, "quiet.test", "1").await;
        assert!(answer.status < 300, "{}", answer.text());
    };
    let health = async || assert_eq!(bus.root("GET", "/health", None).await.status, 200);
    webhook().await;
    register().await;
    let without = [p99(10, webhook).await, p99(10, register).await, p99(20, health).await];
    // More than one machine may have under way.
    create_labels(&bus, "noisy", (0..900).map(|n| n.to_string())).await;
    eventually("labels to wait for a place", async || {
        let why = bus.root("GET", "/state-machines/noisy/labels/899/why", None).await.json();
        if why["action"]["waits_for_place"].is_object() { Ok(()) } else { Err(why) }
    })
    .await;
    let with = [p99(10, webhook).await, p99(10, register).await, p99(20, health).await];
    for (what, (without, with)) in
        ["a webhook", "a registration", "/health"].into_iter().zip(without.into_iter().zip(with))
    {
        assert_undisturbed(what, without, with);
    }
    let deleted = bus.root("DELETE", "/state-machines/noisy?confirm=noisy", None).await;
    assert!(deleted.status < 300, "{}", deleted.text());
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_hangs_does_not_delay_feeds() {
    let bus = Bus::start("neighbor-feeds").await;
    let hanging = Receiver::passing(|_| Answer::Hang).await;
    let feed = Receiver::answering(|_| {
        Answer::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}".to_vec())
    })
    .await;
    let yaml = format!(
        "
state_machines:
  fed:
    feeds:
      - {{name: crm, url: \"{}\"}}
    states:
      - {{gate: open, exit_condition: feeds.crm.ok, triggers: [{{event: entry}}, {{interval: 5m}}], next: done}}
      - {{gate: done}}
",
        feed.url()
    );
    bus.system.apply("fed", &yaml).await;
    let number = AtomicUsize::new(0);
    let fed = async || {
        let name = number.fetch_add(1, Ordering::SeqCst).to_string();
        create_labels(&bus, "fed", std::iter::once(name.clone())).await;
        eventually("the label to move", async || {
            let label = bus.root("GET", &format!("/state-machines/fed/labels/{name}"), None).await.json();
            if label["state"] == "done" { Ok(()) } else { Err(label) }
        })
        .await;
    };
    fed().await;
    let without = p99(10, fed).await;
    let (shop, hung) = (bus.client("shop").await, bus.client("hung").await);
    let body = json!({"topics": ["orders"], "callback": hanging.url(), "timeout": 0, "concurrency": 64});
    assert_eq!(bus.call(&hung, "POST", "/subscription", Some(&body)).await.status, 204);
    for n in 0..100 {
        bus.publish(&shop, "orders", n).await;
    }
    let with = p99(10, fed).await;
    assert_undisturbed("a feed", without, with);
    bus.system.stop().await;
}
