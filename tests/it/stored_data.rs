//! Data of the previous version: everything that it stored is still there when this version reads it.
//!
//! `tests/stored_data` holds snapshots of the Redis servers, and the key that seals secrets in them. Write them again for each
//! release, with the programs of that release:
//!
//! ```sh
//! SIGNALBOX_PROGRAMS=<folder of the released programs> cargo test -p signalbox-tests --test it -- --ignored write_stored_data
//! ```

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::{Value, json};
use signalbox_stack::{Builder, Part, Secrets};
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    http::Request,
    receiver::{self, Receiver},
    system::System,
    tls::Authority,
};

use crate::backup_upgrade::{back_up, lose, restore};

const SERVERS: [Part; 3] = [System::FABRIC, System::STATS, System::PRIMARY];
const EDGE_KEY: &str = "edge.key";
const TOKEN: &str = "token-of-deploy";
/// Nothing listens on the discard port, so events wait for their receivers.
const NOBODY: &str = "http://127.0.0.1:9/";
const MACHINE: &str = "
state_machines:
  orders:
    states:
      - gate: queued
        exit_condition: metadata.paid
        triggers: [{metadata: paid}]
        next: shipped
      - gate: shipped
";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("stored_data")
}

/// Snapshots may be years old, and nothing in them may expire by that.
fn patient(builder: Builder) -> Builder {
    let mut bus = receiver::allowed();
    bus.insert("max_age_seconds".to_owned(), 315_360_000.into());
    bus.insert("log_seconds".to_owned(), 315_360_000.into());
    builder.pacemaker("bus", bus)
}

