//! Neighbors that share state machines: threads, labels, definitions.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::Request,
    neighbor::{assert_undisturbed, p99},
    receiver::{Answer, Receiver},
    system::System,
};
use tokio::time::timeout;

use crate::bus_api::Bus;

async fn create(system: &System, machine: &str, label: &str, metadata: Value) {
    let body = json!({"labels": [{"name": label, "metadata": metadata}]});
    let created = system.api("POST", &format!("/state-machines/{machine}/labels"), Some(body)).await;
    assert_eq!(created.json()["results"][0]["result"], 201, "{}", created.text());
}

/// The latency of `/health`.
async fn health(system: &System) -> Duration {
    p99(30, async || assert_eq!(system.api_at(system.pacemaker, "GET", "/health", None).await.status, 200))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_abandons_simulations_does_not_get_places_for_more() {
    let system = System::start("neighbor-simulations").await;
    let searches = vec!["metadata.x is in metadata.l"; 100].join(" or ");
    let gate = format!(
        "exit_condition: not ({searches}) and 1h has passed since system.entered_state, triggers: [{{interval: 1h}}]"
    );
    let yaml = format!(
        "
state_machines:
  slow:
    states:
      - {{gate: ping, {gate}, next: pong}}
      - {{gate: pong, {gate}, next: ping}}
"
    );
    system.apply("slow", &yaml).await;
    create(&system, "slow", "a", json!({"x": 1, "l": vec![0; 1_000]})).await;
    let token = system.token("reader", &["read"]).await;
    let without = health(&system).await;
    let simulate = async || {
        let request =
            Request::new("POST", "localhost", "/state-machines/slow/labels/a/simulate").token(&token);
        request.json(&json!({"for": "3650d"})).send(system.pacemaker).await
    };
    // Both places are taken, and the clients have gone.
    let abandon = || timeout(Duration::from_millis(300), simulate());
    eventually("a simulation to be refused", async || {
        let _gone = tokio::join!(abandon(), abandon());
        let answer = simulate().await.unwrap();
        if answer.status == 429 { Ok(()) } else { Err(answer.status) }
    })
    .await;
    assert_undisturbed("/health", without, health(&system).await);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expensive_conditions_of_a_machine_do_not_delay_requests() {
    let system = System::start("neighbor-conditions").await;
    let searches = vec!["metadata.x is in metadata.l"; 450].join(" or ");
    let yaml = format!(
        "
state_machines:
  costly:
    states:
      - {{gate: wait, exit_condition: ({searches}) and system.time > \"12:00\", triggers: [{{metadata: x}}, {{interval: 1s}}], next: done}}
      - {{gate: done}}
"
    );
    system.apply("costly", &yaml).await;
    let without = health(&system).await;
    create(&system, "costly", "a", json!({"l": vec![0; 30_000]})).await;
    let update = async |n: u32| {
        let body = json!({"metadata": {"x": n}});
        let updated = system.api("PATCH", "/state-machines/costly/labels/a", Some(body)).await;
        assert_eq!(updated.status, 200, "{}", updated.text());
    };
    let updates = async {
        for n in 1..=5 {
            update(n).await;
        }
    };
    let (with, ()) = tokio::join!(health(&system), updates);
    assert_undisturbed("/health", without, with);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_in_a_loop_of_deadlines_does_not_delay_requests() {
    let bus = Bus::start("neighbor-deadlines").await;
    let receiver = Receiver::passing(|_| Answer::status("200 OK")).await;
    let yaml = format!(
        "
state_machines:
  remind:
    states:
      - {{gate: sent, deadline: {{at: metadata.due, next: call}}, next: done, exit_condition: metadata.paid, triggers: [{{metadata: paid}}]}}
      - {{action: call, webhook: \"{}\", next: sent}}
      - {{gate: done}}
",
        receiver.url()
    );
    bus.system.apply("remind", &yaml).await;
    let without = health(&bus.system).await;
    create(&bus.system, "remind", "a", json!({"due": "2020-01-01T00:00:00Z"})).await;
    eventually("the label to pause", async || {
        let label = bus.root("GET", "/state-machines/remind/labels/a", None).await.json();
        if label["status"] == "looping" { Ok(()) } else { Err(label) }
    })
    .await;
    assert_undisturbed("/health", without, health(&bus.system).await);
    bus.system.stop().await;
}
