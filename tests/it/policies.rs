//! Policies of hosts through the API, with every daemon running: what is set reaches every worker, version types are
//! told apart, drains and switches lose nothing, health is checked, and the table survives what happens to it.

use serde_json::{Value, json};
use signalbox_tests::{
    http::Request,
    load::{Account, Load},
    poll,
    system::System,
    upstream::{App, Mode},
};

async fn call(system: &System, method: &str, target: &str, body: Value) -> Value {
    let answer = system.api(method, target, Some(body)).await;
    assert!(matches!(answer.status, 200 | 201), "{method} {target}: {} {}", answer.status, answer.text());
    answer.json()
}

fn expect_no_failure(account: &Account, least: u64) {
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    assert!(account.answered() >= least, "only {} requests, that shows nothing", account.answered());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_was_set_is_with_every_worker_when_the_answer_comes() {
    let system = System::start("policies-set").await;
    let app = App::start("one").await;
    // Before the first instance, and while requests are answered.
    let early = call(&system, "PUT", "/hosts/shop.test?wait=20s", json!({"hold_ms": 1})).await;
    assert_eq!(early["changed"], true);
    system.register("one", &app, "shop.test", "17").await;
    let load = Load::start(system.edge, 4, |_| Request::get("shop.test", "/"));
    for round in 0..10 {
        // None of this changes anything for clients of a host that is well.
        let policy =
            json!({"hold_ms": 100 + round, "retries": {"attempts": 2}, "timeouts": {"read_ms": 30000}});
        let set = call(&system, "PUT", "/hosts/shop.test?wait=20s", policy.clone()).await;
        assert_eq!(set["changed"], true, "{set}");
        let acknowledged = system.edge_api("/edge/ack").await.json();
        assert!(acknowledged["serial"].as_u64() >= set["serial"].as_u64(), "{acknowledged} {set}");
        assert_eq!(call(&system, "PUT", "/hosts/shop.test?wait=20s", policy).await["changed"], false);
        load.pass(10).await;
    }
    expect_no_failure(&load.stop().await, 100);
    let removed = system.api("DELETE", "/hosts/shop.test/policy?wait=20s", None).await;
    assert_eq!(removed.status, 204, "{}", removed.text());
    assert_eq!(system.get("shop.test", "/").await.text(), "one");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_of_versions_loses_no_request_and_counts_each_version() {
    let system = System::start("policies-switch").await;
    let (old, new) = (App::start("old").await, App::start("new").await);
    system.register("old", &old, "shop.test", "17").await;
    let load = Load::start(system.edge, 6, |_| Request::get("shop.test", "/"));
    load.pass(50).await;
    let refused =
        system.api("POST", "/hosts/shop.test/current", Some(json!({"version_type_id": "18"}))).await;
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("no_instance_of_version")));
    system.register("new", &new, "shop.test", "18").await;
    load.pass(50).await;
    let body = json!({"version_type_id": "18", "deadline_seconds": 600});
    let switched = call(&system, "POST", "/hosts/shop.test/current?wait=20s", body.clone()).await;
    assert_eq!(switched["drained"], json!(["old"]));
    // What was under way may end; after that nothing comes any more.
    poll::until("the last request of the old version to be answered", || async {
        let before = old.hits();
        load.pass(30).await;
        if old.hits() == before { Ok(()) } else { Err(before) }
    })
    .await;
    let at_switch = old.hits();
    load.pass(50).await;
    assert_eq!(old.hits(), at_switch);
    assert_eq!(call(&system, "POST", "/hosts/shop.test/current?wait=20s", body).await["changed"], false);
    // Back again: the old one is still there.
    let back =
        call(&system, "POST", "/hosts/shop.test/current?wait=20s", json!({"version_type_id": "17"})).await;
    assert_eq!((&back["resumed"], &back["drained"]), (&json!(["old"]), &json!(["new"])));
    system.until_answered_by("shop.test", &old).await;
    let account = load.stop().await;
    expect_no_failure(&account, 200);
    let lines = system.log_lines_when((old.hits() + new.hits()) as usize).await;
    for (key, app) in [("17", &old), ("18", &new)] {
        let counted = lines.iter().filter(|line| line["key"] == key).count() as u64;
        assert_eq!(counted, app.hits(), "requests counted under {key}, and requests that {} had", app.name());
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_gets_nothing_new_and_comes_back() {
    let system = System::start("policies-node").await;
    let (here, there) = (App::start("here").await, App::start("there").await);
    for (id, app, node) in [("here", &here, "n1"), ("there", &there, "n2")] {
        let body = json!({
            "address": app.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "17", "node_id": node,
        });
        call(&system, "PUT", &format!("/instances/{id}?wait=20s"), body).await;
    }
    call(&system, "POST", "/nodes/n1/drain?wait=20s", json!({"deadline_seconds": 600})).await;
    let before = here.hits();
    for _ in 0..20 {
        assert_eq!(system.get("shop.test", "/").await.text(), "there");
    }
    assert_eq!(here.hits(), before);
    let resumed = system.api("DELETE", "/nodes/n1/drain?wait=20s", None).await;
    assert_eq!(resumed.json()["instances"], json!(["here"]));
    system.until_answered_by("shop.test", &here).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_prober_finds_a_sick_instance_and_tells_everybody() {
    let system = System::start("policies-health").await;
    let (well, sick) = (App::start("well").await, App::start("sick").await);
    for (id, app) in [("well", &well), ("sick", &sick)] {
        let health = json!({"path": "/", "interval_seconds": 1, "unhealthy_after": 1, "healthy_after": 1});
        let body = json!({
            "address": app.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "17", "health": health,
        });
        call(&system, "PUT", &format!("/instances/{id}?wait=20s"), body).await;
    }
    let until = async |healthy: bool| {
        poll::until("the health to change", || async {
            let view = system.api("GET", "/instances/sick", None).await.json();
            if view["healthy"] == healthy { Ok(()) } else { Err(view) }
        })
        .await;
    };
    sick.set(Mode::Status(500));
    until(false).await;
    let host = system.api("GET", "/hosts/shop.test", None).await.json();
    assert_eq!(host["policy"]["unhealthy"], json!([sick.address.to_string()]));
    // A pacemaker that dies takes nothing of that along, and another goes on.
    system.kill(System::PACEMAKER).await;
    system.start_part(System::PACEMAKER).await;
    let host = system.api("GET", "/hosts/shop.test", None).await.json();
    assert_eq!(host["policy"]["unhealthy"], json!([sick.address.to_string()]));
    sick.set(Mode::ByPath);
    until(true).await;
    let host = system.api("GET", "/hosts/shop.test", None).await.json();
    assert_eq!(host.get("policy"), None, "{host}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_routes_master_that_came_back_empty_gets_its_policies_again() {
    let system = System::start("policies-reseed").await;
    let app = App::start("one").await;
    system.register("one", &app, "shop.test", "17").await;
    let policy = json!({"hold_ms": 1234, "shares": [{"version_type": "17", "percent": 100}]});
    call(&system, "PUT", "/hosts/shop.test?wait=20s", policy.clone()).await;
    let before = system.api("GET", "/hosts/shop.test", None).await.json();
    system.restart_empty(System::MASTER).await;
    poll::until("the table to be seeded again", || async {
        let host = system.api("GET", "/hosts/shop.test", None).await;
        let host = if host.status == 200 { host.json() } else { Value::Null };
        if host["policy"] == before["policy"] && host["rules"] == policy { Ok(()) } else { Err(host) }
    })
    .await;
    // A replica that copies the new table answers nothing for a moment; who was cached stays served.
    system.until_answered_by("shop.test", &app).await;
    system.stop().await;
}