async fn accepted(system: &System, method: &str, target: &str, body: Value) -> Value {
    let answer = system.api(method, target, Some(body)).await;
    assert!((200..300).contains(&answer.status), "{method} {target}: {} {}", answer.status, answer.text());
    serde_json::from_str(&answer.text()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes the snapshots that the other test reads"]
async fn write_stored_data() {
    let system = System::with("write-stored-data", patient).await;
    let instance = json!({"address": "127.0.0.1:9", "hostnames": ["app.test"], "version_type_id": "7"});
    accepted(&system, "PUT", "/instances/i-1?wait=20s", instance).await;
    accepted(&system, "PUT", "/hosts/app.test?wait=20s", json!({"body_bytes": 4096})).await;
    let issued = Authority::new("ca").issue_for_years("app.test", "app.test", 2020, 2120);
    let certificate = json!({"chain": issued.chain, "key": issued.key});
    accepted(&system, "PUT", "/certificates/app.test?wait=20s", certificate).await;
    let token = accepted(&system, "POST", "/tokens", json!({"name": "deploy", "scopes": ["read"]})).await;
    fs::create_dir_all(folder()).unwrap();
    fs::write(folder().join(TOKEN), token["token"].as_str().unwrap()).unwrap();

    let subscription = json!({"topics": ["orders"], "callback": NOBODY, "uuid": "u", "timeout": 0});
    accepted(&system, "POST", "/subscription", subscription).await;
    accepted(&system, "PATCH", "/subscription", json!({"paused": true})).await;
    accepted(&system, "PUT", "/queues/mail", json!({"pattern": ".*:update:orders"})).await;
    accepted(&system, "PUT", "/backends/works", json!({"prefix": "work:", "callback": NOBODY, "uuid": "u"}))
        .await;
    for number in 1..=3 {
        let event =
            json!({"type": "update", "url": format!("https://shop.example/{number}"), "data": number});
        accepted(&system, "POST", "/topics/orders", event).await;
        let event = json!({"topic": "works", "type": "update", "data": number});
        accepted(&system, "POST", "/objects/work:1/events", json!({"data": number, "events": [event]})).await;
    }
    system.apply("orders", MACHINE).await;
    for label in ["waits", "done"] {
        let target = format!("/state-machines/orders/labels/{label}");
        accepted(&system, "POST", &target, json!({"metadata": {"paid": false, "plan": "gold"}})).await;
    }
    let target = "/state-machines/orders/labels/done";
    accepted(&system, "PATCH", target, json!({"metadata": {"paid": true}})).await;
    until_state(&system, "done", "shipped").await;
    system.until_status("app.test", 502).await;
    eventually("a request to be counted", || async {
        let counted = counted(&system).await;
        if counted > 0 { Ok(()) } else { Err(counted) }
    })
    .await;
    let copies = tempfile::tempdir().unwrap();
    for part in SERVERS {
        let copy = back_up(&system, &part, copies.path()).await;
        fs::copy(copy, folder().join(format!("{part}.rdb"))).unwrap();
    }
    fs::copy(system.stack.layout().edge_key(), folder().join(EDGE_KEY)).unwrap();
    system.allow("127.0.0.1:9");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_the_previous_version_stored_is_read() {
    let system = System::with("stored-data", patient).await;
    for part in [System::PACEMAKER, System::SIDECAR, System::NGINX] {
        system.kill(part).await;
    }
    // This router is new: it has seen no other table.
    let _absent = fs::remove_file(system.stack.layout().snapshot(0));
    lose(&system, &System::REPLICA).await;
    // Written into the existing file, which only its owner can read: a copy would have the mode of the checkout.
    fs::write(system.stack.layout().edge_key(), fs::read(folder().join(EDGE_KEY)).unwrap()).unwrap();
    // The sidecar's keys are derived from it.
    Secrets::create(system.stack.layout().root()).unwrap();
    for part in SERVERS {
        lose(&system, &part).await;
        restore(&system, &part, &folder().join(format!("{part}.rdb"))).await;
    }
    // The queue keeps its messages for four days. That is in the snapshot, not in the configuration: in its definition, and in
    // the settings that scripts read.
    let registry: String = system.cli(System::FABRIC, "HGET bus:registry snapshot").await;
    let patient = registry.replace("\"retention_seconds\":345600", "\"retention_seconds\":31536000");
    assert_ne!(patient, registry);
    let _old: i64 = system.cli(System::FABRIC, &format!("HSET bus:registry snapshot {patient}")).await;
    let _old: i64 = system.cli(System::FABRIC, "HSET queue:mail|settings retention_ms 31536000000").await;
    for part in [System::REPLICA, System::NGINX, System::SIDECAR, System::PACEMAKER] {
        system.start_part(part).await;
    }
    system.allow("127.0.0.1:9");
    eventually("the instance to be known", || async {
        let answer = system.api("GET", "/instances/i-1", None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;

    // Routed to an application that is away.
    system.until_status("app.test", 502).await;
    let large = Request::new("POST", "app.test", "/").body("x".repeat(5000)).send(system.edge).await.unwrap();
    assert_eq!(large.status, 413, "the policy of the host");
    let certificate = system.api("GET", "/certificates/app.test", None).await;
    assert_eq!(certificate.status, 200, "{}", certificate.text());
    let token = fs::read_to_string(folder().join(TOKEN)).unwrap();
    let listed = Request::get(&system.admin.to_string(), "/instances").token(&token);
    assert_eq!(listed.send(system.admin).await.unwrap().status, 200, "the token");
    assert!(counted(&system).await > 0, "statistics");

    let receiver = Receiver::start().await;
    let resumed = json!({"paused": false, "callback": receiver.url()});
    accepted(&system, "PATCH", "/subscription", resumed).await;
    receiver.until_events(3).await;
    let numbers: BTreeSet<_> = receiver.events().iter().filter_map(|event| event["data"].as_u64()).collect();
    assert_eq!(numbers, BTreeSet::from([1, 2, 3]), "the events of the subscription");
    let pulled = accepted(&system, "POST", "/queues/mail/pull", json!({"max": 10})).await;
    assert_eq!(pulled["messages"].as_array().map(Vec::len), Some(3), "{pulled}");
    let backend = Receiver::start().await;
    let works = json!({"prefix": "work:", "callback": backend.url(), "uuid": "u"});
    accepted(&system, "PUT", "/backends/works", works).await;
    eventually("the object's events", || async { equal(backend.deliveries().len(), 3) }).await;

    until_state(&system, "done", "shipped").await;
    until_state(&system, "waits", "queued").await;
    let target = "/state-machines/orders/labels/waits";
    accepted(&system, "PATCH", target, json!({"metadata": {"paid": true}})).await;
    until_state(&system, "waits", "shipped").await;
    assert_eq!(system.api("GET", target, None).await.json()["metadata"]["plan"], "gold");
    eventually("all data to be consistent", || async {
        let found = system.api("GET", "/check", None).await;
        if found.status == 200 && found.json()["findings"] == json!([]) { Ok(()) } else { Err(found) }
    })
    .await;
    system.stop().await;
}

async fn until_state(system: &System, label: &str, state: &str) {
    let target = format!("/state-machines/orders/labels/{label}");
    eventually(&format!("{label} to be in {state}"), || async {
        let found = system.api("GET", &target, None).await;
        if found.status == 200 && found.json()["state"] == state { Ok(()) } else { Err(found) }
    })
    .await;
}

async fn counted(system: &System) -> u64 {
    let stats = system.api("GET", "/stats/version_type/7", None).await.json();
    stats["requests"].as_u64().unwrap_or_default()
}
