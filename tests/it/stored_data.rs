//! Data that an earlier version stored is read by the current programs. `tests/fixtures/<version>/` is a part of the data folder
//! of a system of that version: the append-only files of its Redis servers and its key file. A release adds a folder:
//!
//!   cargo test -p signalbox-tests --test it -- --ignored stored_data::write_the_data_of_this_version
//!
//! A version that cannot read the data of the one before says so in the changelog, and then the older folder is removed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use signalbox_stack::{Builder, Part};
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    http::{Request, Response},
    receiver::{self, Receiver},
    system::System,
    tls::Authority,
    upstream::App,
};

/// The servers whose data survives. The replica copies the routes master.
const STORED: [Part; 3] = [System::MASTER, System::STATS, System::FABRIC];
const REQUESTS: u64 = 5;
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

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn options(builder: Builder) -> Builder {
    builder.pacemaker("bus", receiver::allowed())
}

async fn call(system: &System, method: &str, target: &str, body: Value) -> Response {
    let answer = system.api(method, target, Some(body)).await;
    assert!(answer.status < 300, "{method} {target}: {} {}", answer.status, answer.text());
    answer
}

async fn publish(system: &System, number: u64) -> u64 {
    let event = json!({"type": "create", "url": "https://shop.example/1", "environment": "acme", "data": {"number": number}});
    let answer = call(system, "POST", "/topics/orders", event).await;
    answer.header("x-signalbox-event-id").unwrap().parse().unwrap()
}

async fn counted(system: &System) -> Result<(), u64> {
    let stats = system.api("GET", "/stats/version_type/7", None).await.json();
    equal(stats["requests"].as_u64().unwrap_or_default(), REQUESTS)
}

/// Uses every subsystem. Returns what a client remembers.
async fn fill(system: &System) -> Value {
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "7").await;
    call(system, "PUT", "/hosts/app.test/policy", json!({"methods": ["GET"]})).await;
    let issued = Authority::new("fixture authority").issue("app.test", "app.test");
    call(system, "PUT", "/certificates/app.test?wait=20s", json!({"chain": issued.chain, "key": issued.key}))
        .await;
    for _ in 0..REQUESTS {
        assert_eq!(system.get("app.test", "/").await.status, 200);
    }
    let token = system.token("deploy", &["routes", "read"]).await;
    system.apply("orders", MACHINE).await;
    call(system, "POST", "/state-machines/orders/labels/88625", json!({"metadata": {"paid": false}})).await;
    call(system, "POST", "/queues", json!({"name": "mail", "pattern": ".*:create:orders"})).await;
    // No process listens there, so the event stays in its batch.
    let subscription =
        json!({"topics": ["orders"], "callback": "http://127.0.0.1:9/", "uuid": "u", "timeout": 0});
    call(system, "POST", "/subscription", subscription).await;
    let event = publish(system, 1).await;
    eventually("every request to be counted", async || counted(system).await).await;
    json!({"token": token, "event": event})
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it writes a fixture"]
async fn write_the_data_of_this_version() {
    let system = System::with("fixture", options).await;
    let known = fill(&system).await;
    let folder = fixtures().join(env!("CARGO_PKG_VERSION"));
    let _none = fs::remove_dir_all(&folder);
    for part in STORED {
        let _started: String = system.cli(part.clone(), "BGREWRITEAOF").await;
        eventually("the file to be rewritten", || async {
            let info: String = system.try_cli(part.clone(), "INFO persistence").await?;
            let done = info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0");
            if done { Ok(()) } else { Err(info) }
        })
        .await;
        let from = system.stack.layout().redis(&part).join("appendonlydir");
        let to = folder.join("redis").join(part.as_str()).join("appendonlydir");
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    fs::copy(system.stack.layout().edge_key(), folder.join("edge.key")).unwrap();
    fs::write(folder.join("known.json"), format!("{known:#}\n")).unwrap();
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_earlier_versions_is_read() {
    let mut versions: Vec<PathBuf> =
        fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    versions.sort();
    assert!(!versions.is_empty());
    for version in versions {
        println!("{}", version.display());
        reads(&version).await;
    }
}

async fn reads(folder: &Path) {
    let known: Value = serde_json::from_str(&fs::read_to_string(folder.join("known.json")).unwrap()).unwrap();
    let system = System::with("stored-data", |builder| options(builder).seed(folder)).await;

    let stored = system.api("GET", "/instances/i-1", None).await.json();
    assert_eq!((&stored["version_type_id"], &stored["hostnames"]), (&json!("7"), &json!(["app.test"])));
    eventually("the counters of the earlier version", async || counted(&system).await).await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "7").await;
    assert_eq!(system.get("app.test", "/").await.text(), "app");
    let refused = Request::new("POST", "app.test", "/").send(system.edge).await.unwrap();
    assert_eq!(refused.status, 405, "the policy: {}", refused.text());
    let certificate = system.api("GET", "/certificates/app.test", None).await;
    assert_eq!(certificate.status, 200, "{}", certificate.text());
    assert!(
        !system.log_text(&System::NGINX).contains("cannot be used"),
        "the edge decrypts the certificate's key"
    );
    let deploy =
        Request::get(&system.admin.to_string(), "/instances").token(known["token"].as_str().unwrap());
    assert_eq!(deploy.send(system.admin).await.unwrap().status, 200, "a token of the earlier version");

    let label = "/state-machines/orders/labels/88625";
    assert_eq!(system.api("GET", label, None).await.json()["state"], "queued");
    call(&system, "PATCH", label, json!({"metadata": {"paid": true}})).await;
    eventually("the label to continue", async || {
        let label = system.api("GET", label, None).await.json();
        if label["state"] == "shipped" { Ok(()) } else { Err(label) }
    })
    .await;

    let pulled = call(&system, "POST", "/queues/mail/pull", json!({"max": 10})).await.json();
    assert_eq!(pulled["messages"][0]["id"], known["event"], "{pulled}");
    let receiver = Receiver::start().await;
    let subscription = json!({"topics": ["orders"], "callback": receiver.url(), "uuid": "u", "timeout": 0});
    call(&system, "POST", "/subscription", subscription).await;
    let next = publish(&system, 2).await;
    let events = receiver.until_events(2).await;
    let ids: Vec<&Value> = events.iter().map(|event| &event["id"]).collect();
    assert_eq!(ids, [&known["event"], &json!(next)], "the batch of the earlier version first");
    assert_eq!(events[1]["prev"], known["event"]);

    let found = system.api("GET", "/check", None).await.json();
    assert_eq!((&found["consistent"], &found["findings"]), (&json!(true), &json!([])), "{found}");
    system.stop().await;
}
