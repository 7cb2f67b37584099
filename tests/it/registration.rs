//! Instances over the API: repeated calls, leases, ownership of addresses, and waiting for routers.

use std::net::SocketAddr;

use serde_json::{Value, json};
use signalbox_stack::Ports;
use signalbox_testkit::{
    eventually,
    wire::{Fault, Wire},
};
use signalbox_tests::{http::Response, system::System, upstream::App};

fn instance(app: &App, hostnames: &[&str]) -> Value {
    json!({"address": app.address.to_string(), "hostnames": hostnames, "version_type_id": "17"})
}

async fn put(system: &System, id: &str, body: Value) -> Response {
    let answer = system.api("PUT", &format!("/instances/{id}?wait=20s"), Some(body)).await;
    assert!(matches!(answer.status, 200 | 201), "PUT of {id}: {} {}", answer.status, answer.text());
    answer
}

async fn serial(system: &System) -> i64 {
    system.cli(System::PRIMARY, "GET serial").await
}

async fn members(system: &System, host: &str) -> Vec<String> {
    let mut members: Vec<String> = system.cli(System::PRIMARY, &format!("SMEMBERS instances:{host}")).await;
    members.sort();
    members
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_registration_changes_nothing_and_raises_no_event() {
    let system = System::start("repeat").await;
    let app = App::start("app").await;
    let body = instance(&app, &["app.test"]);
    let first = put(&system, "i-1", body.clone()).await;
    assert_eq!(first.status, 201);
    let at_first = serial(&system).await;
    assert_eq!(first.json()["serial"], at_first, "{}", first.text());
    for _ in 0..3 {
        let again = put(&system, "i-1", body.clone()).await;
        assert_eq!(again.status, 200);
        assert_eq!(again.json()["serial"], at_first, "{}", again.text());
    }
    assert_eq!(serial(&system).await, at_first, "a repeat does not change the table");
    let changed = put(&system, "i-1", instance(&app, &["app.test", "also.test"])).await;
    assert_eq!(changed.status, 200);
    assert_eq!(serial(&system).await, at_first + 1, "one change is one serial");
    let deleted = system.api("DELETE", "/instances/i-1?wait=20s", None).await;
    assert!(matches!(deleted.status, 200 | 204), "{}", deleted.text());
    assert_eq!(serial(&system).await, at_first + 2);
    // A repeated DELETE, for example after a lost answer, succeeds.
    let again = system.api("DELETE", "/instances/i-1", None).await;
    assert!(matches!(again.status, 200 | 204 | 404), "{}", again.text());
    assert_eq!(serial(&system).await, at_first + 2);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_moves_between_names_and_addresses_in_one_step() {
    let system = System::start("moves").await;
    let [old, new] = [App::start("old").await, App::start("new").await];
    put(&system, "i-1", instance(&old, &["a.test", "b.test"])).await;
    put(&system, "i-1", instance(&new, &["b.test", "c.test"])).await;
    assert_eq!(members(&system, "a.test").await, Vec::<String>::new());
    for host in ["b.test", "c.test"] {
        assert_eq!(members(&system, host).await, [new.address.to_string()], "{host}");
        assert_eq!(system.get(host, "/").await.text(), "new");
    }
    assert_eq!(system.get("a.test", "/").await.status, 503, "a name without an instance");
    let shown = system.api("GET", "/instances/i-1", None).await.json();
    assert_eq!(shown["address"], new.address.to_string(), "{shown}");
    assert_eq!(shown["hostnames"], json!(["b.test", "c.test"]), "{shown}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn host_names_are_stored_as_clients_request_them() {
    let system = System::start("names").await;
    let app = App::start("app").await;
    put(&system, "i-1", instance(&app, &["Shop.EXAMPLE.", "*.Wild.example"])).await;
    assert_eq!(system.get("shop.example", "/").await.text(), "app");
    assert_eq!(system.get("x.wild.example", "/").await.text(), "app");
    let keys: Vec<String> = system.cli(System::PRIMARY, "KEYS instances:*").await;
    assert!(keys.iter().all(|key| *key == key.to_lowercase() && !key.ends_with('.')), "{keys:?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_belongs_to_the_instance_that_registered_it_last() {
    let system = System::start("takeover").await;
    let app = App::start("app").await;
    put(&system, "old", instance(&app, &["same.test", "old.test"])).await;
    put(&system, "new", instance(&app, &["same.test", "new.test"])).await;
    assert_eq!(members(&system, "same.test").await, [app.address.to_string()]);
    assert_eq!(system.get("new.test", "/").await.text(), "app");
    assert_ne!(system.get("old.test", "/").await.status, 200, "its address is another's now");
    // Actions of the old owner have no effect on the address.
    system.api("DELETE", "/instances/old?wait=20s", None).await;
    assert_eq!(members(&system, "same.test").await, [app.address.to_string()]);
    assert_eq!(system.get("same.test", "/").await.text(), "app");
    system.api("DELETE", "/instances/new?wait=20s", None).await;
    assert_eq!(members(&system, "same.test").await, Vec::<String>::new());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_instances_in_one_call_get_a_result_each() {
    let system = System::start("array").await;
    let [one, two] = [App::start("one").await, App::start("two").await];
    let entry = |id: &str, mut body: Value| {
        body["id"] = id.into();
        body
    };
    let mut bad = entry("bad", instance(&one, &["bad.test"]));
    bad["address"] = "not-an-address".into();
    let batch = json!([
        entry("one", instance(&one, &["one.test"])),
        bad,
        entry("two", instance(&two, &["two.test"]))
    ]);
    let answer = system.api("PUT", "/instances?wait=20s", Some(batch)).await;
    assert!(matches!(answer.status, 200 | 207), "{} {}", answer.status, answer.text());
    let text = answer.json();
    let results = text.as_array().or_else(|| text["results"].as_array()).or_else(|| text["items"].as_array());
    assert_eq!(results.map(Vec::len), Some(3), "{text}");
    system.until_answered_by("one.test", &one).await;
    system.until_answered_by("two.test", &two).await;
    assert_eq!(system.get("bad.test", "/").await.status, 404);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_not_renewed_expires() {
    let system = System::start("lease").await;
    let [leased, permanent] = [App::start("leased").await, App::start("permanent").await];
    let mut body = instance(&leased, &["leased.test"]);
    body["lease_seconds"] = 2.into();
    put(&system, "leased", body.clone()).await;
    put(&system, "permanent", instance(&permanent, &["permanent.test"])).await;
    assert_eq!(system.get("leased.test", "/").await.text(), "leased");
    // Renewed, it outlives its first term: the end recorded in Redis moves on.
    let end: f64 = system.cli(System::PRIMARY, "ZSCORE leases leased").await;
    eventually("a heartbeat to move the end of the lease", || async {
        let answer = system.api("POST", "/instances/leased/heartbeat", None).await;
        assert!(matches!(answer.status, 200 | 204), "{} {}", answer.status, answer.text());
        let now: f64 = system.cli(System::PRIMARY, "ZSCORE leases leased").await;
        if now > end + 500.0 { Ok(()) } else { Err((end, now)) }
    })
    .await;
    // A heartbeat does not change the table.
    let before = serial(&system).await;
    system.api("POST", "/instances/leased/heartbeat", None).await;
    assert_eq!(serial(&system).await, before);

    system.until_status("leased.test", 503).await;
    let late = system.api("POST", "/instances/leased/heartbeat", None).await;
    assert_eq!(late.status, 404, "an expired instance has to register again: {}", late.text());
    assert_eq!(system.api("GET", "/instances/leased", None).await.status, 404);
    assert_eq!(system.get("permanent.test", "/").await.text(), "permanent", "no lease, no end");
    put(&system, "leased", body).await;
    assert_eq!(system.get("leased.test", "/").await.text(), "leased");
    let unknown = system.api("POST", "/instances/nobody/heartbeat", None).await;
    assert_eq!(unknown.status, 404);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_shown_explained_dumped_and_removed() {
    let system = System::start("hosts").await;
    let [one, two] = [App::start("one").await, App::start("two").await];
    put(&system, "i-1", instance(&one, &["app.test", "*.app.test"])).await;
    put(&system, "i-2", instance(&two, &["app.test"])).await;
    let hosts = system.api("GET", "/hosts", None).await;
    assert!(hosts.status == 200 && hosts.text().contains("*.app.test"), "{}", hosts.text());
    let host = system.api("GET", "/hosts/app.test", None).await;
    assert_eq!(host.status, 200, "{}", host.text());
    for app in [&one, &two] {
        assert!(host.text().contains(&app.address.to_string()), "{}", host.text());
    }
    assert_eq!(system.api("GET", "/hosts/nobody.test", None).await.status, 404);
    let explained = system.api("GET", "/routes/explain?host=x.app.test", None).await;
    assert_eq!(explained.status, 200, "{}", explained.text());
    assert!(explained.text().contains("*.app.test"), "the key that matched: {}", explained.text());
    assert!(explained.text().contains(&one.address.to_string()), "{}", explained.text());
    let dump = system.api("GET", "/routes/dump", None).await;
    assert_eq!(dump.status, 200, "{}", dump.text());
    for part in ["app.test", "i-1", "i-2", "\"17\""] {
        assert!(dump.text().contains(part), "no {part} in {}", dump.text());
    }
    let convergence = system.api("GET", "/routes/convergence", None).await;
    assert_eq!(convergence.status, 200, "{}", convergence.text());

    let removed = system.api("DELETE", "/hosts/app.test?wait=20s", None).await;
    assert!(matches!(removed.status, 200 | 204), "{} {}", removed.status, removed.text());
    assert_eq!(members(&system, "app.test").await, Vec::<String>::new());
    // The wildcard is another name and stays, and answers for nothing at its own apex.
    assert_eq!(system.get("app.test", "/").await.status, 404);
    assert_eq!(system.get("x.app.test", "/").await.text(), "one");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn membership_sets_group_the_statistics() {
    let system = System::start("membership").await;
    let app = App::start("app").await;
    let mut body = instance(&app, &["app.test"]);
    for (field, id) in [("version_id", "3"), ("application_id", "2"), ("workspace_id", "1"), ("node_id", "5")]
    {
        body[field] = id.into();
    }
    put(&system, "i-1", body).await;
    for key in ["workspace:1", "application:2", "version:3", "node:5"] {
        eventually(&format!("17 in {key}"), || async {
            let members: Vec<String> = system.try_cli(System::STATS, &format!("SMEMBERS {key}")).await?;
            if members == ["17"] { Ok(()) } else { Err(format!("{members:?}")) }
        })
        .await;
    }
    system.get("app.test", "/").await;
    eventually("the request to be counted in the workspace", || async {
        let answer = system.api("GET", "/stats/workspace/1", None).await;
        if answer.status == 200 && answer.text().contains("\"requests\":1") {
            Ok(())
        } else {
            Err(answer.text())
        }
    })
    .await;
    system.stop().await;
}

/// Checks that a `?wait=` that timed out lists the routers that are behind, and that the change is
/// applied.
async fn expect_lag(system: &System, app: &App, id: &str, named: &[&str]) {
    let host = format!("{id}.test");
    let body = instance(app, &[&host]);
    let late = system.api("PUT", &format!("/instances/{id}?wait=1s"), Some(body)).await;
    assert_eq!(late.status, 504, "{}", late.text());
    let problem = late.json();
    assert_eq!(late.header("Content-Type"), Some("application/problem+json"));
    assert!(problem["code"].is_string(), "{problem}");
    for name in named {
        assert!(problem.to_string().contains(name), "{name} lags and is not named: {problem}");
    }
    assert_eq!(members(system, &host).await, [app.address.to_string()], "late is not undone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_times_out_names_the_routers_that_lag() {
    let system = System::start("lag").await;
    let app = App::start("app").await;
    put(&system, "first", instance(&app, &["first.test"])).await;
    let node = system.node();
    let worker = system.workers()[1];
    system.signal_pid(worker, nix::sys::signal::Signal::SIGSTOP);
    expect_lag(&system, &app, "worker-stopped", &[&node]).await;
    // The router's own report names the worker.
    let convergence = system.api("GET", "/routes/convergence", None).await.text();
    assert!(convergence.contains(&node), "{convergence}");
    system.signal_pid(worker, nix::sys::signal::Signal::SIGCONT);
    put(&system, "after-worker", instance(&app, &["after-worker.test"])).await;

    system.pause(System::SIDECAR);
    expect_lag(&system, &app, "sidecar-stopped", &[&node]).await;
    system.resume(System::SIDECAR);
    put(&system, "after-sidecar", instance(&app, &["after-sidecar.test"])).await;

    system.pause(System::REPLICA);
    expect_lag(&system, &app, "replica-stopped", &[&node]).await;
    system.resume(System::REPLICA);
    put(&system, "after-replica", instance(&app, &["after-replica.test"])).await;
    assert_eq!(system.get("after-replica.test", "/").await.text(), "app");
    system.stop().await;
}

/// A lost reply leaves the outcome unknown. When the request is repeated, the change is applied
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_reply_was_lost_is_made_once() {
    let ports = Ports::free().unwrap();
    let wires = [Wire::to(local(ports.routes)).await, Wire::to(local(ports.fabric)).await];
    let urls = ["routes", "fabric"].into_iter().zip(&wires);
    let redis: toml::Table = urls
        .map(|(name, wire)| (name.to_owned(), format!("redis://pacemaker@{}/", wire.address).into()))
        .collect();
    let system = System::with("lost-replies", |builder| builder.ports(ports).pacemaker("redis", redis)).await;
    let app = App::start("app").await;
    let mut expected = 0;
    for (n, wire) in wires.iter().enumerate() {
        let id = format!("i-{n}");
        let body = json!({"address": format!("127.0.0.{}:{}", n + 1, app.address.port()),
            "hostnames": [format!("h{n}.test")], "version_type_id": "17"});
        let before = system.try_cli::<Option<i64>>(System::PRIMARY, "GET serial").await.unwrap().unwrap_or(0);
        wire.set(Fault::LoseReplies);
        let unknown = system.api("PUT", &format!("/instances/{id}"), Some(body.clone())).await;
        assert!(matches!(unknown.status, 503 | 504), "{} {}", unknown.status, unknown.text());
        wire.set(Fault::Cut);
        wire.set(Fault::None);
        let again = eventually("the repeat to be taken", || async {
            let answer = system.api("PUT", &format!("/instances/{id}?wait=20s"), Some(body.clone())).await;
            if matches!(answer.status, 200 | 201) { Ok(answer) } else { Err(answer.text()) }
        })
        .await;
        expected = before + 1;
        assert_eq!(again.json()["serial"], expected, "{}", again.text());
        let third = system.api("PUT", &format!("/instances/{id}"), Some(body)).await;
        assert_eq!((third.status, &third.json()["serial"]), (200, &expected.into()));
    }
    assert_eq!(serial(&system).await, expected);
    assert_eq!(system.get("h0.test", "/").await.text(), "app");
    system.stop().await;
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
